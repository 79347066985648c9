"""What the system says about itself, copied into the record: ledger rows, task states, workflow histories.

Contract: reads the ledger's database directly and read-only, past every proxy of the cell, and shares no code with the
system: rows are rows. It judges nothing and leaves nothing out; a verdict that lost its compare-and-set was never
acted on and is kept as a note. Times are the ledger's own, in UTC.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from actonce.evidence import EvidenceWriter

Row = dict[str, Any]
READER = "actonce-evidence"  # the name of its connection at the server
FINAL = frozenset({"committed", "refused", "closed"})
_QUERIES: dict[str, LiteralString] = {
    "operation": "SELECT * FROM actonce.operation ORDER BY created_at",
    "contract": "SELECT * FROM actonce.contract ORDER BY name, version, first_seen",
    "attempt": "SELECT * FROM actonce.attempt ORDER BY issued_at",
    "acknowledgement": "SELECT * FROM actonce.acknowledgement ORDER BY ack_id",
    "verdict": "SELECT * FROM actonce.verdict ORDER BY verdict_id",
    "hold": "SELECT * FROM actonce.hold ORDER BY hold_id",
    "task": "SELECT * FROM actonce.task ORDER BY created_at",
    "page": "SELECT * FROM actonce.page ORDER BY page_id",
    "decision": "SELECT * FROM actonce.decision ORDER BY decision_id",
    "approval": "SELECT * FROM actonce.approval ORDER BY proposed_at",
    "audit": "SELECT * FROM actonce.audit ORDER BY audit_id",
    "release": "SELECT * FROM actonce.release ORDER BY task_type",
    "memory_use": "SELECT * FROM actonce.memory_use ORDER BY since",
    "audit_cursor": "SELECT * FROM actonce.audit_cursor ORDER BY sink",
    "dependency": "SELECT * FROM actonce.dependency ORDER BY name",
    "alert": "SELECT * FROM actonce.alert ORDER BY incident",
    # Only what a wait looks at, which it does several times a second, over thousands of rows in a long run.
    "task_state": "SELECT task_id, state, reason FROM actonce.task",
    "operation_state": "SELECT operation_id, task_id, state, reason, version, recount_at, recounted_at"
    " FROM actonce.operation ORDER BY created_at",
    "held": "SELECT operation_id, reason FROM actonce.operation WHERE state = 'held' ORDER BY created_at",
    "page_open": "SELECT reason FROM actonce.page WHERE closed_at IS NULL",
    # Permits, and what each operation's last event says of its state: as much as tells that effects are audited.
    "audit_of_effects": "SELECT * FROM actonce.audit a WHERE kind = 'operation.permit' OR audit_id IN (SELECT"
    " max(audit_id) FROM actonce.audit WHERE kind LIKE 'operation.%%' AND body ? 'state' GROUP BY operation_id)"
    " ORDER BY audit_id",
    "audit_sealed": "SELECT seq, hash FROM actonce.audit WHERE seq IS NOT NULL",
    "audit_end": "SELECT max(seq) AS last, count(*) FILTER (WHERE seq IS NULL) AS unsealed FROM actonce.audit",
}
# What differs between two runs of the same failure: ids, ports, counts, times. Not the kind of failure.
_VARIABLE = re.compile(r"op1_[a-z2-7]{32}|\d+(?:[.:]\d+)*")


class LedgerReader:
    """Reads one cell's ledger over one connection of its own, opened when it is first needed."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._link: psycopg.AsyncConnection[Row] | None = None
        self._turn = asyncio.Lock()

    async def _connected(self) -> psycopg.AsyncConnection[Row]:
        if self._link is None or self._link.closed:
            self._link = await psycopg.AsyncConnection.connect(
                self.dsn, row_factory=dict_row, autocommit=True, application_name=READER
            )
        return self._link

    async def _ask(self, query: LiteralString, *values: Any) -> list[Row]:
        async with self._turn:
            cursor = await (await self._connected()).execute(query, values)
            return await cursor.fetchall()

    async def close(self) -> None:
        """Close the connection, if there is one."""
        async with self._turn:
            if self._link is not None:
                await self._link.close()
                self._link = None

    async def rows(self, table: str) -> list[Row]:
        """All rows of one table."""
        return await self._ask(_QUERIES[table])

    async def at_once(self, *tables: str) -> dict[str, list[Row]]:
        """All rows of these tables as of one moment: none of them knows less than another."""
        async with self._turn:
            link = await self._connected()
            async with link.transaction():
                await link.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                return {table: await (await link.execute(_QUERIES[table], ())).fetchall() for table in tables}

    async def operation(self, operation_id: str) -> Row | None:
        """The row of one operation, None while there is none."""
        found = await self._ask("SELECT * FROM actonce.operation WHERE operation_id = %s", operation_id)
        return found[0] if found else None

    async def task(self, task_id: str) -> tuple[Row | None, bool]:
        """The row of one task, and whether an operation of it is held."""
        found = await self._ask("SELECT * FROM actonce.task WHERE task_id = %s", task_id)
        held = await self._ask("SELECT 1 FROM actonce.operation WHERE task_id = %s AND state = 'held' LIMIT 1", task_id)
        return (found[0] if found else None), bool(held)


def utc(value: datetime | None) -> str | None:
    """As the record writes times."""
    return None if value is None else value.astimezone(UTC).isoformat(timespec="microseconds")


def kind_of_failure(detail: str | None) -> str | None:
    """An error text without what differs between runs, so that twins can be compared.

    Silence ends in one of two ways that say nothing about the destination: the caller's own deadline, or Temporal
    taking the activity back because its process stood still. Which comes first after a thaw is chance.
    """
    if detail is None:
        return None
    if detail.startswith(("TimeoutError", "the activity was cancelled")) or "no answer until" in detail:
        return "no answer"
    return _VARIABLE.sub("…", detail)[:300]


Place = str | Callable[[Row], str]
"""The cell that a row belongs to: one for all of a ledger, or by operation or task where cells share it."""


async def export_ledger(reader: LedgerReader, writer: EvidenceWriter, cell: Place, probes: set[str]) -> None:
    """Copy a ledger into the record, as of one moment. Operations of probes are accounted for elsewhere."""
    of = cell if callable(cell) else lambda row: str(cell)
    tables = ("operation", "contract", "attempt", "verdict", "hold", "approval", "memory_use", "audit")
    found = await reader.at_once(*tables)
    verdicts_of, audit_of = _by_operation(found["verdict"]), _by_operation(found["audit"])
    for row in found["operation"]:
        operation_id = row["operation_id"]
        if operation_id not in probes:
            told = _operation(row, verdicts_of[operation_id], audit_of[operation_id])
            writer.append("caller", "operation", of(row), **told)
    used = {(row["destination"], row["contract_digest"]) for row in found["operation"]}
    for row in found["contract"]:
        if (row["name"], row["digest"]) in used:
            where = None if callable(cell) else cell
            writer.append("caller", "contract", where, name=row["name"], digest=row["digest"], body=row["body"])
    for row in found["attempt"]:
        if row["operation_id"] not in probes:
            writer.append("caller", "attempt", of(row), **_attempt(row))
    for row in found["verdict"]:
        if row["operation_id"] not in probes:
            _export_verdict(writer, of(row), row)
    for row in found["hold"]:
        writer.append(
            "caller",
            "hold",
            of(row),
            operation_id=row["operation_id"],
            task_id=row["task_id"],
            step=row["step"],
            reason=row["reason"],
            opened_at=utc(row["opened_at"]),
            resolved_at=utc(row["closed_at"]),
            resolution=row["closed_by"],
        )
    for row in found["approval"]:
        known: Row = {name: utc(row[name]) for name in ("expires_at", "decided_at", "consumed_at")}
        known |= {name: row[name] for name in ("approval_id", "operation_id", "digest", "state", "round", "decided_by")}
        writer.append("caller", "approval", of(row), **known)
    for row in found["memory_use"]:
        writer.append(
            "caller",
            "memory",
            of(row),
            task_id=row["task_id"],
            step=row["step"],
            asked=row["kind"],
            status=row["status"],
            trouble=row["trouble"],
            begun_at=utc(row["since"]),
            told_at=utc(row["at"]),
        )


def _by_operation(rows: list[Row]) -> dict[str | None, list[Row]]:
    found: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["operation_id"]].append(row)
    return found


def _operation(row: Row, verdicts: list[Row], audit: list[Row]) -> Row:
    """An operation, with the verdicts and the audit events of its own."""
    mine = [v for v in verdicts if v["applied"]]
    moves = [a for a in audit if a["body"].get("state")]
    ended_at = None
    for earlier, now in zip([None, *moves], moves, strict=False):
        if now["body"]["state"] == row["state"] and (earlier is None or earlier["body"]["state"] != row["state"]):
            ended_at = now["at"]
    return {
        "operation_id": row["operation_id"],
        "destination": row["destination"],
        "contract_digest": row["contract_digest"],
        "state": row["state"],
        "reason": row["reason"] if row["state"] == "held" else None,
        "verdict": mine[-1]["outcome"] if mine else None,
        "version": row["version"],
        "attempts": row["attempts"],
        "issued_at": utc(row["issued_at"]),
        "acknowledged_at": utc(row["acknowledged_at"]),
        "committed_at": utc(row["committed_at"]),
        "completed_at": utc(ended_at) if row["state"] in FINAL else None,
        "completion": row["completion"],
        "receipt": row["receipt"],
        "task_id": row["task_id"],
        "step": row["step"],
        "words": row["words"],
        "may_commit_until": "unbounded" if row["unbounded"] else utc(row["may_commit_until"]),
        "recounted_at": utc(row["recounted_at"]),
    }


def _attempt(row: Row) -> Row:
    return {
        "operation_id": row["operation_id"],
        "epoch": row["epoch"],
        "attempt": row["attempt"],
        "nonce": str(row["nonce"]),
        "not_after": utc(row["not_after"]),
        "issued_at": utc(row["issued_at"]),
        "outcome": row["outcome"],
        "error": kind_of_failure(row["detail"]) if row["outcome"] != "acknowledged" else None,
        "owner_pid": int(row["owner"]["pid"]),
        "wire_key": row["wire_key"],
        "outcome_at": utc(row["outcome_at"]),
        "detail": row["detail"],
    }


def _export_verdict(writer: EvidenceWriter, cell: str, row: Row) -> None:
    if not row["applied"]:
        text = f"verdict {row['outcome']} for {row['operation_id']} lost its compare-and-set: never acted on"
        writer.append("drill", "note", cell, text=text)
        return
    reading_set = str(row["verdict_id"])
    for reading in row["readings"]:
        writer.append(
            "caller",
            "reading",
            cell,
            operation_id=row["operation_id"],
            route=reading["route"],
            rows=reading["rows_received"],
            declared_total=reading["declared_total"],
            status=reading["status"],
            reading_set=reading_set,
            pages=reading["pages"],
            complete=reading["complete"],
            matches=len(reading["candidates"]),
            started_at=reading["started_at"],
            finished_at=reading["finished_at"],
        )
    writer.append(
        "caller",
        "verdict",
        cell,
        operation_id=row["operation_id"],
        verdict=row["outcome"],
        reason=row["reason"],
        decided_at=utc(row["at"]),
        reading_set=reading_set,
        words=row["words"],
    )


async def export_release(reader: LedgerReader, writer: EvidenceWriter, cell: str, task_ids: set[str]) -> int:
    """When each task was accepted and let go, and by which rate. Returns how many were found."""
    rows = await reader.at_once("release", "task")
    controls = {row["task_type"]: row for row in rows["release"]}
    found = [row for row in rows["task"] if row["task_id"] in task_ids]
    for row in found:
        control = controls.get(row["task_type"])
        writer.append(
            "caller",
            "release",
            cell,
            task_id=row["task_id"],
            task_type=row["task_type"],
            accepted_at=utc(row["created_at"]),
            released_at=utc(row["released_at"]),
            rate_per_s=control["rate_per_s"] if control else None,
            changed_at=utc(control["changed_at"]) if control else None,
        )
    return len(found)


_STATES = {
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "cancelled",
    WorkflowExecutionStatus.TIMED_OUT: "failed",
}


async def export_task(client: Client, reader: LedgerReader, writer: EvidenceWriter, cell: str, task_id: str) -> str:
    """Record a task's state as its owner would be told, and its history. Returns the state."""
    row, held = await reader.task(task_id)
    handle = client.get_workflow_handle(task_id)
    status, outcome = None, None
    try:
        status = (await handle.describe()).status
        writer.history(task_id, (await handle.fetch_history()).to_json())
        if status is WorkflowExecutionStatus.COMPLETED:
            outcome = await handle.result()
    except WorkflowFailureError as error:
        outcome = {"error": str(error.cause)}
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
    state = str(row["state"]) if row is not None else _state(status, outcome, held)
    writer.append(
        "caller",
        "task",
        cell,
        task_id=task_id,
        state=state,
        reason=row["reason"] if row is not None else None,
        outcome=json.loads(json.dumps(outcome, default=str)),
        workflow_status=status.name if status is not None else None,
    )
    return state


def _state(status: WorkflowExecutionStatus | None, outcome: Any, held: bool) -> str:
    if status is WorkflowExecutionStatus.COMPLETED:
        return str(outcome.get("state", "complete")) if isinstance(outcome, dict) else "complete"
    if status is WorkflowExecutionStatus.RUNNING:
        return "held" if held else "running"
    return _STATES.get(status, "unknown") if status is not None else "unknown"
