"""Archive what ended long ago: the payloads of tasks, plans and operations go, everything that proves stays.

Promises: no row is deleted and no key is freed; only tasks at their end, with every operation final, read again where
that was due, and quiet for as long as asked, are touched. What is left is a tombstone: ids, digests, states, outcome,
receipts, attempts, verdicts, decisions, audit events. The same task submitted again is found by its digest and gets its
stored outcome. Each archived row has its audit event; who archived, and why, is in one of its own for each batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import LiteralString

from actonce.ledger.store import Ledger, audit, many

BATCH = 200  # tasks in one transaction

# A task `t` that may be archived. An end that was changed in any way since counts from then.
_MAY: LiteralString = """
    t.archived_at IS NULL AND t.state IN ('complete', 'failed', 'cancelled')
    AND t.since < clock_timestamp() - make_interval(secs => %(older_s)s)
    AND NOT EXISTS (SELECT 1 FROM actonce.hold h WHERE h.task_id = t.task_id AND h.closed_at IS NULL)
    AND NOT EXISTS (SELECT 1 FROM actonce.operation o WHERE o.task_id = t.task_id AND NOT (
        o.state IN ('committed', 'refused', 'closed')
        AND (o.recount_at IS NULL OR o.recounted_at IS NOT NULL)
        AND o.updated_at < clock_timestamp() - make_interval(secs => %(older_s)s)))
"""


@dataclass(frozen=True)
class Archived:
    """How many in one batch."""

    tasks: int
    operations: int


async def archive_some(ledger: Ledger, older_than: timedelta, *, by: str, reason: str, limit: int = BATCH) -> Archived:
    """Archive the oldest few in one transaction; call it again until no task is left. May be killed at any point."""
    params = {"older_s": older_than.total_seconds(), "limit": limit}
    async with ledger.transaction() as connection:
        chosen = await many(
            connection, f"SELECT task_id FROM actonce.task t WHERE {_MAY} ORDER BY since LIMIT %(limit)s", params
        )
        ids = [row["task_id"] for row in chosen]
        # Operations are locked before their tasks, as everywhere; then it is asked again whether they may go.
        await connection.execute(
            "SELECT 1 FROM actonce.operation WHERE task_id = ANY(%s)"
            " ORDER BY tenant, destination, action, operation_id FOR UPDATE",
            (ids,),
        )
        locked = await many(
            connection,
            f"SELECT task_id FROM actonce.task t WHERE task_id = ANY(%(ids)s) AND {_MAY} ORDER BY task_id"
            " FOR NO KEY UPDATE",
            {**params, "ids": ids},
        )
        ids = [row["task_id"] for row in locked]
        if not ids:
            return Archived(0, 0)
        operations = await connection.execute(
            "UPDATE actonce.operation SET payload = '{}', archived_at = clock_timestamp()"
            " WHERE task_id = ANY(%s) AND archived_at IS NULL",
            (ids,),
        )
        await connection.execute("UPDATE actonce.plan SET body = '{}' WHERE task_id = ANY(%s)", (ids,))
        await connection.execute(
            "UPDATE actonce.task SET payload = '{}', archived_at = clock_timestamp() WHERE task_id = ANY(%s)", (ids,)
        )
        made = Archived(len(ids), operations.rowcount)
        about = {"name": by, "reason": reason, "tasks": made.tasks, "operations": made.operations}
        await audit(connection, "archive.made", None, {**about, "older_than_s": older_than.total_seconds()})
        return made
