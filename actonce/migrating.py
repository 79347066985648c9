"""Applies a package's numbered SQL migrations (yoyo) under a lock of PostgreSQL's own. Idempotent.

Whoever dies in the middle leaves nothing to repair: every statement may run again, and the lock dies with its process.
"""

from __future__ import annotations

from importlib import resources
from urllib.parse import urlsplit, urlunsplit

import psycopg
from yoyo import get_backend, read_migrations

__all__ = ["apply"]


def apply(dsn: str, package: str) -> None:
    """Bring the database at `dsn` (a postgresql:// URL) up to date with `package`'s folder `migrations`."""
    parts = urlsplit(dsn)
    with psycopg.connect(dsn, autocommit=True) as lock:
        # PostgreSQL's own lock: it dies with its process. yoyo's is a row, and a killed process would leave it behind.
        # One name for all packages: yoyo keeps their marks in the same tables.
        lock.execute("SELECT pg_advisory_lock(hashtext('actonce.ledger.migrate'))")
        backend = get_backend(urlunsplit(parts._replace(scheme="postgresql+psycopg")))
        with resources.as_file(resources.files(package) / "migrations") as path:
            migrations = read_migrations(str(path))
            backend.apply_migrations(backend.to_apply(migrations))
        backend.connection.commit()  # yoyo leaves its last marks in an open transaction on psycopg 3
        backend.connection.close()
