"""A TCP proxy in front of PostgreSQL that can stop, cut, and tell a COMMIT from other traffic."""

from __future__ import annotations

import asyncio
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from tests.integration.cases.gates import past_the_commit

CommitFault = Literal["cut_before", "cut_after", "hold_answer"]


class PgProxy:
    """`dsn` leads through it. Faults are used up by the COMMIT they strike; `struck` tells that one did."""

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        assert parts.hostname is not None and parts.port is not None
        self._parts = parts
        self._target = (parts.hostname, parts.port)
        self._fault: CommitFault | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.dsn = dsn
        self.struck = asyncio.Event()  # the faulted COMMIT reached us
        self.release = asyncio.Event()  # of a held answer
        self.open = asyncio.Event()  # cleared: bytes from the client wait here
        self.open.set()
        self.waiting = asyncio.Event()  # bytes of the client wait for `open`

    async def __aenter__(self) -> PgProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        login, _, _ = self._parts.netloc.rpartition("@")
        netloc = f"{login}@127.0.0.1:{port}" if login else f"127.0.0.1:{port}"
        self.dsn = urlunsplit(self._parts._replace(netloc=netloc))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def at_next_commit(self, fault: CommitFault) -> None:
        self._fault = fault
        self.struck.clear()
        self.release.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
            link = _Link(self, reader, writer, server_reader, server_writer)
            await link.run()
        except (OSError, asyncio.CancelledError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    def take_fault(self) -> CommitFault | None:
        fault, self._fault = self._fault, None
        return fault


class _Link:
    def __init__(
        self,
        proxy: PgProxy,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        self.proxy = proxy
        self.client = client_reader, client_writer
        self.server = server_reader, server_writer
        self.fault: CommitFault | None = None

    async def run(self) -> None:
        ways = [asyncio.ensure_future(self._up()), asyncio.ensure_future(self._down())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for _, writer in (self.client, self.server):
                writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _up(self) -> None:
        while data := await self.client[0].read(65536):
            if not self.proxy.open.is_set():
                self.proxy.waiting.set()
                await self.proxy.open.wait()
            if b"COMMIT" in data and (fault := self.proxy.take_fault()) is not None:
                self.fault = fault
                if fault == "cut_before":
                    self.proxy.struck.set()
                    return
            self.server[1].write(data)
            await self.server[1].drain()

    async def _down(self) -> None:
        while data := await self.server[0].read(65536):
            if self.fault is not None:  # the answer to the faulted COMMIT: the server has done it
                fault, self.fault = self.fault, None
                self.proxy.struck.set()
                if fault == "cut_after":
                    return
                await self.proxy.release.wait()
                await past_the_commit()
            self.client[1].write(data)
            await self.client[1].drain()
