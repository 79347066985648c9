"""Every process brings the ledger up to date when it starts; where nothing is missing it changes nothing."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from actonce.ledger.migrate import migrate


async def applied(dsn: str) -> list[str]:
    """The migrations that were ever applied, wherever that is marked."""
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        tables = await (
            await connection.execute(
                "SELECT table_schema FROM information_schema.tables WHERE table_name = '_yoyo_log'"
            )
        ).fetchall()
        found = []
        for (schema,) in tables:
            query = f'SELECT migration_id FROM "{schema}"._yoyo_log'.encode()
            found += [str(row[0]) for row in await (await connection.execute(query)).fetchall()]
        return sorted(found)


async def test_what_is_applied_is_not_applied_again(fresh_dsn: str) -> None:
    first = await asyncio.to_thread(migrate, fresh_dsn)
    once = await applied(fresh_dsn)
    assert await asyncio.to_thread(migrate, fresh_dsn) == first
    assert await applied(fresh_dsn) == once == sorted(set(once)) and once


async def test_a_role_of_the_name_of_our_schema_finds_the_marks_all_the_same(
    fresh_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: without a schema named for the marks, such a role (ours here) applies everything twice."""
    import yoyo

    from actonce import migrating

    monkeypatch.setattr(migrating, "get_backend", lambda uri: yoyo.get_backend(uri.replace("schema=public", "")))
    await asyncio.to_thread(migrate, fresh_dsn)
    once = await applied(fresh_dsn)
    await asyncio.to_thread(migrate, fresh_dsn)
    assert await applied(fresh_dsn) == sorted(once * 2)
