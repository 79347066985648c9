"""Migrations (yoyo) and the ledger's identity. `migrate` is idempotent and takes a lock of its own."""

from __future__ import annotations

import uuid
from importlib import resources
from urllib.parse import urlsplit, urlunsplit

import psycopg
from yoyo import get_backend, read_migrations

from actonce.contracts.errors import ForeignLedger


def migrate(dsn: str, *, deployment: str = "default") -> str:
    """Bring the ledger at `dsn` (a postgresql:// URL) up to date and return its ledger_id.

    Raises ForeignLedger when the ledger belongs to another deployment.
    """
    parts = urlsplit(dsn)
    with psycopg.connect(dsn, autocommit=True) as lock:
        # PostgreSQL's own lock: it dies with its process. yoyo's is a row, and a killed process would leave it behind.
        lock.execute("SELECT pg_advisory_lock(hashtext('actonce.ledger.migrate'))")
        backend = get_backend(urlunsplit(parts._replace(scheme="postgresql+psycopg")))
        with resources.as_file(resources.files("actonce.ledger") / "migrations") as path:
            migrations = read_migrations(str(path))
            backend.apply_migrations(backend.to_apply(migrations))
        backend.connection.commit()  # yoyo leaves its last marks in an open transaction on psycopg 3
        backend.connection.close()
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
