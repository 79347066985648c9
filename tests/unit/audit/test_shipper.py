"""Every sealed event reaches the sink in order, at least once, whatever the sink does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from actonce.audit import AuditSettings, Shipper, SinkError
from actonce.contracts.audit import End, Finding, Sealed
from actonce.testing.waiting import eventually
from tests.unit.audit.builders import GENESIS, chain

QUICK = AuditSettings(deadline_s=0.2, batch_max=2, retry_max_s=0.01)


@dataclass
class Notes:
    """A journal in memory."""

    events: list[Sealed]
    at: int = 0
    errors: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    told: int = 0

    async def after(self, seq: int, limit: int) -> Sequence[Sealed]:
        return self.events[seq : seq + limit]

    async def hash_at(self, seq: int) -> str | None:
        return GENESIS if seq == 0 else self.events[seq - 1].hash if seq <= len(self.events) else None

    async def cursor(self, sink: str) -> int:
        return self.at

    async def shipped(self, sink: str, end: End) -> None:
        self.at, self.told = end.seq, self.told + 1

    async def failed(self, sink: str, error: str) -> None:
        self.errors.append(error)

    async def found(self, sink: str, finding: Finding) -> None:
        self.findings.append(finding)


@dataclass
class Shelf:
    """A sink in memory that does what it is told."""

    name: str = "shelf"
    got: list[Sealed] = field(default_factory=list)
    tells_its_end: bool = True
    how: str = "ok"
    go: threading.Event = field(default_factory=threading.Event)

    def end(self) -> End | None:
        if not self.tells_its_end:
            return None
        return End(self.got[-1].seq, self.got[-1].hash) if self.got else End(0, "")

    def close(self) -> None:
        return None

    def write(self, events: Sequence[Sealed]) -> None:
        if self.how == "full":
            raise SinkError("No space left on device")
        if self.how == "hangs":
            self.go.wait(30)
        self.got += events
        if self.how == "answer lost":
            raise SinkError("connection reset")


async def ship(shipper: Shipper, notes: Notes) -> None:
    """Turns until everything is shipped."""

    async def done() -> bool:
        await shipper.ship_once()
        return notes.at == len(notes.events)

    await eventually(done, within_s=10, what="everything is shipped")


async def test_everything_arrives_in_order_in_batches() -> None:
    notes, shelf = Notes(chain(5)), Shelf()
    shipper = Shipper(notes, shelf, QUICK)
    assert [await shipper.ship_once() for _ in range(4)] == [2, 2, 1, 0]
    assert shelf.got == notes.events and notes.findings == []


async def test_nothing_is_written_down_while_nothing_happens() -> None:
    notes = Notes(chain(1))
    shipper = Shipper(notes, Shelf(), QUICK)
    for _ in range(5):
        await shipper.ship_once()
    assert notes.told == 1


async def test_full_sink_is_told_of_and_gets_everything_when_there_is_room_again() -> None:
    notes, shelf = Notes(chain(5)), Shelf(how="full")
    shipper = Shipper(notes, shelf, QUICK)
    assert await shipper.ship_once() == 0
    assert notes.errors == ["No space left on device"] and notes.at == 0
    shelf.how = "ok"
    await ship(shipper, notes)
    assert shelf.got == notes.events


async def test_hanging_sink_is_given_up_within_its_deadline_and_not_asked_again_while_it_hangs() -> None:
    notes, shelf = Notes(chain(3)), Shelf(how="hangs")
    shipper = Shipper(notes, shelf, QUICK)
    async with asyncio.timeout(5):
        assert await shipper.ship_once() == 0
        await eventually(lambda: tried_again(shipper, notes), within_s=5, what="a second try")
    assert notes.errors[0] == "shelf gave no answer within 0.2 s"
    assert notes.errors[1] == "shelf still hangs on an earlier batch"
    shelf.how = "ok"
    shelf.go.set()  # the hanging write goes through after all
    await ship(shipper, notes)
    assert shelf.got == notes.events, "what arrived late is not sent twice where the sink can tell its end"


async def tried_again(shipper: Shipper, notes: Notes) -> bool:
    await shipper.ship_once()
    return len(notes.errors) > 1


async def test_sink_that_cannot_tell_its_end_gets_a_batch_twice_rather_than_never() -> None:
    notes, shelf = Notes(chain(3)), Shelf(tells_its_end=False, how="answer lost")
    shipper = Shipper(notes, shelf, QUICK)
    await shipper.ship_once()
    shelf.how = "ok"
    await ship(shipper, notes)
    assert [e.seq for e in shelf.got] == [1, 2, 1, 2, 3]
    assert len({e.line for e in shelf.got}) == 3, "whoever reads it takes the first of equal seq"


async def test_sink_that_lost_what_it_confirmed_is_reported_and_filled_again() -> None:
    notes, shelf = Notes(chain(4)), Shelf()
    shipper = Shipper(notes, shelf, QUICK)
    await ship(shipper, notes)
    del shelf.got[1:]
    await shipper.ship_once()
    [finding] = notes.findings
    assert (finding.code, finding.seq) == ("sink_lost", 2)
    await ship(shipper, notes)
    assert shelf.got == notes.events


@pytest.mark.parametrize("story", ["another chain", "ledger rewound"])
async def test_nothing_is_shipped_over_another_story(story: str) -> None:
    notes, shelf = Notes(chain(2)), Shelf()
    shipper = Shipper(notes, shelf, QUICK)
    await ship(shipper, notes)
    if story == "another chain":
        notes.events = chain(4, forged=True)
    else:
        notes.events = chain(1)
    assert await shipper.ship_once() == 0
    assert [f.code for f in notes.findings] == ["sink_damaged"]
    assert len(shelf.got) == 2
