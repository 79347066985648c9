"""A log collector that keeps what it is given: OTLP over HTTP with JSON, as far as audit events need it.

Promises: every log record is kept (`keep`), in order of arrival, before it is answered; duplicates are kept too. It
stands for whatever is behind `POST /v1/logs`; to make it hang, put a proxy in front of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Collector:
    """An HTTP server on a port of its own; use `async with`."""

    lines: list[str] = field(default_factory=list)  # bodies of log records, in order of arrival
    host: str = "127.0.0.1"
    port: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def __aenter__(self) -> Collector:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=1 << 24)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:  # the sender keeps its connection
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = head.partition("content-length:")[2].partition("\r\n")[0].strip()
                self._take(json.loads(await reader.readexactly(int(length or 0))))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
                await writer.drain()
        writer.close()
        self._open.discard(writer)

    def keep(self, texts: list[str]) -> None:
        """Bodies of log records, in order."""
        self.lines += texts

    def _take(self, request: dict[str, Any]) -> None:
        for resource in request["resourceLogs"]:
            for scope in resource["scopeLogs"]:
                self.keep([record["body"]["stringValue"] for record in scope["logRecords"]])
