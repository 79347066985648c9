"""A tap: a relay on the caller's side of a proxy that sees the caller's bytes and can hold them.

Promises: bytes are relayed unchanged and in order; a reset on one side becomes a reset on the other, an orderly
close an orderly close; for every request it is on record when its first byte and its last byte were seen, how many
bytes went each way and who ended the connection. A *gate* holds one chosen request back from its first byte on,
complete and in flight, until it is opened: an exact point at which to kill, freeze or cut, without touching the
process under test. Does not promise to understand more than HTTP/1.1 with Content-Length; a connection that speaks
anything else (SMTP, PostgreSQL) counts as one request without an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from actonce.testing.faults import FaultError

_OPERATION_ID = re.compile(rb"op1_[a-z2-7]{32}")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNK = 64 * 1024
HEAD_BYTES_MAX = 64 * 1024
CLOSE_S = 5.0
WHOLE_S = 2.0  # for the rest of a request whose far side is gone; callers write head and body one after the other

Ender = Literal["caller", "far", "tap"]


@dataclass
class Exchange:
    """One request of a caller and what came back on its connection until the next one."""

    connection: int
    first_ns: int
    at: str
    via: str  # the proxy that this connection leads to
    peer_port: int  # of the caller: with it the kernel names the process that sent this
    complete_ns: int | None = None
    head: bytes = b""
    operation_id: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    ended_by: Ender | None = None
    ended_ns: int | None = None
    _body_left: int = 0
    _sniff: bytes = b""

    @property
    def request_line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")

    def feed(self, data: bytes) -> bytes:
        """Take the bytes that belong to this request; return what belongs to the next one."""
        if self.complete_ns is not None:
            return data
        taken = data
        if b"\r\n\r\n" not in self.head:
            before = len(self.head)
            joined = self.head + data
            end = joined.find(b"\r\n\r\n")
            if end < 0 or end > HEAD_BYTES_MAX:
                self.head = joined[:HEAD_BYTES_MAX]
                self._note(data)
                return b""
            self.head = joined[: end + 4]
            length = _LENGTH.search(self.head)
            self._body_left = int(length.group(1)) if length else 0
            used = end + 4 - before
            body = data[used : used + self._body_left]
            taken = data[: used + len(body)]
            self._body_left -= len(body)
        else:
            taken = data[: self._body_left]
            self._body_left -= len(taken)
        self._note(taken)
        if self._body_left == 0:
            self.complete_ns = time.monotonic_ns()
        return data[len(taken) :]

    def _note(self, data: bytes) -> None:
        self.bytes_up += len(data)
        if self.operation_id is None:
            self._sniff = (self._sniff + data)[-_CHUNK:]
            found = _OPERATION_ID.search(self._sniff)
            if found:
                self.operation_id = found.group().decode()


@dataclass
class Gate:
    """Holds the first matching request. `tripped` is set when it is complete and held."""

    matches: Callable[[Exchange], bool]
    tripped: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    exchange: Exchange | None = None

    def open(self) -> None:
        """Let the held request go on its way."""
        self.opened.set()


class Tap:
    """Listens on a port of its own and relays to one target."""

    def __init__(
        self, name: str, target_host: str, target_port: int, *, via: str | None = None, http: bool = True
    ) -> None:
        self.name = name
        self.via = via or name
        self.host = "127.0.0.1"
        self.port = 0
        self.exchanges: list[Exchange] = []
        self.gate: Gate | None = None
        self._target = (target_host, target_port)
        self._http = http
        self._reserve: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections = 0

    async def start(self) -> None:
        """Listen. The port is chosen by the system and kept reserved also while the tap refuses connections."""
        self._reserve = _bound(self.host, 0)
        self.port = int(self._reserve.getsockname()[1])
        await self.listen()

    async def listen(self) -> None:
        """Accept connections (again)."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, sock=_bound(self.host, self.port))

    async def refuse(self) -> None:
        """Refuse new connections (the kernel answers) and cut the open ones: what a caller sees of a cut."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        """Stop listening and end every connection."""
        await self.refuse()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)  # their connections are gone: they end by themselves
        if self._reserve is not None:
            self._reserve.close()
            self._reserve = None

    def retarget(self, host: str, port: int, via: str) -> None:
        """Lead new connections elsewhere; those that are open stay where they are (and may be held there)."""
        self._target, self.via = (host, port), via

    def hold(self, matches: Callable[[Exchange], bool]) -> Gate:
        """Arm a gate for the first complete request that matches. One gate at a time."""
        if self.gate is not None and not self.gate.opened.is_set():
            raise FaultError(f"tap {self.name} already has a gate; open it first")
        self.gate = Gate(matches)
        return self.gate

    def sent(self, operation_id: str) -> list[Exchange]:
        """The complete requests that carried this operation_id."""
        return [e for e in self.exchanges if e.operation_id == operation_id and e.complete_ns is not None]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._connections += 1
        via, peer_port = self.via, int(writer.get_extra_info("peername")[1])
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            _end(writer, reset=True)
            return
        self._writers |= {writer, far_writer}
        link = _Link(self, self._connections, via, peer_port)
        up = asyncio.create_task(link.pump_up(reader, far_writer))
        down = asyncio.create_task(link.pump_down(far_reader, writer))
        try:
            # When the caller is gone, what comes back is still read; when the far side is gone, nothing can go up.
            await down
        finally:
            for task_ in (up, down):
                task_.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            link.end("tap")
            self._writers -= {writer, far_writer}
            for side in (writer, far_writer):
                side.close()

    def trip(self, exchange: Exchange) -> Gate | None:
        """The gate that holds this exchange, if any."""
        gate = self.gate
        if gate is None or gate.tripped.is_set() or not gate.matches(exchange):
            return None
        gate.exchange = exchange
        gate.tripped.set()
        return gate


class _Link:
    """One relayed connection."""

    def __init__(self, tap: Tap, number: int, via: str, peer_port: int) -> None:
        self.tap = tap
        self.number = number
        self.via = via
        self.peer_port = peer_port
        self.current: Exchange | None = None
        self._whole = asyncio.Event()  # the current request was seen to its last byte
        self._far_gone = False

    def end(self, by: Ender) -> None:
        if self.current is not None and self.current.ended_by is None:
            self.current.ended_by = by
            self.current.ended_ns = time.monotonic_ns()

    async def pump_up(self, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
        held = b""
        try:
            while data := await reader.read(_CHUNK):
                held = await self._relay_up(held + data, data, far)
        except (ConnectionError, TimeoutError):
            self.end("caller")
            _end(far, reset=True)
            return
        self.end("caller")
        with contextlib.suppress(ConnectionError, OSError, RuntimeError):
            if held:
                far.write(held)
            far.write_eof()

    async def _relay_up(self, pending: bytes, data: bytes, far: asyncio.StreamWriter) -> bytes:
        """Forward what may go; return what must wait for the end of its request (only while a gate is armed)."""
        while data:
            if self.current is None or self.current.complete_ns is not None:
                at = datetime.now(UTC).isoformat(timespec="microseconds")
                self.current = Exchange(self.number, time.monotonic_ns(), at, self.via, self.peer_port)
                self.tap.exchanges.append(self.current)
                self._whole.clear()
            rest = self.current.feed(data) if self.tap._http else self._unparsed(self.current, data)
            if self.tap._http and self.current.complete_ns is None and self._armed():
                return pending
            part, pending = pending[: len(pending) - len(rest)], rest
            gate = self.tap.trip(self.current) if self.current.complete_ns is not None else None
            if self.current.complete_ns is not None:
                self._whole.set()
            if gate is not None:
                await gate.opened.wait()
            await self._forward(part, far)
            data = rest
        return pending

    async def _forward(self, part: bytes, far: asyncio.StreamWriter) -> None:
        """What cannot go up any more is still seen: `pump_down` tells the caller."""
        if self._far_gone:
            return
        try:
            far.write(part)
            await far.drain()
        except (ConnectionError, TimeoutError):
            self._far_gone = True

    def _armed(self) -> bool:
        return self.tap.gate is not None and not self.tap.gate.tripped.is_set()

    @staticmethod
    def _unparsed(exchange: Exchange, data: bytes) -> bytes:
        exchange.bytes_up += len(data)
        return b""

    async def pump_down(self, far: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await far.read(_CHUNK):
                if self.current is not None:
                    self.current.bytes_down += len(data)
                writer.write(data)
                await writer.drain()
        except (ConnectionError, TimeoutError):
            await self._rest_of_request()
            self.end("far")
            _end(writer, reset=True)
            return
        await self._rest_of_request()
        self.end("far")
        with contextlib.suppress(ConnectionError, OSError, RuntimeError):
            writer.close()

    async def _rest_of_request(self) -> None:
        """The far side ended after a part of a request: see what the caller is still writing before it is told.

        Else it would depend on how the caller cuts its writes whether a request counts as sent.
        """
        if self.tap._http and self.current is not None and self.current.complete_ns is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._whole.wait(), WHOLE_S)


def _bound(host: str, port: int) -> socket.socket:
    """A socket bound so that a second one of ours can keep the port reserved beside it."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise FaultError(f"cannot bind {host}:{port}: {error}") from error
    return sock


def _end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    sock = writer.get_extra_info("socket")
    if reset and sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
