"""Reconciliation: read every route to its end, conclude one verdict, record it, say what comes next.

It only reads the destination. Beacons, probes and key cancels have effects (harmless ones) and are separate,
journaled steps;
`settle_step` runs whichever comes next and is what both the workflow's activities and the ledger watcher use.
Free to be retried and to be run by several at once: every record is a compare-and-set.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Literal

from actonce.contracts import bounds
from actonce.contracts.contract import Contract
from actonce.contracts.errors import ContractError, LedgerError, NoIntent, StaleWrite
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import State
from actonce.contracts.messages import ReconcileResult
from actonce.contracts.verdict import AT_ONCE, Outcome, Reading, Reason, Verdict
from actonce.destinations.base import Destination
from actonce.effects import combine as rule
from actonce.effects.routes import read_all, read_back
from actonce.effects.system import System, log
from actonce.ledger import verdicts
from actonce.ledger.store import LedgerClock, Operation, utc
from actonce.ledger.verdicts import Case

_STALE_TRIES = 5  # somebody else moved the operation while we read; read again
NextStep = Literal["done", "issue", "wait", "beacon", "probe", "cancel_key", "hold"]


async def reconcile(system: System, key: OperationKey) -> ReconcileResult:
    """Establish what happened to an operation, from the destination. Raises LedgerUnavailable; never guesses.

    Raises ContractError where this process has no contract for it, unless the operation has ended: that needs none.
    """
    try:
        destination = system.destination(key.destination, key.action)
    except ContractError:
        found = await verdicts.standing(system.ledger, key)
        if found is None or not found[0].final:
            raise
        return _settled(*found)
    for _ in range(_STALE_TRIES):
        try:
            return await _reconcile_once(system, destination, key)
        except NoIntent:
            return _never_intended(key)
        except StaleWrite as error:
            log.info("read again", operation_id=key.operation_id, why=str(error))
    raise LedgerError(f"{key} changed during {_STALE_TRIES} readings in a row; try again")


def _never_intended(key: OperationKey) -> ReconcileResult:
    """No intent is on record, so no permit was ever taken from this ledger."""
    words = "no intent was recorded in this ledger, so nothing was sent from it"
    return ReconcileResult(operation_id=key.operation_id, verdict="absent", words=words, state="none", next="issue")


async def _reconcile_once(system: System, destination: Destination, key: OperationKey) -> ReconcileResult:
    contract = destination.contract
    case = await verdicts.open_case(system.ledger, key, contract)
    operation = case.operation
    if operation.final or operation.state is State.READY:
        return _settled(operation, case.nothing_out)
    clock = await system.ledger.clock()
    simple = operation.state is State.ACKNOWLEDGED and operation.attempts == 1
    readings = await (read_back if simple else read_all)(destination, case, clock)
    verdict = rule.combine(contract, case.facts, readings, clock.now())
    if verdict.page and may_still_settle(destination, case, verdict, clock.now()):
        verdict = verdict.model_copy(update={"page": False})
    operation = await verdicts.record_verdict(system.ledger, case, verdict, readings, contract)
    if resend_allowed(contract, case, verdict, operation, clock.now()):
        words = "the destination registers keys on arrival; sending again under the same key cannot add an effect"
        operation = await verdicts.grant_same_key_resend(system.ledger, key, operation.stamp, words)
    return _result(destination, case, operation, verdict, clock)


def may_still_settle(destination: Destination, case: Case, verdict: Verdict, now: datetime) -> bool:
    """Is a step that could settle it still untried, or just tried? Then nobody is called yet.

    After an outage the first reading comes past the bound at which a person is paged. The beacon, the cancel or the
    resend that belongs before it is made up for first; each extends the bound once.
    """
    if verdict.reason in AT_ONCE or (verdict.reason is Reason.LOOK_ALIKE and verdict.unbounded):
        return False
    if case.facts.sent_as is not None:
        return False
    contract = destination.contract
    if resend_allowed(contract, case, verdict, case.operation, now):
        return True
    until, _ = bounds.may_commit_until(contract, case.facts.attempts)
    if probe_is_due(destination, case):
        tried_at = case.probe_wanted_at
    elif contract.late_arrival.kind == "cancel_by_key" and case.facts.acknowledged_object_id is None:
        tried_at = case.cancel_wanted_at
    elif contract.has_beacon and until is not None:
        tried_at = case.beacon_wanted_since(until)
    else:
        return False
    lag_s = max((r.lag_s for r in contract.routes), default=0.0)
    return tried_at is None or now < tried_at + timedelta(seconds=lag_s + contract.timing.page_grace_s)


def resend_allowed(contract: Contract, case: Case, verdict: Verdict, operation: Operation, now: datetime) -> bool:
    """Rule R3: may the same key be sent again? It proves nothing about absence."""
    if operation.state not in (State.UNKNOWN, State.DISPATCHED) or verdict.outcome is not Outcome.AMBIGUOUS:
        return False
    if not contract.resends_same_key or contract.keys is None or case.facts.acknowledged_object_id is not None:
        return False
    if case.facts.sent_as is not None:
        return False  # a key is known in the account that it was sent in
    if verdict.reason in (Reason.PAYLOAD_CONFLICT, Reason.MULTIPLE_MATCHES):
        return False
    assert operation.not_after is not None
    owner_is_done = now > operation.not_after + timedelta(seconds=2 * contract.clock_skew_s)
    kept_s = contract.keys.retention_s - contract.keys.margin_s
    life_s = contract.timing.permit_lifetime_s + 2 * contract.clock_skew_s
    sent = [a for a in case.facts.attempts if not a.provably_not_sent]
    promised = [a.key_kept_until for a in sent if a.key_kept_until is not None]
    if len(promised) < len(sent):
        return False  # under a contract that registered no key on arrival it may have carried none; of one that was
        # permitted in a lost interval nobody knows since when its key is kept
    first_at = min(a.issued_at for a in sent)
    kept_until = min([first_at + timedelta(seconds=kept_s), *promised])
    kept = now + timedelta(seconds=life_s) < kept_until
    return owner_is_done and kept and len(sent) < contract.attempts_max


def _settled(operation: Operation, nothing_out: bool) -> ReconcileResult:
    """No reading is needed: the ledger knows. A same-key resend and an operator's word prove no absence."""
    words = operation.words or f"it is {operation.state}"
    freed = operation.state is State.READY
    if operation.state is State.COMMITTED:
        verdict = Verdict(outcome=Outcome.COMMITTED, words=words)
    elif operation.state is State.REFUSED or nothing_out:
        verdict = Verdict(outcome=Outcome.ABSENT, words=words)
    else:
        verdict = Verdict(outcome=Outcome.AMBIGUOUS, reason=Reason.LATE_COMMIT_POSSIBLE, words=words)
    return _message(operation, verdict, "issue" if freed else "done", 0.0)


def _result(
    destination: Destination, case: Case, operation: Operation, verdict: Verdict, clock: LedgerClock
) -> ReconcileResult:
    step = next_step(destination, case, operation, clock.now())
    pause, longest = waits_s(destination.contract, case, clock.now()) if step == "wait" else (0.0, 0.0)
    return _message(operation, verdict, step, pause).model_copy(update={"wait_max_s": longest})


def probe_is_due(destination: Destination, case: Case) -> bool:
    """An acknowledgement named an object, no route shows it, and nobody has asked the object itself yet."""
    named = case.facts.acknowledged_object_id
    return destination.probe is not None and named is not None and named not in case.probes


def next_step(destination: Destination, case: Case, operation: Operation, now: datetime) -> NextStep:
    """What the guard or the watcher does next about an operation that was just read."""
    contract = destination.contract
    if operation.final:
        return "done"
    if operation.state is State.READY:
        return "issue"
    if operation.state is State.HELD:
        return "hold"
    if case.facts.sent_as is not None:
        return "wait"  # what this contract would cancel, write or probe is in another place
    if probe_is_due(destination, case):
        return "probe"
    named = case.facts.acknowledged_object_id
    floor = bounds.reconcile_at(contract, case.facts.attempts)
    cancels = contract.late_arrival.kind == "cancel_by_key" and named is None
    if cancels and not case.facts.key_cancelled and floor is not None and now >= floor:
        return "cancel_key"
    until, _ = bounds.may_commit_until(contract, case.facts.attempts)
    if contract.has_beacon and until is not None and now >= until and not case.has_beacon_since(until):
        return "beacon"
    return "wait"


def waits_s(contract: Contract, case: Case, now: datetime) -> tuple[float, float]:
    """(Pause before the next reading, longest pause that oversleeps no milestone), in seconds.

    An effect may show at any time, so readings begin close together; between milestones nothing else changes, so the
    guard may let the pauses grow up to the second number.
    """
    until, _ = bounds.may_commit_until(contract, case.facts.attempts)
    floor = bounds.reconcile_at(contract, case.facts.attempts)
    lag_s = max((r.lag_s for r in contract.routes), default=0.0)
    milestones = [t for t in (until, floor) if t is not None]
    milestones += [t + timedelta(seconds=lag_s) for t in milestones]
    ahead = [(t - now).total_seconds() for t in milestones if t > now]
    # past the last milestone only beacons and pages are waited for: no reason to sleep long
    longest = max(0.05, min(ahead)) if ahead else contract.timing.read_again_s
    return min(contract.timing.read_again_s, longest), longest


def _message(operation: Operation, verdict: Verdict, step: NextStep, wait: float) -> ReconcileResult:
    until = utc(verdict.may_commit_until) if verdict.may_commit_until else None
    return ReconcileResult(
        operation_id=operation.operation_id,
        verdict=verdict.outcome.value,
        reason=(operation.reason if step == "hold" else None) or (verdict.reason.value if verdict.reason else None),
        words=verdict.words,
        state=operation.state.value,
        next=step,
        wait_s=wait,
        object_id=operation.object_id,
        completion=operation.completion,
        may_commit_until="unbounded" if verdict.unbounded else until,
        attempt=operation.attempt,
        version=operation.version,
    )


async def write_beacon(system: System, key: OperationKey) -> str:
    """Write an object of ours that a route able to see must show. Journaled first; idempotent by its id."""
    destination = system.destination(key.destination, key.action)
    assert destination.beacon is not None, f"{key.destination} declares no beacon"
    case = await verdicts.open_case(system.ledger, key, destination.contract)
    beacon_id = await verdicts.want_beacon(system.ledger, case.operation)
    deadline_s = destination.contract.timing.read_deadline_s
    async with asyncio.timeout(deadline_s):
        committed_at = await destination.beacon(beacon_id, deadline_s)
    await verdicts.beacon_written(system.ledger, beacon_id, committed_at)
    return beacon_id


async def probe_object(system: System, key: OperationKey) -> bool:
    """Act harmlessly on the object an acknowledgement named, which routes deny. Journaled first; free to retry."""
    destination = system.destination(key.destination, key.action)
    assert destination.probe is not None, f"{key.destination} has no reference probe"
    case = await verdicts.open_case(system.ledger, key, destination.contract)
    object_id = case.facts.acknowledged_object_id
    if object_id is None:
        return False
    await verdicts.want_probe(system.ledger, case.operation, object_id)
    deadline_s = destination.contract.timing.read_deadline_s
    async with asyncio.timeout(deadline_s):
        exists = await destination.probe(object_id, deadline_s)
    await verdicts.probe_answered(system.ledger, case.operation, object_id, exists)
    return exists


async def cancel_keys(system: System, key: OperationKey) -> dict[str, str]:
    """Ask the destination to cancel every key that may have been sent (rule P2). Journaled first; free to retry."""
    destination = system.destination(key.destination, key.action)
    assert destination.cancel_key is not None, f"{key.destination} declares no cancel by key"
    case = await verdicts.open_case(system.ledger, key, destination.contract)
    answers: dict[str, str] = {}
    deadline_s = destination.contract.timing.read_deadline_s
    for wire_key in await verdicts.want_cancel(system.ledger, case.operation):
        async with asyncio.timeout(deadline_s):
            object_id = await destination.cancel_key(wire_key, deadline_s)
        await verdicts.key_cancelled(system.ledger, case.operation, wire_key, object_id)
        answers[wire_key] = object_id or "cancelled"
    return answers


async def settle_step(system: System, key: OperationKey) -> ReconcileResult:
    """One step towards a settled operation without a workflow: read, and run the journaled step that comes next."""
    result = await reconcile(system, key)
    if result.next == "beacon":
        await write_beacon(system, key)
    elif result.next == "probe":
        await probe_object(system, key)
    elif result.next == "cancel_key":
        await cancel_keys(system, key)
    return result


async def read_fresh(system: System, key: OperationKey) -> tuple[Case, Verdict, list[Reading]]:
    """Read all routes now and conclude, without recording: for decisions and recounts."""
    destination = system.destination(key.destination, key.action)
    case = await verdicts.open_case(system.ledger, key, destination.contract)
    clock = await system.ledger.clock()
    readings = await read_all(destination, case, clock)
    return case, rule.combine(destination.contract, case.facts, readings, clock.now()), readings
