"""A model behind HTTP that fails for as long as it is told to."""

from __future__ import annotations

import asyncio


class Model:
    """Answers its first `fails` requests with 500, and counts."""

    def __init__(self) -> None:
        self.fails = 0
        self.requests = 0
        self.url = ""

    async def __aenter__(self) -> Model:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        status = 500 if self.requests <= self.fails else 200
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".encode())
        await writer.drain()
        writer.close()
