"""The one-request sender against raw sockets: what left, what the fence saw, and what may be claimed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from actonce.contracts.contract import Contract
from actonce.contracts.errors import (
    NotAccepted,
    NotSent,
    Refused,
    RouteUnavailable,
    SendFenced,
    StoredErrorReplayed,
    Unknown,
)
from actonce.destinations import http
from actonce.destinations.base import Call
from actonce.destinations.http import BODY_BYTES_MAX, Answer, accept, http_client, http_read, http_send
from actonce.destinations.sandbox import PAYMENTS, SandboxSettings, sandbox_contract
from tests.unit.world.helpers import Window, eventually, make_call

CONTRACT: Contract = sandbox_contract(PAYMENTS, "key_on_arrival", SandboxSettings(listeners={}, account="acct"))
APPLIED = b"HTTP/1.1 201 Created\r\nContent-Length: 11\r\n\r\n"


@dataclass
class Raw:
    """A server that records every byte and answers fixed ones; `answer=None` never answers."""

    answer: bytes | None
    close: bool = True
    received: list[bytes] = field(default_factory=list)
    closed: int = 0
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.received)
        self.received.append(b"")
        try:
            while data := await reader.read(65536):
                self.received[number] += data
                if self.answer is not None and b"\r\n\r\n" in self.received[number]:
                    writer.write(self.answer)
                    await writer.drain()
                    if self.close:
                        break
        except ConnectionError:
            self.closed += 1
            return
        finally:
            writer.close()
        self.closed += 1


@asynccontextmanager
async def raw(answer: bytes | None, close: bool = True) -> AsyncIterator[Raw]:
    server = Raw(answer, close)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/x"
    async with listening:
        yield server
        await eventually(lambda: server.closed == len(server.received))


async def send(url: str, call: Call, client: httpx.AsyncClient | None = None) -> Answer:
    async with client or http_client() as used:
        return await http_send(used, call, CONTRACT, "POST", url, json={"a": 1}, headers={"X-A": "b"})


async def test_a_refused_fence_lets_no_byte_out() -> None:
    async with raw(APPLIED + b'{"id": "x"}') as server:
        window = Window(SendFenced("too late"))
        with pytest.raises(SendFenced):
            await send(server.url, make_call(CONTRACT, window=window))
        await eventually(lambda: server.closed == 1)
        assert server.received == [b""]  # it was connected, and nothing was written
        assert window.events == ["refused"]


async def test_the_window_opens_after_connecting_and_closes_before_the_answer() -> None:
    async with raw(None) as server:
        window = Window()
        task = asyncio.create_task(send(server.url, make_call(CONTRACT, window=window)))
        await eventually(lambda: window.events == ["entered", "left"])
        await eventually(lambda: b'{"a":1}' in server.received[0])
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert window.events == ["entered", "left"]
        head = server.received[0].decode().lower()
        assert "idempotency-key: op1_" in head and "actonce-deadline: 20" in head


async def test_a_cancelled_sender_leaves_the_window() -> None:
    """case c4: cancelled while it writes a body that the destination does not take."""
    window = Window()

    deaf = socket.create_server(("127.0.0.1", 0))  # the kernel connects, nobody reads
    port = deaf.getsockname()[1]
    call = make_call(CONTRACT, window=window)
    async with http_client() as client:
        body = {"a": "x" * 20_000_000}  # more than the kernel buffers, so that the write has to wait
        task = asyncio.create_task(
            http_send(client, call, CONTRACT, "POST", f"http://127.0.0.1:{port}/x", json=body, headers={})
        )
        await eventually(lambda: window.events == ["entered"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert window.events == ["entered", "left"]
    deaf.close()


async def test_nobody_listening_is_not_sent() -> None:
    async with raw(None) as server:
        url = server.url
    window = Window()
    with pytest.raises(NotSent):
        await send(url, make_call(CONTRACT, window=window))
    assert window.events == []


async def test_a_full_pool_is_not_sent() -> None:
    contract = CONTRACT.model_copy(update={"timing": CONTRACT.timing.model_copy(update={"connect_timeout_s": 0.2})})
    async with raw(None) as server, http_client(connections_max=1) as client:
        first = asyncio.create_task(
            http_send(client, make_call(contract), contract, "POST", server.url, json={}, headers={})
        )
        await eventually(lambda: server.received)
        window = Window()
        with pytest.raises(NotSent, match="PoolTimeout"):
            await http_send(
                client, make_call(contract, window=window), contract, "POST", server.url, json={}, headers={}
            )
        assert window.events == [] and len(server.received) == 1
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_a_deadline_that_is_over_is_not_sent() -> None:
    async with raw(None) as server:
        window = Window()
        with pytest.raises(NotSent):
            await send(server.url, make_call(CONTRACT, window=window, deadline_s=0.0))
        assert window.events == []


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("closed", b""),
        ("bad status line", b"H"),
        ("cut head", b"HTTP/1.1 201 Created\r\nContent-Le"),
        ("cut body", b'HTTP/1.1 201 Created\r\nContent-Length: 50\r\n\r\n{"id": "x"'),
        ("too large", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (BODY_BYTES_MAX + 1)),
    ],
)
async def test_a_spoilt_answer_is_unknown_and_nothing_is_sent_again(what: str, answer: bytes) -> None:
    """case a3"""
    async with raw(answer) as server:
        with pytest.raises(Unknown, match="do not resend"):
            await send(server.url, make_call(CONTRACT))
        assert len(server.received) == 1


async def test_silence_is_unknown_at_the_senders_own_deadline() -> None:
    async with raw(None) as server:
        with pytest.raises(Unknown, match="deadline"):
            await send(server.url, make_call(CONTRACT, deadline_s=0.3))
        assert len(server.received) == 1


async def test_a_client_that_sends_twice_does_not_get_away_with_fenced() -> None:
    """The window is good for one send; refusing the second says nothing about the first, which left."""

    class Once(Window):
        def __call__(self) -> AbstractAsyncContextManager[None]:
            if self.events:
                self.refuse = SendFenced("used")
            return super().__call__()

    once = http._exchange

    async def twice(client: httpx.AsyncClient, request: httpx.Request, bytes_max: int) -> Answer:
        try:
            return await once(client, request, bytes_max)
        except httpx.RemoteProtocolError:
            return await once(client, request, bytes_max)

    async with raw(b"") as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(http, "_exchange", twice)
            with pytest.raises(Unknown, match="second time"):
                await send(server.url, make_call(CONTRACT, window=Once()))
        await eventually(lambda: server.closed == 2)
        assert [bool(data) for data in server.received] == [True, False]


async def test_a_transport_that_passes_no_fence_is_never_trusted() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(201, json={"id": "x"}))
    with pytest.raises(Unknown, match="fence"):
        await send("http://dest.invalid/x", make_call(CONTRACT), httpx.AsyncClient(transport=transport))


def answer(status: int, json: object = None, **headers: str) -> Answer:
    return Answer(status, {k.replace("_", "-"): v for k, v in headers.items()}, json)


ERROR = {"error": {"code": "nope"}}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (answer(201, ["no object"]), Unknown),
        (answer(402, ERROR), Refused),
        (answer(402, None), Unknown),  # a page of something on the way
        (answer(429, ERROR, retry_after="7"), NotAccepted),
        (answer(500, ERROR), Unknown),
        (answer(500, ERROR, idempotent_replayed="true"), StoredErrorReplayed),
        (answer(402, ERROR, idempotent_replayed="true"), Refused),
        (answer(307, ERROR), Unknown),
        (answer(202, {"status": "accepted"}), Unknown),
        (answer(408, ERROR), Unknown),
    ],
)
def test_what_answers_mean(given: Answer, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        accept(given, CONTRACT, make_call(CONTRACT))
    assert type(raised.value) is error
    if isinstance(raised.value, NotAccepted):
        assert raised.value.retry_after_s == 7.0


async def test_a_route_that_answers_nonsense_is_unavailable() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    async with raw(page) as server, http_client() as client:
        with pytest.raises(RouteUnavailable, match="no JSON"):
            await http_read(client, server.url, headers={}, deadline_s=1.0, params=[("marker", "secret-ish")])
    async with raw(None) as server, http_client() as client:
        with pytest.raises(RouteUnavailable, match="no answer") as raised:
            await http_read(client, server.url, headers={}, deadline_s=0.2, params=[("marker", "secret-ish")])
        assert "secret-ish" not in str(raised.value)


async def test_an_answer_too_many_is_not_taken_for_the_next_requests() -> None:
    once = APPLIED + b'{"id": "x"}'
    async with raw(once + once.replace(b"x", b"y"), close=False) as server, http_client() as client:
        answers = [
            await http_send(client, make_call(CONTRACT), CONTRACT, "POST", server.url, json={}, headers={})
            for _ in range(2)
        ]
    assert [a.json for a in answers] == [{"id": "x"}] * 2
    assert len(server.received) == 2


async def test_no_credential_in_an_error() -> None:
    """A token read with its newline: h11 refuses the header, and quotes it."""
    token = {"Authorization": "Bearer s3cret\n"}
    async with raw(APPLIED) as server, http_client() as client:
        with pytest.raises(Unknown) as sent:
            await http_send(client, make_call(CONTRACT), CONTRACT, "POST", server.url, json={}, headers=token)
        for url in (server.url, f"{server.url}?token=s3cret", server.url.replace("//", "//me:s3cret@")):
            with pytest.raises(RouteUnavailable) as read:
                await http_read(client, url, headers=token, deadline_s=1)
            assert "s3cret" not in str(read.value)
    assert "s3cret" not in str(sent.value)


async def test_no_header_of_an_answer_in_an_error() -> None:
    async with raw(b"HTTP/1.1 200 OK\r\nSet-Cookie s3cret\r\n\r\n") as server:
        with pytest.raises(Unknown) as lost:
            await send(server.url, make_call(CONTRACT))
    assert "s3cret" not in str(lost.value)


@pytest.mark.parametrize("early", [APPLIED + b'{"id": "x"}', b"HTTP/1.1 408 Request Timeout\r\n\r\n", b""])
async def test_what_is_said_before_we_asked_is_no_answer(early: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    received = [b""]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(early)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(100):
                received[0] += data
        received.append(b"closed")
        writer.close()

    trace = http._Fence.trace

    async def late(self: http._Fence, event: str, info: dict[str, Any]) -> None:
        if event.endswith(".send_request_headers.started"):
            await asyncio.sleep(0.1)  # the early words have arrived
        await trace(self, event, info)

    monkeypatch.setattr(http._Fence, "trace", late)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        with pytest.raises(NotSent, match="before it was asked"):
            await send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x", make_call(CONTRACT))
    await eventually(lambda: len(received) == 2)
    assert received == [b"", b"closed"]
