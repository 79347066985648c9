"""A restored ledger: quarantine, a new epoch, and what may have happened that it does not know (rules R12, R13).

After a restore the ledger is older than the world. Every operation that could have been sent between the backup (the
*boundary*) and the restore is treated as one that was sent and whose answer was lost; ordinary reconciliation decides
it, and nothing is sent meanwhile.

    enter_quarantine    one transaction, before any process of ours works on it: the next epoch, `quarantined`, every
                        operation that is not final presumed sent (`attempts.presume_sent`), every open task
                        quarantined, numbers that may have been given out since skipped, a page
    lost_interval_of    asked in the permit's transaction about an operation that is issued for the first time while a
                        restore is open: could its twin have been sent in the lost interval?
    let_go              a person has released tasks: they go on where their records stand

`identity.quarantined` refuses every permit and every fence; `task.quarantined_epoch` the permits of one task. The
restore stays open (`identity.open_restore`) until a person closes it: until then first issues are reconciled first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import uuid4

from psycopg import sql
from psycopg.types.json import Jsonb
from pydantic import ValidationError

from actonce.contracts import bounds
from actonce.contracts.commands import CLIENT
from actonce.contracts.contract import Contract
from actonce.contracts.errors import LedgerError
from actonce.contracts.reasons import policy
from actonce.contracts.verdict import Reason
from actonce.ledger import pages
from actonce.ledger.attempts import LostInterval, presume_sent
from actonce.ledger.store import Connection, Operation, identity_params, many, one, utc

SKIPPED = 1_000_000  # numbers; where nothing outside the backup tells how many were given out after it
Kind = Literal["restored", "clone", "noticed"]


@dataclass(frozen=True)
class Boundary:
    """The moment that the ledger shows. `highest`: numbers known from outside (restore_epoch, audit_seq, …)."""

    at: datetime  # the ledger's time of the backup
    detail: dict[str, Any] = field(default_factory=dict)  # LSN or snapshot, skew, whatever the manifest tells
    manifest_digest: str | None = None
    highest: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Restore:
    """One row of `actonce.restore`."""

    epoch: int
    kind: Kind
    at: datetime
    boundary_at: datetime
    boundary: dict[str, Any]
    manifest_digest: str | None
    clone_of: str | None
    journal_complete: bool
    not_after: datetime
    bounds_until: datetime
    operations: int
    tasks: int
    swept_at: datetime | None
    released_at: datetime | None
    released_by: str | None
    closed_at: datetime | None
    closed_by: str | None
    close_reason: str | None
    close_risk: str | None  # what was not known then

    @staticmethod
    def of(row: Mapping[str, Any]) -> Restore:
        return Restore(**{name: row[name] for name in Restore.__dataclass_fields__})

    @property
    def incident(self) -> str:
        """Of its page."""
        return f"ledger:restored:{self.epoch}"

    @property
    def lost(self) -> LostInterval:
        return LostInterval(self.epoch, self.boundary_at, self.at, self.not_after)


async def enter_quarantine(
    connection: Connection, boundary: Boundary, *, clone_as: str | None = None, noticed: bool = False
) -> Restore:
    """Begin the next epoch, quarantined. The caller's transaction; nothing of ours may work on this ledger before it.

    `clone_as`: the copy becomes a deployment of that name, with an id of its own. `noticed`: nobody told us of the
    restore. Raises LedgerError where the boundary cannot be one of this ledger.
    """
    identity = await one(connection, "SELECT *, clock_timestamp() AS now FROM actonce.identity FOR UPDATE")
    if identity is None:
        raise LedgerError("the ledger has no identity; it was emptied: restore it again from a whole backup")
    if boundary.at > identity["now"]:
        raise LedgerError(
            f"the backup's boundary {utc(boundary.at)} is after the ledger's time {utc(identity['now'])}; "
            "set the clock of the database host right, then restore again"
        )
    contracts = await _contracts(connection)
    not_after = identity["now"] + timedelta(seconds=await _longest_life_s(connection))
    epoch = max(identity["restore_epoch"], boundary.highest.get("restore_epoch", 0)) + 1
    lost = LostInterval(epoch, boundary.at, identity["now"], not_after)
    operations = await many(
        connection,
        "SELECT * FROM actonce.operation WHERE state NOT IN ('committed', 'refused', 'closed')"
        " ORDER BY tenant, destination, action, operation_id FOR UPDATE",
    )
    presumed = [
        await presume_sent(connection, operation, contracts.get(operation.contract_digest), lost)
        for operation in map(Operation.of, operations)
    ]
    tasks = await _quarantine_tasks(connection, lost.epoch)
    kind: Kind = "clone" if clone_as is not None else "noticed" if noticed else "restored"
    row = await one(
        connection,
        "INSERT INTO actonce.restore (epoch, kind, at, boundary_at, boundary, manifest_digest, clone_of, not_after,"
        " bounds_until, operations, tasks) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING *",
        (
            lost.epoch,
            kind,
            identity["now"],
            boundary.at,
            Jsonb(boundary.detail),
            boundary.manifest_digest,
            identity["deployment"] if clone_as is not None else None,
            not_after,
            _bounds_until(list(contracts.values()), presumed, lost),
            len(presumed),
            tasks,
        ),
    )
    assert row is not None
    restore = Restore.of(row)
    await _skip_numbers(connection, boundary)
    await _begin_epoch(connection, restore, clone_as, await _audit_from(connection, boundary))
    await _call_people(connection, restore)
    return restore


async def _contracts(connection: Connection) -> dict[str, Contract]:
    """Every contract that was ever registered and can be read, by digest. One that cannot bounds nothing."""
    found: dict[str, Contract] = {}
    for row in await many(connection, "SELECT digest, body FROM actonce.contract"):
        with contextlib.suppress(ValidationError):  # of another release
            found[row["digest"]] = Contract.model_validate(row["body"])
    return found


async def _longest_life_s(connection: Connection) -> float:
    """Of a permit under any contract that was ever registered."""
    row = await one(
        connection,
        "SELECT max((body -> 'timing' ->> 'permit_lifetime_s')::float8) AS life_s FROM actonce.contract",
    )
    return float(row["life_s"]) if row is not None and row["life_s"] is not None else 0.0


def _bounds_until(contracts: list[Contract], presumed: list[Operation], lost: LostInterval) -> datetime:
    """When every finite bound has passed, also of what this ledger has no row of.

    Where nothing enforces a bound it is held instead of waited for (rule R8); reconcile-after has passed then.
    """
    moments = [lost.not_after, *(o.decide_at for o in presumed if o.decide_at is not None)]
    for contract in contracts:
        late_s = bounds.late_bound_s(contract)
        lag_s = max((route.lag_s for route in contract.routes), default=0.0)
        waits_s = max(contract.timing.reconcile_after_s, (late_s or 0.0) + lag_s)
        moments.append(lost.not_after + timedelta(seconds=waits_s))
    return max(moments)


async def _quarantine_tasks(connection: Connection, epoch: int) -> int:
    words = "the ledger was restored; what of it was sent since the backup is being established, and nothing is sent"
    cursor = await connection.execute(
        "UPDATE actonce.task SET state = 'quarantined', quarantined_epoch = %(epoch)s, restored_in = %(epoch)s,"
        " reason = %(reason)s, detail = %(words)s, since = clock_timestamp()"
        " WHERE state NOT IN ('complete', 'failed', 'cancelled')",
        {"epoch": epoch, "reason": Reason.LEDGER_RESTORED.value, "words": words},
    )
    return cursor.rowcount


async def _skip_numbers(connection: Connection, boundary: Boundary) -> None:
    """No number that may have been given out after the boundary is given out again."""
    columns = await many(
        connection,
        "SELECT a.attname AS column, pg_get_serial_sequence(c.oid::regclass::text, a.attname) AS sequence"
        " FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " WHERE c.relnamespace = 'actonce'::regnamespace AND a.attidentity <> '' AND NOT a.attisdropped",
    )
    for column in columns:
        known = boundary.highest.get(column["column"], 0)
        await connection.execute(
            sql.SQL("SELECT setval(%s, greatest((SELECT last_value FROM {}) + %s, %s))").format(
                sql.SQL(column["sequence"])
            ),
            (column["sequence"], SKIPPED, known + 1),
        )


async def _audit_from(connection: Connection, boundary: Boundary) -> int:
    """The lowest number that an audit event may get from here on: what is not sealed yet may have been sealed then."""
    row = await one(
        connection,
        "SELECT greatest((SELECT max(seq) FROM actonce.audit), (SELECT max(seq) FROM actonce.audit_cursor), 0)"
        " + (SELECT count(*) FROM actonce.audit WHERE seq IS NULL) AS last",
    )
    assert row is not None
    return max(int(row["last"]) + SKIPPED, boundary.highest.get("audit_seq", 0) + 1)


async def _begin_epoch(connection: Connection, restore: Restore, clone_as: str | None, audit_from: int) -> None:
    clone: dict[str, Any] = {"as": clone_as, "id": uuid4() if clone_as is not None else None, "of": restore.clone_of}
    await connection.execute(
        "UPDATE actonce.identity SET restore_epoch = %(epoch)s, quarantined = true, open_restore = %(epoch)s,"
        " audit_from = %(from)s, chain_id = coalesce(chain_id, ledger_id),"
        " ledger_id = coalesce(%(id)s, ledger_id), deployment = coalesce(%(as)s, deployment),"
        " clone_of = coalesce(%(of)s, clone_of)",
        {"epoch": restore.epoch, "from": audit_from, **clone},
    )


async def _call_people(connection: Connection, restore: Restore) -> None:
    row = policy(Reason.LEDGER_RESTORED)
    how = {
        "restored": "was restored from a backup",
        "clone": f"is a clone of {restore.clone_of}",
        "noticed": "is older than the journal beside it: somebody restored it and told nobody",
    }[restore.kind]
    await pages.open_page(
        connection,
        incident=restore.incident,
        reason=Reason.LEDGER_RESTORED.value,
        title=f"the ledger {how}; epoch {restore.epoch} begins quarantined",
        body=f"The ledger {how}. It shows {utc(restore.boundary_at)}; what happened between then and "
        f"{utc(restore.at)} is not in it.\n"
        f"Nothing is sent. {restore.operations} operations that were not final are treated as sent and are being "
        f"reconciled; {restore.tasks} tasks are quarantined. The sweep may begin at {utc(restore.bounds_until)}.\n"
        f"Do: {CLIENT} overview\nIt resumes when {row.resumes_when}.\nOwner: {row.owner}. Procedure: {row.procedure}",
    )


async def open_restore(connection: Connection) -> Restore | None:
    """The restore that is not closed yet."""
    row = await one(connection, "SELECT r.* FROM actonce.restore r JOIN actonce.identity i ON i.open_restore = r.epoch")
    return None if row is None else Restore.of(row)


async def lost_interval_of(connection: Connection, operation: Operation) -> LostInterval | None:
    """The lost interval in which an operation without any attempt may have been sent; None: it cannot have been.

    Of the restores that are not closed the earliest boundary and the latest end count. With a complete journal exactly
    what it names was permitted. Without one everything may have been, except at a destination of which the sweep listed
    everything. What a sweep was shown was sent, for ever.
    """
    rows = await many(
        connection,
        "SELECT r.* FROM actonce.restore r WHERE EXISTS (SELECT 1 FROM actonce.restore_effect e WHERE e.epoch = r.epoch"
        " AND e.destination = %(destination)s AND e.operation_id = %(operation_id)s) OR r.closed_at IS NULL"
        " AND CASE WHEN r.journal_complete THEN EXISTS (SELECT 1 FROM actonce.restore_permitted p"
        " WHERE p.epoch = r.epoch AND (p.tenant, p.destination, p.action, p.operation_id) ="
        " (%(tenant)s, %(destination)s, %(action)s, %(operation_id)s))"
        " ELSE NOT EXISTS (SELECT 1 FROM actonce.restore_listed l WHERE l.epoch = r.epoch"
        " AND l.destination = %(destination)s) END",
        identity_params(operation.key),
    )
    if not rows:
        return None
    return LostInterval(
        epoch=max(row["epoch"] for row in rows),
        began_at=min(row["boundary_at"] for row in rows),
        ended_at=max(row["at"] for row in rows),
        not_after=max(row["not_after"] for row in rows),
    )


async def let_go(connection: Connection, task_ids: list[str]) -> int:
    """Release tasks from quarantine: each is again what its records say. Returns how many were quarantined.

    Those that Temporal was given are started again by their ids, which attaches to a workflow that runs.
    """
    rows = await many(
        connection,
        "UPDATE actonce.task t SET quarantined_epoch = NULL, reason = NULL, detail = NULL, since = clock_timestamp(),"
        " recorded = false, state = CASE WHEN released_at IS NOT NULL"
        " AND EXISTS (SELECT 1 FROM actonce.plan p WHERE p.task_id = t.task_id) THEN 'running' ELSE 'queued' END"
        " WHERE task_id = ANY(%s) AND quarantined_epoch IS NOT NULL"
        " AND state NOT IN ('complete', 'failed', 'cancelled') RETURNING task_id",
        (task_ids,),
    )
    for row in rows:
        await pages.task_stands(connection, row["task_id"])
    return len(rows)
