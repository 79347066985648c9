"""What ended long ago loses its payload and nothing else: no row, no key, no outcome."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg.rows import dict_row

from actonce.contracts.errors import TaskConflict
from actonce.contracts.messages import TaskReport
from actonce.ledger import tasks
from actonce.ledger.archiving import Archived, archive_some
from actonce.ledger.audit_facts import check_facts
from actonce.ledger.migrate import migrate
from actonce.ledger.permits import NoPermit, take_permit
from actonce.ledger.store import Ledger
from tests.integration.audit.work import CONTRACT, OWNER, acknowledged, intent, permit

NOW = timedelta(0)


@pytest_asyncio.fixture
async def ledger(fresh_dsn: str) -> AsyncIterator[Ledger]:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as opened:
        await done_and_dropped(opened)
        yield opened


async def done_and_dropped(ledger: Ledger) -> None:
    """One task did what it should, one was cancelled."""
    done, _ = await tasks.accept(ledger, "default", "single", "done", {"n": 2})
    dropped, _ = await tasks.accept(ledger, "default", "single", "dropped", {"n": 3})
    await tasks.save_plan(ledger, done.task_id, {"steps": ["one"]})
    await acknowledged(ledger, done.task_id, "one")
    await tasks.report(ledger, TaskReport(task_id=done.task_id, state="complete", summary="refunded"))
    await tasks.cancel(ledger, dropped.task_id)
    await tasks.report(ledger, TaskReport(task_id=dropped.task_id, state="cancelled", summary="dropped"))


async def rows(ledger: Ledger, query: Any) -> list[dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(ledger.dsn, row_factory=dict_row) as link:
        return await (await link.execute(query)).fetchall()


async def archive(ledger: Ledger, older: timedelta = NOW) -> Archived:
    return await archive_some(ledger, older, by="olga", reason="a year")


COUNTED = "SELECT (SELECT count(*) FROM actonce.task) AS t, (SELECT count(*) FROM actonce.operation) AS o"
PROOFS = (
    "SELECT operation_id, o.state, o.payload_digest, natural_key, receipt, object_id, o.version, t.state AS task_state,"
    " t.payload_digest AS task_digest, t.outcome, p.digest FROM actonce.task t LEFT JOIN actonce.operation o"
    " USING (task_id) LEFT JOIN actonce.plan p USING (task_id) ORDER BY task_id"
)
BODIES = (
    "SELECT t.payload AS task, o.payload AS operation, p.body AS plan FROM actonce.task t LEFT JOIN actonce.operation o"
    " USING (task_id) LEFT JOIN actonce.plan p USING (task_id) ORDER BY task_id"
)


async def test_payloads_of_ended_tasks_go_and_everything_else_stays(ledger: Ledger) -> None:
    counted, proofs = await rows(ledger, COUNTED), await rows(ledger, PROOFS)
    assert await rows(ledger, BODIES) == [
        {"task": {"n": 2}, "operation": {"amount_minor": 5}, "plan": {"steps": ["one"]}},
        {"task": {"n": 3}, "operation": None, "plan": None},
    ]
    assert await archive(ledger) == Archived(2, 1)
    assert (await rows(ledger, COUNTED), await rows(ledger, PROOFS)) == (counted, proofs)
    assert await rows(ledger, BODIES) == [
        {"task": {}, "operation": {}, "plan": {}},
        {"task": {}, "operation": None, "plan": None},
    ]
    assert await archive(ledger) == Archived(0, 0)
    async with ledger.transaction() as connection:
        assert [finding async for finding in check_facts(connection)] == []


async def test_the_same_task_again_gets_its_stored_outcome_and_another_payload_is_refused(ledger: Ledger) -> None:
    await archive(ledger)
    again, created = await tasks.accept(ledger, "default", "single", "done", {"n": 2})
    assert not created and again.state == "complete" and again.archived_at is not None
    assert again.outcome is not None and again.outcome["summary"] == "refunded"
    with pytest.raises(TaskConflict):
        await tasks.accept(ledger, "default", "single", "done", {"n": 99})


async def test_no_second_permit_comes_of_it(ledger: Ledger) -> None:
    await archive(ledger)
    taken = await take_permit(ledger, intent("default/single/done", "one"), CONTRACT, OWNER, uuid.uuid4())
    assert isinstance(taken, NoPermit) and taken.operation.state == "committed"
    with pytest.raises(psycopg.errors.RaiseException, match="deleted"):
        await rows(ledger, "DELETE FROM actonce.operation")


async def test_control_a_row_that_is_deleted_is_permitted_anew(ledger: Ledger) -> None:
    """What archiving by deleting would do."""
    async with await psycopg.AsyncConnection.connect(ledger.dsn) as link:
        await link.execute("SET session_replication_role = replica")  # as if nothing forbade it
        await link.execute("DELETE FROM actonce.operation WHERE operation_id = 'op1_one'")
        await link.execute("DELETE FROM actonce.attempt WHERE operation_id = 'op1_one'")
    assert (await permit(ledger, "default/single/done", "one")).attempt == 1


async def test_what_is_open_or_young_is_left_alone(ledger: Ledger) -> None:
    assert await archive(ledger, timedelta(days=1)) == Archived(0, 0)
    task, _ = await tasks.accept(ledger, "default", "single", "goes-on", {"n": 4})
    await acknowledged(ledger, task.task_id, "goes-on")  # final, and its task is not at its end
    await archive(ledger)
    (row,) = await rows(ledger, "SELECT payload, archived_at FROM actonce.task WHERE task_key = 'goes-on'")
    (operation,) = await rows(ledger, "SELECT payload FROM actonce.operation WHERE operation_id = 'op1_goes-on'")
    assert row == {"payload": {"n": 4}, "archived_at": None} and operation["payload"] == {"amount_minor": 5}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE actonce.operation SET payload = '{}', archived_at = now() WHERE operation_id = 'op1_open'",
        "UPDATE actonce.operation SET payload = '{\"amount_minor\": 6}' WHERE operation_id = 'op1_open'",
        "UPDATE actonce.task SET payload = '{}', archived_at = now() WHERE state = 'queued'",
        "UPDATE actonce.task SET archived_at = NULL WHERE archived_at IS NOT NULL",
    ],
)
async def test_the_database_lets_no_other_payload_go(ledger: Ledger, change: str) -> None:
    await tasks.accept(ledger, "default", "single", "waits", {"n": 5})
    await permit(ledger, "default/single/waits", "open")
    await archive(ledger)
    with pytest.raises(psycopg.errors.RaiseException, match="never changes"):
        await rows(ledger, change)
