"""`python -m actonce.entry`: serve until SIGTERM or SIGINT. Prints one JSON line when it listens.

Brings the ledger up to date first, unless ACTONCE_LEDGER_ID names the one that must be there already.
Exit status: 0 asked to stop, 1 it could not start (the message says what to do).
"""

from __future__ import annotations

import asyncio
import sys

import psycopg
from pydantic import ValidationError
from temporalio.envconfig import ClientConfig

from actonce.contracts.errors import ActonceError
from actonce.entry.app import create_app
from actonce.entry.settings import EntrySettings
from actonce.leaving import run_and_leave
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from actonce.logs import configure
from actonce.serving import Server, listen


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
    sock = listen(*settings.address, program="entry")
    namespace = str(ClientConfig.load_client_connect_config().get("namespace") or "default")
    server = Server(
        create_app(settings, namespace=namespace),
        sock,
        program="entry",
        certificate=settings.entry_tls_cert,
        key=settings.entry_tls_key,
    )
    sys.exit(asyncio.run(server.serve_until_asked()))


if __name__ == "__main__":
    run_and_leave(main)
