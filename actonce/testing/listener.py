"""A small HTTP/1.1 server that knows exactly when a request was complete and when an answer began.

Promise: `request` is journaled when the last byte of a body has arrived and before any handler sees it; `answer_begun`
is journaled before the first byte of an answer is written; an answer can be cut, garbled, withheld or reset on order.
A caller that goes away does not stop a handler: what it started goes on, as at any real destination.
It does not promise speed or the whole of HTTP: no TLS, no upgrades, bodies up to 256 KiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from actonce.testing.journal import Journal

BODY_BYTES_MAX = 256 * 1024
READ_BYTES = 64 * 1024
BODY_MARKER = re.compile(r"<!-- actonce op=(\S+) digest=(\S+) -->\s*$")
IDLE_S = 300.0  # a connection without a complete request for this long is dropped

AnswerFault = Literal["truncated", "close", "garbage", "reset", "silent"]


@dataclass
class Request:
    """One complete request."""

    request_id: str
    destination: str
    listener: str
    connection_id: str
    method: str
    path: str
    segments: list[str]  # of the path, decoded one by one: a key may contain a slash
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    accepted_ns: int
    caller_gone: asyncio.Event = field(default_factory=asyncio.Event)
    order: int = 0

    @property
    def account(self) -> str | None:
        return self.segments[1] if len(self.segments) > 1 and self.segments[0] == "v1" else None

    def json(self) -> dict[str, Any]:
        """Return the body as an object; anything else is an empty one."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass
class Reply:
    """What to answer, and how to spoil it."""

    status: int
    body: Any  # a JSON value
    headers: dict[str, str] = field(default_factory=dict)
    fault: AnswerFault | None = None
    close: bool = False
    by_gateway: bool = False  # something on the way answers in the destination's place
    before_body: Callable[[], Awaitable[None]] | None = None  # the `responding` latch


class Discard(Exception):
    """The destination drops this request without a trace for the caller: the connection is closed."""


Handler = Callable[[Request], Awaitable[Reply]]
LimitFn = Callable[[str, str | None], float | None]
"""(destination, account) → seconds from accept within which a request must be complete, None for no limit."""


class Listener:
    """One port, one handler."""

    def __init__(
        self,
        name: str,
        handler: Handler,
        journal: Journal,
        read_limit_s: LimitFn,
        *,
        quiet: bool = False,
        subject_field: str | None = None,
    ) -> None:
        self.name = name
        self.destination = name.split(".")[0]
        self._handler = handler
        self._journal = journal
        self._read_limit_s = read_limit_s
        self.subject_field = subject_field  # of a body: the business fact by which a judge matches a send without an id
        self._quiet = quiet  # the control listener is not part of the world's story
        self._server: asyncio.Server | None = None
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        # A journal may be older than this process. Each connection left a line in it: no number comes twice.
        self._count = self._journal.lines
        self._server = await asyncio.start_server(self._accept, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        connection = _Connection(self, f"{self.name}#{self._count}", reader, writer)
        task = asyncio.get_running_loop().create_task(connection.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def note(self, kind: str, **fields: Any) -> int:
        if self._quiet:
            return 0
        return self._journal.write(kind, destination=self.destination, listener=self.name, **fields)

    def role(self, request: Request) -> str:
        """What a request is for, in the words of the evidence folder."""
        if request.path == "/challenge" or request.account is None:
            return "other"
        if request.method == "GET":
            return "read"
        purpose = self.name.partition(".")[2]
        if purpose == "write":
            return "reversal" if request.segments[-1] == "reverse" else "effect"
        return purpose if purpose in ("beacon", "probe", "cancel") else "other"

    async def handle(self, request: Request) -> Reply:
        return await self._handler(request)

    def limit_s(self, account: str | None) -> float | None:
        """Only the write path has an ingress that drops slow requests."""
        return self._read_limit_s(self.destination, account) if self.name.endswith(".write") else None


class _Connection:
    def __init__(
        self, listener: Listener, connection_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._listener = listener
        self._id = connection_id
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.SERVER)
        self._accepted_ns = time.monotonic_ns()
        self._requests = 0
        self._limited = False

    async def run(self) -> None:
        self._listener.note("connection", connection_id=self._id)
        try:
            while await self._one():
                self._h11.start_next_cycle()
        except (ConnectionError, TimeoutError, h11.RemoteProtocolError) as error:
            self._listener.note("connection_failed", connection_id=self._id, error=f"{type(error).__name__}: {error}")
        finally:
            self._writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(self._writer.wait_closed(), 1.0)

    async def _one(self) -> bool:
        """Serve one request; return whether the connection may carry another."""
        request = await self._read_request()
        if request is None:
            return False
        watch = asyncio.get_running_loop().create_task(self._watch(request))
        try:
            try:
                reply = await self._listener.handle(request)
            except Discard:
                return False
            except Exception as error:  # a defect of the world must not pass for a fault that was ordered
                traceback.print_exc()
                self._listener.note("world_error", request_id=request.request_id, error=repr(error))
                reply = Reply(500, {"error": {"code": "world_error", "detail": repr(error)}})
            return await self._answer(request, reply)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _read_request(self) -> Request | None:
        head: h11.Request | None = None
        body = bytearray()
        seen = False
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                data = await self._read(head)
                if not data:
                    if data is None or seen:
                        self._incomplete(head, "ingress_timeout" if data is None else "closed")
                    return None
                seen = True
                self._h11.receive_data(data)
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > BODY_BYTES_MAX:
                    self._incomplete(head, "too_large")
                    return None
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return self._complete(head, bytes(body))
            else:
                return None

    async def _read(self, head: h11.Request | None) -> bytes | None:
        limit_s = self._limit_s(head)
        left_s = IDLE_S if limit_s is None else limit_s - (time.monotonic_ns() - self._accepted_ns) / 1e9
        try:
            async with asyncio.timeout(max(left_s, 0.0)):
                return await self._reader.read(READ_BYTES)
        except TimeoutError:
            return None

    def _limit_s(self, head: h11.Request | None) -> float | None:
        if head is None:
            return None
        _, segments, _ = _split(head.target.decode("latin-1"))
        return self._listener.limit_s(segments[1] if len(segments) > 1 else None)

    def _incomplete(self, head: h11.Request | None, why: str) -> None:
        facts: dict[str, Any] = {"connection_id": self._id, "why": why}
        if head is not None:
            path, segments, _ = _split(head.target.decode("latin-1"))
            key = dict(head.headers).get(b"idempotency-key")
            facts |= {"method": head.method.decode(), "path": path, "key": key.decode() if key else None}
            facts["account"] = segments[1] if len(segments) > 1 else None
        facts["after_s"] = (time.monotonic_ns() - self._accepted_ns) / 1e9
        self._listener.note("request_incomplete", **facts)

    def _complete(self, head: h11.Request, body: bytes) -> Request | None:
        """Journal a request whose last byte is here; return None when the ingress drops it for being too late."""
        limit_s = self._limit_s(head)
        self._limited = limit_s is not None
        self._requests += 1
        path, segments, query = _split(head.target.decode("latin-1"))
        request = Request(
            request_id=f"{self._id}/{self._requests}",
            destination=self._listener.destination,
            listener=self._listener.name,
            connection_id=self._id,
            method=head.method.decode(),
            path=path,
            segments=segments,
            query=query,
            headers={k.decode("latin-1"): v.decode("latin-1") for k, v in head.headers},
            body=body,
            accepted_ns=self._accepted_ns,
        )
        facts = _request_facts(request, self._listener.role(request), self._listener.subject_field)
        after_s = (time.monotonic_ns() - self._accepted_ns) / 1e9
        if limit_s is not None and after_s > limit_s:
            self._listener.note("request_incomplete", **facts, why="ingress_timeout", after_s=after_s)
            return None
        request.order = self._listener.note("request", **facts)
        return request

    async def _watch(self, request: Request) -> None:
        """Notice that the caller went away while we work; keep what it pipelined."""
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(READ_BYTES):
                self._h11.receive_data(data)
        request.caller_gone.set()
        self._listener.note("caller_gone", connection_id=self._id, request_id=request.request_id)

    async def _answer(self, request: Request, reply: Reply) -> bool:
        payload = json.dumps(reply.body, separators=(",", ":")).encode()
        facts = {"request_id": request.request_id, "account": request.account}
        close = reply.close or reply.fault is not None or self._limited
        if reply.fault in ("close", "reset", "silent"):
            self._listener.note("answer_failed", **facts, why=f"withheld on order: {reply.fault}")
            if reply.fault == "silent":
                await request.caller_gone.wait()
            elif reply.fault == "reset":
                _reset_on_close(self._writer)
            return False
        kind = "answer_replaced" if reply.by_gateway else "answer_begun"
        self._listener.note(kind, **facts, status=reply.status)
        try:
            if reply.fault == "garbage":
                self._listener.note("answer_failed", **facts, why="garbled on order")
                self._writer.write(b"\x15\x03\x01 this is no answer\r\n\r\n")
                await self._writer.drain()
                return False
            await self._send_head(reply, len(payload), close)
            if reply.before_body is not None:
                await reply.before_body()
            if reply.fault == "truncated":
                self._listener.note("answer_failed", **facts, why="truncated on order")
                self._writer.write(payload[: len(payload) // 2])
                await self._writer.drain()
                return False
            # Asked before the last bytes: a caller that closes once it has them did get its answer.
            gone = request.caller_gone.is_set()
            self._writer.write(self._h11.send(h11.Data(data=payload)) or b"")
            self._writer.write(self._h11.send(h11.EndOfMessage()) or b"")
            await self._writer.drain()
        except ConnectionError as error:
            self._listener.note("answer_failed", **facts, why=type(error).__name__)
            return False
        if gone:
            self._listener.note("answer_failed", **facts, why="the caller had closed its connection")
            return False
        return not close and self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    async def _send_head(self, reply: Reply, length: int, close: bool) -> None:
        headers = {"Content-Type": "application/json", "Content-Length": str(length), **reply.headers}
        if close:
            headers["Connection"] = "close"
        event = h11.Response(status_code=reply.status, headers=list(headers.items()))
        self._writer.write(self._h11.send(event) or b"")
        await self._writer.drain()


def _split(target: str) -> tuple[str, list[str], dict[str, list[str]]]:
    parts = urlsplit(target)
    return parts.path, [unquote(s) for s in parts.path.split("/") if s], parse_qs(parts.query)


def _request_facts(request: Request, role: str, subject_field: str | None) -> dict[str, Any]:
    body = request.json() if request.body else {}
    metadata = body.get("metadata")
    marked: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
    if not marked and (found := BODY_MARKER.search(str(body.get("body", "")))):
        marked = {"operation_id": found[1], "key": found[1]}
    return {
        "account": request.account,
        "request_id": request.request_id,
        "connection_id": request.connection_id,
        "method": request.method,
        "path": request.path,
        "role": role,
        "key": request.headers.get("idempotency-key") or marked.get("key"),
        "operation_id": marked.get("operation_id"),
        "subject": body.get(subject_field) if subject_field else None,
        "bytes": len(request.body),
        "accepted_ns": request.accepted_ns,
    }


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    """Make the close send RST instead of FIN."""
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
