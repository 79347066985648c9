"""Work that leaves every kind of required event behind, through the ledger's own functions."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from actonce.contracts.approval import ApprovalAct, ApprovalTerms, ApprovalVote, Proposal
from actonce.contracts.contract import Contract
from actonce.contracts.identity import OperationKey
from actonce.contracts.messages import DecisionRequest, TaskReport
from actonce.contracts.people import Role, Scope
from actonce.contracts.verdict import Outcome, Reason, Receipt, Verdict
from actonce.ledger import (
    alerts,
    approvals,
    authority,
    decisions,
    listing,
    outcomes,
    pages,
    people,
    permits,
    seconding,
    sessions,
    tasks,
    tokens,
    watch,
)
from actonce.ledger.alerts import Seen
from actonce.ledger.archiving import archive_some
from actonce.ledger.permits import Intent, Owner, Permit
from actonce.ledger.store import Ledger, Operation
from actonce.version import __version__
from tests.unit.effects.builders import contract as build_contract

OWNER = Owner("host", "boot", 1, 0.0)
CONTRACT: Contract = build_contract(completion="receipt")


def intent(task_id: str, name: str) -> Intent:
    key = OperationKey("default", CONTRACT.name, "refund", f"op1_{name}")
    return Intent(key, task_id, name, 1, {"amount_minor": 5}, "d1:" + "0" * 64)


async def permit(ledger: Ledger, task_id: str, name: str) -> Permit:
    taken = await permits.take_permit(ledger, intent(task_id, name), CONTRACT, OWNER, uuid.uuid4())
    assert isinstance(taken, Permit)
    return taken


async def acknowledged(ledger: Ledger, task_id: str, name: str) -> Operation:
    receipt = Receipt(object_id=f"re_{name}", digest="d1:" + "0" * 64)
    return await outcomes.acknowledge(ledger, await permit(ledger, task_id, name), receipt, CONTRACT)


async def work(ledger: Ledger) -> None:
    """Three tasks: one is held and decided, one is planned, done and reported, one is cancelled."""
    async with ledger.transaction() as connection:
        await connection.execute(
            "INSERT INTO actonce.contract (name, digest, version, body) VALUES ('payments', 'c1', 1, '{}')"
        )
    held, _ = await tasks.accept(ledger, "default", "single", "held", {"n": 1})
    done, _ = await tasks.accept(ledger, "default", "single", "done", {"n": 2})
    dropped, _ = await tasks.accept(ledger, "default", "single", "dropped", {"n": 3})
    await tasks.save_plan(ledger, done.task_id, {"steps": []})
    await acknowledged(ledger, done.task_id, "one")
    await tasks.report(ledger, TaskReport(task_id=done.task_id, state="complete", summary="refunded"))
    await tasks.cancel(ledger, dropped.task_id)
    async with ledger.transaction() as connection:
        await pages.hold_task(connection, dropped.task_id, "look", Reason.MEMORY_UNAVAILABLE, "no answer")
        await pages.close_task_hold(connection, dropped.task_id, "look", "evidence:canary")
    await tasks.report(ledger, TaskReport(task_id=dropped.task_id, state="cancelled", summary="dropped"))
    stopped = await outcomes.record_hold(
        ledger, await permit(ledger, held.task_id, "two"), Reason.STORED_ERROR_REPLAYED, "a stored 500"
    )
    [page, *_] = [p for p in await listing.pages(ledger) if p["operation_id"] == stopped.operation_id]
    await watch.acknowledge_page(ledger, page["page_id"], "olga")
    request = DecisionRequest(
        action="mark_committed",
        name="olga",
        reason="seen",
        evidence="ticket 7",
        object_id="re_two",
        expected_epoch=stopped.epoch,
        expected_version=stopped.version,
    )
    waiting = await decisions.record(ledger, stopped.key, request, second_person=True)
    decision = await seconding.second(
        ledger, stopped.key, waiting.decision_id, agrees=True, name="ann", why="the ticket says so"
    )
    unclear = Verdict(outcome=Outcome.AMBIGUOUS, reason=Reason.NOT_VISIBLE, words="nothing seen")
    _, result = await decisions.consume(ledger, decision, unclear)
    assert result == "applied"
    await let_in_and_out(ledger)
    await give_and_withdraw_authority(ledger)
    await sound(ledger)
    await ask_people(ledger, held.task_id)
    await archive_some(ledger, timedelta(0), by="olga", reason="a year is over")


async def sound(ledger: Ledger) -> None:
    """One alert fires, ends, and fires again; one waits for its time."""
    fires = Seen("Fires", {}, Reason.BACKLOG, 1.0, 0.0, "s", "d")
    for seen in ([fires], [], [fires, replace(fires, name="Waits", for_s=3600.0)]):
        await alerts.record(ledger, seen)


async def ask_people(ledger: Ledger, task_id: str) -> None:
    """An approval that somebody gives, and somebody takes back."""
    proposal = Proposal(
        tenant="default",
        tool="payments.refund",
        destination="payments",
        action="refund",
        account="main",
        principal="main",
        payload={"amount_minor": 5},
        resolved={},
        terms=ApprovalTerms(),
        requested_by="ada",
    )
    key = OperationKey("default", CONTRACT.name, "refund", "op1_asked")
    asked = await approvals.propose(ledger, key, task_id, "asked", proposal)
    await approvals.vote(ledger, asked.approval_id, "approve", ApprovalVote(name="olga", digest=asked.digest))
    await approvals.withdraw(ledger, asked.approval_id, ApprovalAct(name="olga", note="too soon"))


async def give_and_withdraw_authority(ledger: Ledger) -> None:
    """One task type is given authority at a destination, and loses it."""
    shown = authority.Shown(CONTRACT.digest, __version__, "e" * 64, datetime.now(UTC), "ada", "both reports")
    caps, life = authority.Caps(count_max=1), timedelta(days=1)
    await authority.grant(ledger, CONTRACT.name, "refund", caps, shown, by="olga", reason="first week", life=life)
    await authority.withdraw(ledger, CONTRACT.name, "refund", by="olga", reason="the week is over")


async def let_in_and_out(ledger: Ledger) -> None:
    """A person, a session and a token: begun and ended."""
    await people.add_person(ledger, "olga", [Role.OPERATOR], password=None, by="setup")
    _, value = await sessions.sign_in_by_provider(ledger, "https://id.example.com", "7", "ann", [Role.VIEWER])
    await sessions.sign_out(ledger, value)
    token, _ = await tokens.create_token(ledger, "nightly", [Scope.READ], by="setup", person="olga")
    await tokens.revoke_token(ledger, token.token_id, by="olga")
    await people.disable(ledger, "olga", by="ann")
