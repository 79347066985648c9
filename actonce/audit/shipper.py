"""Brings sealed events to one sink, in order, at least once, and tells what it finds on the way.

A turn asks the sink for its end before it writes. An end behind the cursor means that the sink lost what it had
confirmed: it gets it again, and a person hears of it. An end with another hash than the ledger's means that one of the
two was changed: nothing is shipped over it before a person has looked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import structlog

from actonce.audit.settings import AuditSettings
from actonce.audit.sink import Sink, SinkDamaged, SinkError
from actonce.contracts.audit import End, Finding, Sealed

log = structlog.get_logger("actonce.audit")
T = TypeVar("T")

__all__ = ["Journal", "Shipper", "Sink", "SinkDamaged", "SinkError"]


class Journal(Protocol):
    """Where sealed events come from and where it is kept how far they went. Methods may raise: the turn ends."""

    async def after(self, seq: int, limit: int) -> Sequence[Sealed]: ...

    async def hash_at(self, seq: int) -> str | None:
        """None when the chain does not reach that far."""
        ...

    async def cursor(self, sink: str) -> int: ...

    async def shipped(self, sink: str, end: End) -> None: ...

    async def failed(self, sink: str, error: str) -> None: ...

    async def found(self, sink: str, finding: Finding) -> None:
        """The sink and the ledger do not agree: a person is told."""
        ...


class Shipper:
    """One per sink and watching process. `ship_once` is one turn; call it again and again."""

    def __init__(self, journal: Journal, sink: Sink, settings: AuditSettings | None = None) -> None:
        self.journal = journal
        self.sink = sink
        self.settings = settings or AuditSettings()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
        self._running: Future[Any] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._told: int | None = None  # the end that the journal knows of; None: it may still show a failure

    async def ship_once(self) -> int:
        """Ship one batch. Returns how many events the sink confirmed. A sink that fails is left alone for a while."""
        if time.monotonic() < self._not_before:
            return 0
        name = self.sink.name
        try:
            start = await self._agree(await self.journal.cursor(name))
            batch = await self.journal.after(start.seq, self.settings.batch_max)
            if batch:
                await self._in_thread(lambda: self.sink.write(batch))
        except SinkError as error:
            pause_s = min(2.0**self._failures, self.settings.retry_max_s)
            self._failures = min(self._failures + 1, 30)
            self._not_before = time.monotonic() + pause_s
            log.warning("audit_not_shipped", sink=name, why=str(error), again_in_s=pause_s)
            if isinstance(error, SinkDamaged):
                await self.journal.found(name, Finding("sink_damaged", str(error)))
            self._told = None
            await self.journal.failed(name, str(error))
            return 0
        self._failures, self._not_before = 0, 0.0
        end = End(batch[-1].seq, batch[-1].hash) if batch else start
        if end.seq != self._told:  # nothing is written while nothing happens
            await self.journal.shipped(name, end)
            self._told = end.seq
        return len(batch)

    async def _agree(self, cursor: int) -> End:
        """From where to go on. Raises SinkDamaged when sink and ledger tell different stories."""
        known = await self.journal.hash_at(cursor)
        if known is None:
            raise SinkDamaged(f"{self.sink.name} has confirmed seq {cursor}, the ledger's chain ends before it")
        end = await self._in_thread(self.sink.end)
        if end is None or end.seq == cursor == 0:
            return End(cursor, known)
        if end.seq < cursor:
            words = f"{self.sink.name} had confirmed seq {cursor} and ends at {end.seq}: it gets the rest again"
            await self.journal.found(self.sink.name, Finding("sink_lost", words, end.seq + 1))
        expected = await self.journal.hash_at(end.seq)
        if end.seq > 0 and expected != end.hash:
            raise SinkDamaged(
                f"{self.sink.name} ends with seq {end.seq} hash {end.hash[:12]}…, the ledger has "
                f"{'no such event' if expected is None else expected[:12] + '…'}; see docs/operations/audit_gap.md"
            )
        assert expected is not None
        return End(end.seq, expected)

    async def _in_thread(self, act: Callable[[], T]) -> T:
        """Run what may block, within the deadline. While an earlier call hangs, nothing more is asked of the sink."""
        if self._running is not None and not self._running.done():
            raise SinkError(f"{self.sink.name} still hangs on an earlier batch")
        self._running = self._thread.submit(act)
        waiting = asyncio.wrap_future(self._running)
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may come after the deadline
        try:
            async with asyncio.timeout(self.settings.deadline_s):
                return await asyncio.shield(waiting)
        except TimeoutError as error:
            raise SinkError(f"{self.sink.name} gave no answer within {self.settings.deadline_s:g} s") from error
