"""An operator's decision: a durable row first, a fresh reading second, its effect third (SPEC §2.6, rule R9).

`record` refuses what is too early or stale and says why; `consume` applies it, compare-and-set, after the caller has
reconciled once more in the same action. A refusal is recorded as the click that it was. A decision that needs a second
person waits for them first (`actonce.ledger.seconding`); nobody sees it as `pending` before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

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
    audit,
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
    again: bool = False  # as told by `record`: the same press had made it before
    waits: bool = False  # for a second person

    @staticmethod
    def of(row: dict[str, Any], *, again: bool = False) -> Decision:
        key = OperationKey(row["tenant"], row["destination"], row["action"], row["operation_id"])
        names = ("decision_id", "decision", "name", "object_id", "expected_epoch", "expected_version", "expires_at")
        waits = row["second_person"] and not row["second_agrees"]
        values = {n: row[n] for n in names}
        return Decision(key=key, residual_risk=row["residual_risk"], again=again, waits=waits, **values)


async def record(
    ledger: Ledger,
    key: OperationKey,
    request: DecisionRequest,
    *,
    press: str | None = None,
    second_person: bool = False,
) -> Decision:
    """Write the decision. The same `press` again is the decision that it made before.

    `second_person`: it waits until somebody else agrees.

    Raises DecisionRefused with a code: unknown_operation, not_held, stale, too_early, object_id_missing, decided,
    not_permitted (by the reason code), condition_not_met (a resume before its condition holds), press_reused (for
    another decision). What was refused is an audit event `decision.refused`.
    """
    async with ledger.transaction() as connection:
        operation = await lock_operation(connection, key)
        before = await _pressed(connection, key, press)
        try:
            if before is not None:
                return _same(before, request)
            risk = await check_allowed(connection, operation, key, request)
            await _check_undecided(connection, key, request)
        except DecisionRefused as error:
            refusal = error
            body = {"decision": request.action, "name": request.name, "code": error.code}
            stamp = {"expected_epoch": request.expected_epoch, "expected_version": request.expected_version}
            await audit(connection, "decision.refused", operation, body | stamp)
        else:
            return await _insert(connection, key, request, risk, press, second_person)
    raise refusal  # after the commit: the click stays on record


async def _pressed(connection: Connection, key: OperationKey, press: str | None) -> dict[str, Any] | None:
    if press is None:
        return None
    params = {**identity_params(key), "press": press}
    return await one(connection, f"SELECT * FROM actonce.decision WHERE {WHERE_KEY} AND press = %(press)s", params)


def _same(before: dict[str, Any], request: DecisionRequest) -> Decision:
    names = ("name", "reason", "evidence", "object_id", "expected_epoch", "expected_version")
    if before["decision"] != request.action or any(before[name] != getattr(request, name) for name in names):
        raise DecisionRefused(
            f"this press made decision {before['decision_id']} ({before['decision']} by {before['name']}); "
            "another decision needs a press of its own",
            code="press_reused",
        )
    return Decision.of(before, again=True)


async def _check_undecided(connection: Connection, key: OperationKey, request: DecisionRequest) -> None:
    """The operation is locked: whoever decides about it at the same moment is here before or after."""
    first = await one(
        connection,
        f"SELECT * FROM actonce.decision WHERE {WHERE_KEY} AND expected_epoch = %(epoch)s"
        " AND expected_version = %(version)s AND (result IS NULL OR result = 'applied')",
        {**identity_params(key), "epoch": request.expected_epoch, "version": request.expected_version},
    )
    if first is not None:
        raise DecisionRefused(
            f"{key}: version {request.expected_version} has been decided already: {first['decision']} by "
            f"{first['name']} at {utc(first['created_at'])}; reload and see what came of it",
            code="decided",
            decided_by=first["name"],
            decided_at=utc(first["created_at"]),
        )


async def _insert(
    connection: Connection,
    key: OperationKey,
    request: DecisionRequest,
    risk: str | None,
    press: str | None,
    second_person: bool,
) -> Decision:
    row = await one(
        connection,
        "INSERT INTO actonce.decision (tenant, destination, action, operation_id, decision, name, reason,"
        " evidence, object_id, expected_epoch, expected_version, expires_at, residual_risk, press, second_person)"
        " VALUES (%(tenant)s, %(destination)s, %(action)s, %(operation_id)s, %(decision)s, %(name)s, %(reason)s,"
        " %(evidence)s, %(object_id)s, %(epoch)s, %(version)s,"
        " clock_timestamp() + make_interval(secs => %(expires)s), %(risk)s, %(press)s, %(second_person)s) RETURNING *",
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
            "press": press,
            "second_person": second_person,
        },
    )
    assert row is not None
    return Decision.of(row)


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
    """The unconsumed decision that may take effect, oldest first; expired ones are closed on the way."""
    async with ledger.transaction() as connection:
        await connection.execute(
            f"UPDATE actonce.decision SET result = 'expired', consumed_at = clock_timestamp() WHERE {WHERE_KEY}"
            " AND consumed_at IS NULL AND expires_at < clock_timestamp()",
            identity_params(key),
        )
        row = await one(
            connection,
            f"SELECT * FROM actonce.decision WHERE {WHERE_KEY} AND consumed_at IS NULL"
            " AND (NOT second_person OR second_agrees) ORDER BY decision_id LIMIT 1",
            identity_params(key),
        )
        return None if row is None else Decision.of(row)


async def consume(ledger: Ledger, decision: Decision, fresh: Verdict) -> tuple[Operation, str]:
    """Apply a decision after a fresh reading. Returns the operation and how it ended.

    Ends: applied; superseded_by_evidence (the reading shows something under our key and the decision says otherwise);
    stale; expired. A decision that waits for a second person ends in none of them, and stays.
    """
    async with ledger.transaction() as connection:
        operation = await lock_operation(connection, decision.key)
        assert operation is not None, "operations are never deleted"
        taken = await one(
            connection,
            "SELECT result, second_person AND second_agrees IS NOT TRUE AS waits,"
            " expires_at < clock_timestamp() AS expired FROM actonce.decision WHERE decision_id = %s FOR UPDATE",
            (decision.decision_id,),
        )
        assert taken is not None
        if taken["result"] is not None:
            return operation, taken["result"]
        if taken["waits"]:
            return operation, "waits_for_second_person"
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
