"""The ledger has no room (a real one: its tables lie on a small file system that is filled).

A permit needs new pages in empty tables, so nothing fits by chance.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from actonce.contracts.errors import LedgerUnavailable
from actonce.effects.perform import perform
from actonce.ledger import watch
from actonce.testing.disk import CannotMount, Disk
from actonce.testing.waiting import eventually
from tests.integration.cases.kit import Bench, Lab, side_by_side

SIZE_BYTES = 24 << 20  # a copy of the template is about 9 MB


@contextlib.asynccontextmanager
async def small_ledger(lab: Lab, bench: Bench) -> AsyncIterator[tuple[str, Disk]]:
    """DSN of a migrated ledger on a file system of its own."""
    name = f"full_{bench.account}"
    owner = (lab.parts.stack.folder / "postgres").stat()
    try:
        disk = Disk.mount(SIZE_BYTES, (owner.st_uid, owner.st_gid))
    except CannotMount as error:
        pytest.skip(str(error))
    place = sql.Identifier(name)
    try:
        async with await psycopg.AsyncConnection.connect(lab.parts.stack.ledger_dsn, autocommit=True) as link:
            try:
                await link.execute(sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(place, str(disk.path)))
                await link.execute(
                    sql.SQL("CREATE DATABASE {} TEMPLATE {} TABLESPACE {}").format(
                        place, sql.Identifier(lab.parts.template), place
                    )
                )
                await link.execute(
                    "CHECKPOINT"
                )  # a fresh copy has holes, which later checkpoints of everybody would fill
                yield lab.parts.dsn(name), disk
            finally:
                disk.free()
                await link.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(place))
                await link.execute(sql.SQL("DROP TABLESPACE IF EXISTS {}").format(place))
    finally:
        disk.close()  # whatever becomes of the database on it


@side_by_side
async def test_nothing_is_sent_while_the_ledger_has_no_room_for_the_intent_and_its_event(lab: Lab) -> None:
    """case f1: refused before the call, because nothing durable can take the event."""
    async with lab.bench() as bench, small_ledger(lab, bench) as (dsn, disk):
        system = await bench.system(dsn=dsn)
        await watch.prove_writable(system.ledger)
        assert disk.fill() > 0
        with pytest.raises(LedgerUnavailable, match="No space left on device"):
            await watch.prove_writable(system.ledger)
        with pytest.raises(LedgerUnavailable, match="No space left on device"):
            await perform(system, bench.request())
        assert bench.requests() == [] and await bench.rows("operation", dsn=dsn) == []
        disk.free()
        result = await perform(system, bench.request())
        assert result.status == "committed" and len(bench.effects()) == 1
        kinds = [row["kind"] for row in await bench.rows("audit", dsn=dsn)]
        assert kinds.count("operation.permit") == kinds.count("acknowledgement.received") == 1


@side_by_side
async def test_acknowledgement_that_finds_no_room_is_kept_and_recorded_when_there_is_some(lab: Lab) -> None:
    """case f1: it fills between call and outcome; the outcome and its event are kept and written later."""
    async with lab.bench() as bench, small_ledger(lab, bench) as (dsn, disk):
        system = await bench.system(dsn=dsn)
        latch = await bench.world.latch(bench.account, "committed")
        sending = asyncio.create_task(perform(system, bench.request()))
        await bench.world.wait_latch(bench.account, latch)
        disk.fill()
        await bench.world.release(bench.account, latch)
        await eventually(lambda: refused(bench, Path(dsn).name), within_s=20, what="the ledger refused the outcome")
        assert (await bench.operation(dsn=dsn))["state"] == "dispatched" and not sending.done()
        disk.free()
        result = await sending
        assert result.status == "committed" and len(bench.effects()) == len(bench.requests()) == 1
        kinds = [row["kind"] for row in await bench.rows("audit", dsn=dsn)]
        assert kinds.index("operation.permit") < kinds.index("acknowledgement.received")


async def refused(bench: Bench, database: str) -> bool:
    """PostgreSQL itself counts the transactions that it rolled back in this database."""
    async with await psycopg.AsyncConnection.connect(bench.lab.parts.stack.ledger_dsn) as link:
        row = await (
            await link.execute("SELECT xact_rollback FROM pg_stat_database WHERE datname = %s", (database,))
        ).fetchone()
    return bool(row and row[0] > 0)
