"""What tasks asked their memory, on record: the answer, the hold while there is none, and which memory it is.

One transaction for each look: the record, its audit event, and the task's hold with its page (or their end). Only an
answer that proved itself pins the memory's identity; afterwards every other memory is `unavailable`, however healthy.
"""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb

from actonce.contracts.memory import Answer, Empty, Found, Remembered, Trouble, Unavailable
from actonce.contracts.verdict import Reason
from actonce.ledger import pages
from actonce.ledger.store import Connection, Ledger, audit, many, one

NUDGE_AGAIN_S = 300.0
CLOSED_BY = "evidence:memory canary"


async def record(
    ledger: Ledger,
    *,
    task_id: str,
    step: str,
    kind: str,
    said: Answer,
    hold: bool = True,
) -> Answer:
    """Record one answer and return it, or `Unavailable` when it came from another memory than ours.

    While it is unavailable and `hold`, the task is held at `step` and a person is paged; any other answer ends that.
    The first answer that a step got stands: a late one (a look that was given up and came back) changes nothing.
    """
    async with ledger.transaction() as connection:
        said = await _from_ours(connection, said)
        before = await _standing(connection, task_id, step)
        if before is not None:
            return before
        if isinstance(said, Unavailable) and hold:
            await pages.hold_task(connection, task_id, step, Reason.MEMORY_UNAVAILABLE, said.why)
        else:
            await pages.close_task_hold(connection, task_id, step, CLOSED_BY)
        if await _keep(connection, task_id, step, kind, said, hold):
            body = {"step": step, "status": said.status, **_details(said)}
            await audit(connection, f"task.memory_{kind}", None, body, task_id=task_id)
    return said


async def answer_of(ledger: Ledger, task_id: str, step: str) -> Found | Empty | None:
    """What a task was told at a step before. Its workflow may run again (reset, continued, started anew): what it
    decided on then holds, whatever has been remembered since."""
    async with ledger.transaction() as connection:
        row = await one(
            connection,
            "SELECT answer FROM actonce.memory_use WHERE task_id = %s AND step = %s AND answer IS NOT NULL",
            (task_id, step),
        )
    return None if row is None else _answer(row["answer"])


async def ours(ledger: Ledger, said: Answer) -> Answer:
    """The same answer, unless another memory gave it."""
    async with ledger.transaction() as connection:
        return await _from_ours(connection, said, pin=False)


async def adopt(ledger: Ledger, memory_id: str, name: str, reason: str) -> None:
    """A person decides that this deployment remembers in another memory from now on."""
    async with ledger.transaction() as connection:
        before = await one(connection, "SELECT memory_id FROM actonce.memory_pin")
        await connection.execute(
            "INSERT INTO actonce.memory_pin (memory_id) VALUES (%s) ON CONFLICT (only_row)"
            " DO UPDATE SET memory_id = excluded.memory_id, since = clock_timestamp()",
            (memory_id,),
        )
        body = {"memory_id": memory_id, "name": name, "reason": reason}
        await audit(
            connection, "memory.adopted", None, {**body, "before": str(before["memory_id"]) if before else None}
        )


async def uses_of(connection: Connection, task_id: str) -> list[dict[str, Any]]:
    """What a task asked its memory, in the order of its first asking."""
    rows = await many(connection, "SELECT * FROM actonce.memory_use WHERE task_id = %s ORDER BY since", (task_id,))
    return [dict(row) for row in rows]


async def workflows_to_nudge(ledger: Ledger, limit: int = 50) -> list[str]:
    """Workflows held for their memory since before it was last seen healthy: each at once when it comes back.

    Again now and then while it is healthy and they still wait: one tenant's rows may be lost, and come back unseen.
    """
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "UPDATE actonce.hold h SET nudged_at = clock_timestamp() FROM actonce.task t WHERE t.task_id = h.task_id"
            " AND t.outcome IS NULL AND h.hold_id IN (SELECT hold_id FROM actonce.hold JOIN actonce.dependency m"
            " ON m.name = 'memory' AND m.state = 'up' WHERE closed_at IS NULL AND reason = %s"
            " AND opened_at < m.checked_at AND (nudged_at IS NULL OR nudged_at < m.since"
            " OR nudged_at < clock_timestamp() - make_interval(secs => %s)) ORDER BY hold_id LIMIT %s)"
            " RETURNING t.workflow_id",
            (Reason.MEMORY_UNAVAILABLE.value, NUDGE_AGAIN_S, limit),
        )
        return sorted({row["workflow_id"] for row in rows})


async def _from_ours(connection: Connection, said: Answer, *, pin: bool = True) -> Answer:
    if isinstance(said, Unavailable):
        return said
    if pin:
        await connection.execute(
            "INSERT INTO actonce.memory_pin (memory_id) VALUES (%s) ON CONFLICT DO NOTHING", (said.memory_id,)
        )
    row = await one(connection, "SELECT memory_id FROM actonce.memory_pin")
    if row is None or str(row["memory_id"]) == said.memory_id:
        return said
    return Unavailable(
        trouble=Trouble.FOREIGN,
        words=f"this is memory {said.memory_id}, and this deployment remembers in {row['memory_id']}; "
        "point ACTONCE_MEMORY_DSN there, restore it, or adopt this one",
    )


async def _standing(connection: Connection, task_id: str, step: str) -> Answer | None:
    """What a step was told already. Locks the step's row: whoever records at the same moment comes before or after."""
    await connection.execute("SELECT pg_advisory_xact_lock(hashtext('actonce.memory_use'), hashtext(%s))", (task_id,))
    row = await one(
        connection,
        "SELECT answer, status, memory_id FROM actonce.memory_use LEFT JOIN actonce.memory_pin ON true"
        " WHERE task_id = %s AND step = %s AND (answer IS NOT NULL OR status = 'remembered')",
        (task_id, step),
    )
    if row is None:
        return None
    if row["answer"] is None:
        return Remembered(new=False, memory_id=str(row["memory_id"]))
    return _answer(row["answer"])


def _answer(row: dict[str, Any]) -> Found | Empty:
    kind: type[Found] | type[Empty] = Found if row["status"] == "found" else Empty
    return kind.model_validate(row)


async def _keep(
    connection: Connection,
    task_id: str,
    step: str,
    kind: str,
    said: Answer,
    hold: bool,
) -> bool:
    """Write the latest answer. True when it is another one than before: a look that tells the same is no event."""
    details = _details(said)
    answer = Jsonb(said.model_dump(mode="json")) if isinstance(said, Found | Empty) else None
    values = {
        "answer": answer,
        "task_id": task_id,
        "step": step,
        "kind": kind,
        "status": said.status,
        "waits": hold,
        **details,
    }
    row = await one(
        connection,
        "WITH before AS (SELECT status, words FROM actonce.memory_use WHERE task_id = %(task_id)s AND step = %(step)s)"
        " INSERT INTO actonce.memory_use (task_id, step, kind, status, trouble, words, items, answer, waits) VALUES"
        " (%(task_id)s, %(step)s, %(kind)s, %(status)s, %(trouble)s, %(words)s, %(items)s, %(answer)s, %(waits)s)"
        " ON CONFLICT (task_id, step) DO UPDATE SET kind = excluded.kind, status = excluded.status,"
        " trouble = excluded.trouble, words = excluded.words, items = excluded.items,"
        " answer = excluded.answer, waits = excluded.waits,"
        " looks = memory_use.looks + 1, at = clock_timestamp()"
        " RETURNING NOT EXISTS (SELECT FROM before b WHERE (b.status, b.words) IS NOT DISTINCT FROM"
        " (%(status)s::text, %(words)s::text)) AS news",
        {**values, "answer": answer},
    )
    return bool(row and row["news"])


def _details(said: Answer) -> dict[str, object]:
    return {
        "trouble": said.trouble.value if isinstance(said, Unavailable) else None,
        "words": said.words if isinstance(said, Unavailable) else None,
        "items": len(said.items) if isinstance(said, Found) else None,
    }
