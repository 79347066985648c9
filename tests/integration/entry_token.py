"""The token of tests that are about something else: one value, known to every ledger that `let_in` was called for."""

from __future__ import annotations

import psycopg

from actonce.contracts.people import Scope
from actonce.ledger.store import digest_of

TOKEN = f"actonce_{'test' * 10}ing"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


def let_in(dsn: str) -> None:
    """Make TOKEN good for everything but speaking for people, on a migrated ledger."""
    scopes = sorted(set(Scope) - {Scope.ACT_FOR})
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO actonce.token (digest, label, scopes, created_by) VALUES (%s, 'tests', %s, 'tests')"
            " ON CONFLICT DO NOTHING",
            (digest_of(TOKEN), scopes),
        )
