"""Consume an operator's decision: read once more, then apply it, in the same action (rule R9).

Where nobody has the operation's contract any more nothing can be read, and a decision that sends nothing takes effect
all the same (`decide_unread`): a person has seen on the page that nothing is read, and there is no other way out.
"""

from __future__ import annotations

from actonce.contracts.errors import ContractError, StaleWrite
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import State
from actonce.contracts.verdict import Outcome
from actonce.effects.reconcile import read_fresh
from actonce.effects.system import System, log
from actonce.ledger import decisions, verdicts, watch
from actonce.ledger.store import Operation

_SENDS_NOTHING = ("mark_committed", "mark_absent")


async def decide(system: System, key: OperationKey) -> tuple[Operation, str]:
    """Apply what is pending for a held operation. Returns it and what happened.

    What happened: `nothing_pending`, or the decision and how it ended, such as `permit_one_retry: applied`; it ends
    applied, superseded_by_evidence, stale or expired.
    """
    decision = await decisions.pending(system.ledger, key)  # first: a reading begun before it may be older than it
    try:
        case, fresh, readings = await read_fresh(system, key)
    except ContractError:
        found = await verdicts.standing(system.ledger, key)
        if decision is not None or found is None or not found[0].final:
            raise
        return found[0], "nothing_pending"  # it has ended: that needs no contract
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


async def decide_unread(system: System, key: OperationKey, why: str, waited_s: float) -> str:
    """Apply what is pending for an operation that cannot be read, since there is no contract for it here.

    For the watcher alone, which has every contract of the deployment: a worker leaves it to one that can read. Only
    after the decision has waited for `waited_s`, in which whoever has the contract would have read and applied it; and
    only where nothing is sent by it. `permit_one_retry` and `resume` wait for the contract. That nothing was read is on
    record as the operation's newest verdict. Returns what happened, as `decide` does.
    """
    decision = await decisions.pending(system.ledger, key)
    if decision is None or decision.decision not in _SENDS_NOTHING:
        return "nothing_pending" if decision is None else f"{decision.decision}: waits for a contract"
    found = await verdicts.standing(system.ledger, key)
    if found is None or not await watch.has_waited(system.ledger, decision.decision_id, waited_s):
        return f"{decision.decision}: waits for somebody who can read"
    unread = await verdicts.record_unread(system.ledger, found[0], f"{why}; {decision.decision} is taken as it is")
    _, result = await decisions.consume(system.ledger, decision, unread)
    log.warning("a decision was taken unread", operation_id=key.operation_id, decision=decision.decision, why=why)
    return f"{decision.decision}: {result}"
