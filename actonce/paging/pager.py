"""Brings every due page to every channel, and records what each channel said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import structlog

from actonce.paging.channels import OK, Channel, Message, give, open_channels, too_slow
from actonce.paging.settings import PagingSettings

log = structlog.get_logger("actonce.paging")
TELL_EVERY_S = 5.0  # well inside the age at which the entry calls a reading stale

Health = Literal["up", "degraded", "down", "unknown"]


class PageBox(Protocol):
    """Where pages wait. Each method may raise; the pager's turn then ends and the next one tries again."""

    async def due(self, channels: Sequence[str], repeat_s: float) -> list[dict[str, Any]]:
        """Pages somebody must still get. `everywhere` in a row: all channels, not only those that failed."""
        ...

    async def sent(self, page: Mapping[str, Any], channel: str, said: str) -> None:
        """Record what a channel said about a page: `ok` or its error."""
        ...

    async def tell(self, name: str, state: Health, detail: str) -> None:
        """Show the state of a channel, or of paging as a whole, on the dependency page."""
        ...


@dataclass
class _Standing:
    """How a channel fares."""

    failures: int = 0
    not_before: float = 0.0
    last: str | None = None  # `ok` or its last error


class Pager:
    """One per watching process. `deliver_once` is one turn; call it again and again."""

    def __init__(
        self, box: PageBox, settings: PagingSettings | None = None, channels: Sequence[Channel] | None = None
    ) -> None:
        self.box = box
        self.settings = settings or PagingSettings()
        self.channels = list(channels) if channels is not None else open_channels(self.settings.page_urls)
        self._told: dict[str, tuple[Health, str, float]] = {}
        self._standing = {channel.name: _Standing() for channel in self.channels}

    async def deliver_once(self) -> int:
        """Deliver what is due. Returns how many deliveries succeeded. A channel that hangs delays only itself."""
        pages = await self.box.due([c.name for c in self.channels], self.settings.page_repeat_s)
        counts = await asyncio.gather(
            *(self._deliver(channel, pages) for channel in self.channels), return_exceptions=True
        )
        await self._report(waiting=len(pages))
        for count in counts:
            if isinstance(count, BaseException):
                raise count
        return sum(count for count in counts if isinstance(count, int))

    async def _deliver(self, channel: Channel, pages: list[dict[str, Any]]) -> int:
        standing, done = self._standing[channel.name], 0
        if time.monotonic() < standing.not_before:
            for page in pages:  # a repetition that this channel misses now must not look delivered
                if page["everywhere"] and page["delivery"].get(channel.name) == OK:
                    await self.box.sent(page, channel.name, "not tried: it failed just now")
            return 0
        for page in pages:
            if not page["everywhere"] and page["delivery"].get(channel.name) == OK:
                continue
            said = await give(channel, self._message(page), self.settings.page_deadline_s)
            await self.box.sent(page, channel.name, said)
            done += said == OK
            self._note(channel, standing, said)
            if said == too_slow(self.settings.page_deadline_s):
                break  # it would take as long for the next page
        return done

    def _note(self, channel: Channel, standing: _Standing, said: str) -> None:
        standing.last = said
        if said == OK:
            standing.failures, standing.not_before = 0, 0.0
            return
        pause_s = min(self.settings.page_retry_s * 2**standing.failures, self.settings.page_retry_max_s)
        standing.failures = min(standing.failures + 1, 30)
        standing.not_before = time.monotonic() + pause_s
        log.warning("page_not_delivered", channel=channel.name, why=said, again_in_s=pause_s)

    async def _report(self, *, waiting: int) -> None:
        """Show each channel, and all together."""
        for name, standing in self._standing.items():
            await self._tell(f"page:{name}", _state(standing.last), _words(standing.last))
        states = [_state(s.last) for s in self._standing.values()]
        state = _together(states)
        if not states:
            words = "no channel is configured: set ACTONCE_PAGE_URLS; nobody is called"
        else:
            words = f"{states.count('up')} of {len(states)} channels took their last page"
        if state == "down" and waiting:
            log.error("paging_down", detail=words, waiting=waiting)
        await self._tell("paging", state, words)

    async def _tell(self, name: str, state: Health, detail: str) -> None:
        """Changes at once; otherwise often enough to stay believed."""
        before = self._told.get(name)
        now = time.monotonic()
        if before is None or before[:2] != (state, detail) or now - before[2] >= TELL_EVERY_S:
            await self.box.tell(name, state, detail)
            self._told[name] = (state, detail, now)

    def _message(self, page: Mapping[str, Any]) -> Message:
        lines = [page["body"]]
        if page.get("closed_at") is not None:
            lines.append("It has been resolved in the meantime; nothing is left to do.")
        elif page["everywhere"] and page.get("sent_at") is not None:
            lines.append("Nobody has acknowledged this yet.")
        lines.append(f"Seen it? python client.py ack {page['page_id']} --name YOU")
        if self.settings.entry_url:
            lines.append(f"Entry service: {self.settings.entry_url} (ACTONCE_ENTRY_URL)")
        facts = {name: page.get(name) for name in ("incident", "reason", "operation_id", "task_id", "severity")}
        return Message(page["page_id"], page["title"], "\n".join(lines), facts)


def _state(last: str | None) -> Health:
    if last is None:
        return "unknown"
    return "up" if last == OK else "down"


def _together(states: list[Health]) -> Health:
    """No channel, or none that works, means that nobody is called at night."""
    if not states or set(states) == {"down"}:
        return "down"
    if "down" in states:
        return "degraded"
    return "up" if "up" in states else "unknown"


def _words(last: str | None) -> str:
    if last is None:
        return "no page was sent over it since this process started"
    return "took its last page" if last == OK else last


async def run(pager: Pager, every_s: float) -> None:
    """Until cancelled. A turn that fails is logged and the next one tries again."""
    while True:
        try:
            await pager.deliver_once()
        except Exception:
            log.exception("paging_turn_failed")
        await asyncio.sleep(every_s)
