"""What must hold beside the operation's own state when a permit is consumed, asked in the permit's transaction.

Each gate either lets the permit pass, perhaps for a shorter time, or refuses it with a reason: then the operation is
held, nothing is sent, and it is resumed only after its condition holds again (`unmet`). A gate that does not apply to
an operation costs it no query.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from actonce.contracts.approval import Proposal, Unresolved, terms_of
from actonce.contracts.commands import CLIENT
from actonce.contracts.contract import Contract
from actonce.contracts.credential import Lease, NoLease
from actonce.contracts.verdict import Reason
from actonce.ledger import approvals, authorising, authority, pages
from actonce.ledger.approvals import Approval
from actonce.ledger.store import Connection, Operation, one, utc


@dataclass(frozen=True)
class Refusal:
    """Why no permit is given. Nothing was sent."""

    reason: Reason
    words: str
    stale_lease: bool = False  # a fresh lease may pass: ask again with one before anybody is called


@dataclass(frozen=True)
class Pass:
    """The permit may be given. It must not outlive `latest` (None: nothing here limits it)."""

    latest: datetime | None = None


async def check(
    connection: Connection,
    operation: Operation,
    row: dict[str, Any],
    contract: Contract,
    proposal: Proposal | Unresolved | None = None,
    lease: Lease | NoLease | None = None,
) -> Pass | Refusal:
    """Ask every gate about a locked, ready operation. `row` is what the intent's statement returned."""
    if row["clone_of"] is not None and not contract.sandbox:
        words = f"this deployment is a clone of {row['clone_of']}: it sends to sandboxes and to nothing else"
        return Refusal(Reason.NO_AUTHORITY, words)
    deadline: datetime | None = row["task_deadline"]
    if deadline is not None and row["now"] >= deadline and not operation.retry_granted:
        return Refusal(Reason.DEADLINE_PASSED, f"the task's deadline was {utc(deadline)}; nothing was sent after it")
    leased_until = await authorising.check(connection, operation, contract, lease)
    if isinstance(leased_until, NoLease):
        return Refusal(leased_until.reason, leased_until.words, stale_lease=leased_until.stale)
    allowed = await authority.check(connection, operation, row["task_type"], contract)
    if isinstance(allowed, authority.Denied):
        return Refusal(allowed.reason, allowed.words)
    approved = await _approved(connection, operation, contract, proposal, row["declined"])
    if isinstance(approved, Refusal):
        return approved
    if allowed is not None:
        await authority.count(connection, operation, allowed)
    allowed_until = allowed.latest if allowed is not None else None
    limits = [at for at in (deadline, leased_until, allowed_until, approved.latest) if at is not None]
    return Pass(latest=min(limits, default=None))


async def _approved(
    connection: Connection,
    operation: Operation,
    contract: Contract,
    proposal: Proposal | Unresolved | None,
    declined: bool,
) -> Pass | Refusal:
    """Is exactly this approved, now? Consumes the approval with the first permit; checks it with every one.

    `declined`: somebody has said no, or taken it back, in some round.
    """
    terms = proposal.terms if proposal else terms_of(contract.approvals, operation.action, operation.payload)
    if terms is None:
        return await _not_declined(connection, operation) if declined else Pass()
    approval = await approvals.latest(connection, operation.key, lock_task=operation.task_id)
    if not isinstance(proposal, Proposal):
        words = proposal.words if proposal else "whoever asked for the permit did not say what would run"
        return Refusal(Reason.APPROVAL_CHANGED if approval else Reason.APPROVAL_REQUIRED, words)
    proposal = proposal.model_copy(update={"payload": operation.payload})  # what is sent is what the intent has
    if approval is None:
        asked = await approvals.ask(connection, operation.key, operation.task_id, operation.step, proposal)
        return Refusal(Reason.APPROVAL_REQUIRED, f"nobody had been asked; now {asked.approval_id} is")
    refusal = await _refused(connection, approval, proposal)
    if refusal is not None:
        await approvals.mark_seen(connection, operation.key)
        if approval.state != "pending":  # the page of the hold takes its place
            await pages.close_page(connection, approval.incident)
        return refusal
    await approvals.consume(connection, approval, operation)
    return Pass(latest=approval.expires_at)


async def _not_declined(connection: Connection, operation: Operation) -> Pass | Refusal:
    """Nobody needs to be asked (any more), and still nobody may have said no."""
    approval = await approvals.latest(connection, operation.key)
    if approval is None or approval.state not in ("rejected", "withdrawn"):
        return Pass()
    await approvals.mark_seen(connection, operation.key)
    await pages.close_page(connection, approval.incident)
    return _declined(approval)


def _declined(approval: Approval) -> Refusal:
    name = approval.approval_id
    if approval.state == "rejected":
        return Refusal(Reason.APPROVAL_REQUIRED, f"{name} was rejected by {approval.decided_by}")
    return Refusal(Reason.APPROVAL_WITHDRAWN, f"{name} was withdrawn by {approval.ended_by}: {approval.ended_why}")


async def _refused(connection: Connection, approval: Approval, proposal: Proposal) -> Refusal | None:
    name = approval.approval_id
    if approval.state == "pending":
        return Refusal(Reason.APPROVAL_REQUIRED, f"{name} is not decided yet")
    if approval.state in ("rejected", "withdrawn"):
        return _declined(approval)
    if approval.state in ("approved", "consumed") and approval.digest != proposal.digest:
        why = f"approved was {approval.digest}, what would run is {proposal.digest}"
        await approvals.end(connection, approval, "changed", approvals.BY_THE_TASK, why, proposal)
        return Refusal(Reason.APPROVAL_CHANGED, f"{name}: {why}; `{CLIENT} approvals {name}` shows the difference")
    if approval.state in ("changed", "superseded"):
        return Refusal(Reason.APPROVAL_CHANGED, f"{name} was {approval.state}: {approval.ended_why}")
    if not approval.in_force:
        if approval.ended_at is None:
            await approvals.end(connection, approval, "expired", approvals.BY_THE_CLOCK, "nothing was sent in time")
        return Refusal(Reason.APPROVAL_EXPIRED, f"{name} expired at {utc(approval.expires_at)}")
    if not await approvals.satisfies(connection, approval, proposal.terms):
        others = "" if proposal.terms.requester_may_approve else " other than who asked"
        words = f"{name} was given by {approval.decided_by}, the policy wants {proposal.terms.approvers}{others} by now"
        await approvals.end(connection, approval, "superseded", approvals.BY_THE_TASK, words, proposal)
        return Refusal(Reason.APPROVAL_REQUIRED, words)
    return None


async def unmet(connection: Connection, operation: Operation) -> str | None:
    """Why a held operation may not be resumed yet, in words; None when its condition holds."""
    if operation.reason == Reason.DEADLINE_PASSED.value:
        row = await one(
            connection,
            "SELECT deadline <= clock_timestamp() AS over FROM actonce.task WHERE task_id = %s",
            (operation.task_id,),
        )
        if row is not None and row["over"]:
            return "its task's deadline is over; give the task a new deadline first, or end it with mark_absent"
    if operation.reason in _APPROVAL:
        approval = await approvals.latest(connection, operation.key)
        if approval is not None and not approval.in_force:  # none at all: the next permit asks people first
            again = "decide it" if approval.state == "pending" else f"`{CLIENT} renew {approval.approval_id}` first"
            return f"its approval {approval.approval_id} is {approval.state}; {again}"
    return await authorising.unmet(connection, operation) or await authority.unmet(connection, operation)


_APPROVAL = {
    Reason.APPROVAL_REQUIRED.value,
    Reason.APPROVAL_EXPIRED.value,
    Reason.APPROVAL_CHANGED.value,
    Reason.APPROVAL_WITHDRAWN.value,
}
