"""What became of a permit: acknowledged, provably not sent, refused, or lost.

Acknowledgements are appended unconditionally, in every state (rule R6). Everything else is a compare-and-set on the
permit: a late "not sent" or "unknown" about an attempt that is no longer the current one changes nothing
(StaleWrite).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, LiteralString

from psycopg.types.json import Jsonb

from actonce.contracts.contract import Contract
from actonce.contracts.errors import StaleWrite
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import Event, State
from actonce.contracts.verdict import MORE_THAN_ASKED, Reason, Receipt
from actonce.ledger import pages
from actonce.ledger.attempts import attempt_facts, nothing_is_out
from actonce.ledger.permits import Permit
from actonce.ledger.store import (
    WHERE_KEY,
    Connection,
    Ledger,
    Operation,
    audit,
    identity_params,
    lock_operation,
    move,
    one,
)

Loss = Literal["not_sent", "not_accepted", "refused", "unknown"]
_EVENTS: dict[Loss, Event] = {
    "not_sent": Event.NOT_SENT,
    "not_accepted": Event.NOT_ACCEPTED,
    "refused": Event.REFUSED,
    "unknown": Event.LOST,
}


async def acknowledge(ledger: Ledger, permit: Permit, receipt: Receipt, contract: Contract) -> Operation:
    """Record an acknowledgement that the contract says means applied, whatever has happened since.

    Raises StaleWrite where the ledger was restored to before the intent; the acknowledgement is on record all the same,
    and counts as soon as the operation is there again.
    """
    operation = await _acknowledge(ledger, permit, receipt, contract)
    if operation is None:
        raise _not_here(permit.operation.key)
    return operation


async def _acknowledge(ledger: Ledger, permit: Permit, receipt: Receipt, contract: Contract) -> Operation | None:
    async with ledger.transaction() as connection:
        row = await one(
            connection,
            _APPEND,
            {
                **identity_params(permit.operation.key),
                "epoch": permit.epoch,
                "attempt": permit.attempt,
                "nonce": permit.nonce,
                "acknowledged_id": receipt.object_id,
                "acknowledged": Jsonb(receipt.model_dump(mode="json", fallback=str)),
            },
        )
        if row is None:
            await _append_without_row(connection, permit, receipt)
            return None
        operation, now = Operation.of(row), row["now"]
        sent_since = await _sent_since(connection, operation, permit)
        why = _contradiction(operation, permit, receipt, contract, set(row["known_ids"]), sent_since)
        if why is not None:
            await connection.execute(
                "UPDATE actonce.acknowledgement SET contradicts = true WHERE ack_id = %s", (row["ack_id"],)
            )
            return await _contradicted(connection, operation, *why, now)
        return await _accept(connection, operation, receipt, contract, now)


# Lock the operation, append the acknowledgement, whatever it means, and tell what was known before it. What is said
# of its attempt replaces "unknown"; nothing replaces an acknowledgement. Both writes select from the lock: they wait.
_APPEND: LiteralString = f"""
WITH locked AS (
    SELECT * FROM actonce.operation WHERE {WHERE_KEY} FOR UPDATE),
ended AS (
    UPDATE actonce.attempt SET outcome = 'acknowledged', outcome_at = clock_timestamp(), detail = %(acknowledged_id)s
    FROM locked WHERE attempt.nonce = %(nonce)s AND (outcome IS NULL OR outcome = 'unknown')),
appended AS (
    INSERT INTO actonce.acknowledgement (tenant, destination, action, operation_id, epoch, attempt, object_id, receipt,
        state_before, contradicts)
    SELECT tenant, destination, action, operation_id, %(epoch)s, %(attempt)s, %(acknowledged_id)s, %(acknowledged)s,
        state, false FROM locked
    RETURNING ack_id)
SELECT locked.*, ack_id, clock_timestamp() AS now, ARRAY(
    SELECT DISTINCT a.object_id FROM actonce.acknowledgement a WHERE a.operation_id = locked.operation_id
    AND a.tenant = locked.tenant AND a.destination = locked.destination AND a.action = locked.action) AS known_ids
FROM locked, appended
"""


async def _append_without_row(connection: Connection, permit: Permit, receipt: Receipt) -> None:
    """Keep what was acknowledged to an owner from before a restore, of an operation that the ledger does not have."""
    await connection.execute(
        "INSERT INTO actonce.acknowledgement (tenant, destination, action, operation_id, epoch, attempt, object_id,"
        " receipt, state_before, contradicts) VALUES (%(tenant)s, %(destination)s, %(action)s, %(operation_id)s,"
        " %(epoch)s, %(attempt)s, %(object_id)s, %(receipt)s, 'not in this ledger', false)",
        {
            **identity_params(permit.operation.key),
            "epoch": permit.epoch,
            "attempt": permit.attempt,
            "object_id": receipt.object_id,
            "receipt": Jsonb(receipt.model_dump(mode="json", fallback=str)),
        },
    )


def _contradiction(
    operation: Operation,
    permit: Permit,
    receipt: Receipt,
    contract: Contract,
    known_ids: set[str],
    sent_since: list[int],
) -> tuple[Reason, str] | None:
    """Rule R7: does this acknowledgement contradict a later permit, verdict or decision, or the digest?"""
    if receipt.digest is not None and receipt.digest != operation.payload_digest:
        return Reason.PAYLOAD_CONFLICT, (
            f"the destination acknowledged object {receipt.object_id} with digest {receipt.digest}, "
            f"asked was {operation.payload_digest}"
        )
    known = known_ids | ({operation.object_id} if operation.object_id else set())
    if known and receipt.object_id not in known:
        return (
            Reason.POSSIBLE_DUPLICATE,
            f"object {receipt.object_id} was acknowledged, {sorted(known)} is already known",
        )
    if operation.state in (State.CLOSED, State.REFUSED):
        return (
            Reason.POSSIBLE_DUPLICATE,
            f"object {receipt.object_id} was acknowledged after the operation was {operation.state}",
        )
    settled = operation.state in (State.COMMITTED, State.ACKNOWLEDGED)  # the object is the known one, see above
    if sent_since and not settled and not contract.resends_same_key:
        return Reason.POSSIBLE_DUPLICATE, (
            f"attempt {permit.attempt} was acknowledged as {receipt.object_id} after attempt {sent_since[-1]} may have "
            "been sent"
        )
    return None


async def _sent_since(connection: Connection, operation: Operation, permit: Permit) -> list[int]:
    """Later attempts that may have been sent. Costs a query only where there is a later attempt at all."""
    at = (permit.epoch, permit.attempt)
    if (operation.epoch, operation.attempt) <= at:
        return []
    attempts = await attempt_facts(connection, operation.key)
    # A restore presumes what this very acknowledgement now explains; it is no other send.
    later = [a for a in attempts if (a.epoch, a.attempt) > at and not a.lost_interval]
    return [a.attempt for a in later if not a.provably_not_sent]


async def _contradicted(
    connection: Connection, operation: Operation, reason: Reason, words: str, now: datetime
) -> Operation:
    await connection.execute(
        f"UPDATE actonce.operation SET acknowledged_at = coalesce(acknowledged_at, %(now)s) WHERE {WHERE_KEY}",
        {**identity_params(operation.key), "now": now},
    )
    return await pages.hold(connection, operation, reason, words, event=Event.ACK_CONTRADICTS)


async def _accept(
    connection: Connection, operation: Operation, receipt: Receipt, contract: Contract, now: datetime
) -> Operation:
    if operation.state is State.HELD and operation.reason in MORE_THAN_ASKED:
        await audit(connection, "operation.acknowledged_while_held", operation, {"object_id": receipt.object_id})
        return operation  # a repeat of what is known does not explain a duplicate away
    completes = contract.completion in ("receipt", "handover")
    event = Event.ACK_COMPLETE if completes else Event.ACK_READ_BACK
    columns: dict[str, Any] = {"object_id": receipt.object_id, "reason": None, "words": None}
    columns |= {"acknowledged_at": operation.acknowledged_at or now}
    if completes and operation.state is not State.COMMITTED:
        columns |= {"completion": contract.completion, "receipt": receipt.model_dump(mode="json", fallback=str)}
        columns |= {"committed_at": operation.committed_at or receipt.at or now}
    moved = await move(connection, operation, event, **columns)
    if operation.state is State.HELD:
        await pages.close_hold(connection, moved, "evidence:acknowledgement")
    return moved


async def record_loss(ledger: Ledger, permit: Permit, loss: Loss, detail: str, *, for_key: bool = False) -> Operation:
    """Record that the attempt ended without an acknowledgement. Compare-and-set on the permit.

    A refusal ends the operation only where it speaks for every request that was sent: nothing else is out, or it is
    the stored answer to the key that all of them carried (`for_key`). Else the operation is as unknown as it was:
    "refunded already" may be said of our own first request, and "no such account" before anybody looked at the key.
    """
    async with ledger.transaction() as connection:
        operation = await _locked(connection, permit.operation.key)
        check_current(operation, permit)
        await _close_attempt(connection, permit, loss, detail)
        columns: dict[str, Any] = {"words": detail[:2000]}
        if loss in ("not_sent", "not_accepted"):
            earlier = await attempt_facts(connection, operation.key)
            if all(a.provably_not_sent for a in earlier):
                columns |= {"may_commit_until": None, "unbounded": False, "reconcile_at": None, "decide_at": None}
        event = _EVENTS[loss]
        if loss == "refused" and not await _speaks_for_all(connection, operation, permit, for_key):
            event = Event.LOST
        elif loss == "refused":
            columns |= {"reason": "refused"}
        return await move(connection, operation, event, **columns)


async def _speaks_for_all(connection: Connection, operation: Operation, permit: Permit, for_key: bool) -> bool:
    if operation.attempts < 2:
        return True
    attempts = await attempt_facts(connection, operation.key)
    if for_key and all(a.key_kept_until is not None for a in attempts if not a.provably_not_sent):
        return True
    earlier = [a for a in attempts if (a.epoch, a.attempt) < (permit.epoch, permit.attempt)]
    return await nothing_is_out(connection, operation, earlier)


async def record_hold(ledger: Ledger, permit: Permit, reason: Reason, words: str) -> Operation:
    """Record a loss that only a person can explain: the operation is held. Compare-and-set on the permit."""
    async with ledger.transaction() as connection:
        operation = await _locked(connection, permit.operation.key)
        check_current(operation, permit)
        await _close_attempt(connection, permit, "unknown", words)
        return await pages.hold(connection, operation, reason, words)


async def report_duplicate(ledger: Ledger, operation: Operation, words: str) -> None:
    """Page that the destination called our send a duplicate: somebody else sends under our identity."""
    async with ledger.transaction() as connection:
        await audit(connection, "operation.duplicate_refused", operation, {"words": words})
        await pages.open_page(
            connection,
            incident=f"duplicate:{operation.destination}:{operation.operation_id}",
            reason=Reason.DUPLICATE_REFUSED.value,
            title=f"{operation.destination} refused {operation.operation_id} as a duplicate",
            body=f"{words}\nThe operation is being reconciled. Find out who else sends it (another ledger?).\n"
            "Procedure: docs/operations/duplicate_refused.md",
            operation=operation,
        )


def check_current(operation: Operation, permit: Permit) -> None:
    """The compare: is this permit the current one, and still unsettled?"""
    mine = (operation.epoch, operation.attempt, operation.nonce) == (permit.epoch, permit.attempt, permit.nonce)
    if not mine or operation.state is not State.DISPATCHED:
        raise StaleWrite(
            f"{operation.operation_id} is {operation.state} at attempt {operation.attempt}; a record about attempt "
            f"{permit.attempt} changes nothing; reconcile"
        )


async def _close_attempt(connection: Connection, permit: Permit, outcome: str, detail: str) -> None:
    # An acknowledgement replaces "unknown"; nothing replaces an acknowledgement.
    await connection.execute(
        "UPDATE actonce.attempt SET outcome = %s, outcome_at = clock_timestamp(), detail = %s"
        " WHERE nonce = %s AND (outcome IS NULL OR outcome = 'unknown')",
        (outcome, detail[:2000], permit.nonce),
    )


async def _locked(connection: Connection, key: OperationKey) -> Operation:
    operation = await lock_operation(connection, key)
    if operation is None:
        raise _not_here(key)
    return operation


def _not_here(key: OperationKey) -> StaleWrite:
    return StaleWrite(f"{key} is not in this ledger; it was restored or is foreign: reconcile")
