"""What would run, as it is now: for the people who are asked, and again right before each permit.

The payload says what to do in names; a destination's `resolve` function says what they stand for at this moment (the
digest of a referenced file, the account behind an alias). Reading it is free to repeat and is bounded; where it cannot
be read, nobody can say that what would run is what was approved, and no permit is given.
"""

from __future__ import annotations

import asyncio

from actonce.contracts.approval import Proposal, Unresolved, terms_of
from actonce.contracts.contract import Contract
from actonce.contracts.identity import OperationKey, derive_operation_id
from actonce.contracts.messages import ApprovalSeen, OperationRequest
from actonce.contracts.payload import check_storable
from actonce.destinations.base import Destination
from actonce.effects.system import System, log
from actonce.ledger import approvals
from actonce.ledger.store import utc


async def proposal_of(destination: Destination, request: OperationRequest) -> Proposal | Unresolved | None:
    """What people would be asked to approve; None: nobody needs to be asked. Raises PayloadError."""
    contract = destination.contract
    terms = terms_of(contract.approvals, request.action, request.payload, request.approval)
    if terms is None:
        return None
    resolved = {}
    if destination.resolve is not None:
        deadline_s = _deadline_s(contract)
        try:
            async with asyncio.timeout(deadline_s):
                resolved = dict(await destination.resolve(request.action, request.payload, deadline_s))
            check_storable(resolved, "resolved")
        except Exception as error:  # whatever stops the reading, it says nothing about what would run
            log.warning("not resolved", destination=contract.name, action=request.action, error=str(error)[:500])
            words = f"what the payload refers to cannot be read ({type(error).__name__}: {error})"[:1000]
            return Unresolved(terms, words)
    proposal = Proposal(
        tenant=request.tenant,
        tool=f"{contract.name}.{request.action}",
        destination=contract.name,
        action=request.action,
        account=contract.account,
        principal=contract.principal or contract.account,
        payload=request.payload,
        resolved=resolved,
        terms=terms,
        requested_by=request.requested_by or request.task_id,
    )
    _ = proposal.digest  # refused here, before anybody is asked
    return proposal


def _deadline_s(contract: Contract) -> float:
    """Reading comes out of the room that the issue activity has beside its send; half of it stays for the ledger."""
    t = contract.timing
    return min(t.read_deadline_s, (t.activity_timeout_s - t.send_deadline_s) / 2)


async def propose(system: System, request: OperationRequest) -> ApprovalSeen:
    """Ask people, or find what was asked before. Raises PayloadError, LedgerUnavailable."""
    check_storable(request.model_dump(), "request")
    proposal = await proposal_of(system.destination(request.destination, request.action), request)
    operation_id = derive_operation_id(request.tenant, request.task_id, request.step, request.iteration)
    key = OperationKey(request.tenant, request.destination, request.action, operation_id)
    if isinstance(proposal, Proposal):
        await approvals.propose(system.ledger, key, request.task_id, request.step, proposal)
    return await look(system, key)


async def look(system: System, key: OperationKey) -> ApprovalSeen:
    """Where the newest approval stands, for the workflow that waits for it.

    None at all (it could not be resolved, the contract wants none any more, a restore): the permit's transaction says
    what that means.
    """
    approval, issued = await approvals.seen(system.ledger, key)
    if approval is None:
        return ApprovalSeen(approval_id="", state="none", words="no approval was asked for", issued=issued)
    words = f"{approval.approval_id} is {approval.state}"
    if approval.state == "pending":
        words = f"waits for approval {approval.approval_id} until {utc(approval.expires_at)}"
    elif approval.decided_by is not None:
        words += f", decided by {approval.decided_by}"
    return ApprovalSeen(
        approval_id=approval.approval_id,
        state=approval.state,
        words=words,
        decided_by=approval.decided_by,
        issued=issued,
    )
