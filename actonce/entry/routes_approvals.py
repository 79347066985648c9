"""Routes about approvals: list, show exactly what would run, approve, reject, withdraw, ask again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from actonce.contracts.approval import ApprovalAct, ApprovalRenewal, ApprovalVote, differences
from actonce.contracts.people import Scope
from actonce.entry.access import Who, guarded_router, needs
from actonce.entry.lists import Cursor, Limit, link_next, listed
from actonce.entry.problems import documented
from actonce.entry.state import Entry, entry_of
from actonce.ledger import approvals, listing
from actonce.ledger.approvals import Approval, ApprovalState
from actonce.ledger.words import approval_next

router = guarded_router("/v1/approvals", "approvals")
Shared = Annotated[Entry, Depends(entry_of)]


class Click(BaseModel):
    """What a person pressed, and what it did: `counted`, or why it changed nothing."""

    name: str
    decision: str
    effect: str
    note: str
    at: datetime


class ApprovalView(BaseModel):
    """One approval as it is by the ledger's clock. `state` is never `approved` after its time or another content."""

    approval_id: str
    state: ApprovalState
    what: dict[str, Any] = Field(description="exactly what will run: tool, account, principal, payload, resolved")
    digest: str = Field(description="of `what`; a vote names it")
    operation_id: str
    task_id: str
    step: str
    round: int = Field(description="asked for the n-th time for this operation")
    requested_by: str
    requester_may_approve: bool
    approvers_needed: int
    approvals_given: int
    proposed_at: datetime
    expires_at: datetime = Field(description="absolute; never moved")
    seconds_left: float = Field(description="by the ledger's clock; never below 0")
    decided_by: str | None
    decided_at: datetime | None
    consumed_at: datetime | None = Field(description="when a permit was given on it")
    ended_by: str | None
    ended_at: datetime | None
    ended_why: str | None
    what_to_do: list[str]


class ApprovalRecordView(ApprovalView):
    """With every click, and what would have run instead where it was changed."""

    clicks: list[Click]
    found: dict[str, Any] | None = Field(description="what would have run instead, when the permit was asked for")
    found_digest: str | None
    differences: list[dict[str, Any]] = Field(description="where the two differ: where, approved, found")


class VoteView(ApprovalView):
    workflow_told: bool = Field(description="false: the ledger watcher tells it later; the decision stands")


@router.get(
    "",
    summary="List approvals, newest first",
    response_model=list[ApprovalView],
    responses=listed(422, 503),
    openapi_extra=needs(Scope.READ),
)
async def list_approvals(
    entry: Shared,
    request: Request,
    response: Response,
    state: Annotated[ApprovalState | None, Query(description="only this state, e.g. `pending`")] = None,
    tenant: str | None = None,
    task_id: str | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> list[ApprovalView]:
    """Each time that people were asked, and where it stands."""
    found = await listing.approvals(
        entry.ledger, state=state, tenant=tenant, task_id=task_id, cursor=cursor, limit=limit
    )
    link_next(request, response, found.next)
    return [ApprovalView(**_view(approval)) for approval in found]


@router.get(
    "/{approval_id}",
    summary="Exactly what would run, and what people said",
    response_model=ApprovalRecordView,
    responses=documented(404, 503),
    openapi_extra=needs(Scope.READ),
)
async def show(approval_id: str, entry: Shared) -> ApprovalRecordView:
    """What to read before deciding; after a change also what differs."""
    approval, clicks = await approvals.record(entry.ledger, approval_id)
    found = approval.found
    return ApprovalRecordView(
        **_view(approval),
        clicks=[Click(**click) for click in clicks],
        found=found.what if found else None,
        found_digest=found.digest if found else None,
        differences=differences(approval.proposal.what, found.what) if found else [],
    )


_VOTE: dict[str, Any] = {"responses": documented(404, 409, 422, 503), "openapi_extra": needs(Scope.APPROVE)}


@router.post("/{approval_id}/approve", summary="Approve", response_model=VoteView, **_VOTE)
async def approve(approval_id: str, body: ApprovalVote, entry: Shared, who: Who) -> VoteView:
    """One voice for exactly the digest it names. A repeat succeeds; whoever comes second is told who decided."""
    who.speaks_as(body.name)
    return await _told(entry, await approvals.vote(entry.ledger, approval_id, "approve", body))


@router.post("/{approval_id}/reject", summary="Reject", response_model=VoteView, **_VOTE)
async def reject(approval_id: str, body: ApprovalVote, entry: Shared, who: Who) -> VoteView:
    """One voice is enough: the step ends without anything sent."""
    who.speaks_as(body.name)
    return await _told(entry, await approvals.vote(entry.ledger, approval_id, "reject", body))


@router.post(
    "/{approval_id}/withdraw",
    summary="Take it back",
    response_model=VoteView,
    **_VOTE,
)
async def withdraw(approval_id: str, body: ApprovalAct, entry: Shared, who: Who) -> VoteView:
    """No further permit is given on it. What was sent before (`consumed_at`) is not called back."""
    who.speaks_as(body.name)
    return await _told(entry, await approvals.withdraw(entry.ledger, approval_id, body))


@router.post(
    "/{approval_id}/renew",
    summary="Ask again for a held operation",
    status_code=201,
    response_model=ApprovalView,
    **_VOTE,
)
async def renew(approval_id: str, body: ApprovalRenewal, entry: Shared, who: Who) -> ApprovalView:
    """A new approval with a deadline of its own, about what was found to run now. The old one stays as it is."""
    who.speaks_as(body.name)
    return ApprovalView(**_view(await approvals.renew(entry.ledger, approval_id, body)))


async def _told(entry: Entry, approval: Approval) -> VoteView:
    """The row first, the workflow second."""
    told = approval.state != "pending" and await entry.nudge(approval.task_id)
    return VoteView(**_view(approval), workflow_told=told)


def _view(approval: Approval) -> dict[str, Any]:
    values = {n: getattr(approval, n) for n in ApprovalView.model_fields if hasattr(approval, n)}
    return values | {
        "what": approval.proposal.what,
        "requester_may_approve": approval.proposal.terms.requester_may_approve,
        "seconds_left": max(0.0, approval.seconds_left),
        "what_to_do": approval_next(approval),
    }
