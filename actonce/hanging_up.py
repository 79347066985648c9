"""Ends PostgreSQL connections under the driver's feet, so that whatever waits on one stops waiting now.

A driver that cancels a query or rolls back asks the server and waits for the answer, without a limit of its own. The
socket is shut, not closed: whoever waits on it is woken and finds it ended, and the connection's owner closes or
replaces it. What was asked may have happened all the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from typing import Any

import psycopg

__all__ = ["hang_up"]


def hang_up(connections: Iterable[psycopg.AsyncConnection[Any]]) -> None:
    """Shut down the sockets of all that are in there now. One that is closed already is left alone; never raises."""
    for connection in connections:
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(connection.fileno())) as line,
        ):
            line.shutdown(socket.SHUT_RDWR)
