"""Calls people while the ledger takes no writes. Every other page is a row first; this one cannot be.

Promises: an outage longer than `after_s` is told to every channel, once, repeated every `page_repeat_s`; a channel that
fails is tried again; when the ledger is back the outage is put on record there as a page that is closed already, and
that page goes out the usual way and says that it is over. One incident for each outage and watching process. Nobody can
acknowledge it before the ledger is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import structlog

from actonce.contracts.commands import CLIENT
from actonce.contracts.errors import LedgerUnavailable
from actonce.contracts.reasons import policy
from actonce.contracts.verdict import Reason
from actonce.paging.channels import OK, Channel, Message, give
from actonce.paging.settings import PagingSettings

log = structlog.get_logger("actonce.paging")
INCIDENT = "ledger:unavailable"
AFTER_S = 10.0  # longer than a restart or a failover of PostgreSQL that goes well
_AGAIN_S = 5.0  # a channel that did not take it

Record = Callable[[datetime, str], Awaitable[None]]
"""Put a past outage on record: since when, in words."""


class LedgerAlarm:
    """One per watching process. `away` and `back` are told what was seen, as often as it is looked at."""

    def __init__(
        self, channels: Sequence[Channel], settings: PagingSettings | None = None, after_s: float = AFTER_S
    ) -> None:
        self.channels = channels
        self.settings = settings or PagingSettings()
        self.after_s = after_s
        self._since: datetime | None = None
        self._since_s = 0.0
        self._why = ""
        self._next_s: dict[str, float] = {}  # channel -> when it is told (again)

    async def look(self, prove: Callable[[], Awaitable[object]], record: Record) -> None:
        """One turn: `prove` writes to the ledger and raises LedgerUnavailable when it takes no writes."""
        try:
            await prove()
        except LedgerUnavailable as error:
            await self.away(str(error))
        else:
            await self.back(record)

    async def away(self, why: str) -> None:
        """The ledger takes no writes."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._since_s = datetime.now(UTC), now
        self._why = why
        if now - self._since_s < self.after_s:
            return
        log.error("ledger_unavailable", since=self._since.isoformat(), why=why)
        due = [c for c in self.channels if self._next_s.get(c.name, 0.0) <= now]
        said = await asyncio.gather(*(give(c, self._message(), self.settings.page_deadline_s) for c in due))
        for channel, answer in zip(due, said, strict=True):
            ok = answer == OK
            self._next_s[channel.name] = now + (self.settings.page_repeat_s if ok else _AGAIN_S)
            if not ok:
                log.warning("page_not_delivered", channel=channel.name, why=answer)

    async def back(self, record: Record) -> None:
        """The ledger takes writes. An outage that somebody was called for goes on record; raises if that fails."""
        if self._since is not None and self._next_s:
            await record(self._since, self._why)
        self._since, self._next_s = None, {}

    def _message(self) -> Message:
        assert self._since is not None
        row = policy(Reason.LEDGER_UNAVAILABLE)
        since = self._since.isoformat(timespec="seconds")
        body = (
            f"The ledger has taken no writes since {since}: {self._why}\n"
            "Nothing is sent while this lasts: every task waits, and new ones are refused. What was sent before is "
            "reconciled when it is back; nobody has to do anything about single tasks.\n"
            f"It resumes when {row.resumes_when}. This page repeats until then and cannot be acknowledged.\n"
            f"Do: {CLIENT} dependencies\n"
            f"Owner: {row.owner}. Procedure: {row.procedure}"
        )
        facts = {"incident": INCIDENT, "reason": row.reason.value, "severity": row.severity}
        return Message(0, "the ledger takes no writes: nothing can be sent", body, {**facts, "since": since})
