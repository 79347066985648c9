"""Databases for tests, on a server that is there."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import sql


@asynccontextmanager
async def empty_database(admin: str) -> AsyncIterator[str]:
    """DSN of a new, empty database beside the one that `admin` names; it is gone afterwards, whoever is connected."""
    name = f"test_{secrets.token_hex(6)}"
    async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as connection:
        await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield admin.rsplit("/", 1)[0] + "/" + name
    async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as connection:
        await connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
