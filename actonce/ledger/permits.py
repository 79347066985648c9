"""Intent and permit in one transaction, and the fence's question to the ledger.

The permit is the single-use right to send. It is consumed in the transaction that moves the operation to
`dispatched`; it carries (restore epoch, attempt), an owner, a nonce that belongs to one execution of the issue
activity (rule R5), and `not_after`. Only after that commit may the first byte leave.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from actonce.contracts import bounds
from actonce.contracts.approval import Proposal, Unresolved
from actonce.contracts.commands import CLIENT
from actonce.contracts.contract import Contract
from actonce.contracts.credential import Lease, NoLease
from actonce.contracts.errors import IntentConflict, PayloadError, SendFenced
from actonce.contracts.identity import OperationKey, wire_key
from actonce.contracts.lifecycle import Event, State
from actonce.contracts.verdict import AttemptFact, Reason
from actonce.ledger import approvals, authorising, authority, gates, pages, restoring
from actonce.ledger.attempts import ATTEMPT, attempt_facts, key_used, nothing_is_out, presume_sent
from actonce.ledger.store import (
    WHERE_KEY,
    Beside,
    Connection,
    Ledger,
    Operation,
    identity_params,
    lock_operation,
    many,
    move,
    one,
    read_operation,
)


@dataclass(frozen=True)
class Intent:
    """What is to be done once: written before anything is sent."""

    key: OperationKey
    task_id: str
    step: str
    iteration: int
    payload: dict[str, Any]
    digest: str
    natural_key: str | None = None
    reverses: str | None = None
    proposal: Proposal | Unresolved | None = None  # what would run, as it is now; where an approval is needed


@dataclass(frozen=True)
class Owner:
    """The process that holds a permit."""

    host: str
    boot_id: str
    pid: int
    start_time: float

    def json(self) -> dict[str, Any]:
        return {"host": self.host, "boot_id": self.boot_id, "pid": self.pid, "start_time": self.start_time}


@dataclass(frozen=True)
class Permit:
    """The consumed right to send once."""

    operation: Operation
    nonce: UUID
    epoch: int
    attempt: int
    wire_key: str
    issued_at: datetime
    not_after: datetime
    lease: Lease | None = None  # of this process, under which it was given

    @property
    def life_s(self) -> float:
        """How long it may be used, in seconds from before it was asked for; the contract's, or what a gate allows."""
        return (self.not_after - self.issued_at).total_seconds()


@dataclass(frozen=True)
class NoPermit:
    """No permit: the operation is already somewhere else. Adopt, wait or reconcile; never send."""

    operation: Operation
    why: str = field(default="")
    stale_lease: bool = False  # nothing is held: ask again with a fresh lease
    quarantined: bool = False  # nothing is held: ask again after a person has released it


# The task's row is locked after the operation's (see the order in `store`), against a cancel only: one that came before
# is seen here, and one that comes while this permit is taken waits for it and tells of it.
_INSERT = """
WITH intent AS (
    INSERT INTO actonce.operation (tenant, destination, action, operation_id, task_id, step, iteration, payload,
        payload_digest, account, natural_key, reverses, contract_version, contract_digest, guarantee, epoch)
    SELECT %(tenant)s, %(destination)s, %(action)s, %(operation_id)s, %(task_id)s, %(step)s, %(iteration)s,
        %(payload)s, %(digest)s, %(account)s, %(natural_key)s, %(reverses)s, %(contract_version)s,
        %(contract_digest)s, %(guarantee)s, restore_epoch FROM actonce.identity
    ON CONFLICT (tenant, destination, action, operation_id) DO UPDATE SET updated_at = operation.updated_at
    RETURNING operation.*)
SELECT intent.*, clock_timestamp() AS now, restore_epoch AS current_epoch, quarantined, open_restore, clone_of,
    asked.quarantined_epoch AS task_quarantined,
    coalesce(asked.cancel_requested, false) AS task_cancelled, asked.deadline AS task_deadline,
    coalesce(asked.task_type, split_part(intent.task_id, '/', 2)) AS task_type,
    EXISTS (SELECT 1 FROM actonce.approval p WHERE (p.tenant, p.destination, p.action, p.operation_id) =
        (intent.tenant, intent.destination, intent.action, intent.operation_id)
        AND p.state IN ('rejected', 'withdrawn')) AS declined,
    EXISTS (SELECT 1 FROM actonce.restore_effect e WHERE e.destination = intent.destination
        AND e.operation_id = intent.operation_id) AS shown_by_sweep
FROM intent CROSS JOIN actonce.identity LEFT JOIN LATERAL (
    SELECT cancel_requested, deadline, task_type, quarantined_epoch FROM actonce.task t
    WHERE t.task_id = intent.task_id FOR KEY SHARE
) asked ON true
"""


# A number out of its column's range, a natural key longer than an index entry, nesting beyond what is parsed.
_NOT_KEPT = (psycopg.DataError, psycopg.errors.ProgramLimitExceeded, psycopg.errors.StatementTooComplex)


async def take_permit(
    ledger: Ledger,
    intent: Intent,
    contract: Contract,
    owner: Owner,
    nonce: UUID,
    lease: Lease | NoLease | None = None,
) -> Permit | NoPermit:
    """Write the intent (or find the same one) and consume a permit, in one transaction.

    `lease`: this process's lease of the contract's credential, or why it has none; a permit never outlives it.
    Raises IntentConflict (nothing was sent, a page is recorded), PayloadError (the ledger cannot keep it; nothing was
    sent) and LedgerUnavailable (unknown whether the permit
    was taken: ask `read_own` with the same nonce).
    """
    try:
        async with ledger.transaction() as connection:
            operation, row = await _insert_or_lock(connection, intent, contract)
            if operation.payload_digest == intent.digest:
                return await _consume(connection, operation, row, intent, contract, owner, nonce, lease)
    except psycopg.errors.UniqueViolation as error:
        await pages.report_conflict(ledger, intent.key, intent.task_id, f"natural key {intent.natural_key!r} is taken")
        raise IntentConflict(
            f"{intent.key}: the natural effect key {intent.natural_key!r} belongs to another operation of this tenant; "
            f"nothing was sent; look it up with `{CLIENT} list --natural-key` before deciding anew"
        ) from error
    except _NOT_KEPT as error:
        raise PayloadError(
            f"{intent.key}: the ledger cannot keep what is asked ({type(error).__name__}: {error}); nothing was sent; "
            "make its parts shorter or smaller"
        ) from error
    words = f"the same identity was used with digest {operation.payload_digest}, now {intent.digest}"
    await pages.report_conflict(ledger, intent.key, intent.task_id, words)
    raise IntentConflict(f"{intent.key}: {words}; nothing was sent; a new business decision needs a new iteration")


async def _insert_or_lock(
    connection: Connection, intent: Intent, contract: Contract
) -> tuple[Operation, dict[str, Any]]:
    row = await one(
        connection,
        _INSERT,
        {
            **identity_params(intent.key),
            "task_id": intent.task_id,
            "step": intent.step,
            "iteration": intent.iteration,
            "payload": Jsonb(intent.payload),
            "digest": intent.digest,
            "account": contract.account,
            "natural_key": intent.natural_key,
            "reverses": intent.reverses,
            "contract_version": contract.version,
            "contract_digest": contract.digest,
            "guarantee": contract.late_arrival.kind,
        },
    )
    assert row is not None, "actonce.identity is empty"
    return Operation.of(row), dict(row)


async def _consume(
    connection: Connection,
    operation: Operation,
    row: dict[str, Any],
    intent: Intent,
    contract: Contract,
    owner: Owner,
    nonce: UUID,
    lease: Lease | NoLease | None,
) -> Permit | NoPermit:
    if operation.state is State.DISPATCHED and operation.nonce == nonce:
        return await _own(connection, operation, nonce)
    if operation.state is not State.READY:
        return NoPermit(operation, f"it is {operation.state}")
    if (row["open_restore"] is not None or row["shown_by_sweep"]) and operation.attempts == 0:
        lost = await restoring.lost_interval_of(connection, operation)
        if lost is not None:
            operation = await presume_sent(connection, operation, contract, lost)
            return NoPermit(operation, f"{operation.words}; it is reconciled first")
    if row["quarantined"] or row["task_quarantined"] is not None:
        which = "ledger" if row["quarantined"] else "task"
        return NoPermit(operation, f"the {which} is quarantined after a restore", quarantined=True)
    if row["task_cancelled"]:
        return NoPermit(await _cancel_ready(connection, operation), "its task was cancelled")
    if intent.reverses is not None:
        original = await one(
            connection,
            "SELECT state FROM actonce.operation WHERE tenant = %s AND operation_id = %s AND state = 'committed'",
            (operation.tenant, intent.reverses),
        )
        if original is None:
            raise IntentConflict(
                f"{operation.key} reverses {intent.reverses}, which is not committed; nothing was sent; "
                "settle the original first"
            )
    earlier = await attempt_facts(connection, operation.key) if operation.attempts else []
    used_up = _used_up(earlier, contract)
    if used_up and not operation.retry_granted:
        return NoPermit(await pages.hold(connection, operation, Reason.ATTEMPTS_EXHAUSTED, used_up), used_up)
    forgotten = await _key_forgotten(connection, operation, earlier, contract, row["now"])
    if forgotten:
        return NoPermit(await pages.hold(connection, operation, Reason.RETENTION_EXPIRED, forgotten), forgotten)
    gate = await gates.check(connection, operation, row, contract, intent.proposal, lease)
    if isinstance(gate, gates.Refusal):
        if gate.stale_lease:
            return NoPermit(operation, gate.words, stale_lease=True)
        return NoPermit(await pages.hold(connection, operation, gate.reason, gate.words), gate.words)
    asked = {**row, "latest": gate.latest, "lease": lease}
    return await _dispatch(connection, operation, asked, earlier, contract, owner, nonce)


def _used_up(earlier: list[AttemptFact], contract: Contract) -> str:
    """Words when no further permit may be given without a person, else nothing."""
    taken = [a for a in earlier if not a.lost_interval]
    sent = sum(not a.provably_not_sent for a in taken)
    if sent >= contract.attempts_max:
        return f"{sent} permits may have been used, the contract allows {contract.attempts_max}"
    if len(taken) - sent >= contract.unsent_max:
        return f"{len(taken) - sent} permits ended provably unsent, the contract allows {contract.unsent_max}"
    return ""


async def _key_forgotten(
    connection: Connection, operation: Operation, earlier: list[AttemptFact], contract: Contract, now: datetime
) -> str:
    """Rule R3 at the moment that counts: words when a same-key resend would leave after its key may be forgotten.

    The reconciler asked the same, but its answer may be hours old when a worker comes back to take the permit.
    """
    sent = [a for a in earlier if not a.provably_not_sent]
    if not sent or operation.retry_granted or await nothing_is_out(connection, operation, earlier):
        return ""
    if contract.keys is None or not contract.resends_same_key:
        if all(a.key_kept_until is None for a in sent):
            return ""  # a person permitted it, and that send was provably not made
        return "it may be sent again only under a key that the destination registers on arrival; the contract changed"
    kept = timedelta(seconds=contract.keys.retention_s - contract.keys.margin_s)
    life = timedelta(seconds=contract.timing.permit_lifetime_s + 2 * contract.clock_skew_s)
    promised = [a.key_kept_until for a in sent if a.key_kept_until is not None]
    if now + life < min([min(a.issued_at for a in sent) + kept, *promised]):
        return ""
    return (
        f"it may be sent again only while the destination keeps its key ({contract.keys.retention_s:g} s, less a "
        f"margin of {contract.keys.margin_s:g} s); that time is over"
    )


async def _dispatch(
    connection: Connection,
    operation: Operation,
    row: dict[str, Any],
    earlier: list[AttemptFact],
    contract: Contract,
    owner: Owner,
    nonce: UUID,
) -> Permit:
    issued_at: datetime = row["now"]
    epoch: int = row["current_epoch"]
    not_after = issued_at + timedelta(seconds=contract.timing.permit_lifetime_s)
    if row["latest"] is not None:
        not_after = min(not_after, row["latest"])
    lease = row["lease"] if isinstance(row["lease"], Lease) else None
    attempt = operation.attempt + 1
    generation, key = await _next_key(connection, operation, earlier, contract)
    fact = AttemptFact(epoch=epoch, attempt=attempt, generation=generation, issued_at=issued_at, not_after=not_after)
    until, unbounded = bounds.may_commit_until(contract, [*earlier, fact])
    kept_s = contract.keys.retention_s - contract.keys.margin_s if contract.keys and contract.resends_same_key else None
    moved = await move(
        connection,
        operation,
        Event.PERMIT,
        Beside(
            ATTEMPT,
            {
                "wire_key": key,
                "owner": Jsonb(owner.json()),
                "attempt_issued_at": issued_at,
                "late_arrival": contract.late_arrival.kind,
                "until": bounds.may_commit_until(contract, [fact])[0],
                "kept_until": issued_at + timedelta(seconds=kept_s) if kept_s is not None else None,
                "lease_id": lease.lease_id if lease is not None else None,
                "outcome": None,
                "detail": None,
            },
        ),
        epoch=epoch,
        attempt=attempt,
        attempts=operation.attempts + 1,
        generation=generation,
        nonce=nonce,
        issued_at=operation.issued_at or issued_at,
        not_after=not_after,
        may_commit_until=until,
        unbounded=unbounded,
        reconcile_at=bounds.reconcile_at(contract, [*earlier, fact]),
        decide_at=bounds.last_bound(contract, [*earlier, fact]),
        recount_at=bounds.page_at(contract, [*earlier, fact]) if operation.attempts else None,
        recounted_at=None,
        reason=None,
        retry_granted=False,
    )
    return Permit(moved, nonce, epoch, attempt, key, issued_at, not_after, lease)


async def _next_key(
    connection: Connection, operation: Operation, earlier: list[AttemptFact], contract: Contract
) -> tuple[int, str]:
    """The key of the next send. A cancelled key is spent, also where a person and not a verdict permits the send."""
    if contract.keys is None:
        return operation.generation, operation.operation_id
    key = await key_used(connection, operation) if earlier else None
    key = key or wire_key(operation.operation_id, operation.generation, contract.keys.format)
    if not earlier or contract.late_arrival.kind != "cancel_by_key":
        return operation.generation, key
    spent = await one(
        connection,
        f"SELECT 1 FROM actonce.key_cancel WHERE {WHERE_KEY} AND wire_key = %(wire_key)s AND cancelled_at IS NOT NULL",
        {**identity_params(operation.key), "wire_key": key},
    )
    if spent is None:
        return operation.generation, key
    generation = operation.generation + 1
    return generation, wire_key(operation.operation_id, generation, contract.keys.format)


async def read_own(
    ledger: Ledger, key: OperationKey, nonce: UUID, lease: Lease | None = None
) -> Permit | NoPermit | None:
    """After a lost answer to `take_permit`: is the permit ours (rule R5)? None when there is no such intent."""
    async with ledger.transaction() as connection:
        operation = await read_operation(connection, key)
        if operation is None:
            return None
        if operation.state is State.DISPATCHED and operation.nonce == nonce:
            return replace(await _own(connection, operation, nonce), lease=lease)
        return NoPermit(operation, f"it is {operation.state}")


async def _own(connection: Connection, operation: Operation, nonce: UUID) -> Permit:
    row = await one(connection, "SELECT * FROM actonce.attempt WHERE nonce = %s", (nonce,))
    assert row is not None, "a dispatched operation has an attempt row"
    return Permit(operation, nonce, row["epoch"], row["attempt"], row["wire_key"], row["issued_at"], row["not_after"])


async def check_fence(ledger: Ledger, permit: Permit) -> None:
    """Ask the ledger whether this permit may still be used. Raises SendFenced when not."""
    async with ledger.transaction() as connection:
        row = await one(
            connection,
            "SELECT o.state, o.nonce, i.restore_epoch, i.quarantined, clock_timestamp() < o.not_after AS alive,"
            " coalesce((SELECT cancel_requested FROM actonce.task t WHERE t.task_id = o.task_id), false) AS cancelled,"
            f" {authorising.OVER} AS lease_over, {approvals.TAKEN_BACK} AS taken_back,"
            f" {authority.OVER} AS authority_over"
            f" FROM actonce.operation o, actonce.identity i WHERE {WHERE_KEY}",
            identity_params(permit.operation.key),
        )
    name = permit.operation.operation_id
    if row is None:
        raise SendFenced(f"{name} is not in the ledger any more; nothing was sent")
    if row["state"] != State.DISPATCHED or row["nonce"] != permit.nonce:
        raise SendFenced(
            f"{name} is {row['state']} and this permit (attempt {permit.attempt}) is void; nothing was sent"
        )
    if row["restore_epoch"] != permit.epoch or row["quarantined"]:
        raise SendFenced(f"{name}: the ledger was restored (epoch {row['restore_epoch']}); nothing was sent")
    if row["cancelled"]:
        raise SendFenced(f"{name}: its task was cancelled; nothing was sent")
    if row["lease_over"] is not None:
        raise SendFenced(f"{name}: the lease of its permit may not be used: {row['lease_over']}; nothing was sent")
    if row["taken_back"] is not None:
        raise SendFenced(f"{name}: its approval was {row['taken_back']}; nothing was sent")
    if row["authority_over"]:
        raise SendFenced(f"{name}: the authority of its permit was withdrawn; nothing was sent")
    if not row["alive"]:
        raise SendFenced(f"{name}: not_after of attempt {permit.attempt} has passed; nothing was sent")


async def _cancel_ready(connection: Connection, operation: Operation) -> Operation:
    """Close a ready operation of a cancelled task; hold it where "not done" would be a guess (rule R3)."""
    earlier = await attempt_facts(connection, operation.key) if operation.attempts else []
    if await nothing_is_out(connection, operation, earlier):
        return await move(connection, operation, Event.CANCEL, reason="cancelled")
    words = "its task was cancelled, and an earlier request of it may have taken effect or still may"
    return await pages.hold(connection, operation, Reason.LATE_COMMIT_POSSIBLE, words)


async def cancel_task_operations(connection: Connection, task_id: str) -> list[Operation]:
    """Lock the operations of a task and void every unused permit (rule R8). Returns them as they are then."""
    rows = await many(
        connection,
        "SELECT * FROM actonce.operation WHERE task_id = %s ORDER BY tenant, destination, action, operation_id"
        " FOR UPDATE",
        (task_id,),
    )
    operations = [Operation.of(row) for row in rows]
    return [await _cancel_ready(connection, o) if o.state is State.READY else o for o in operations]


__all__ = [
    "Intent",
    "NoPermit",
    "Owner",
    "Permit",
    "cancel_task_operations",
    "check_fence",
    "lock_operation",
    "read_own",
    "take_permit",
]
