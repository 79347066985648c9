"""A recording sink for pages: what really went out over a channel, and when.

Promises: every request that reaches it is kept with its time and its path, before it is answered. `fail` makes it
answer 503 so that a channel can be down. It stands for the pager at night: what is not in here, nobody was told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

_OPERATION_ID = re.compile(r"op1_[a-z2-7]{32}")
_TASK = re.compile(r"\b[tT]ask ((?:[\w.-]+/){2}[\w.:-]*\w)")
_REASON = re.compile(r"is held(?: at [\w.-]+)?: ([a-z_]+)")


@dataclass(frozen=True)
class Paged:
    """One delivery: the path it came on (a channel), its title and its text."""

    mono_ns: int
    at: str
    path: str
    title: str
    text: str
    body: dict[str, Any]

    def about(self) -> dict[str, Any]:
        """What it is about, read from its text as a person would: incident, reason, operation_id, task_id."""
        words = f"{self.title} {self.text}"
        operation, task, reason = _OPERATION_ID.search(words), _TASK.search(words), _REASON.search(words)
        operation_id = operation.group() if operation else None
        return {
            "incident": operation_id or self.title,
            "reason": reason.group(1) if reason else "unnamed",
            "operation_id": operation_id,
            "task_id": task.group(1) if task else None,
            "channel": self.path.strip("/"),
            "title": self.title,
            "text": self.text,
        }


@dataclass
class Sink:
    """An HTTP server on a port of its own; use `async with`."""

    on_page: Callable[[Paged], None] = lambda page: None
    pages: list[Paged] = field(default_factory=list)
    fail: bool = False
    port: int = 0  # 0: the operating system chooses; then the port it chose
    host: str = "127.0.0.1"
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Sink:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    def url(self, channel: str) -> str:
        """An apprise URL that posts JSON here."""
        return f"json://127.0.0.1:{self.port}/{channel}"

    def of(self, channel: str) -> list[Paged]:
        """What arrived on one channel."""
        return [page for page in self.pages if page.path.strip("/") == channel]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next(
                (
                    int(line.split(":", 1)[1])
                    for line in head.split("\r\n")
                    if line.lower().startswith("content-length:")
                ),
                0,
            )
            raw = await reader.readexactly(length)
            status = "503 Service Unavailable" if self.fail else "200 OK"
            if not self.fail:
                self._take(head.split(" ", 2)[1], raw)
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        writer.close()

    def _take(self, path: str, raw: bytes) -> None:
        try:
            body = json.loads(raw)
        except json.JSONDecodeError:
            body = {"message": raw.decode(errors="replace")}
        at = datetime.now(UTC).isoformat(timespec="microseconds")
        title, text = str(body.get("title", "")), str(body.get("message", ""))
        page = Paged(time.monotonic_ns(), at, path, title, text, body)
        self.pages.append(page)
        self.on_page(page)
