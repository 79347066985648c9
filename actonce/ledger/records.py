"""What people ask: whole records of tasks and operations, lists, pages, dependencies. Reads only.

Every answer comes from one snapshot of the ledger, so that a state and its reasons belong together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, LiteralString, get_args

from actonce.contracts.errors import DecisionRefused
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import State
from actonce.contracts.messages import DecisionAction, DecisionRequest
from actonce.contracts.reasons import policy
from actonce.ledger import release
from actonce.ledger.approvals import Approval, approvals_to_do
from actonce.ledger.decisions import check_allowed
from actonce.ledger.memory_use import uses_of
from actonce.ledger.store import WHERE_KEY, Connection, Ledger, Operation, identity_params, many, one
from actonce.ledger.tasks import Task

Row = dict[str, Any]


@dataclass(frozen=True)
class Allowed:
    """Whether a decision would be accepted now, and what it would carry."""

    action: str
    allowed: bool
    refused_because: str | None = None
    code: str | None = None
    until: str | None = None
    residual_risk: str | None = None


@dataclass(frozen=True)
class OperationRecord:
    """One operation with everything the ledger knows about it."""

    operation: Operation
    attempts: list[Row] = field(default_factory=list)
    acknowledgements: list[Row] = field(default_factory=list)
    verdicts: list[Row] = field(default_factory=list)
    holds: list[Row] = field(default_factory=list)
    decisions: list[Row] = field(default_factory=list)
    beacons: list[Row] = field(default_factory=list)
    cancelled_keys: list[Row] = field(default_factory=list)
    allowed: list[Allowed] = field(default_factory=list)


@dataclass(frozen=True)
class TaskRecord:
    """One task, its operations, its open holds, and the ledger's time of the reading."""

    task: Task
    operations: list[Operation]
    holds: list[Row]
    plan: Row | None
    now: datetime
    approvals: list[Approval] = field(default_factory=list)  # that people can or could still do something about
    ahead: int = 0  # tasks before it in the backlog; 0 once it is released
    memory: list[Row] = field(default_factory=list)  # what it asked its memory


@asynccontextmanager
async def snapshot(ledger: Ledger) -> AsyncIterator[Connection]:
    """A transaction in which every query sees the same moment, and none can write."""
    async with ledger.transaction() as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield connection


async def task_record(ledger: Ledger, task_id: str) -> TaskRecord | None:
    """Everything a caller may know of a task; None when the ledger has no such task."""
    async with snapshot(ledger) as connection:
        row = await one(
            connection, "SELECT t.*, clock_timestamp() AS now FROM actonce.task t WHERE task_id = %s", (task_id,)
        )
        if row is None:
            return None
        plan = await one(connection, "SELECT body, digest, created_at FROM actonce.plan WHERE task_id = %s", (task_id,))
        return TaskRecord(
            task=Task.of(row),
            operations=[
                Operation.of(r)
                for r in await many(
                    connection,
                    "SELECT * FROM actonce.operation WHERE task_id = %s ORDER BY created_at, step, iteration",
                    (task_id,),
                )
            ],
            holds=list(
                await many(
                    connection,
                    "SELECT * FROM actonce.hold WHERE task_id = %s AND closed_at IS NULL ORDER BY opened_at",
                    (task_id,),
                )
            ),
            plan=plan,
            now=row["now"],
            approvals=await approvals_to_do(connection, task_id),
            ahead=await release.ahead(connection, Task.of(row)) if row["released_at"] is None else 0,
            memory=await uses_of(connection, task_id),
        )


async def cancels_to_deliver(ledger: Ledger, limit: int = 100) -> list[Task]:
    """Tasks whose cancellation was asked for, without an outcome; in quarantine nobody can say what was done."""
    async with snapshot(ledger) as connection:
        rows = await many(
            connection,
            "SELECT * FROM actonce.task WHERE cancel_requested AND outcome IS NULL AND quarantined_epoch IS NULL"
            " ORDER BY created_at LIMIT %s",
            (limit,),
        )
        return [Task.of(row) for row in rows]


_PARTS: dict[str, LiteralString] = {
    "attempts": f"SELECT * FROM actonce.attempt WHERE {WHERE_KEY} ORDER BY issued_at",
    "acknowledgements": f"SELECT * FROM actonce.acknowledgement WHERE {WHERE_KEY} ORDER BY ack_id",
    "verdicts": f"SELECT * FROM actonce.verdict WHERE {WHERE_KEY} ORDER BY verdict_id DESC LIMIT 50",
    "holds": f"SELECT * FROM actonce.hold WHERE {WHERE_KEY} ORDER BY hold_id",
    "decisions": f"SELECT * FROM actonce.decision WHERE {WHERE_KEY} ORDER BY decision_id",
    "cancelled_keys": f"SELECT * FROM actonce.key_cancel WHERE {WHERE_KEY} ORDER BY wanted_at",
    "beacons": (
        "SELECT * FROM actonce.beacon WHERE operation_id = %(operation_id)s AND destination = %(destination)s"
        " ORDER BY wanted_at DESC LIMIT 20"
    ),
}


async def operation_records(
    ledger: Ledger,
    operation_id: str,
    *,
    tenant: str | None = None,
    destination: str | None = None,
    action: str | None = None,
) -> list[OperationRecord]:
    """Every record with this operation_id (one per tenant, destination and action), whole."""
    async with snapshot(ledger) as connection:
        rows = await many(
            connection,
            "SELECT * FROM actonce.operation WHERE operation_id = %(id)s"
            " AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)"
            " AND (%(destination)s::text IS NULL OR destination = %(destination)s)"
            " AND (%(action)s::text IS NULL OR action = %(action)s) ORDER BY tenant, destination, action",
            {"id": operation_id, "tenant": tenant, "destination": destination, "action": action},
        )
        return [await _whole(connection, Operation.of(row)) for row in rows]


async def _whole(connection: Connection, operation: Operation) -> OperationRecord:
    params = identity_params(operation.key)
    parts: dict[str, list[Row]] = {name: list(await many(connection, query, params)) for name, query in _PARTS.items()}
    held_for = operation.reason if operation.state is State.HELD else None
    actions: tuple[DecisionAction, ...] = policy(held_for).actions if held_for else get_args(DecisionAction)
    stamp = (operation.epoch, operation.version)
    waiting = [
        d for d in parts["decisions"] if (d["expected_epoch"], d["expected_version"]) == stamp and not d["result"]
    ]
    if waiting:
        first = waiting[0]
        waits = first["second_person"] and not first["second_agrees"]
        when = "when somebody else has confirmed it" if waits else "after one more reading"
        why = f"{first['decision']} by {first['name']} is recorded and takes effect {when}"
        allowed = [Allowed(action, False, why, "decided") for action in actions]
    else:  # ask the very check that a decision has to pass
        allowed = [await _would(connection, operation.key, operation, action) for action in actions]
    return OperationRecord(operation=operation, allowed=allowed, **parts)


async def _would(connection: Connection, key: OperationKey, operation: Operation, action: DecisionAction) -> Allowed:
    request = DecisionRequest(
        action=action,
        name="-",
        reason="-",
        object_id="-",
        expected_epoch=operation.epoch,
        expected_version=operation.version,
    )
    try:
        risk = await check_allowed(connection, operation, key, request)
    except DecisionRefused as refusal:
        return Allowed(action, False, str(refusal), refusal.code, refusal.may_commit_until)
    return Allowed(action, True, residual_risk=risk)


async def list_dependencies(ledger: Ledger) -> list[Row]:
    """The prober's readings, with their age in seconds by the ledger's clock (`age_s`)."""
    async with snapshot(ledger) as connection:
        return await dependency_rows(connection)


async def dependency_rows(connection: Connection) -> list[Row]:
    """The same, in a snapshot that is read for more."""
    return list(
        await many(
            connection,
            "SELECT *, extract(epoch FROM clock_timestamp() - checked_at)::float8 AS age_s"
            " FROM actonce.dependency ORDER BY kind, name",
        )
    )


async def open_operations(ledger: Ledger) -> dict[str, dict[str, int]]:
    """How many operations without a final outcome there are: destination → state → count."""
    found: dict[str, dict[str, int]] = {}
    async with snapshot(ledger) as connection:
        for row in await many(
            connection,
            "SELECT destination, state, count(*) AS n FROM actonce.operation"
            " WHERE state NOT IN ('committed', 'refused', 'closed') GROUP BY destination, state",
        ):
            found.setdefault(row["destination"], {})[row["state"]] = row["n"]
    return found
