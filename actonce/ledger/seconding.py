"""A second person's word about a decision that waits for one: it takes effect when they agree, and not before.

Promises: who decided cannot agree with themselves; one word ends the waiting, and what it said is on record with a name
(audit event `decision.second_person`, by trigger). To decline, also one's own decision, is always possible: it frees
the operation for another one. Whether a decision needs a second person is said when it is recorded.
"""

from __future__ import annotations

from typing import Any

from actonce.contracts.approval import same_person
from actonce.contracts.errors import DecisionRefused
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import State
from actonce.ledger.decisions import Decision
from actonce.ledger.store import (
    WHERE_KEY,
    Connection,
    Ledger,
    Operation,
    audit,
    identity_params,
    lock_operation,
    one,
    utc,
)


async def second(ledger: Ledger, key: OperationKey, decision_id: int, *, agrees: bool, name: str, why: str) -> Decision:
    """Record the word. The same word of the same person again changes nothing.

    Raises DecisionRefused: `unknown_decision`; `no_second_needed`; `same_person`; `decided` (somebody else's word is
    on record, or it has ended); `stale` (the operation is another one by now). A refusal is an audit event.
    """
    async with ledger.transaction() as connection:
        operation = await lock_operation(connection, key)  # as whoever records or consumes a decision does
        row = await one(
            connection,
            f"SELECT *, expires_at < clock_timestamp() AS expired FROM actonce.decision WHERE {WHERE_KEY}"
            " AND decision_id = %(decision_id)s FOR UPDATE",
            {**identity_params(key), "decision_id": decision_id},
        )
        try:
            if row is None or operation is None:
                raise DecisionRefused(f"{key} has no decision {decision_id}; look at it again", code="unknown_decision")
            if (row["second_name"], row["second_agrees"]) == (name, agrees):
                return Decision.of(row, again=True)
            _check(row, operation, agrees=agrees, name=name)
        except DecisionRefused as error:
            refusal = error
            body = {"decision_id": decision_id, "name": name, "agrees": agrees, "code": error.code}
            await audit(connection, "decision.refused", operation, body)
        else:
            return await _record(connection, decision_id, agrees=agrees, name=name, why=why)
    raise refusal  # after the commit: the click stays on record


def _check(row: dict[str, Any], operation: Operation, *, agrees: bool, name: str) -> None:
    what = f"decision {row['decision_id']} ({row['decision']} by {row['name']})"
    if not row["second_person"]:
        raise DecisionRefused(f"{what} waits for nobody", code="no_second_needed")
    if row["second_at"] is not None or row["result"] is not None or row["expired"]:
        said = "confirmed" if row["second_agrees"] else "declined"
        end = f"{said} by {row['second_name']}" if row["second_at"] else row["result"] or "expired"
        raise DecisionRefused(
            f"{what} waits no more: {end}",
            code="decided",
            decided_by=row["second_name"],
            decided_at=utc(row["second_at"]) if row["second_at"] else None,
        )
    if agrees and same_person(name) == same_person(row["name"]):
        raise DecisionRefused(f"{what} waits for somebody else than who decided", code="same_person")
    at = (operation.epoch, operation.version)
    if agrees and (operation.state is not State.HELD or at != (row["expected_epoch"], row["expected_version"])):
        raise DecisionRefused(
            f"{what} is about version {row['expected_version']}; {operation.key} is {operation.state} at version "
            f"{operation.version}: read it again and decide anew",
            code="stale",
        )


async def _record(connection: Connection, decision_id: int, *, agrees: bool, name: str, why: str) -> Decision:
    row = await one(
        connection,
        "UPDATE actonce.decision SET second_at = clock_timestamp(), second_name = %(name)s, second_agrees = %(agrees)s,"
        " second_why = %(why)s, result = CASE WHEN %(agrees)s THEN result ELSE 'declined' END,"
        " consumed_at = CASE WHEN %(agrees)s THEN consumed_at ELSE clock_timestamp() END"
        " WHERE decision_id = %(decision_id)s RETURNING *",
        {"name": name, "agrees": agrees, "why": why, "decision_id": decision_id},
    )
    assert row is not None, "the row is locked by this transaction"
    return Decision.of(row)
