"""Writers that meet on one task take their locks in one order: nobody is told that the ledger is away, nobody is lost.

Each case lets one transaction stand in the middle, waits until the other waits for it, and lets it go on. With the
order of either side reversed PostgreSQL ends one of them as a deadlock.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.rows import dict_row

from actonce.contracts.verdict import Reason
from actonce.effects.perform import intent_of
from actonce.effects.system import System
from actonce.ledger import outcomes, pages, permits, tasks
from actonce.ledger.permits import NoPermit, Permit
from actonce.ledger.store import lock_operation
from actonce.testing.waiting import eventually
from tests.integration.cases.kit import Bench, Lab, key_of, side_by_side

_WAITING = "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def waits(bench: Bench, count: int) -> None:
    """Until as many transactions of this ledger wait for a lock."""
    async with await psycopg.AsyncConnection.connect(bench.dsn, autocommit=True, row_factory=dict_row) as link:

        async def enough() -> bool:
            row = await (await link.execute(_WAITING)).fetchone()
            return row is not None and row["n"] >= count

        await eventually(enough, within_s=3, what=f"{count} transactions wait for a lock")


async def a_task(system: System, bench: Bench) -> tuple[str, Any]:
    task, _ = await tasks.accept(system.ledger, "default", "single", f"{bench.account}-1", {"n": 1})
    return task.task_id, bench.request(task_id=task.task_id)


async def take(system: System, request: Any) -> Permit | NoPermit:
    contract = system.destination("payments").contract
    return await permits.take_permit(system.ledger, intent_of(request, contract), contract, system.owner, uuid4())


async def not_sent(system: System, permit: Permit | NoPermit) -> None:
    assert isinstance(permit, Permit)
    await outcomes.record_loss(system.ledger, permit, "not_sent", "the test says so")


@side_by_side
async def test_a_hold_and_a_permit_of_one_operation_do_not_wait_for_each_other(lab: Lab) -> None:
    async with lab.bench() as bench:
        system = await bench.system()
        _, request = await a_task(system, bench)
        await not_sent(system, await take(system, request))
        async with system.ledger.transaction() as connection:
            operation = await lock_operation(connection, key_of(request))
            assert operation is not None
            permit = asyncio.ensure_future(take(system, request))
            await waits(bench, 1)
            await pages.hold(connection, operation, Reason.ORPHANED, "the watcher came first")
        assert isinstance(await permit, NoPermit)
        assert (await bench.operation())["state"] == "held"


@side_by_side
async def test_a_hold_and_a_cancel_of_its_task_do_not_wait_for_each_other(lab: Lab) -> None:
    async with lab.bench() as bench:
        system = await bench.system()
        task_id, request = await a_task(system, bench)
        await not_sent(system, await take(system, request))
        async with system.ledger.transaction() as connection:
            operation = await lock_operation(connection, key_of(request))
            assert operation is not None
            cancel = asyncio.ensure_future(tasks.cancel(system.ledger, task_id))
            await waits(bench, 1)
            await pages.hold(connection, operation, Reason.ORPHANED, "the watcher came first")
        task, in_flight = await cancel
        assert task.cancel_requested and [o.operation_id for o in in_flight] == [operation.operation_id]


@side_by_side
async def test_two_permits_of_one_task_that_both_end_in_a_hold_do_not_wait_for_each_other(lab: Lab) -> None:
    async with lab.bench(contracts={"payments": {"unsent_max": 1}}) as bench:
        system = await bench.system()
        _, request = await a_task(system, bench)
        other = request.model_copy(update={"step": "other"})
        for one in (request, other):
            await not_sent(system, await take(system, one))
        async with await psycopg.AsyncConnection.connect(bench.dsn) as link:
            await link.execute("LOCK TABLE actonce.hold IN SHARE MODE")  # both stand before they write their hold
            both = asyncio.gather(take(system, request), take(system, other))
            await waits(bench, 2)
        assert [type(permit) for permit in await both] == [NoPermit, NoPermit]
        assert {row["state"] for row in await bench.rows("operation")} == {"held"}


@side_by_side
async def test_a_cancel_waits_for_a_permit_that_is_being_taken_and_tells_of_it(lab: Lab) -> None:
    """R8: between the permit's look at the task and its commit no cancel may say that nothing is in flight."""
    async with lab.bench() as bench:
        system = await bench.system()
        task_id, request = await a_task(system, bench)
        async with await psycopg.AsyncConnection.connect(bench.dsn) as link:
            await link.execute("LOCK TABLE actonce.attempt IN SHARE MODE")  # the permit has looked and not committed
            permit = asyncio.ensure_future(take(system, request))
            await waits(bench, 1)
            cancel = asyncio.ensure_future(tasks.cancel(system.ledger, task_id))
            await waits(bench, 2)
        assert isinstance(await permit, Permit)
        _, in_flight = await cancel
        assert [o.operation_id for o in in_flight] == [key_of(request).operation_id]


@side_by_side
async def test_a_permit_waits_for_a_cancel_that_is_being_written_and_sees_it(lab: Lab) -> None:
    """R8, case cell 11."""
    async with lab.bench() as bench:
        system = await bench.system()
        task_id, request = await a_task(system, bench)
        async with await psycopg.AsyncConnection.connect(bench.dsn) as link:
            await link.execute("LOCK TABLE actonce.audit IN SHARE MODE")  # the cancel is written and not committed
            cancel = asyncio.ensure_future(tasks.cancel(system.ledger, task_id))
            await waits(bench, 1)
            permit = asyncio.ensure_future(take(system, request))
            await waits(bench, 2)
        _, in_flight = await cancel
        assert in_flight == []
        assert isinstance(await permit, NoPermit)
        assert (await bench.operation())["state"] == "closed"
