"""Holds and pages: an operation stops, a person is called, in one transaction.

One incident per thing that is wrong: a second sweep adds to it and opens no second one. Delivery is somebody
else's (`actonce.paging`); a page is a row first and is delivered from there.
"""

from __future__ import annotations

from datetime import datetime
from typing import LiteralString

from actonce.contracts.commands import CLIENT
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import Event, State
from actonce.contracts.reasons import Severity, policy
from actonce.contracts.verdict import Reason
from actonce.ledger.store import (
    WHERE_KEY,
    Connection,
    Ledger,
    Operation,
    audit,
    identity_params,
    move,
    one,
    utc,
)


def may_commit_words(operation: Operation) -> str:
    """Say until when the effect may still happen, as people need to hear it."""
    if operation.unbounded:
        return "may still commit at any time: nothing enforces a bound at this destination"
    if operation.may_commit_until is None:
        return "nothing was sent that could still commit"
    return f"may still commit until {utc(operation.may_commit_until)}"


def _incident(operation: Operation) -> str:
    return f"operation:{operation.tenant}:{operation.destination}:{operation.action}:{operation.operation_id}"


async def hold(
    connection: Connection, operation: Operation, reason: Reason, words: str, *, event: Event = Event.HOLD
) -> Operation:
    """Hold a locked operation, its task, and page. Its unused permit is void from here on (rule R8)."""
    if operation.state in (State.CLOSED, State.REFUSED) and operation.natural_key is not None:
        # its natural key may belong to a successor by now; the audit event still names it
        await connection.execute(
            f"UPDATE actonce.operation SET natural_key = NULL WHERE {WHERE_KEY}", identity_params(operation.key)
        )
        await audit(connection, "operation.natural_key_released", operation, {"natural_key": operation.natural_key})
    held = await move(connection, operation, event, reason=reason.value, words=words, retry_granted=False)
    await connection.execute(
        "INSERT INTO actonce.hold (tenant, destination, action, operation_id, task_id, reason, words)"
        " VALUES (%(tenant)s, %(destination)s, %(action)s, %(operation_id)s, %(task_id)s, %(reason)s, %(words)s)"
        " ON CONFLICT (tenant, destination, action, operation_id) WHERE closed_at IS NULL"
        " DO UPDATE SET reason = excluded.reason, words = excluded.words",
        {**identity_params(held.key), "task_id": held.task_id, "reason": reason.value, "words": words},
    )
    await _task_is_held(connection, held.task_id, reason, f"{held.operation_id}: {words}")
    await open_page(
        connection,
        incident=_incident(held),
        reason=reason.value,
        title=f"{held.action} at {held.destination} is held: {reason.value}",
        body=_body(held, reason, words),
        operation=held,
    )
    return held


async def hold_task(connection: Connection, task_id: str, step: str, reason: Reason, words: str) -> None:
    """Hold a task at a step that has no operation (yet), and page. Holding it again changes the words, if anything."""
    task = await one(connection, "SELECT tenant FROM actonce.task WHERE task_id = %s FOR UPDATE", (task_id,))
    tenant = task["tenant"] if task else task_id.partition("/")[0]
    await connection.execute(
        "INSERT INTO actonce.hold (tenant, task_id, step, reason, words) VALUES (%s, %s, %s, %s, %s)"
        " ON CONFLICT (task_id, step) WHERE closed_at IS NULL AND operation_id IS NULL"
        " DO UPDATE SET reason = excluded.reason, words = excluded.words",
        (tenant, task_id, step, reason.value, words),
    )
    await _task_is_held(connection, task_id, reason, f"step {step}: {words}")
    await open_page(
        connection,
        incident=f"task:{task_id}:{step}",
        reason=reason.value,
        title=f"task {task_id} is held at {step}: {reason.value}",
        body=f"Task {task_id} is held at step {step}: {reason.value}. {words}\n"
        f"It resumes by itself when {policy(reason).resumes_when}.\n"
        f"Do: {CLIENT} dependencies   then   {CLIENT} list --state held\n"
        f"Procedure: {policy(reason).procedure}",
        task_id=task_id,
    )


async def close_task_hold(connection: Connection, task_id: str, step: str, closed_by: str) -> bool:
    """Close the hold of a task at a step (if any) and its page. True when there was one."""
    await one(connection, "SELECT 1 FROM actonce.task WHERE task_id = %s FOR NO KEY UPDATE", (task_id,))
    row = await one(
        connection,
        "UPDATE actonce.hold SET closed_at = clock_timestamp(), closed_by = %s, seen_at = clock_timestamp()"
        " WHERE task_id = %s AND step = %s AND operation_id IS NULL AND closed_at IS NULL RETURNING reason",
        (closed_by, task_id, step),
    )
    if row is None:
        return False
    await close_page(connection, f"task:{task_id}:{step}")
    await task_goes_on(connection, task_id)
    return True


async def close_task_holds(connection: Connection, task_id: str, closed_by: str) -> None:
    """Close every hold of a task that holds no operation, with its page: the task has an outcome."""
    await connection.execute(
        "WITH closed AS (UPDATE actonce.hold SET closed_at = clock_timestamp(), closed_by = %(by)s,"
        " seen_at = clock_timestamp() WHERE task_id = %(task_id)s AND operation_id IS NULL AND closed_at IS NULL"
        " RETURNING step)"
        " UPDATE actonce.page SET closed_at = clock_timestamp() FROM closed"
        " WHERE incident = concat('task:', %(task_id)s::text, ':', closed.step) AND page.closed_at IS NULL",
        {"task_id": task_id, "by": closed_by},
    )


async def close_page(connection: Connection, incident: str) -> None:
    """What was wrong is over."""
    await connection.execute(
        "UPDATE actonce.page SET closed_at = clock_timestamp() WHERE incident = %s AND closed_at IS NULL", (incident,)
    )


async def _task_is_held(connection: Connection, task_id: str, reason: Reason, detail: str) -> None:
    await connection.execute(
        "UPDATE actonce.task SET state = 'held', reason = %s, detail = %s,"
        " since = CASE WHEN state = 'held' THEN since ELSE clock_timestamp() END"
        " WHERE task_id = %s AND state NOT IN ('complete', 'failed', 'cancelled')",
        (reason.value, detail, task_id),
    )


async def task_stands(connection: Connection, task_id: str) -> None:
    """Make a task what its open holds and the approvals that it waits for say."""
    hold = await one(
        connection,
        "SELECT reason, words, coalesce(operation_id, 'step ' || step) AS what FROM actonce.hold"
        " WHERE task_id = %s AND closed_at IS NULL ORDER BY hold_id DESC LIMIT 1",
        (task_id,),
    )
    if hold is None:
        await task_goes_on(connection, task_id)
    else:
        await _task_is_held(connection, task_id, Reason(hold["reason"]), f"{hold['what']}: {hold['words']}")


async def task_goes_on(connection: Connection, task_id: str) -> None:
    """A task is held for as long as anything of it is, and waits for as long as people are asked about it.

    An approval that was decided counts until its workflow has seen it: until then nobody has gone on.
    """
    waiting = await one(
        connection,
        "SELECT step, approval_id, state, expires_at, decided_by FROM actonce.approval WHERE task_id = %s"
        " AND (state = 'pending' OR (seen_at IS NULL AND state IN ('approved', 'rejected', 'expired', 'withdrawn')))"
        " ORDER BY state <> 'pending', proposed_at LIMIT 1",
        (task_id,),
    )
    state, reason, detail = "running", None, None
    if waiting is not None:
        state, reason = "waiting_for_approval", Reason.APPROVAL_PENDING.value
        said = f"which is {waiting['state']}; its workflow has not gone on yet"
        said = f"until {utc(waiting['expires_at'])}" if waiting["state"] == "pending" else said
        detail = f"step {waiting['step']} waits for approval {waiting['approval_id']}, {said}"
    await connection.execute(
        "UPDATE actonce.task t SET state = %(state)s, reason = %(reason)s, detail = %(detail)s,"
        " since = CASE WHEN state = %(state)s THEN since ELSE clock_timestamp() END WHERE task_id = %(task_id)s"
        " AND (state IN ('held', 'waiting_for_approval') OR (state IN ('queued', 'running') AND %(waits)s))"
        " AND NOT EXISTS (SELECT 1 FROM actonce.hold h WHERE h.task_id = t.task_id AND h.closed_at IS NULL)",
        {"state": state, "reason": reason, "detail": detail, "task_id": task_id, "waits": waiting is not None},
    )


def _body(held: Operation, reason: Reason, words: str) -> str:
    row = policy(reason)
    return (
        f"Operation {held.operation_id} ({held.action} at {held.destination}, step {held.step} of task {held.task_id}) "
        f"is held: {reason.value}. {words}\n"
        f"The effect {may_commit_words(held)}. Nothing is sent again until this is resolved.\n"
        f"Do: {CLIENT} show {held.operation_id}   then   {CLIENT} resolve {held.operation_id} "
        f"--expected-version {held.version} --expected-epoch {held.epoch} …\n"
        f"Permitted: {', '.join(row.actions)}. It resumes when {row.resumes_when}.\n"
        f"Owner: {row.owner}. Procedure: {row.procedure}"
    )


async def close_hold(connection: Connection, operation: Operation, closed_by: str) -> None:
    """Close the open hold (if any) and its page, by evidence or by a recorded decision only."""
    await connection.execute(
        "UPDATE actonce.hold SET closed_at = clock_timestamp(), closed_by = %(by)s"
        f" WHERE {WHERE_KEY} AND closed_at IS NULL",
        {**identity_params(operation.key), "by": closed_by},
    )
    await close_page(connection, _incident(operation))
    await task_goes_on(connection, operation.task_id)


_SAME: LiteralString = "(page.reason, page.severity, page.title) = (excluded.reason, excluded.severity, excluded.title)"


async def open_page(
    connection: Connection,
    *,
    incident: str,
    reason: str,
    title: str,
    body: str,
    operation: Operation | None = None,
    task_id: str | None = None,
    severity: Severity | None = None,
) -> None:
    """Open an incident, or count one more sighting of the open one. `severity`: another than the reason's own."""
    await connection.execute(
        "INSERT INTO actonce.page (incident, reason, severity, title, body, operation_id, task_id)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s)"
        " ON CONFLICT (incident) WHERE closed_at IS NULL DO UPDATE SET seen_again = page.seen_again + 1,"
        # another reason, severity or thing of the same reason is news: sent again, and to be acknowledged again
        f" sent_at = CASE WHEN {_SAME} THEN page.sent_at END,"
        f" acknowledged_at = CASE WHEN {_SAME} THEN page.acknowledged_at END,"
        f" acknowledged_by = CASE WHEN {_SAME} THEN page.acknowledged_by END,"
        " reason = excluded.reason, severity = excluded.severity, title = excluded.title, body = excluded.body",
        (
            incident,
            reason,
            severity or policy(reason).severity,
            title,
            body,
            operation.operation_id if operation else None,
            operation.task_id if operation else task_id,
        ),
    )


async def report_outage(ledger: Ledger, since: datetime, why: str) -> None:
    """Put on record that the ledger took no writes and people were called for it; the page says that it is over."""
    incident, row = "ledger:unavailable", policy(Reason.LEDGER_UNAVAILABLE)
    async with ledger.transaction() as connection:
        await open_page(
            connection,
            incident=incident,
            reason=row.reason.value,
            title="the ledger took no writes",
            body=f"From {utc(since)} on the ledger took no writes: {why}\n"
            f"Nothing was sent meanwhile; what had been sent before is being reconciled.\nProcedure: {row.procedure}",
        )
        await close_page(connection, incident)


async def report_blind_recount(ledger: Ledger, operation: Operation, words: str) -> None:
    """Page that an operation with several permits could not be read again: a second effect would go unnoticed."""
    async with ledger.transaction() as connection:
        await audit(connection, "operation.recount_blind", operation, {"words": words})
        await open_page(
            connection,
            incident=f"recount:{operation.tenant}:{operation.destination}:{operation.action}:{operation.operation_id}",
            reason=Reason.POSSIBLE_DUPLICATE.value,
            title=f"{operation.action} at {operation.destination} could not be read again",
            body=f"Operation {operation.operation_id} of task {operation.task_id} used {operation.attempts} permits "
            f"and is {operation.state}; {words}.\n"
            "Count its effects at the destination by hand, then acknowledge this page.\n"
            "Procedure: docs/operations/possible_duplicate.md",
            operation=operation,
        )


async def report_conflict(ledger: Ledger, key: OperationKey, task_id: str, words: str) -> None:
    """Page an intent that was refused because its identity or natural key is taken. Nothing was sent for it."""
    async with ledger.transaction() as connection:
        await audit(
            connection, "intent.refused", None, {"operation_id": key.operation_id, "words": words}, task_id=task_id
        )
        await open_page(
            connection,
            incident=f"conflict:{key.tenant}:{key.destination}:{key.action}:{key.operation_id}",
            reason=Reason.PAYLOAD_CONFLICT.value,
            title=f"{key.action} at {key.destination} was refused: {words}",
            body=f"Operation {key.operation_id} of task {task_id} was refused before any call: {words}.\n"
            f"Nothing was sent. Compare both with `{CLIENT} show`, then start a new task or iteration.\n"
            "Procedure: docs/operations/payload_conflict.md",
            task_id=task_id,
        )
