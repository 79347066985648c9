"""An operator's decision: a durable row first, a fresh reading second, its effect third (SPEC §2.6, rule R9).

`record` refuses what is too early or stale and says why; `consume` applies it, compare-and-set, after the caller has
reconciled once more in the same action.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from actonce.contracts.errors import DecisionRefused
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import Event, State
from actonce.contracts.messages import DecisionRequest
from actonce.contracts.reasons import policy
from actonce.contracts.verdict import MORE_THAN_ASKED, Outcome, Reason, Verdict
from actonce.ledger import gates, pages
from actonce.ledger.store import (
    WHERE_KEY,
    Connection,
    Ledger,
    Operation,
    identity_params,
    lock_operation,
    many,
    move,
    one,
    utc,
)

_EVENTS = {
    "mark_committed": Event.MARK_COMMITTED,
    "mark_absent": Event.MARK_ABSENT,
    "permit_one_retry": Event.PERMIT_ONE_RETRY,
    "resume": Event.RESUME,
}


@dataclass(frozen=True)
class Decision:
    """One row of `actonce.decision`."""

    decision_id: int
    key: OperationKey
    decision: str
    name: str
    object_id: str | None
    expected_epoch: int
    expected_version: int
    expires_at: datetime
    residual_risk: str | None

    @staticmethod
    def of(row: dict[str, Any]) -> Decision:
        key = OperationKey(row["tenant"], row["destination"], row["action"], row["operation_id"])
        names = ("decision_id", "decision", "name", "object_id", "expected_epoch", "expected_version", "expires_at")
        return Decision(key=key, residual_risk=row["residual_risk"], **{n: row[n] for n in names})


async def record(ledger: Ledger, key: OperationKey, request: DecisionRequest) -> Decision:
    """Write the decision.

    Raises DecisionRefused with a code: unknown_operation, not_held, stale, too_early, object_id_missing, decided,
    not_permitted (by the reason code), condition_not_met (a resume before its condition holds).
    """
    try:
        async with ledger.transaction() as connection:
            operation = await lock_operation(connection, key)
            risk = await check_allowed(connection, operation, key, request)
            assert operation is not None
            row = await one(
                connection,
                "INSERT INTO actonce.decision (tenant, destination, action, operation_id, decision, name, reason,"
                " evidence, object_id, expected_epoch, expected_version, expires_at, residual_risk) VALUES (%(tenant)s,"
                " %(destination)s, %(action)s, %(operation_id)s, %(decision)s, %(name)s, %(reason)s, %(evidence)s,"
                " %(object_id)s, %(epoch)s, %(version)s, clock_timestamp() + make_interval(secs => %(expires)s),"
                " %(risk)s)"
                " RETURNING *",
                {
                    **identity_params(key),
                    "decision": request.action,
                    "name": request.name,
                    "reason": request.reason,
                    "evidence": request.evidence,
                    "object_id": request.object_id,
                    "epoch": request.expected_epoch,
                    "version": request.expected_version,
                    "expires": request.expires_in_s,
                    "risk": risk,
                },
            )
            assert row is not None
            return Decision.of(row)
    except psycopg.errors.UniqueViolation as error:
        raise DecisionRefused(
            f"{key}: version {request.expected_version} has been decided already; reload and see who did what",
            code="decided",
        ) from error


async def check_allowed(
    connection: Connection, operation: Operation | None, key: OperationKey, request: DecisionRequest
) -> str | None:
    """Refuse a decision before its condition; return the residual risk to record, if any."""
    if operation is None:
        raise DecisionRefused(f"{key} is not in this ledger; check the id", code="unknown_operation")
    if operation.state is not State.HELD:
        raise DecisionRefused(f"{key} is {operation.state}, not held; there is nothing to decide", code="not_held")
    if (operation.epoch, operation.version) != (request.expected_epoch, request.expected_version):
        raise DecisionRefused(
            f"{key} is at epoch {operation.epoch} version {operation.version}, you decided on epoch "
            f"{request.expected_epoch} version {request.expected_version}; read it again",
            code="stale",
        )
    allowed = policy(Reason(operation.reason)).actions if operation.reason else ()
    if request.action not in allowed:
        raise DecisionRefused(
            f"{key} is held for {operation.reason}, which permits {', '.join(allowed) or 'no decision'}, not "
            f"{request.action}; read docs/operations/{operation.reason}.md",
            code="not_permitted",
        )
    if request.action == "resume":
        unmet = await gates.unmet(connection, operation)
        if unmet:
            raise DecisionRefused(f"{key}: resume is refused: {unmet}", code="condition_not_met")
        return None
    if request.action == "mark_committed":
        if not request.object_id:
            raise DecisionRefused(f"{key}: mark_committed needs the destination's object id", code="object_id_missing")
        return None
    return await _too_early(connection, operation, request)


async def _too_early(connection: Connection, operation: Operation, request: DecisionRequest) -> str | None:
    clock = await one(connection, "SELECT clock_timestamp() AS now")
    assert clock is not None
    # T alone is too early for an honest look: a route may lag, and what it shows is what the person decides by.
    if operation.decide_at is not None and clock["now"] < operation.decide_at:
        raise DecisionRefused(
            f"{operation.key}: {request.action} is refused before {utc(operation.decide_at)}: the effect "
            f"{pages.may_commit_words(operation)}, and the routes may lag; wait, then read it again",
            code="too_early",
            may_commit_until=utc(operation.decide_at),
        )
    if operation.unbounded:
        return (
            "the destination enforces no bound on late arrivals: an earlier request may still take effect after this "
            "decision"
            + (" and the retry would then be a second effect" if request.action == "permit_one_retry" else "")
        )
    return None


async def pending(ledger: Ledger, key: OperationKey) -> Decision | None:
    """The unconsumed decision of an operation, oldest first; expired ones are closed on the way."""
    async with ledger.transaction() as connection:
        await connection.execute(
            f"UPDATE actonce.decision SET result = 'expired', consumed_at = clock_timestamp() WHERE {WHERE_KEY}"
            " AND consumed_at IS NULL AND expires_at < clock_timestamp()",
            identity_params(key),
        )
        row = await one(
            connection,
            f"SELECT * FROM actonce.decision WHERE {WHERE_KEY} AND consumed_at IS NULL ORDER BY decision_id LIMIT 1",
            identity_params(key),
        )
        return None if row is None else Decision.of(row)


async def consume(ledger: Ledger, decision: Decision, fresh: Verdict) -> tuple[Operation, str]:
    """Apply a decision after a fresh reading. Returns the operation and how it ended.

    Ends: applied; superseded_by_evidence (the reading shows something under our key and the decision says otherwise);
    stale; expired.
    """
    async with ledger.transaction() as connection:
        operation = await lock_operation(connection, decision.key)
        assert operation is not None, "operations are never deleted"
        taken = await one(
            connection,
            "SELECT result, expires_at < clock_timestamp() AS expired FROM actonce.decision"
            " WHERE decision_id = %s FOR UPDATE",
            (decision.decision_id,),
        )
        assert taken is not None
        if taken["result"] is not None:
            return operation, taken["result"]
        result = _result(operation, decision, fresh, expired=taken["expired"])
        if result == "applied":
            operation = await _apply(connection, operation, decision, fresh)
        await connection.execute(
            "UPDATE actonce.decision SET consumed_at = clock_timestamp(), result = %s WHERE decision_id = %s",
            (result, decision.decision_id),
        )
        return operation, result


def _result(operation: Operation, decision: Decision, fresh: Verdict, *, expired: bool) -> str:
    if expired:
        return "expired"
    if fresh.outcome is Outcome.COMMITTED or fresh.reason in MORE_THAN_ASKED:
        shown = fresh.receipt.object_id if fresh.receipt else decision.object_id
        if decision.decision != "mark_committed" or decision.object_id != shown:
            return "superseded_by_evidence"
    at = (operation.epoch, operation.version)
    if operation.state is not State.HELD or at != (decision.expected_epoch, decision.expected_version):
        return "stale"
    return "applied"


async def _apply(connection: Connection, operation: Operation, decision: Decision, fresh: Verdict) -> Operation:
    columns: dict[str, Any] = {"reason": None, "words": f"{decision.decision} by {decision.name}"}
    if decision.decision == "mark_committed":
        receipt = fresh.receipt if fresh.receipt and fresh.receipt.object_id == decision.object_id else None
        shown = receipt.model_dump(mode="json") if receipt else {"object_id": decision.object_id, "source": "operator"}
        columns |= {
            "object_id": decision.object_id,
            "receipt": shown,
            "completion": "read_back" if receipt else "operator_attested",
            "committed_at": receipt.at if receipt and receipt.at else operation.updated_at,
        }
    elif decision.decision == "permit_one_retry":
        columns |= {"retry_granted": True}
    elif decision.decision == "mark_absent":
        columns |= {"reason": "mark_absent"}
    moved = await move(connection, operation, _EVENTS[decision.decision], **columns)
    await pages.close_hold(connection, moved, f"decision:{decision.decision_id}")
    return moved


async def history(ledger: Ledger, key: OperationKey) -> list[dict[str, Any]]:
    """All decisions about an operation, oldest first."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection, f"SELECT * FROM actonce.decision WHERE {WHERE_KEY} ORDER BY decision_id", identity_params(key)
        )
        return [dict(row) for row in rows]
