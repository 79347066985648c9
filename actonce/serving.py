"""How our HTTP programs listen: the port is bound before anybody is told of it, and one JSON line tells.

Promises: the ready line names the address that really answers; a port that is taken is a clear error, never another
port. Does not restart what dies, and writes no access log: addresses may name people.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

GRACE_S = 5  # requests in progress end by themselves: the ledger's deadline is shorter


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
