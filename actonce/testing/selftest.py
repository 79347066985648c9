"""Every fault proves on the wire what it does, before anything is judged with it (case i1).

Promises: a raw server and a raw client, a proxy between them, one fault; what the server received and what the
client saw (bytes, close, reset, silence) is compared with what the fault is for. A fault that does not do it makes
the run invalid. Shares no code with the system under test, not even an HTTP client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from actonce.testing.faults import SLOW_MS, TRUNCATED_BYTES, Faults, Proxied, Stream, WireFault
from actonce.testing.tap import Tap

REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 40\r\n\r\n" + b"q" * 40
ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok"
STALL_S = 0.3  # the answer takes about 1 ms on this path: 300 times that is silence
EVENT_S = 5.0
FAULTS = [fault for fault in WireFault if fault is not WireFault.CUT]  # a cut has a test of its own


@dataclass(frozen=True)
class SelfTest:
    """What one fault did on the wire. `observed` is for people."""

    name: str
    ok: bool
    observed: str


@dataclass(frozen=True)
class Seen:
    """How one exchange ended: bytes the server got, bytes the client got, and the client's end."""

    server: int
    client: int
    end: str  # "answered", "closed", "reset", "silent", "refused"

    def __str__(self) -> str:
        return f"server got {self.server} of {len(REQUEST)} bytes, client got {self.client}, then: {self.end}"


class _Server:
    """Counts the bytes of each connection and answers once the request is whole."""

    def __init__(self) -> None:
        self.got = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> _Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                self.got += len(data)
                here += len(data)
                if here == len(REQUEST):
                    writer.write(ANSWER)
                    await writer.drain()
                    break  # it closes after its answer, as many do: silence must survive that
        writer.close()


class _Client:
    """Sends one request on a raw socket and says what came back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.got = 0

    @classmethod
    async def sending(cls, tap: Tap) -> _Client:
        client = cls(*await asyncio.open_connection(tap.host, tap.port))
        with contextlib.suppress(ConnectionError):  # a reset may come before the last byte is written
            client._writer.write(REQUEST)
            await client._writer.drain()
        return client

    async def observe(self, within_s: float = STALL_S) -> str:
        """How it goes on: answered, closed, reset, or silent for so long."""
        while self.got < len(ANSWER):
            try:
                data = await asyncio.wait_for(self._reader.read(4096), within_s)
            except TimeoutError:
                return "silent"
            except ConnectionError:
                return "reset"
            if not data:
                return "closed"
            self.got += len(data)
        return "answered"

    def close(self) -> None:
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def _rig(faults: Faults, name: str) -> AsyncIterator[tuple[_Server, Proxied, Tap]]:
    """Client -> tap -> proxy -> server, as in a cell."""
    async with _Server() as server:
        proxy = await faults.proxy(f"self.{name}", "127.0.0.1", server.port)
        tap = Tap(name, proxy.host, proxy.port)
        await tap.start()
        try:
            yield server, proxy, tap
        finally:
            await tap.close()


async def self_test(faults: Faults, fault: WireFault, stream: Stream) -> SelfTest:
    """Install the fault on a fresh proxy, make one exchange, and say whether it did what it is for."""
    name = f"{fault}_{stream}"
    async with _rig(faults, name) as (server, proxy, tap):
        installed = await proxy.install(fault, stream)
        client = await _Client.sending(tap)
        end = await client.observe()
        seen = [Seen(server.got, client.got, end)]
        if fault is not WireFault.SLOW:
            await proxy.remove(installed)
        if fault in (WireFault.SILENT, WireFault.HELD, WireFault.SLOW):
            end = await client.observe(SLOW_MS / 1000 + STALL_S)
            seen.append(Seen(server.got, client.got, end))
        client.close()
    expected = _expected(fault, stream)
    words = "; after removal: ".join(str(one) for one in seen)
    if seen == expected:
        return SelfTest(name, True, words)
    return SelfTest(name, False, f"{words}; expected {'; after removal: '.join(str(one) for one in expected)}")


def _expected(fault: WireFault, stream: Stream) -> list[Seen]:
    whole, arrived = len(REQUEST), len(REQUEST) if stream == "downstream" else 0
    if fault is WireFault.CLOSED:
        return [Seen(arrived, 0, "closed")]
    if fault is WireFault.TRUNCATED:
        part = TRUNCATED_BYTES
        return [Seen(whole, part, "closed") if arrived else Seen(part, 0, "closed")]
    if fault is WireFault.RESET:
        return [Seen(arrived, 0, "reset")]
    if fault is WireFault.SILENT:
        after = Seen(whole, len(ANSWER), "answered") if arrived else Seen(0, 0, "closed")
        return [Seen(arrived, 0, "silent"), after]
    return [Seen(arrived, 0, "silent"), Seen(whole, len(ANSWER), "answered")]


async def self_test_cut(faults: Faults) -> SelfTest:
    """A cut closes the open connection and every new one, nothing passes, and it heals; the tap really refuses."""
    async with _rig(faults, "cut") as (server, proxy, tap):
        gate = tap.hold(lambda exchange: True)
        client = await _Client.sending(tap)
        await asyncio.wait_for(gate.tripped.wait(), EVENT_S)
        await proxy.cut()
        gate.open()
        steps = [await client.observe()]
        client.close()
        steps.append(await _try(tap))
        passed = server.got
        await tap.refuse()
        steps.append(await _try(tap))
        await tap.listen()
        await proxy.heal()
        steps.append(await _try(tap))
        got = server.got
    ok = steps == ["closed", "closed", "refused", "answered"] and (passed, got) == (0, len(REQUEST))
    words = f"open connection {steps[0]}, new one {steps[1]} ({passed} bytes passed), tap {steps[2]}, healed {steps[3]}"
    return SelfTest("cut", ok, words if ok else f"{words}; expected closed, closed (0 bytes), refused, answered")


async def _try(tap: Tap) -> str:
    try:
        client = await _Client.sending(tap)
    except ConnectionRefusedError:
        return "refused"
    try:
        return await client.observe()
    finally:
        client.close()


async def self_tests(faults: Faults) -> list[SelfTest]:
    """All of them, one after the other; they take about four seconds."""
    found = [await self_test(faults, fault, stream) for fault in FAULTS for stream in ("upstream", "downstream")]
    return [*found, await self_test_cut(faults)]
