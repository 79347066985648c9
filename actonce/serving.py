"""How our HTTP programs listen: the port is bound before anybody is told of it, and one JSON line tells.

Promises: the ready line names the address that really answers; a port that is taken is a clear error, never another
port; with `BodyDeadline` nobody who sends a body slowly, or half of one, is waited for longer than that. Does not
restart what dies, and writes no access log: addresses may name people.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

GRACE_S = 5  # requests in progress end by themselves: the ledger's deadline is shorter
BODY_WITHIN_S = 15.0  # 128 KiB at 70 kbit/s; whoever is waited for holds a connection and what was read of the body


class BodyDeadline:
    """ASGI middleware: a request's body is there within `within_s` of the first look at it, or it is refused (408).

    Nothing of half a body reaches anybody. The connection is closed: what is left of the body is no next request.
    """

    def __init__(self, app: ASGIApp, within_s: float) -> None:
        self.app = app
        self.within_s = within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        until: float | None = None  # begins with the first look, so that no answer is counted as a slow question
        whole = False

        async def in_time() -> Message:
            nonlocal until, whole
            if whole:
                return await receive()  # it has ended: this waits for the caller to leave
            until = until or loop.time() + self.within_s
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(
                    408,
                    f"The body did not arrive within {self.within_s:g} s; nothing was recorded. Send it again, whole.",
                    headers={"Connection": "close"},
                ) from error
            whole = message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        await self.app(scope, in_time, send)


def listen(host: str, port: int, *, program: str) -> socket.socket:
    """Bind; port 0 lets the operating system choose. Raises SystemExit with what to set instead."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise SystemExit(
            f"actonce.{program}: cannot listen on {host}:{port}: {error.strerror}. "
            f"Set ACTONCE_{program.upper()}_PORT to another port."
        ) from error


class Server(uvicorn.Server):
    """Tells on standard output when it listens, and where; `before_stop` is called before it waits for requests."""

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        *,
        program: str,
        certificate: Path | None = None,
        key: Path | None = None,
        behind_proxy: bool = False,
        before_stop: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE_S,
                lifespan="on",
                ssl_certfile=certificate,
                ssl_keyfile=key,
                # Else any program of this machine could say that it is at another address, and try passwords for ever.
                proxy_headers=behind_proxy,
            )
        )
        self._sock = sock
        self._program = program
        self._before_stop = before_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            host, port = self._sock.getsockname()[:2]
            scheme = "https" if self.config.is_ssl else "http"
            url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
            ready = {"event": "ready", "program": self._program, "url": url, "pid": os.getpid()}
            print(json.dumps({**ready, "mono_ns": time.monotonic_ns()}), flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._before_stop is not None:
            self._before_stop()
        await super().shutdown(sockets=sockets)

    async def serve_until_asked(self) -> int:
        """Serve until SIGTERM or SIGINT. Returns 1 if it never started; else it ends by that signal."""
        await self.serve(sockets=[self._sock])
        return 0 if self.started else 1
