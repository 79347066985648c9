"""Waiting for events with a bound and a reason; never a sleep as synchronisation."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


class NeverHappened(TimeoutError):
    """The event did not happen within its bound. In a drill: the fault is not proven, the result is invalid."""


@overload
async def eventually(
    check: Callable[[], Awaitable[T | None]], *, within_s: float, what: str, every_s: float = ...
) -> T: ...
@overload
async def eventually(check: Callable[[], T | None], *, within_s: float, what: str, every_s: float = ...) -> T: ...
async def eventually(check: Callable[[], Any], *, within_s: float, what: str, every_s: float = 0.02) -> Any:
    """Return the first true value of `check`. Raises NeverHappened naming `what` after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while True:
        found = check()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        if time.monotonic() >= deadline:
            raise NeverHappened(f"{what}: not so within {within_s:g} s")
        await asyncio.sleep(every_s)
