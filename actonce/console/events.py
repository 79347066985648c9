"""`/events`: a server-sent event whenever the ledger recorded something. It says that, and nothing of what.

One look at the ledger each second for all readers together, and none while nobody reads. A page that is open asks for
itself again then; without a script it is as it was when it was asked for, and says when that was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import StreamingResponse

from actonce.console.state import console_of
from actonce.contracts.errors import LedgerError
from actonce.ledger import browse
from actonce.ledger.store import Ledger

EVERY_S = 1.0
ALIVE_S = 15.0  # a comment this often: proxies cut lines that are silent for longer
GONE = "unavailable"

router = APIRouter()


class Pulse:
    """The latest word of `browse.pulse`, looked up for as long as somebody follows it."""

    def __init__(self, ledger: Ledger, stopping: asyncio.Event) -> None:
        self._ledger = ledger
        self._stopping = stopping
        self._word = ""
        self._news = asyncio.Condition()
        self._followers = 0
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """While this is open, `after` gets news."""
        self._followers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(), name="pulse")
        try:
            yield
        finally:
            self._followers -= 1

    async def after(self, word: str) -> str | None:
        """Wait for another word than this one. None: the process was asked to end."""
        async with self._news:
            await self._news.wait_for(lambda: self._stopping.is_set() or self._word not in ("", word))
        return None if self._stopping.is_set() else self._word

    async def _look(self) -> None:
        while self._followers and not self._stopping.is_set():
            try:
                self._word = await browse.pulse(self._ledger)
            except LedgerError:
                self._word = GONE
            async with self._news:
                self._news.notify_all()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), EVERY_S)
        async with self._news:
            self._news.notify_all()


@router.get("/events")
async def events(request: Request, after: str = "") -> StreamingResponse:
    """`event: change` with an opaque word. `after`: the word of the page, so that nothing since then is missed."""
    pulse = console_of(request).pulse
    last = request.headers.get("last-event-id") or after

    async def stream() -> AsyncIterator[str]:
        word = last
        yield "retry: 2000\n\n"
        async with pulse.followed():
            while True:
                try:
                    news = await asyncio.wait_for(pulse.after(word), ALIVE_S)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if news is None:
                    return
                word = news
                yield f"id: {word}\nevent: change\ndata: {word}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
