"""Migrations and the ledger's identity. `migrate` is idempotent and takes a lock of its own."""

from __future__ import annotations

import uuid

import psycopg

from actonce import migrating
from actonce.contracts.errors import ForeignLedger


def migrate(dsn: str, *, deployment: str = "default") -> str:
    """Bring the ledger at `dsn` (a postgresql:// URL) up to date and return its ledger_id.

    Raises ForeignLedger when the ledger belongs to another deployment.
    """
    migrating.apply(dsn, "actonce.ledger")
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO actonce.identity (ledger_id, deployment) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            (uuid.uuid4(), deployment),
        )
        row = connection.execute("SELECT ledger_id, deployment FROM actonce.identity").fetchone()
    if row is None or row[1] != deployment:
        raise ForeignLedger(
            f"the ledger belongs to deployment {row[1] if row else None!r}, this is {deployment!r}; "
            "point ACTONCE_LEDGER_DSN at the right database"
        )
    return str(row[0])
