"""What is copied out of a ledger that still moves belongs together: all of it is as of one moment."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from actonce.ledger.migrate import migrate
from actonce.testing import export
from actonce.testing.export import LedgerReader
from actonce.testing.waiting import eventually

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND application_name = %s"


@pytest.mark.parametrize("together", [True, False], ids=["at-once", "control-one-by-one"])
async def test_tables_that_are_copied_at_once_know_equally_much(
    fresh_dsn: str, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    migrate(fresh_dsn)
    monkeypatch.setitem(export._QUERIES, "pause", "SELECT pg_sleep(1)")
    reader, tables = LedgerReader(fresh_dsn), ("task", "pause", "audit")

    async def one_by_one() -> dict[str, list[export.Row]]:
        return {table: await reader.rows(table) for table in tables}

    async with await psycopg.AsyncConnection.connect(fresh_dsn, autocommit=True) as other:

        async def pauses() -> bool:
            row = await (await other.execute(WAITS, [export.READER])).fetchone()
            return bool(row and row[0])

        copying = asyncio.create_task(reader.at_once(*tables) if together else one_by_one())
        await eventually(pauses, within_s=20, what="the copy between two tables", every_s=0.05)
        await other.execute("INSERT INTO actonce.audit (kind, body) VALUES ('drill.moved', '{}')")
        copied = await copying
    assert copied["task"] == []
    assert [row["kind"] for row in copied["audit"]] == ([] if together else ["drill.moved"])
    assert [row["kind"] for row in await reader.rows("audit")] == ["drill.moved"]  # nothing is left of the snapshot
    await reader.close()
