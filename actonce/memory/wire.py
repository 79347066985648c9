"""Connections to the memory whose deadline holds, whatever the network does.

Promises: `run` returns or raises by its deadline on the monotonic clock, also where the TCP connection is open and
nobody ever answers, on a new connection and on one kept from before. A driver's own cancellation is no use there: it
asks the server to cancel the query and waits for the answer. So the socket is shut down instead, and whatever waits on
it sees its end at once. The work may have happened when its answer is lost: callers only read, or write by a key.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from actonce.hanging_up import hang_up

Link = AsyncConnection[DictRow]
T = TypeVar("T")
Work = Callable[[Link], Awaitable[T]]


class Links:
    """The connections of one process. At most `idle_max` are kept open between uses."""

    def __init__(self, dsn: str, idle_max: int = 4) -> None:
        self._dsn = dsn
        self._idle_max = idle_max
        self._idle: list[Link] = []
        self._ending: set[asyncio.Task[Any]] = set()

    async def run(self, work: Work[T], deadline_s: float) -> T:
        """Do `work` on a connection. Raises TimeoutError at the deadline, psycopg.Error and OSError as they come.

        A connection that was kept may have died meanwhile: then the work is done once more on a new one.
        """
        ends_s = time.monotonic() + deadline_s
        while True:
            kept = self._idle.pop() if self._idle else None
            try:
                return await self._bounded(work, kept, ends_s)
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if kept is None:
                    raise
                await self.drop_idle()  # what broke one has probably broken all

    async def _bounded(self, work: Work[T], kept: Link | None, ends_s: float) -> T:
        held = [kept] if kept else []
        task = asyncio.create_task(self._do(work, held))
        try:
            await asyncio.wait({task}, timeout=max(0.0, ends_s - time.monotonic()))
        finally:  # also when the caller is cancelled
            if not task.done():
                self._abandon(task, held)
        if not task.done():
            await self.drop_idle()
            raise TimeoutError("no answer")
        return task.result()

    async def _do(self, work: Work[T], held: list[Link]) -> T:
        if not held:
            held.append(await AsyncConnection.connect(self._dsn, autocommit=True, row_factory=dict_row))
        link = held[0]
        try:
            result = await work(link)
        except BaseException:
            await link.close()
            raise
        if len(self._idle) < self._idle_max:
            self._idle.append(link)
        else:
            await link.close()
        return result

    def _abandon(self, task: asyncio.Task[Any], held: list[Link]) -> None:
        if held:
            hang_up(held)
        else:
            task.cancel()  # it still connects, and that can be cancelled
        self._ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # nobody waits for it any more

    async def drop_idle(self) -> None:
        """Close what is kept."""
        idle, self._idle = self._idle, []
        for link in idle:
            await link.close()

    async def close(self) -> None:
        """Leave no connection and no task behind."""
        await self.drop_idle()
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=1.0)
