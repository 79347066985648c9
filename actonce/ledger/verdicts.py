"""Facts for the verdict rule, and verdicts on record: compare-and-set on (epoch, attempt, version)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from actonce.contracts.contract import Contract
from actonce.contracts.errors import NoIntent, StaleWrite
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import Event, State
from actonce.contracts.verdict import MORE_THAN_ASKED, AttemptFact, Facts, Outcome, Reading, Reason, Verdict
from actonce.ledger import pages
from actonce.ledger.attempts import attempt_facts, nothing_is_out
from actonce.ledger.store import (
    WHERE_KEY,
    Connection,
    Ledger,
    Operation,
    Stamp,
    audit,
    compare,
    identity_params,
    lock_operation,
    many,
    move,
    one,
    read_operation,
)


@dataclass(frozen=True)
class Case:
    """One operation as the reconciler takes it up."""

    operation: Operation
    facts: Facts
    probes: tuple[str, ...]  # object ids whose probe was answered, whatever the answer
    beacons: tuple[tuple[str, datetime, bool], ...]  # (id, wanted at, the destination confirmed it), newest first
    probe_wanted_at: datetime | None = None  # when the last reference probe was journaled, answered or not
    nothing_out: bool = False  # of a ready or closed operation: is it established that no effect exists or can come?
    cancel_wanted_at: datetime | None = None  # when the cancel of the last key was journaled; None: of some key never

    @property
    def beacon_ids(self) -> tuple[str, ...]:
        return tuple(beacon_id for beacon_id, _, _ in self.beacons)

    def has_beacon_since(self, moment: datetime) -> bool:
        """Was a beacon wanted at or after `moment`, and confirmed?"""
        return any(confirmed and wanted_at >= moment for _, wanted_at, confirmed in self.beacons)

    def beacon_wanted_since(self, moment: datetime) -> datetime | None:
        """When the first beacon at or after `moment` was wanted, confirmed or not."""
        return min((wanted_at for _, wanted_at, _ in self.beacons if wanted_at >= moment), default=None)


async def open_case(ledger: Ledger, key: OperationKey, contract: Contract) -> Case:
    """Read everything the verdict rule may know of an operation. Raises NoIntent when there is no such one."""
    async with ledger.transaction() as connection:
        operation = await read_operation(connection, key)
        if operation is None:
            raise NoIntent(f"{key} has no intent in this ledger; nothing was sent from here; check the id and the DSN")
        return await case_of(connection, operation, contract)


async def case_of(connection: Connection, operation: Operation, contract: Contract) -> Case:
    attempts = await attempt_facts(connection, operation.key)
    keys = await many(
        connection, f"SELECT DISTINCT wire_key FROM actonce.attempt WHERE {WHERE_KEY}", identity_params(operation.key)
    )
    acks = await many(
        connection,
        f"SELECT object_id FROM actonce.acknowledgement WHERE {WHERE_KEY}"
        # a cancel that came too late names the object just as an acknowledgement does
        f" UNION SELECT object_id FROM actonce.key_cancel WHERE {WHERE_KEY} AND object_id IS NOT NULL",
        identity_params(operation.key),
    )
    beacons = await many(
        connection,
        "SELECT beacon_id, wanted_at, committed_at IS NOT NULL AS confirmed FROM actonce.beacon"
        " WHERE operation_id = %s AND destination = %s ORDER BY wanted_at DESC LIMIT 3",
        (operation.operation_id, operation.destination),
    )
    probes = await many(
        connection,
        f"SELECT object_id, object_exists, wanted_at, answered_at FROM actonce.probe WHERE {WHERE_KEY}",
        identity_params(operation.key),
    )
    facts = Facts(
        operation_id=operation.operation_id,
        keys=tuple(sorted(row["wire_key"] for row in keys)),
        digest=operation.payload_digest,
        account=operation.account,
        object_kind=contract.object_kind,
        acknowledged_object_id=acks[0]["object_id"] if acks else None,
        attempts=tuple(attempts),
        sent_as=await _sent_as(connection, operation, contract),
        probed=bool(acks) and any(p["object_id"] == acks[0]["object_id"] and p["object_exists"] for p in probes),
        key_cancelled=await _all_cancelled(connection, operation, attempts),
    )
    probed = tuple(p["object_id"] for p in probes if p["answered_at"] is not None)
    probe_wanted_at = max((p["wanted_at"] for p in probes), default=None)
    written = tuple((row["beacon_id"], row["wanted_at"], row["confirmed"]) for row in beacons)
    cancel_wanted_at = await _cancel_wanted_at(connection, operation, contract)
    stands = operation.state in (State.READY, State.CLOSED)
    nothing_out = stands and await nothing_is_out(connection, operation, attempts)
    return Case(operation, facts, probed, written, probe_wanted_at, nothing_out, cancel_wanted_at)


async def _sent_as(connection: Connection, operation: Operation, contract: Contract) -> str | None:
    """What it was sent as, when the contract that now reads it acts in another account or knows another kind of object.

    Its routes then deny what they do not look for, and its cancel is about somebody else's key.
    """
    if operation.contract_digest == contract.digest:
        return None
    stamped = await one(
        connection,
        "SELECT body->>'object_kind' AS kind FROM actonce.contract WHERE name = %s AND digest = %s",
        (operation.destination, operation.contract_digest),
    )
    kind = stamped["kind"] if stamped else "an unknown kind"
    if (operation.account, kind) == (contract.account, contract.object_kind):
        return None
    return f"{kind} in account {operation.account} (contract v{operation.contract_version})"


async def _cancel_wanted_at(connection: Connection, operation: Operation, contract: Contract) -> datetime | None:
    if contract.late_arrival.kind != "cancel_by_key":
        return None
    row = await one(
        connection,
        "SELECT bool_and(c.wanted_at IS NOT NULL) AS every_key, max(c.wanted_at) AS wanted_at"
        " FROM actonce.attempt a LEFT JOIN actonce.key_cancel c"
        " USING (tenant, destination, action, operation_id, wire_key)"
        f" WHERE {WHERE_KEY} AND coalesce(a.outcome, '') NOT IN ('not_sent', 'not_accepted')",
        identity_params(operation.key),
    )
    return row["wanted_at"] if row and row["every_key"] else None


async def _all_cancelled(connection: Connection, operation: Operation, attempts: list[AttemptFact]) -> bool:
    """Rule P2: every key that may have been sent was cancelled atomically by the destination."""
    rows = await many(
        connection,
        f"SELECT DISTINCT a.wire_key, a.late_arrival, c.cancelled_at FROM actonce.attempt a"
        " LEFT JOIN actonce.key_cancel c USING (tenant, destination, action, operation_id, wire_key)"
        f" WHERE {WHERE_KEY} AND coalesce(a.outcome, '') NOT IN ('not_sent', 'not_accepted')",
        identity_params(operation.key),
    )
    # What was sent under a contract without a cancel may have carried no key at all.
    keyed = all(row["late_arrival"] == "cancel_by_key" for row in rows)
    return bool(rows) and keyed and all(row["cancelled_at"] is not None for row in rows)


async def record_verdict(
    ledger: Ledger, case: Case, verdict: Verdict, readings: list[Reading], contract: Contract
) -> Operation:
    """Write a verdict and what follows from it. A verdict that lost its compare-and-set is kept, not applied.

    Raises StaleWrite in that case; the caller reads again.
    """
    stale: StaleWrite | None = None
    async with ledger.transaction() as connection:
        operation = await lock_operation(connection, case.operation.key)
        assert operation is not None, "operations are never deleted"
        try:
            compare(operation, case.operation.stamp)
            moved = await _apply(connection, operation, verdict, case.facts, contract)
        except StaleWrite as error:
            stale, moved = error, operation
        await _keep(connection, case.operation.key, case.operation.stamp, verdict, readings, applied=stale is None)
    if stale is not None:
        raise stale
    return moved


async def standing(ledger: Ledger, key: OperationKey) -> tuple[Operation, bool] | None:
    """An operation as it stands, for who has no contract of it; and is it established that nothing of it is out?"""
    async with ledger.transaction() as connection:
        operation = await read_operation(connection, key)
        if operation is None:
            return None
        stands = operation.state in (State.READY, State.CLOSED)
        attempts = await attempt_facts(connection, key)
        return operation, stands and await nothing_is_out(connection, operation, attempts)


async def record_unread(ledger: Ledger, operation: Operation, words: str) -> Verdict:
    """Put on record that nothing was read, and why. It concludes nothing and moves nothing."""
    verdict = Verdict(outcome=Outcome.AMBIGUOUS, reason=Reason.NO_ROUTE, words=f"nothing was read: {words}"[:1000])
    async with ledger.transaction() as connection:
        await _keep(connection, operation.key, operation.stamp, verdict, [], applied=False)
    return verdict


async def _apply(
    connection: Connection, operation: Operation, verdict: Verdict, facts: Facts, contract: Contract
) -> Operation:
    if operation.final or (operation.state is State.HELD and verdict.outcome is not Outcome.COMMITTED):
        return operation  # a hold is left only by evidence of a commit or by a decision (P5)
    if verdict.outcome is Outcome.COMMITTED:
        return await adopt(connection, operation, verdict)
    if verdict.outcome is Outcome.ABSENT:
        if operation.state is State.READY:
            return operation
        generation = operation.generation + 1 if facts.key_cancelled else operation.generation
        return await move(
            connection, operation, Event.VERDICT_ABSENT, generation=generation, reason=None, words=verdict.words
        )
    if verdict.page and operation.state is not State.READY:
        assert verdict.reason is not None
        return await pages.hold(connection, operation, verdict.reason, verdict.words)
    return operation


async def adopt(
    connection: Connection, operation: Operation, verdict: Verdict, closed_by: str = "evidence"
) -> Operation:
    """Adopt the destination's evidence; closes a hold if there is one."""
    assert verdict.receipt is not None
    if operation.state is State.HELD and operation.reason in MORE_THAN_ASKED:
        return operation  # only a person explains a duplicate away; the reading is on record beside it
    receipt = verdict.receipt
    moved = await move(
        connection,
        operation,
        Event.VERDICT_COMMITTED,
        object_id=receipt.object_id,
        receipt=receipt.model_dump(mode="json"),
        completion="read_back",
        committed_at=receipt.at or operation.updated_at,
        reason=None,
        words=verdict.words,
    )
    if operation.state is State.HELD:
        await pages.close_hold(connection, moved, f"evidence:{receipt.source}")
    return moved


async def _keep(
    connection: Connection, key: OperationKey, stamp: Stamp, verdict: Verdict, readings: list[Reading], *, applied: bool
) -> None:
    await connection.execute(
        "INSERT INTO actonce.verdict (tenant, destination, action, operation_id, epoch, attempt, version, outcome,"
        " reason, words, readings, body, applied) VALUES (%(tenant)s, %(destination)s, %(action)s, %(operation_id)s,"
        " %(epoch)s, %(attempt)s, %(version)s, %(outcome)s, %(reason)s, %(words)s, %(readings)s, %(body)s,"
        " %(applied)s)",
        {
            **identity_params(key),
            "epoch": stamp.epoch,
            "attempt": stamp.attempt,
            "version": stamp.version,
            "outcome": verdict.outcome.value,
            "reason": verdict.reason.value if verdict.reason else None,
            "words": verdict.words,
            "readings": Jsonb([r.model_dump(mode="json") for r in readings]),
            "body": Jsonb(verdict.model_dump(mode="json")),
            "applied": applied,
        },
    )


async def grant_same_key_resend(ledger: Ledger, key: OperationKey, expected: Stamp, words: str) -> Operation:
    """Rule R3: permit another send under the same key. Proves nothing about absence."""
    async with ledger.transaction() as connection:
        operation = await lock_operation(connection, key)
        assert operation is not None, "operations are never deleted"
        compare(operation, expected)
        return await move(connection, operation, Event.RESEND_SAME_KEY, words=words)


async def want_beacon(ledger: Ledger, operation: Operation) -> str:
    """Journal a beacon before it is written. Its id names the operation and the version it was wanted at."""
    beacon_id = f"beacon_{operation.operation_id}_{operation.destination}_{operation.epoch}_{operation.version}"
    if operation.state is State.COMMITTED:
        beacon_id += "_recount"
    async with ledger.transaction() as connection:
        # One that was confirmed before the moment that counts (a contract with longer bounds came) proves nothing now.
        confirmed = await one(
            connection,
            "SELECT count(*) AS n FROM actonce.beacon WHERE starts_with(beacon_id, %s) AND committed_at IS NOT NULL",
            (beacon_id,),
        )
        assert confirmed is not None
        beacon_id += f"_{confirmed['n']}" if confirmed["n"] else ""
        await connection.execute(
            "INSERT INTO actonce.beacon (beacon_id, destination, account, operation_id) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            (beacon_id, operation.destination, operation.account, operation.operation_id),
        )
        await audit(connection, "beacon.wanted", operation, {"beacon_id": beacon_id})
    return beacon_id


async def beacon_written(ledger: Ledger, beacon_id: str, committed_at: object) -> None:
    """Record when the destination says it committed our beacon."""
    async with ledger.transaction() as connection:
        await connection.execute(
            "UPDATE actonce.beacon SET committed_at = coalesce(committed_at, %s) WHERE beacon_id = %s",
            (committed_at, beacon_id),
        )


async def want_probe(ledger: Ledger, operation: Operation, object_id: str) -> None:
    """Journal a reference probe before it is made."""
    async with ledger.transaction() as connection:
        await connection.execute(
            "INSERT INTO actonce.probe (tenant, destination, action, operation_id, object_id) VALUES (%(tenant)s,"
            " %(destination)s, %(action)s, %(operation_id)s, %(object_id)s) ON CONFLICT DO NOTHING",
            {**identity_params(operation.key), "object_id": object_id},
        )
        await audit(connection, "probe.wanted", operation, {"object_id": object_id})


async def probe_answered(ledger: Ledger, operation: Operation, object_id: str, exists: bool) -> None:
    """Record what a reference probe said. A success stands; a failure may be followed by a success."""
    async with ledger.transaction() as connection:
        await connection.execute(
            "UPDATE actonce.probe SET answered_at = clock_timestamp(),"
            " object_exists = coalesce(object_exists, false) OR %(exists)s"
            f" WHERE {WHERE_KEY} AND object_id = %(object_id)s",
            {**identity_params(operation.key), "object_id": object_id, "exists": exists},
        )


async def want_cancel(ledger: Ledger, operation: Operation) -> list[str]:
    """Journal that every key which may have been sent is to be cancelled. Returns those not yet cancelled."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            f"SELECT DISTINCT wire_key FROM actonce.attempt WHERE {WHERE_KEY}"
            " AND coalesce(outcome, '') NOT IN ('not_sent', 'not_accepted')",
            identity_params(operation.key),
        )
        for row in rows:
            await connection.execute(
                "INSERT INTO actonce.key_cancel (tenant, destination, action, operation_id, wire_key) VALUES"
                " (%(tenant)s, %(destination)s, %(action)s, %(operation_id)s, %(wire_key)s) ON CONFLICT DO NOTHING",
                {**identity_params(operation.key), "wire_key": row["wire_key"]},
            )
        left = await many(
            connection,
            f"SELECT wire_key FROM actonce.key_cancel WHERE {WHERE_KEY} AND cancelled_at IS NULL AND object_id IS NULL",
            identity_params(operation.key),
        )
        await audit(connection, "key.cancel_wanted", operation, {"keys": [row["wire_key"] for row in left]})
    return [row["wire_key"] for row in left]


async def key_cancelled(ledger: Ledger, operation: Operation, key: str, object_id: str | None) -> None:
    """Record the destination's answer to a cancel: cancelled for ever, or the object it had already made."""
    params: dict[str, Any] = {**identity_params(operation.key), "wire_key": key, "object_id": object_id}
    async with ledger.transaction() as connection:
        await connection.execute(
            "UPDATE actonce.key_cancel SET object_id = %(object_id)s,"
            " cancelled_at = CASE WHEN %(object_id)s::text IS NULL THEN clock_timestamp() END"
            f" WHERE {WHERE_KEY} AND wire_key = %(wire_key)s",
            params,
        )
        await audit(connection, "key.cancel_answered", operation, {"key": key, "object_id": object_id})
