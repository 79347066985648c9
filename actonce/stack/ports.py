"""Free TCP ports on 127.0.0.1, never a default.

A port is free when it is given, not for ever: whoever starts a server on it must notice a lost race (the server
ends early and the port is taken) and ask again. Ports come from below the range out of which the system takes the ports
of outgoing connections: a server that is down for a moment must find its port again, and any connection that is made
meanwhile could have it else.
"""

from __future__ import annotations

import random
import socket
import sys
from pathlib import Path

HOST = "127.0.0.1"
LOWEST = 20_000  # below lie most programs' default ports
TRIES_MAX = 1000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ELSEWHERE_FROM = 49_152  # macOS, by its default


def free_ports(count: int) -> list[int]:
    """Distinct free ports: all are bound before any is released, so none is given twice."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            held.append(_bound(_outgoing_from()))
        return [int(sock.getsockname()[1]) for sock in held]
    finally:
        for sock in held:
            sock.close()


def _outgoing_from() -> int:
    """The first port that an outgoing connection may get."""
    if sys.platform == "linux":
        return int(_RANGE.read_text(encoding="ascii").split()[0])
    return _ELSEWHERE_FROM


def _bound(end: int) -> socket.socket:
    """A socket on a free port below `end`; on any where nothing is left there, or hardly anything."""
    choices = random.SystemRandom().sample(range(LOWEST, end), TRIES_MAX) if end - LOWEST > TRIES_MAX else []
    for port in (*choices, 0):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.bind((HOST, port))
        except OSError:
            sock.close()
            if port == 0:
                raise
        else:
            return sock
    raise AssertionError("the last choice either binds or raises")


def is_free(port: int) -> bool:
    """True when a server could listen on the port now (connections in TIME_WAIT do not count)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """True when somebody listens on the port. Connects, so it cannot take the port from anyone."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.settimeout(1)
        return sock.connect_ex((HOST, port)) == 0


def listening(pid: int) -> set[int]:
    """The TCP ports on which this very process listens (none when it is gone)."""
    import psutil

    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return set()
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
