"""One operation, once: intent and permit, fence, one send, classification, record.

    a lease, where the contract names a credential
         │
    take_permit ── no permit ──> what the ledger says (adopt, wait, reconcile); nothing is sent
         │
       window (fence + freeze timer) ──> destination.send, exactly one request
         │
       acknowledged ──> recorded unconditionally, in whatever state the operation is by then
       refused / not accepted / not sent ──> recorded if this permit is still the current one
       everything else ──> unknown: reconcile, never resend

Promises: at most one request per permit; nothing is sent without a committed permit; an acknowledgement that
arrives late is recorded. Retries nothing. The caller (the guard) decides what follows.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any

from actonce.contracts import clocks
from actonce.contracts.approval import Proposal
from actonce.contracts.contract import Contract
from actonce.contracts.credential import Lease, NoLease
from actonce.contracts.errors import (
    CredentialError,
    DuplicateRefused,
    LedgerUnavailable,
    NotAccepted,
    NotSent,
    PayloadError,
    Refused,
    SendFenced,
    StaleWrite,
    StoredErrorReplayed,
    Unknown,
)
from actonce.contracts.identity import OperationKey, derive_operation_id
from actonce.contracts.lifecycle import State
from actonce.contracts.messages import IssueResult, IssueStatus, OperationRequest
from actonce.contracts.payload import NATURAL_KEY_BYTES_MAX, check_storable
from actonce.contracts.verdict import Reason, Receipt
from actonce.destinations.base import Call, Destination, _current, answer_deadline
from actonce.effects.approve import proposal_of
from actonce.effects.fence import Window
from actonce.effects.routes import tell_refused
from actonce.effects.system import System, log
from actonce.ledger import outcomes, permits
from actonce.ledger.permits import Intent, NoPermit, Permit
from actonce.ledger.store import Operation

RETRY_IN_MAX_S = 60.0  # whatever a Retry-After says: less than what makes an operation look forgotten by its task
_RECORD_AGAIN_S = (0.1, 0.2, 0.5, 1.0, 2.0)  # then every 2 s, for as long as this process lives


def intent_of(request: OperationRequest, contract: Contract) -> Intent:
    """Derive everything durable from a request. Raises PayloadError or KeyNotMappable before any call."""
    check_storable(request.payload, "payload")
    check_storable(request.model_dump(exclude={"payload"}), "request")
    operation_id = derive_operation_id(request.tenant, request.task_id, request.step, request.iteration)
    digest = contract.digest_of(request.action, request.payload)
    return Intent(
        key=OperationKey(request.tenant, request.destination, request.action, operation_id),
        task_id=request.task_id,
        step=request.step,
        iteration=request.iteration,
        payload=request.payload,
        digest=digest,
        natural_key=_natural_key(request, contract),
        reverses=_reverses(request, contract),
    )


def _natural_key(request: OperationRequest, contract: Contract) -> str | None:
    """What the contract derives, so that nobody can forget it; the caller's own where the contract declares none."""
    name = f"step {request.step} of task {request.task_id}"
    derived, given = contract.natural_key_of(request.action, request.payload), request.natural_key
    if derived is not None and given not in (None, derived):
        raise PayloadError(
            f"{name}: the contract of {request.destination} derives the natural effect key {derived!r} for "
            f"{request.action}, the caller gave {given!r}; leave it out. Nothing was sent"
        )
    if given is not None and not 0 < len(given.encode()) <= NATURAL_KEY_BYTES_MAX:
        raise PayloadError(
            f"{name}: a natural effect key has 1 to {NATURAL_KEY_BYTES_MAX} bytes, got {len(given.encode())}; "
            "nothing was sent"
        )
    return derived if derived is not None else given


def _reverses(request: OperationRequest, contract: Contract) -> str | None:
    if request.action in contract.reversals and not request.reverses:
        raise PayloadError(
            f"step {request.step} of task {request.task_id}: {request.action} at {request.destination} undoes an "
            "operation and names none; pass its operation_id as `reverses`. Nothing was sent"
        )
    return request.reverses


async def perform(system: System, request: OperationRequest) -> IssueResult:
    """Do the operation if it is free to be done, else say what is known. See the module's picture."""
    destination = system.destination(request.destination, request.action)
    contract = destination.contract
    intent = intent_of(request, contract)
    intent = replace(intent, proposal=await proposal_of(destination, request))
    lease = await destination.lease(contract.write.credential)
    asked_at_s = clocks.now_s()  # before the permit is asked for: our own deadline is never later than the ledger's
    permit = await obtain_permit(system, intent, contract, asked_at_s, lease)
    if isinstance(permit, NoPermit) and permit.stale_lease and isinstance(lease, Lease):
        lease = await destination.lease(contract.write.credential, instead_of=lease)
        asked_at_s = clocks.now_s()
        permit = await obtain_permit(system, intent, contract, asked_at_s, lease)
    if isinstance(permit, NoPermit):
        result = result_of(permit.operation, how=f"not sent: {permit.why}")
        return result.model_copy(update={"quarantined": permit.quarantined})
    window = Window(
        f"{intent.key.operation_id} attempt {permit.attempt}",
        system.timer,
        deadline_s=asked_at_s + permit.life_s,
        allowed_at_s=asked_at_s,  # not when its answer came: the commit may be much older than that
        ask_ledger=lambda: permits.check_fence(system.ledger, permit),
    )
    resolved = intent.proposal.resolved if isinstance(intent.proposal, Proposal) else {}
    send = asyncio.create_task(send_and_record(system, destination, permit, window, asked_at_s, resolved))
    system.keep(send)
    try:
        return await asyncio.shield(send)
    except asyncio.CancelledError:
        # The activity was cancelled (shutdown, timeout); the request may be on the wire.
        if not send.done():
            await _record_unless_stale(
                system, permit, "unknown", "the activity was cancelled while the answer was awaited"
            )
        raise


async def obtain_permit(
    system: System, intent: Intent, contract: Contract, asked_at_s: float, lease: Lease | NoLease | None = None
) -> Permit | NoPermit:
    """Take the permit; when the answer of that very transaction was lost, ask whether it is ours (rule R5)."""
    nonce = uuid.uuid4()  # fresh for each execution: whoever finds `dispatched` without its own nonce never sends
    try:
        return await permits.take_permit(system.ledger, intent, contract, system.owner, nonce, lease)
    except LedgerUnavailable as lost:
        if clocks.now_s() >= asked_at_s + contract.timing.permit_lifetime_s:
            raise
        own = await permits.read_own(system.ledger, intent.key, nonce, lease if isinstance(lease, Lease) else None)
        if own is None:
            raise lost
        return own


async def send_and_record(
    system: System,
    destination: Destination,
    permit: Permit,
    window: Window,
    asked_at_s: float,
    resolved: dict[str, Any],
) -> IssueResult:
    """The one wire request of this permit, and the record of how it ended."""
    contract = destination.contract
    give_up_s = asked_at_s + contract.timing.send_deadline_s
    call = _call(permit, window, give_up_s, destination, resolved)
    token = _current.set(call)
    try:
        if clocks.now_s() >= asked_at_s + permit.life_s:
            raise SendFenced(f"{call.operation_id}: the permit came after its life was over; nothing was sent")
        if system.journal is not None:
            await system.journal.permitted(permit)
        async with answer_deadline(give_up_s - clocks.now_s()):
            try:
                receipt = await destination.send(call)
            finally:
                window.close()
        if not window.entered:
            raise Unknown(f"{call.operation_id}: the send function of {call.destination} never entered call.window()")
    except (NotSent, SendFenced, CredentialError) as error:
        # A send function that tries twice: what its second try proves says nothing about the first.
        first_left = window.written or (window.entered and not isinstance(error, NotSent))
        return await _lost(system, permit, "unknown" if first_left else "not_sent", error)
    except NotAccepted as error:
        result = await _lost(system, permit, "not_accepted", error)
        if error.status == 401:
            await tell_refused(destination, permit.lease, _scrubbed(str(error)))
        retry_in_s = None if error.retry_after_s is None else min(error.retry_after_s, RETRY_IN_MAX_S)
        return result.model_copy(update={"retry_in_s": retry_in_s, "reason": f"status {error.status}"})
    except Refused as error:
        return await _lost(system, permit, "refused", error, for_key=contract.resends_same_key and error.replayed)
    except PayloadError as error:  # the tool cannot say it in the destination's words; it says so before it sends
        return await _lost(system, permit, "unknown" if window.entered else "refused", error)
    except StoredErrorReplayed as error:
        return await _hold(system, permit, error)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # everything that is not provable is unknown (SPEC §2.3)
        return await _lost(system, permit, "unknown", error)
    finally:
        _current.reset(token)
    if destination.credentials is not None and permit.lease is not None:
        destination.credentials.accepted(permit.lease)
    operation = await record_acknowledgement(system, permit, receipt, contract)
    return result_of(operation, how="acknowledged")


def _call(permit: Permit, window: Window, give_up_s: float, destination: Destination, resolved: dict[str, Any]) -> Call:
    operation = permit.operation
    return Call(
        tenant=operation.tenant,
        destination=operation.destination,
        action=operation.action,
        operation_id=operation.operation_id,
        key=permit.wire_key,
        payload=operation.payload,
        digest=operation.payload_digest,
        account=operation.account,
        task_id=operation.task_id,
        epoch=permit.epoch,
        attempt=permit.attempt,
        not_after=permit.not_after,
        window=window,
        time_left_s=lambda: give_up_s - clocks.now_s(),
        resolved=resolved,
        secret=destination.secret_of(permit.lease),
    )


async def record_acknowledgement(system: System, permit: Permit, receipt: Receipt, contract: Contract) -> Operation:
    """Append the acknowledgement; while the ledger is away, try again for as long as this process lives."""
    tries = 0
    while True:
        try:
            return await outcomes.acknowledge(system.ledger, permit, receipt, contract)
        except LedgerUnavailable as error:
            pause_s = _RECORD_AGAIN_S[min(tries, len(_RECORD_AGAIN_S) - 1)]
            tries += 1
            log.warning(
                "acknowledgement not recorded yet",
                operation_id=permit.operation.operation_id,
                object_id=receipt.object_id,
                error=str(error),
                again_in_s=pause_s,
            )
            await asyncio.sleep(pause_s)


def _scrubbed(text: str) -> str:
    """An error's text as it may be kept: a tool may quote what it sent, its credential too."""
    call = _current.get()
    return text if call is None else call.secret.scrub(text)


async def _hold(system: System, permit: Permit, error: StoredErrorReplayed) -> IssueResult:
    """A stored error under our key comes back however often we send: a person decides, nothing is retried."""
    words = f"attempt {permit.attempt}: {_scrubbed(str(error))}"
    try:
        operation = await outcomes.record_hold(system.ledger, permit, Reason.STORED_ERROR_REPLAYED, words)
    except StaleWrite as late:
        log.info("record came too late", operation_id=permit.operation.operation_id, why=str(late))
        operation = await _now(system, permit)
    return result_of(operation, how="stored_error_replayed")


async def _lost(
    system: System, permit: Permit, loss: outcomes.Loss, error: Exception, *, for_key: bool = False
) -> IssueResult:
    detail = _scrubbed(f"{type(error).__name__}: {error}")
    operation = await _record_unless_stale(system, permit, loss, detail, for_key=for_key)
    if isinstance(error, DuplicateRefused):
        await outcomes.report_duplicate(system.ledger, operation, detail)
    result = result_of(operation, how=loss if operation.state is not State.COMMITTED else "adopted")
    return result.model_copy(update={"detail": detail[:500]})


async def _record_unless_stale(
    system: System, permit: Permit, loss: outcomes.Loss, detail: str, *, for_key: bool = False
) -> Operation:
    """Record a loss about this permit; when the operation has moved on, leave it and return what it is now."""
    try:
        return await outcomes.record_loss(system.ledger, permit, loss, detail, for_key=for_key)
    except StaleWrite as error:
        log.info("record came too late", operation_id=permit.operation.operation_id, loss=loss, why=str(error))
        return await _now(system, permit)


async def _now(system: System, permit: Permit) -> Operation:
    found = await permits.read_own(system.ledger, permit.operation.key, permit.nonce)
    return found.operation if found is not None else permit.operation  # None: a ledger restored to before its intent


_STATUS: dict[State, IssueStatus] = {
    State.READY: "ready",
    State.DISPATCHED: "unknown",  # somebody else's permit, or ours whose end is not on record
    State.UNKNOWN: "unknown",
    State.ACKNOWLEDGED: "acknowledged",
    State.HELD: "held",
    State.COMMITTED: "committed",
    State.REFUSED: "refused",
    State.CLOSED: "closed",
}


def result_of(operation: Operation, *, how: str) -> IssueResult:
    """What the guard needs of an operation row."""
    extra: dict[str, Any] = {"reason": operation.reason} if operation.reason else {}
    return IssueResult(
        operation_id=operation.operation_id,
        status=_STATUS[operation.state],
        how=how,
        attempt=operation.attempt,
        version=operation.version,
        object_id=operation.object_id,
        completion=operation.completion,
        detail=operation.words or "",
        **extra,
    )
