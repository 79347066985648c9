"""Controls of `memory-unreachable`: a memory that may say "nothing" without knowing. Run as those of `broken`."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

from actonce.testing.swapping import swap
from drills.controls.registry import control


@control
def memory_failure_as_empty() -> None:
    """A memory that cannot be asked counts as one that has nothing to say, as an `except` around a search does."""
    from actonce.contracts.memory import Empty, Unavailable

    def make(real: Any) -> Any:
        async def recall(*args: Any, **kwargs: Any) -> Any:
            said = await real(*args, **kwargs)
            return Empty(memory_id="nobody's") if isinstance(said, Unavailable) else said

        return recall

    async def whoever_said_it(connection: Any, said: Any, **_: Any) -> Any:
        return said

    swap("actonce.memory.store:Memory", "recall", make)
    swap("actonce.ledger.memory_use", "_from_ours", lambda real: whoever_said_it)  # an empty list names no memory


@control
def memory_without_canary() -> None:
    """A table and an index that are there and valid count as a memory that remembers."""
    swap("actonce.memory.proof", "check_canary", lambda real: _nothing)
    swap("actonce.memory.proof", "check_rows", lambda real: _nothing)


@control
def memory_health_by_port() -> None:
    """The prober connects, and that is that."""
    from actonce.contracts.memory import Empty

    def make(real: Any) -> Any:
        async def check(system: Any) -> Any:
            parts = urlsplit(system.memory.dsn)
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
            return Empty(memory_id="a port is open")

        return check

    swap("worker", "check_memory", make)


async def _nothing(*args: Any) -> None:
    return None
