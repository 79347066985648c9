"""Events and chains for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from actonce.contracts.audit import Event, Sealed, genesis, seal

GENESIS = genesis("11111111-1111-1111-1111-111111111111")


def event(number: int, **body: Any) -> Event:
    at = datetime(2026, 1, 2, 3, 4, 5, number, tzinfo=UTC)
    return Event(number, at, "operation.permit", "default", "default/single/t", "op1_x", {"version": number, **body})


def chain(count: int, *, first_hash: str = GENESIS, **body: Any) -> list[Sealed]:
    """`count` sealed events from 1 on."""
    found: list[Sealed] = []
    previous = first_hash
    for number in range(1, count + 1):
        found.append(seal(event(number * 3, **body), number, previous))
        previous = found[-1].hash
    return found
