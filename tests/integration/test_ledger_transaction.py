"""One ledger transaction on a real PostgreSQL: all of it or nothing, whatever ends it."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psutil
import psycopg
import pytest
import pytest_asyncio
from psycopg.rows import dict_row

from actonce.contracts.errors import LedgerUnavailable, StaleWrite
from actonce.contracts.identity import OperationKey, derive_operation_id
from actonce.contracts.lifecycle import Event, State
from actonce.effects.system import this_process
from actonce.ledger.migrate import migrate
from actonce.ledger.permits import Intent, Permit, take_permit
from actonce.ledger.store import LEDGER_DEADLINE_S, Beside, Connection, Ledger, move, one
from actonce.testing.waiting import eventually
from tests.unit.effects.builders import contract

WAIT_S = 3.0  # shorter than a ledger's deadline
_PAGE = "INSERT INTO actonce.page (incident, reason, title, body) VALUES (%s, 'r', 't', 'b')"


@pytest_asyncio.fixture
async def ledger(fresh_dsn: str) -> AsyncIterator[Ledger]:
    """One connection only: what a transaction leaves behind meets the next one."""
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn, pool_max=1) as opened:
        yield opened


async def rows(dsn: str, query: str) -> list[dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=dict_row) as link:
        return await (await link.execute(query)).fetchall()  # type: ignore[arg-type]


async def kept(ledger: Ledger) -> list[str]:
    return [row["incident"] for row in await rows(ledger.dsn, "SELECT incident FROM actonce.page ORDER BY page_id")]


async def works_again(ledger: Ledger) -> None:
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT pg_backend_pid() AS pid, pg_current_xact_id_if_assigned() AS written")
        assert row is not None and row["written"] is None, "the next transaction stands in the one before"


async def test_what_a_transaction_wrote_is_there_once_it_ended(ledger: Ledger) -> None:
    async with ledger.transaction() as connection:
        await connection.execute(_PAGE, ("a",))
        await connection.execute(_PAGE, ("b",))
        assert await kept(ledger) == []
    assert await kept(ledger) == ["a", "b"]


async def test_a_statement_that_fails_fails_its_transaction(ledger: Ledger) -> None:
    for _ in range(7):  # more often than a statement is sent before it is prepared
        with pytest.raises(psycopg.errors.UniqueViolation):
            async with ledger.transaction() as connection:
                await connection.execute(_PAGE, ("a",))
                await connection.execute(_PAGE, ("a",))
        assert await kept(ledger) == []
        await works_again(ledger)


async def test_an_error_of_the_caller_keeps_nothing(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="ours"):
        async with ledger.transaction() as connection:
            await connection.execute(_PAGE, ("a",))
            raise ValueError("ours")
    assert await kept(ledger) == []
    await works_again(ledger)


async def waits_for_a_lock(connection: Connection) -> None:
    await connection.execute(_PAGE, ("a",))
    await one(connection, "SELECT ledger_id FROM actonce.identity FOR UPDATE")


async def somebody_waits(dsn: str) -> bool:
    return bool(await rows(dsn, "SELECT 1 FROM pg_locks WHERE NOT granted"))


async def test_a_cancelled_transaction_ends_cancelled_and_keeps_nothing(ledger: Ledger) -> None:
    """A cancellation that came out as LedgerUnavailable would let its owner go on."""

    async def write() -> None:
        async with ledger.transaction() as connection:
            await waits_for_a_lock(connection)

    async with await psycopg.AsyncConnection.connect(ledger.dsn) as other:
        await other.execute("SELECT 1 FROM actonce.identity FOR UPDATE")
        writing = asyncio.ensure_future(write())
        await eventually(lambda: somebody_waits(ledger.dsn), within_s=WAIT_S, what="a wait for the lock")
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert await kept(ledger) == []
    await works_again(ledger)


async def test_a_transaction_past_its_deadline_is_unavailable_and_keeps_nothing(ledger: Ledger) -> None:
    ledger.deadline_s = 0.5
    async with await psycopg.AsyncConnection.connect(ledger.dsn) as other:
        await other.execute("SELECT 1 FROM actonce.identity FOR UPDATE")
        with pytest.raises(LedgerUnavailable, match="TimeoutError"):
            async with ledger.transaction() as connection:
                await waits_for_a_lock(connection)
    assert await kept(ledger) == []
    ledger.deadline_s = LEDGER_DEADLINE_S
    await works_again(ledger)


async def test_what_is_written_beside_a_move_is_written_only_if_that_moved(ledger: Ledger) -> None:
    """R6: a lost compare-and-set leaves no attempt behind, not even inside its own transaction."""
    key = OperationKey("t", "payments", "refund", derive_operation_id("t", "task", "refund", 0))
    intent = Intent(key, "task", "refund", 0, {"payment_id": "pay_1", "amount_minor": 1}, "d1:" + "0" * 64)
    permit = await take_permit(ledger, intent, contract(), this_process(), uuid.uuid4())
    assert isinstance(permit, Permit)
    beside = Beside(f"{_PAGE.partition('VALUES')[0]} SELECT %(incident)s, 'r', 't', 'b' FROM moved", {"incident": "a"})
    async with ledger.transaction() as connection:
        with pytest.raises(StaleWrite):
            await move(connection, replace(permit.operation, version=permit.operation.version - 1), Event.LOST, beside)
    assert await kept(ledger) == []
    async with ledger.transaction() as connection:
        moved = await move(connection, permit.operation, Event.LOST, beside)
    assert (moved.state, moved.version) == (State.UNKNOWN, permit.operation.version + 1)
    assert await kept(ledger) == ["a"]


_FREEZES = """
import asyncio, sys
import psycopg
from actonce.ledger.store import Ledger

LOCK = "SELECT 1 FROM actonce.identity FOR UPDATE"

async def by_the_ledger():
    async with Ledger(sys.argv[1], deadline_s=3.0) as ledger, ledger.transaction() as connection:
        await connection.execute(LOCK)
        print("locked", flush=True)
        await asyncio.sleep(60)

async def by_anything_else():
    async with await psycopg.AsyncConnection.connect(sys.argv[1]) as connection:
        await connection.execute(LOCK)
        print("locked", flush=True)
        await asyncio.sleep(60)

asyncio.run(by_the_ledger() if sys.argv[2] == "ledger" else by_anything_else())
"""


@pytest.mark.parametrize("who", ["ledger", "control-anything-else"])
async def test_a_process_that_is_frozen_within_a_transaction_keeps_nothing_locked(ledger: Ledger, who: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _FREEZES, ledger.dsn, who, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), 60)
        process.send_signal(signal.SIGSTOP)
        # It stands still within its transaction; its own deadline is not what frees the lock.
        (open_,) = await rows(
            ledger.dsn, "SELECT count(*) AS n FROM pg_stat_activity WHERE state = 'idle in transaction'"
        )
        assert open_["n"] == 1
        limited = f"{ledger.dsn}?options=-c%20lock_timeout%3D{'30s' if who == 'ledger' else '6s'}"
        held = rows(limited, "SELECT 1 FROM actonce.identity FOR UPDATE")
        if who == "ledger":
            await held
        else:
            with pytest.raises(psycopg.errors.LockNotAvailable):
                await held
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    finally:
        process.kill()
        await process.wait()
