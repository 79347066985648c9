"""What a task was told of its memory is on record once: nothing that comes late changes it, or holds the task again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from actonce.contracts.memory import Answer, Empty, Found, Item, Remembered, Trouble, Unavailable
from actonce.ledger import memory_use, tasks
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger, many

OURS = "00000000-0000-4000-8000-000000000001"
ITEM = Item(key="refund:1", text="a refund", facts={"customer": "ada"}, distance=0.0, remembered_at="2026-01-01")
FOUND = Found(items=(ITEM,), complete=True, memory_id=OURS)
LATE = Unavailable(trouble=Trouble.TIMEOUT, words="a look that was given up long ago")


@pytest_asyncio.fixture
async def ledger(fresh_dsn: str) -> AsyncIterator[Ledger]:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as opened:
        yield opened


async def state_of(ledger: Ledger, task_id: str) -> tuple[str, int]:
    """The task's state, and how many holds are open."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "SELECT state, (SELECT count(*) FROM actonce.hold h WHERE h.task_id = t.task_id AND closed_at IS NULL)"
            " AS holds FROM actonce.task t WHERE task_id = %s",
            (task_id,),
        )
    return rows[0]["state"], rows[0]["holds"]


@pytest.mark.parametrize("late", [LATE, Empty(memory_id=OURS)])
@pytest.mark.parametrize(("kind", "told"), [("recall", FOUND), ("remember", Remembered(new=True, memory_id=OURS))])
async def test_a_look_that_comes_back_late_changes_nothing(
    ledger: Ledger, kind: str, told: Answer, late: Answer
) -> None:
    task, _ = await tasks.accept(ledger, "acme", "refund", "1", {"n": 1})
    await tasks.started(ledger, task.task_id)

    async def record(said: Answer) -> Answer:
        return await memory_use.record(ledger, task_id=task.task_id, step="s", kind=kind, said=said)

    assert await record(LATE) == LATE
    assert await state_of(ledger, task.task_id) == ("held", 1)
    assert await record(told) == told
    assert await state_of(ledger, task.task_id) == ("running", 0)
    assert (await record(late)).status == told.status
    assert await state_of(ledger, task.task_id) == ("running", 0), "it is told that it waits, and nobody waits"
    if kind == "recall":
        assert await memory_use.answer_of(ledger, task.task_id, "s") == told
