"""What a sink is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actonce.contracts.audit import End, Sealed


class SinkError(Exception):
    """The sink did not take the events, or its end cannot be told. It gets them again."""


class SinkDamaged(SinkError):
    """The sink holds something that nobody of ours wrote there. A person looks; nothing is shipped over it."""


class Sink(Protocol):
    """Blocks as long as it likes: the shipper gives it a thread of its own and a deadline."""

    @property
    def name(self) -> str:
        """Names it in the ledger and on pages; the same after a restart, without credentials."""
        ...

    def end(self) -> End | None:
        """The last event it holds; End(0, "") when it is empty, None when it cannot tell. Raises SinkError."""
        ...

    def write(self, events: Sequence[Sealed]) -> None:
        """Take events in order. Returns after they are as durable as this sink makes anything. Raises SinkError."""
        ...

    def close(self) -> None:
        """Let go of what it holds open."""
        ...
