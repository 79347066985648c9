"""`python -m actonce.entry`: serve until SIGTERM or SIGINT. Prints one JSON line when it listens.

Brings the ledger up to date first, unless ACTONCE_LEDGER_ID names the one that must be there already.
Exit status: 0 asked to stop, 1 it could not start (the message says what to do).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time

import psycopg
import uvicorn
from pydantic import ValidationError
from temporalio.envconfig import ClientConfig

from actonce.contracts.errors import ActonceError
from actonce.entry.app import create_app
from actonce.entry.settings import EntrySettings
from actonce.leaving import run_and_leave
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from actonce.logs import configure

GRACE_S = 5  # requests in progress end by themselves: the ledger's deadline is shorter


class _Server(uvicorn.Server):
    """Tells on standard output when it listens, and where."""

    def __init__(self, config: uvicorn.Config, ready: dict[str, object]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            print(json.dumps({**self._ready, "mono_ns": time.monotonic_ns()}), flush=True)


def _listen(settings: EntrySettings) -> socket.socket:
    host, port = settings.address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise SystemExit(
            f"actonce.entry: cannot listen on {host}:{port}: {error.strerror}. Set ACTONCE_ENTRY_PORT to another port."
        ) from error


async def _check(settings: EntrySettings) -> None:
    """Refuse an empty or foreign ledger before anything is accepted into it."""
    async with Ledger(settings.ledger_dsn.get_secret_value(), ledger_id=settings.ledger_id, pool_max=1) as ledger:
        await ledger.identity()


def main() -> None:
    configure()
    try:
        settings = EntrySettings()
    except ValidationError as error:
        raise SystemExit(f"actonce.entry: settings do not fit:\n{error}") from error
    try:
        if settings.ledger_id is None:
            migrate(settings.ledger_dsn.get_secret_value(), deployment=settings.deployment)
        asyncio.run(_check(settings))
    except (ActonceError, psycopg.Error) as error:
        raise SystemExit(
            f"actonce.entry: the ledger cannot be used: {error}. Check PostgreSQL and ACTONCE_LEDGER_DSN."
        ) from error
    sock = _listen(settings)
    host, port = sock.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    namespace = str(ClientConfig.load_client_connect_config().get("namespace") or "default")
    config = uvicorn.Config(
        create_app(settings, namespace=namespace),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        lifespan="on",
    )
    server = _Server(config, {"event": "ready", "program": "entry", "url": url, "pid": os.getpid()})
    asyncio.run(server.serve(sockets=[sock]))
    if not server.started:
        sys.exit(1)


if __name__ == "__main__":
    run_and_leave(main)
