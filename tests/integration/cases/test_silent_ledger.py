"""A ledger that does not answer is given up in a known time, whatever the driver does to leave cleanly."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from actonce.contracts.errors import LedgerUnavailable
from actonce.ledger.store import GIVE_UP_S, Ledger, one
from tests.integration.cases.kit import Lab, side_by_side

DEADLINE_S = 1.0
ROOM_S = 1.5  # of a busy machine


@pytest.mark.parametrize("where", ["in a statement", "between two statements"])
@side_by_side
async def test_a_silent_ledger_is_given_up_a_second_after_its_deadline(lab: Lab, where: str) -> None:
    """The line is open and nothing comes: neither the cancel nor the rollback is answered."""
    async with lab.bench() as bench:
        proxy = await bench.pg_proxy()
        async with Ledger(proxy.dsn, deadline_s=DEADLINE_S) as ledger:
            await ledger.identity()
            began_s = time.monotonic()
            with pytest.raises(LedgerUnavailable):
                async with ledger.transaction() as connection:
                    await one(connection, "SELECT 1 AS one")
                    proxy.open.clear()
                    if where == "in a statement":
                        await one(connection, "SELECT 2 AS two")
                    else:
                        await asyncio.Event().wait()
            assert time.monotonic() - began_s < DEADLINE_S + GIVE_UP_S + ROOM_S
            proxy.open.set()
            await ledger.identity()  # the line that was cut is replaced


@side_by_side
async def test_a_statement_that_waits_for_a_lock_is_ended_in_the_ledger_too(lab: Lab) -> None:
    """The server answers: it is asked to stop, and the connection serves the next."""
    async with lab.bench() as bench, Ledger(bench.dsn, deadline_s=DEADLINE_S, pool_max=1) as ledger:
        async with ledger.transaction() as connection:
            before = await one(connection, "SELECT pg_backend_pid() AS pid")
        async with await psycopg.AsyncConnection.connect(bench.dsn) as link:
            await link.execute("LOCK TABLE actonce.hold")
            with pytest.raises(LedgerUnavailable):
                await _count_holds(ledger)
            async with ledger.transaction() as connection:
                assert await one(connection, "SELECT pg_backend_pid() AS pid") == before


async def _count_holds(ledger: Ledger) -> None:
    async with ledger.transaction() as connection:
        await one(connection, "SELECT count(*) FROM actonce.hold")
