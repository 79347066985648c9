"""How long a body is waited for: in all, and not anew with each piece of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from actonce.serving import BodyDeadline


async def nothing(message: Message) -> None:
    """What an answer is sent by."""


async def read(receive: Receive, within_s: float) -> list[Message]:
    """Everything that an application behind the deadline reads, until the caller leaves."""
    found: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while not found or found[-1]["type"] != "http.disconnect":
            found.append(await receive())

    await BodyDeadline(app, within_s)({"type": "http"}, receive, nothing)
    return found


async def test_who_sends_a_piece_now_and_then_is_refused_all_the_same() -> None:
    pieces = 0

    async def trickle() -> Message:
        nonlocal pieces
        pieces += 1
        await asyncio.sleep(0)  # each piece is there at once; only their sum takes long
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(HTTPException) as caught:
        await read(trickle, 0.05)
    assert caught.value.status_code == 408 and pieces > 1


async def test_whoever_has_sent_all_may_wait_for_the_answer_as_long_as_it_takes() -> None:
    """The stream of a page that stays open looks whether its reader is still there, for hours."""
    left = asyncio.Event()
    messages: list[Any] = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()  # type: ignore[no-any-return]
        asyncio.get_running_loop().call_later(0.1, left.set)  # ten times the deadline
        await left.wait()
        return {"type": "http.disconnect"}

    assert [message["type"] for message in await read(receive, 0.01)] == ["http.request", "http.disconnect"]
