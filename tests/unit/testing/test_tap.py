"""The tap sees a request to its last byte, also when the far side ends after the first ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from actonce.testing.tap import Tap, _end

OPERATION = "op1_" + "a" * 32
BODY = b"x" * 20
HEAD = f"POST /v1 HTTP/1.1\r\nIdempotency-Key: {OPERATION}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


@contextlib.asynccontextmanager
async def tapped(*, reset: bool) -> AsyncIterator[tuple[Tap, asyncio.Event]]:
    """A tap before a far side that ends every connection at its first bytes; the event says that it did."""
    ended = asyncio.Event()

    async def far(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        _end(writer, reset=reset) if reset else writer.close()
        ended.set()

    server = await asyncio.start_server(far, "127.0.0.1", 0)
    tap = Tap("t", "127.0.0.1", server.sockets[0].getsockname()[1])
    await tap.start()
    try:
        yield tap, ended
    finally:
        await tap.close()
        server.close()


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_request_in_two_writes_counts_as_sent_also_when_the_far_side_ends_between_them(reset: bool) -> None:
    async with tapped(reset=reset) as (tap, ended):
        reader, writer = await asyncio.open_connection(tap.host, tap.port)
        writer.write(HEAD)
        await ended.wait()
        writer.write(BODY)
        if reset:
            with pytest.raises(ConnectionError):
                await reader.read()
        else:
            assert await reader.read() == b""
        [exchange] = tap.sent(OPERATION)
        assert (exchange.bytes_up, exchange.bytes_down) == (len(HEAD) + len(BODY), 0)
        assert exchange.ended_by == "far"
        writer.close()


async def test_request_whose_rest_never_comes_is_not_sent_and_its_caller_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actonce.testing.tap.WHOLE_S", 0.05)
    async with tapped(reset=False) as (tap, _):
        reader, writer = await asyncio.open_connection(tap.host, tap.port)
        writer.write(HEAD)
        assert await reader.read() == b""
        assert tap.sent(OPERATION) == [] and tap.exchanges[0].ended_by == "far"
        writer.close()
