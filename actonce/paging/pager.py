"""Brings every due page to every channel, and records what each channel said."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import quote

import structlog

from actonce.contracts.commands import CLIENT
from actonce.paging.channels import OK, Channel, Message, give, open_channels, too_slow
from actonce.paging.settings import PagingSettings

log = structlog.get_logger("actonce.paging")
TURN_S = 1.0  # how long a turn waits for its channels; a slow one goes on beside the next turn
TELL_EVERY_S = 5.0  # well inside the age at which the entry calls a reading stale

Health = Literal["up", "degraded", "down", "unknown"]


class PageBox(Protocol):
    """Where pages wait. Each method may raise; the pager's turn then ends and the next one tries again."""

    async def due(self, channels: Mapping[str, Sequence[str]], repeat_s: float) -> list[dict[str, Any]]:
        """Pages somebody must still get; `channels` by severity, for which nobody may be.

        `everywhere` in a row: all channels of its severity, not only those that failed.
        """
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


def open_settings(settings: PagingSettings) -> tuple[list[Channel], list[Channel]]:
    """The channels for pages and those for warnings; one that is in both lists is opened once."""
    warned = [url for url in settings.page_warning_urls if url not in settings.page_urls]
    opened = open_channels([*settings.page_urls, *warned])
    pages = opened[: len(settings.page_urls)]
    both = [c for url, c in zip(settings.page_urls, pages, strict=True) if url in settings.page_warning_urls]
    return pages, [*both, *opened[len(pages) :]]


class Pager:
    """One per watching process. `deliver_once` is one turn; call it again and again.

    Each channel works through what is due at its own pace: a turn starts the idle ones and waits `TURN_S` for them at
    most, so that a channel that hangs keeps no page from another one.
    """

    def __init__(
        self,
        box: PageBox,
        settings: PagingSettings | None = None,
        channels: Sequence[Channel] | None = None,
        warning_channels: Sequence[Channel] = (),
    ) -> None:
        self.box = box
        self.settings = settings or PagingSettings()
        if channels is None:
            channels, warning_channels = open_settings(self.settings)
        self.wanted: dict[str, list[Channel]] = {"page": list(channels), "warning": list(warning_channels)}
        self.channels = [*channels, *(c for c in warning_channels if c not in channels)]
        self._told: dict[str, tuple[Health, str, float]] = {}
        self._standing = {channel.name: _Standing() for channel in self.channels}
        self._busy: dict[str, asyncio.Task[int]] = {}

    async def deliver_once(self) -> int:
        """Deliver what is due. Returns how many deliveries succeeded; those that take longer count in a later turn."""
        names = {severity: [c.name for c in channels] for severity, channels in self.wanted.items()}
        pages = await self.box.due(names, self.settings.page_repeat_s)
        for channel in self.channels:
            if channel.name not in self._busy:
                mine = [page for page in pages if channel in self.wanted[page["severity"]]]
                self._busy[channel.name] = asyncio.create_task(self._deliver(channel, mine))
        if self._busy:
            await asyncio.wait(self._busy.values(), timeout=TURN_S)
        ended = [self._busy.pop(name) for name, task in list(self._busy.items()) if task.done()]
        await self._report(waiting=len(pages))
        return sum(task.result() for task in ended)  # raises what a channel's task raised: the ledger is away

    async def _deliver(self, channel: Channel, pages: list[dict[str, Any]]) -> int:
        standing, done, began = self._standing[channel.name], 0, time.monotonic()
        if began < standing.not_before:
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
            if said == too_slow(self.settings.page_deadline_s) or time.monotonic() - began > TURN_S:
                break  # it is slow; what is due by then is asked for anew
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
        # A channel for warnings calls nobody at night.
        states = [_state(self._standing[channel.name].last) for channel in self.wanted["page"]]
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
        if self.settings.console_url:
            lines.append(f"Console: {self.settings.console_url.rstrip('/')}{_where(page)}")
        lines.append(f"Seen it? {CLIENT} ack {page['page_id']} --name YOU")
        if self.settings.entry_url:
            lines.append(f"Entry service: {self.settings.entry_url} (ACTONCE_ENTRY_URL)")
        facts = {name: page.get(name) for name in ("incident", "reason", "operation_id", "task_id", "severity")}
        return Message(page["page_id"], page["title"], "\n".join(lines), facts)


def _where(page: Mapping[str, Any]) -> str:
    """The console's page about it: of the operation, else of the task, else the list of alerts and pages."""
    for kind in ("operation", "task"):
        if page.get(f"{kind}_id"):
            return f"/{kind}s/{quote(page[f'{kind}_id'], safe='')}"
    return "/alerts"


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
