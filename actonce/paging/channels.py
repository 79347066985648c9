"""One channel each: apprise for everything people use, and a file for stacks without a pager.

A channel's name never shows its credential. A channel that cannot be opened is kept, fails every time and says why:
it must be seen, and it must not stop the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import apprise
import structlog

log = structlog.get_logger("actonce.paging")
OK = "ok"

FILE_SCHEME = "actonce-file"


class ChannelError(Exception):
    """The channel did not take the page. The text holds no credential."""


@dataclass(frozen=True)
class Message:
    """What people get."""

    page_id: int
    title: str
    body: str
    facts: dict[str, Any]  # for machines at the other end: reason, operation_id, task_id, incident


class Channel(Protocol):
    """Takes a message or raises ChannelError. May be slow: the pager bounds it."""

    @property
    def name(self) -> str: ...

    async def send(self, message: Message) -> None: ...


async def give(channel: Channel, message: Message, deadline_s: float) -> str:
    """Give one message to one channel within the deadline. Returns OK or why not; never raises."""
    try:
        async with asyncio.timeout(deadline_s):
            await channel.send(message)
    except TimeoutError:
        return too_slow(deadline_s)
    except ChannelError as error:
        return str(error) or "failed"
    except Exception as error:  # a plugin of somebody else's: whatever it raises must not silence the others
        log.exception("channel_broke", channel=channel.name)
        return f"{type(error).__name__}: {error}"
    return OK


def too_slow(deadline_s: float) -> str:
    return f"no answer within {deadline_s:g} s"


class FileChannel:
    """Appends one JSON line for each page, on disk before it counts as delivered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"{FILE_SCHEME}://{path}"

    async def send(self, message: Message) -> None:
        line = {
            "mono_ns": time.monotonic_ns(),
            "at": datetime.now(UTC).isoformat(timespec="microseconds"),
            "page_id": message.page_id,
            "title": message.title,
            "message": message.body,
            **message.facts,
        }
        try:
            with self.path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
                out.flush()
                os.fsync(out.fileno())
        except OSError as error:
            raise ChannelError(f"cannot append to {self.path}: {error.strerror}") from error


class AppriseChannel:
    """One apprise URL. Apprise blocks, so each channel has a thread; while it hangs, nothing more is queued on it."""

    def __init__(self, name: str, plugin: Any) -> None:
        self.name = name
        self._plugin = plugin
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="page")
        self._running: Future[bool] | None = None

    async def send(self, message: Message) -> None:
        if self._running is not None and not self._running.done():
            raise ChannelError("still busy with an earlier page")
        words: list[str] = []
        _said.set(words)
        context = contextvars.copy_context()
        self._running = self._thread.submit(
            context.run, self._plugin.notify, body=message.body, title=message.title, notify_type="failure"
        )
        try:
            ok = await asyncio.wrap_future(self._running)
        except TypeError as error:  # what apprise raises for a message it cannot send
            raise ChannelError(str(error)) from error
        if not ok:
            raise ChannelError("; ".join(words[-2:]) or "not accepted, and apprise does not say why")


class BrokenChannel:
    """A URL that names no channel."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why

    async def send(self, message: Message) -> None:
        raise ChannelError(self._why)


_said: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("apprise_said", default=None)


class _Listen(logging.Handler):
    """Apprise tells why it failed only to its log; the context says which channel was speaking."""

    def emit(self, record: logging.LogRecord) -> None:
        words = _said.get()
        if words is not None:
            words.append(record.getMessage()[:300])


def open_channels(urls: Sequence[str]) -> list[Channel]:
    """Open one channel for each URL. Never raises: what cannot be opened is a channel that fails."""
    logger = logging.getLogger("apprise")
    if not any(isinstance(handler, _Listen) for handler in logger.handlers):
        logger.addHandler(_Listen(level=logging.WARNING))
    found: list[Channel] = []
    for number, url in enumerate(urls, 1):
        channel = _open(url, number)
        if any(channel.name == other.name for other in found):
            channel = BrokenChannel(f"{channel.name} (channel {number})", "the same channel is configured twice")
        found.append(channel)
    return found


def _open(url: str, number: int) -> Channel:
    parts = urlsplit(url)
    if parts.scheme == FILE_SCHEME:
        path = Path(unquote(parts.path))
        if parts.netloc or not path.name:
            return BrokenChannel(f"channel {number}", f"write {FILE_SCHEME}:///absolute/path")
        return FileChannel(path)
    plugin: Any = apprise.Apprise.instantiate(url, suppress_exceptions=True)
    if plugin is None:
        return BrokenChannel(f"channel {number}", f"apprise knows no channel for the scheme {parts.scheme!r}")
    return AppriseChannel(str(plugin.url(privacy=True)).split("?")[0], plugin)
