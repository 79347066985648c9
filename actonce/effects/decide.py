"""Consume an operator's decision: read once more, then apply it, in the same action (rule R9)."""

from __future__ import annotations

from actonce.contracts.errors import StaleWrite
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import State
from actonce.contracts.verdict import Outcome
from actonce.effects.reconcile import read_fresh
from actonce.effects.system import System, log
from actonce.ledger import decisions, verdicts
from actonce.ledger.store import Operation


async def decide(system: System, key: OperationKey) -> tuple[Operation, str]:
    """Apply what is pending for a held operation. Returns it and what happened.

    What happened: `nothing_pending`, or the decision and how it ended, such as `permit_one_retry: applied`; it ends
    applied, superseded_by_evidence, stale or expired.
    """
    decision = await decisions.pending(system.ledger, key)  # first: a reading begun before it may be older than it
    case, fresh, readings = await read_fresh(system, key)
    if decision is None:
        return case.operation, "nothing_pending"
    operation, result = await decisions.consume(system.ledger, decision, fresh)
    if result == "superseded_by_evidence" and operation.state is State.HELD and fresh.outcome is Outcome.COMMITTED:
        contract = system.destination(key.destination, key.action).contract
        try:
            operation = await verdicts.record_verdict(system.ledger, case, fresh, readings, contract)
        except StaleWrite as error:
            log.info("the operation moved while a decision was consumed", operation_id=key.operation_id, why=str(error))
    return operation, f"{decision.decision}: {result}"
