"""A ledger with real work in it: tasks, operations in several states, holds, decisions, pages."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest_asyncio

from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger


@pytest_asyncio.fixture
async def ledger(fresh_dsn: str) -> AsyncIterator[Ledger]:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as opened:
        yield opened


@pytest_asyncio.fixture
async def superuser(fresh_dsn: str) -> AsyncIterator[psycopg.AsyncConnection]:
    """Somebody who can do anything to the ledger, past every program and trigger."""
    async with await psycopg.AsyncConnection.connect(fresh_dsn, autocommit=True) as connection:
        await connection.execute("SET session_replication_role = replica")
        yield connection
