"""`/events`: a server-sent event whenever the ledger recorded something. It says that, and nothing of what.

One look at the ledger each second for all readers together, and none while nobody reads. A page that is open asks for
itself again then; without a script it is as it was when it was asked for, and says when that was.

    change   something was recorded, or grew old      enough   another page of this session took this one's place
    alive    nothing was, and the line still stands   over     nobody is signed in here any more

Promises: a session has at most STREAMS_MAX, and hears nothing once it has ended: who was disabled neither.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import StreamingResponse

from actonce.console.person import SESSION_COOKIE, cookie_name
from actonce.console.state import Console, console_of
from actonce.contracts.errors import LedgerError
from actonce.ledger import browse, sessions
from actonce.ledger.store import Ledger, digest_of

EVERY_S = 1.0
ALIVE_S = 15.0  # this often at least: proxies cut lines that are silent for longer, and the page believes no silence
STREAMS_MAX = 4  # of one session: a browser has six connections to a host, and with all of them open no page loads
GONE = "unavailable"

router = APIRouter()


class Follower:
    """One open page."""

    def __init__(self, whose: str) -> None:
        self.whose = whose
        self.enough = False


class Pulse:
    """The latest word of `browse.pulse`, looked up for as long as somebody follows it."""

    def __init__(self, ledger: Ledger, stale_after_s: float, stopping: asyncio.Event) -> None:
        self._ledger = ledger
        self._stale_after_s = stale_after_s
        self._stopping = stopping
        self._word = ""
        self._news = asyncio.Condition()
        self._followers: list[Follower] = []  # the oldest first
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def followed(self, whose: str) -> AsyncIterator[Follower]:
        """While this is open, `after` gets news. Of more than STREAMS_MAX of `whose` the oldest has had enough."""
        me = Follower(whose)
        self._followers.append(me)
        for old in [f for f in self._followers if f.whose == whose and not f.enough][:-STREAMS_MAX]:
            old.enough = True
        async with self._news:
            self._news.notify_all()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(), name="pulse")
        try:
            yield me
        finally:
            self._followers.remove(me)

    async def after(self, word: str, me: Follower) -> str | None:
        """Wait for another word than this one. None: the process was asked to end, or this page has had enough."""
        async with self._news:
            await self._news.wait_for(lambda: self._ends(me) or self._word not in ("", word))
        return None if self._ends(me) else self._word

    def _ends(self, me: Follower) -> bool:
        return self._stopping.is_set() or me.enough

    async def _look(self) -> None:
        while self._followers and not self._stopping.is_set():
            try:
                self._word = await browse.pulse(self._ledger, self._stale_after_s)
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
    console = console_of(request)
    value = request.cookies.get(cookie_name(request, SESSION_COOKIE), "")  # good just now: this is a page of theirs
    last = request.headers.get("last-event-id") or after
    told = _told(console.pulse, digest_of(value), last, lambda: _is_signed_in(console, value))
    return StreamingResponse(told, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _told(pulse: Pulse, whose: str, word: str, is_signed_in: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
    yield "retry: 2000\n\n"
    async with pulse.followed(whose) as me:
        while True:
            news: str | None = ""
            with contextlib.suppress(TimeoutError):
                news = await asyncio.wait_for(pulse.after(word, me), ALIVE_S)
            if news is None:
                if me.enough:
                    yield "event: enough\ndata:\n\n"
                return
            if not await is_signed_in():
                yield "event: over\ndata:\n\n"
                return
            if news:
                word = news
                yield f"id: {word}\nevent: change\ndata: {word}\n\n"
            else:
                yield "event: alive\ndata:\n\n"


async def _is_signed_in(console: Console, value: str) -> bool:
    """Is that session still open? While the ledger does not say, it stays as it was: no page is served then anyway."""
    try:
        return await sessions.session_of(console.ledger, value, by_person=False) is not None
    except LedgerError:
        return True
