"""Tasks as callers see them: accepted once, with a stored outcome that outlives Temporal's retention."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, LiteralString

import psycopg
from psycopg.types.json import Jsonb

from actonce.contracts.commands import CLIENT
from actonce.contracts.errors import BacklogFull, LedgerError, StillOpen, TaskConflict
from actonce.contracts.lifecycle import FINAL, State
from actonce.contracts.messages import TaskReport
from actonce.contracts.payload import payload_digest
from actonce.ledger import approvals, pages
from actonce.ledger.permits import cancel_task_operations
from actonce.ledger.store import Connection, Ledger, Operation, many, one

TaskState = Literal[
    "queued", "running", "waiting_for_approval", "held", "quarantined", "failed", "cancelled", "complete"
]


RECORDING_WAIT_S = 1.0  # how long a second request waits for the first one's transaction before it says so
ACCEPTED_BESIDE_MAX = 1000  # more tasks than transactions that may be open at once at any server we know


class StillRecording(LedgerError):
    """The very first request with this key is still being recorded. Nobody knows yet whether it will be: ask again."""


@dataclass(frozen=True)
class Task:
    """One row of `actonce.task`."""

    task_id: str
    tenant: str
    task_type: str
    task_key: str
    workflow_id: str
    payload: dict[str, Any]
    payload_digest: str
    state: TaskState
    reason: str | None
    detail: str | None
    since: datetime
    recorded: bool
    cancel_requested: bool
    cancel_by: str | None
    cancel_why: str | None
    outcome: dict[str, Any] | None
    created_at: datetime
    deadline: datetime | None
    released_at: datetime | None
    submitted_by: str | None  # by the token it was started with
    quarantined_epoch: int | None  # of the restore that it waits for; None: it does not
    restored_in: int | None  # epoch of the last restore that it was there for, or that was open when it was accepted
    archived_at: datetime | None  # its payload is gone since then

    @staticmethod
    def of(row: dict[str, Any]) -> Task:
        return Task(**{name: row[name] for name in Task.__dataclass_fields__})


def task_id_of(tenant: str, task_type: str, task_key: str) -> str:
    """The task's id, which is also its workflow id: the business identity and nothing else."""
    return f"{tenant}/{task_type}/{task_key}"


async def accept(
    ledger: Ledger,
    tenant: str,
    task_type: str,
    task_key: str,
    payload: dict[str, Any],
    *,
    recording_wait_s: float = RECORDING_WAIT_S,
    deadline: datetime | None = None,
    backlog_max: int | None = None,
    submitted_by: str | None = None,
) -> tuple[Task, bool]:
    """Record a task in the backlog, or find the same one. Returns (task, created). Nothing is sent after `deadline`.

    `submitted_by`: the person whose token started it, who is one of its requesters whatever the payload says.

    Raises BacklogFull when a new one would be more than `backlog_max` of its type, TaskConflict for the same key with
    another payload, PayloadError for a payload without a digest, and StillRecording while another transaction has
    inserted this key and has neither committed nor rolled back.
    """
    task_id = task_id_of(tenant, task_type, task_key)
    digest = payload_digest(tool=task_type, destination="task", action="start", account=tenant, fields=payload)
    async with ledger.transaction() as connection:
        created = await _insert(
            connection,
            (task_id, tenant, task_type, task_key, task_id, Jsonb(payload), digest, deadline, submitted_by),
            recording_wait_s,
        )
        if created is not None:
            if backlog_max is not None:
                await _check_backlog(connection, task_type, backlog_max)
            return Task.of(created), True
        row = await one(connection, "SELECT * FROM actonce.task WHERE task_id = %s", (task_id,))
        assert row is not None
        task = Task.of(row)
    if task.payload_digest != digest:
        raise TaskConflict(
            f"task {task_id} exists with another payload ({task.payload_digest}, now {digest}); "
            "a new business request needs a new key"
        )
    return task, False


async def _insert(connection: Connection, values: tuple[Any, ...], wait_s: float) -> dict[str, Any] | None:
    # A conflicting insert waits until the other transaction ends, whichever way; PostgreSQL would wait for ever.
    await connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{max(1, int(wait_s * 1000))}ms",))
    try:
        return await one(
            connection,
            "INSERT INTO actonce.task (task_id, tenant, task_type, task_key, workflow_id, payload, payload_digest,"
            " deadline, submitted_by, restored_in) SELECT %s, %s, %s, %s, %s, %s, %s, %s::timestamptz, %s, open_restore"
            " FROM actonce.identity ON CONFLICT DO NOTHING RETURNING *",
            values,
        )
    except psycopg.errors.LockNotAvailable as error:
        raise StillRecording(
            f"the first request for task {values[0]} is still being recorded; send the same request again"
        ) from error


async def _check_backlog(connection: Connection, task_type: str, backlog_max: int) -> None:
    """Refuse a new task beyond the bound; its insert is rolled back with this transaction."""
    count: LiteralString = (
        "SELECT count(*) AS n FROM actonce.task WHERE task_type = %s AND released_at IS NULL AND state = 'queued'"
    )
    row = await one(connection, count, (task_type,))
    assert row is not None
    if backlog_max - ACCEPTED_BESIDE_MAX < row["n"] <= backlog_max:
        # Near the bound: what others insert at this moment is not seen, so each waits for those before it.
        await connection.execute("SELECT set_config('lock_timeout', '0', true)")
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtext('actonce.backlog'), hashtext(%s))", (task_type,)
        )
        row = await one(connection, count, (task_type,))
        assert row is not None
    if row["n"] > backlog_max:  # this one is counted
        raise BacklogFull(
            f"{backlog_max} tasks of type {task_type} wait already and no more are accepted; nothing was recorded: "
            f"send the same request with the same key again later. Operators: {CLIENT} release",
            retry_after_s=30,
        )


async def get(ledger: Ledger, task_id: str) -> Task | None:
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT * FROM actonce.task WHERE task_id = %s", (task_id,))
        return None if row is None else Task.of(row)


async def mark_recorded(ledger: Ledger, task_id: str) -> None:
    """Temporal has the workflow."""
    async with ledger.transaction() as connection:
        await connection.execute("UPDATE actonce.task SET recorded = true WHERE task_id = %s", (task_id,))


async def unrecorded(ledger: Ledger, limit: int = 100) -> list[Task]:
    """Released tasks that Temporal may not have, oldest first: start them again, by the same id."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "SELECT * FROM actonce.task WHERE NOT recorded AND released_at IS NOT NULL"
            " AND state NOT IN ('complete', 'failed', 'cancelled')"
            " ORDER BY created_at LIMIT %s",
            (limit,),
        )
        return [Task.of(row) for row in rows]


async def started(ledger: Ledger, task_id: str) -> None:
    """A worker has the task."""
    async with ledger.transaction() as connection:
        await _started(connection, task_id)


async def _started(connection: Connection, task_id: str) -> None:
    # A held one is locked and left as it is: what ends the hold then sees the plan that follows here.
    await connection.execute(
        "UPDATE actonce.task SET state = CASE state WHEN 'queued' THEN 'running' ELSE state END,"
        " since = CASE state WHEN 'queued' THEN clock_timestamp() ELSE since END,"
        " released_at = coalesce(released_at, clock_timestamp())"
        " WHERE task_id = %s AND state IN ('queued', 'held')",
        (task_id,),
    )


async def save_plan(ledger: Ledger, task_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Make a plan durable before its first step, or return the one made before: re-planning renames nothing."""
    digest = payload_digest(tool="plan", destination="task", action="plan", account=task_id, fields=body)
    async with ledger.transaction() as connection:
        await _started(connection, task_id)
        created = await one(
            connection,
            "INSERT INTO actonce.plan (task_id, digest, body) VALUES (%s, %s, %s)"
            " ON CONFLICT DO NOTHING RETURNING body",
            (task_id, digest, Jsonb(body)),
        )
        if created is not None:
            return dict(created["body"])
        row = await one(connection, "SELECT body FROM actonce.plan WHERE task_id = %s", (task_id,))
        assert row is not None
        return dict(row["body"])


async def plan_of(ledger: Ledger, task_id: str) -> dict[str, Any] | None:
    """The durable plan of a task, if there is one."""
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT body FROM actonce.plan WHERE task_id = %s", (task_id,))
        return None if row is None else dict(row["body"])


async def report(ledger: Ledger, outcome: TaskReport) -> Task | None:
    """Store a task's outcome. Refuses `complete` while an operation of it has no evidence (SPEC §2.7).

    Raises StillOpen for any outcome but `cancelled` while an operation is not final, and for every one while the task
    is quarantined: ask again. The first stored outcome stands. A task that came in behind the entry's back has no row:
    then None.
    """
    async with ledger.transaction() as connection:
        rows = await many(connection, "SELECT * FROM actonce.operation WHERE task_id = %s", (outcome.task_id,))
        open_ = [op for op in map(Operation.of, rows) if op.state not in FINAL]
        if outcome.state != "cancelled" and open_:
            names = ", ".join(f"{op.operation_id} is {op.state}" for op in open_)
            raise StillOpen(f"task {outcome.task_id} cannot be {outcome.state} yet: {names}; settle them first")
        without = [op for op in map(Operation.of, rows) if op.state is State.COMMITTED and op.completion is None]
        if outcome.state == "complete" and without:
            names = ", ".join(op.operation_id for op in without)
            raise LedgerError(f"task {outcome.task_id} cannot be complete: no evidence for {names}")
        row = await one(
            connection,
            "UPDATE actonce.task SET state = %s, outcome = %s, reason = NULL, detail = %s, since = clock_timestamp()"
            " WHERE task_id = %s AND outcome IS NULL AND quarantined_epoch IS NULL RETURNING *",
            (outcome.state, Jsonb(outcome.model_dump(mode="json")), outcome.summary, outcome.task_id),
        )
        if row is None:
            row = await one(connection, "SELECT * FROM actonce.task WHERE task_id = %s", (outcome.task_id,))
            if row is not None and row["outcome"] is None:
                raise StillOpen(
                    f"task {outcome.task_id} is quarantined by the restore of epoch {row['quarantined_epoch']}: what "
                    "it did since the backup is being established; it can end after a person has released it"
                )
        else:
            await pages.close_task_holds(connection, outcome.task_id, f"outcome:{outcome.state}")
            await approvals.end_of_task(connection, outcome.task_id, f"it ended as {outcome.state}")
        return None if row is None else Task.of(row)


async def cancel(
    ledger: Ledger, task_id: str, *, name: str | None = None, why: str | None = None
) -> tuple[Task, list[Operation]]:
    """Ask for cancellation; voids unused permits in the same transaction (rule R8). Who asked first stays on record.

    Returns the task and the operations that may have been sent: they are reconciled, not forgotten.
    """
    task, open_ = await _cancel(ledger, task_id, name, why)
    if any(operation.state is State.READY for operation in open_):
        # Its intent was on its way into the ledger. Every later permit sees the cancel, so this time all are known.
        task, open_ = await _cancel(ledger, task_id, name, why)
    return task, open_


async def _cancel(ledger: Ledger, task_id: str, name: str | None, why: str | None) -> tuple[Task, list[Operation]]:
    async with ledger.transaction() as connection:
        await cancel_task_operations(connection, task_id)
        # Waits for permits that are being taken; none is taken without seeing this from here on.
        if await one(connection, "SELECT 1 FROM actonce.task WHERE task_id = %s FOR UPDATE", (task_id,)) is None:
            raise LedgerError(f"task {task_id} is not in this ledger; check the id")
        row = await one(
            connection,
            "UPDATE actonce.task SET cancel_requested = true, cancel_by = CASE WHEN cancel_requested THEN cancel_by"
            " ELSE %s END, cancel_why = CASE WHEN cancel_requested THEN cancel_why ELSE %s END"
            " WHERE task_id = %s RETURNING *",
            (name, why, task_id),
        )
        assert row is not None
        rows = await many(connection, "SELECT * FROM actonce.operation WHERE task_id = %s", (task_id,))
        in_flight = [operation for operation in map(Operation.of, rows) if not operation.final]
        await approvals.end_of_task(connection, task_id, "cancellation was asked for")
        return Task.of(row), in_flight
