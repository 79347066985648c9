"""Latches: exact points at which a destination reports to the drill and waits for it.

`arrived`: the request is complete, nothing has been done. `processing`: it passed every check on arrival, nothing is
committed. `committed`: the effect is committed, no byte of an answer has left. `responding`: the head of the answer
has left, its body has not. A latch that nobody releases lets go after 120 s and says so in the journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from actonce.testing.listener import Discard

HELD_S_MAX = 120.0  # longer than any drill waits for one point; a forgotten latch must not hang the world


LatchPoint = Literal["arrived", "processing", "committed", "responding"]


class AnswerFaultMode(BaseModel):
    """Spoil answers to writes."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["truncated", "close", "garbage", "reset", "silent", "gateway", "redirect"]
    status: int = 502  # of `gateway`
    when: Literal["after_commit", "before_commit"] = "after_commit"
    times: int | None = None  # None: always
    operation_id: str | None = None  # None: any


class Match(BaseModel):
    """Which request a latch waits for; empty matches every write."""

    model_config = ConfigDict(extra="forbid")
    operation_id: str | None = None
    key: str | None = None
    nth: int = 1  # the n-th request that matches


class LatchOrder(BaseModel):
    """Set by the drill."""

    model_config = ConfigDict(extra="forbid")
    destination: str = "payments"
    point: LatchPoint
    match: Match = Match()


class Release(BaseModel):
    """What a held request does next. `drop` forgets it without a trace (only before it is committed)."""

    model_config = ConfigDict(extra="forbid")
    destination: str = "payments"
    latch_id: str | None = None  # None: every latch of the account, hit or not
    action: str = "continue"  # or "drop"
    answer: AnswerFaultMode | None = None


@dataclass
class Latch:
    latch_id: str
    order: LatchOrder
    seen: int = 0
    hit: dict[str, Any] | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    release: Release | None = None

    def wants(self, point: LatchPoint, operation_id: str | None, key: str | None) -> bool:
        match = self.order.match
        if self.order.point != point or self.hit is not None or self.released.is_set():
            return False
        if match.operation_id is not None and match.operation_id != operation_id:
            return False
        if match.key is not None and match.key != key:
            return False
        self.seen += 1
        return self.seen == match.nth


class Latches:
    """All latches of one account at one destination."""

    def __init__(self, note: Callable[..., int]) -> None:
        self._note = note
        self._latches: list[Latch] = []
        self._changed = asyncio.Condition()

    def set(self, order: LatchOrder, name: str) -> Latch:
        latch = Latch(name, order)
        self._latches.append(latch)
        return latch

    async def reach(
        self, point: LatchPoint, request_id: str, operation_id: str | None, key: str | None, **facts: Any
    ) -> Release | None:
        """Pass a point; wait there if a latch wants it. Raises Discard when the drill drops the request."""
        latch = next((one for one in self._latches if one.wants(point, operation_id, key)), None)
        if latch is None:
            return None
        facts = {
            "latch_id": latch.latch_id,
            "name": point,
            "request_id": request_id,
            "operation_id": operation_id,
            "key": key,
            **facts,
        }
        order = self._note("latch", **facts)
        async with self._changed:
            latch.hit = {**facts, "order": order, "mono_ns": time.monotonic_ns()}
            self._changed.notify_all()
        try:
            async with asyncio.timeout(HELD_S_MAX):
                await latch.released.wait()
        except TimeoutError:
            self._note("latch_timed_out", **facts)
            latch.released.set()
            return None
        release = latch.release or Release()
        self._note("latch_released", action=release.action, **facts)
        if release.action == "drop" and point in ("arrived", "processing"):
            self._note("dropped", request_id=request_id, why=f"at latch {point}", operation_id=operation_id, key=key)
            raise Discard
        return release

    async def wait_hit(self, wait_s: float, latch_id: str | None) -> list[dict[str, Any]]:
        """Return the latches that hold a request now; wait up to `wait_s` for the first."""

        def held() -> list[dict[str, Any]]:
            return [
                one.hit
                for one in self._latches
                if one.hit is not None and not one.released.is_set() and latch_id in (None, one.latch_id)
            ]

        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: bool(held()))
        except TimeoutError:
            return held()
        return held()

    def release(self, release: Release) -> list[str]:
        """Let go; a latch that was not hit yet is taken away."""
        gone = [one for one in self._latches if release.latch_id in (None, one.latch_id) and not one.released.is_set()]
        for latch in gone:
            latch.release = release
            latch.released.set()
        return [one.latch_id for one in gone]
