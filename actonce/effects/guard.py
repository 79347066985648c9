"""The workflow's side of the guarantee: one call per side effect.

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        return await run_task(task, self.steps)

    async def steps(self, ops: Operations) -> str:
        await ops.perform("refund", destination="payments", action="refund", payload={...})
        return "refunded"

`perform` schedules an issue activity once (`maximum_attempts=1`); whatever is not known afterwards is reconciled, as
often as it takes; an operation that stays ambiguous is held until evidence or a recorded decision ends the hold. The
ledger is the authority: this code only asks it and waits, so a replayed, reset or restarted workflow does no harm.
Deterministic: no clock, no random numbers, no I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from actonce.effects.guard_memory import MemorySteps

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.approval import ApprovalTerms, terms_of
    from actonce.contracts.identity import derive_operation_id
    from actonce.contracts.messages import (
        ApprovalSeen,
        IssueResult,
        OperationRef,
        OperationRequest,
        OperationResult,
        PlanRequest,
        PlanResult,
        ReconcileResult,
        TaskInput,
        TaskReport,
        Times,
    )

T = TypeVar("T")
NUDGE = "actonce.nudge"
STATE = SearchAttributeKey.for_keyword("ActonceState")
REASON = SearchAttributeKey.for_keyword("ActonceReason")

# Errors of an issue that trying again cannot cure; the task fails with them and nothing was sent by it. NotRegistered
# is none of them: the plan knows the destination, so another worker has it (a deployment that is being rolled out).
FINAL_ERRORS = ["IntentConflict", "ContractError", "PayloadError", "KeyNotMappable", "ForeignLedger"]
_LEDGER_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2,
    maximum_interval=timedelta(seconds=5),
    non_retryable_error_types=FINAL_ERRORS,
)
# Steps read what was sent: whatever one worker lacks for it, no step ends the task. The watcher holds and pages.
_STEP_RETRY = replace(_LEDGER_RETRY, non_retryable_error_types=None)
_JOURNALED = ("beacon", "probe", "cancel_key")  # steps with a harmless effect, activities of their own
_READ_TIMEOUT = timedelta(seconds=60)
# A task handed to a worker that is frozen or cut off is lost; without this it would be missed only at its timeout.
_HEARTBEAT_TIMEOUT = timedelta(seconds=3)
_UNRECORDED_PAUSE_S = 0.5  # doubled each time an issue failed before its intent
_PAUSE_MAX_S = 30.0  # between two readings, and between two tries to send
_PAUSE_SHARE = 0.01  # of a wait of hours or days, so that its readings fit into one history
_LOOK_S = 600.0  # a nudge may be lost: whoever waits for people looks at the ledger by itself this often


class NotCommitted(ApplicationError):
    """An operation is final and did not happen: refused by the destination, or closed by a decision."""

    def __init__(self, step: str, result: OperationResult) -> None:
        super().__init__(f"step {step} ended {result.state}: {result.how}", type="NotCommitted", non_retryable=True)
        self.result = result


class ApprovalRejected(ApplicationError):
    """People were asked and said no. Nothing was sent, and nothing will be for this operation."""

    def __init__(self, step: str, seen: ApprovalSeen) -> None:
        super().__init__(
            f"step {step} was rejected by {seen.decided_by} (approval {seen.approval_id}); nothing was sent",
            type="ApprovalRejected",
            non_retryable=True,
        )
        self.seen = seen


class Operations(MemorySteps):
    """The guarded side effects of one task. `run_task` makes it and hands it to the task's steps."""

    def __init__(self, task: TaskInput, plan: PlanResult) -> None:
        self.task = task
        self.plan = plan.plan
        self.done: list[OperationResult] = []  # final results, in the order they became final
        self._times = plan.times
        self._rules = plan.approvals
        self._nudges = 0
        self._cancelled = False
        self._open: dict[OperationRef, str] = {}  # what people see of it
        self._held_for: dict[OperationRef, str] = {}  # the reason
        self._unrecorded: dict[
            OperationRef, tuple[int, str]
        ] = {}  # issues that failed before their intent: how often, how
        self._waits_for: dict[OperationRef, str] = {}  # the approval
        self._resting = 0  # how many of them wait for people
        self.degraded: list[str] = []
        self._settling: list[asyncio.Future[Any]] = []
        self._waits_for_memory: dict[str, str] = {}
        self._shown: tuple[str, str] = ("", "")

    def nudged(self) -> None:
        self._nudges += 1

    async def perform(
        self,
        step: str,
        *,
        destination: str,
        action: str,
        payload: dict[str, Any],
        iteration: int = 0,
        natural_key: str | None = None,
        reverses: str | None = None,
        approval: ApprovalTerms | None = None,
        requested_by: str | None = None,
    ) -> OperationResult:
        """Do one side effect once and return its evidence.

        People are asked first where the contract or `approval` wants it; `requested_by` is who they are told asks
        (default: the payload's `requested_by` of the task, else the task).

        Raises NotCommitted when it ended refused or closed, ApprovalRejected, and ApplicationError (IntentConflict,
        ContractError, PayloadError, ...) when nothing was and nothing will be sent; each ends the task as failed
        unless caught. Blocks while people are asked and while the operation is held. Cancelling the workflow does not
        abandon an operation that may have been sent: it is settled first.
        """
        request = OperationRequest(
            tenant=self.task.tenant,
            task_id=self.task.task_id,
            step=step,
            iteration=iteration,
            destination=destination,
            action=action,
            payload=payload,
            natural_key=natural_key,
            reverses=reverses,
            approval=approval,
            requested_by=requested_by or self._requester(),
        )
        settle = asyncio.ensure_future(self._settle_and_keep(request))
        self._settling.append(settle)
        try:
            result = await asyncio.shield(settle)
        except asyncio.CancelledError:
            self._cancelled = True  # who still waits for people has sent nothing and waits no longer
            await settle
            raise
        if result.state != "committed":
            raise NotCommitted(step, result)
        return result

    def _requester(self) -> str | None:
        told = self.task.payload.get("requested_by")
        return told if isinstance(told, str) and told else None

    def may_continue_as_new(self) -> bool:
        """Is the history long, and does every operation that is open only wait for people?"""
        open_ = sum(not settle.done() for settle in self._settling)
        idle = open_ > 0 and open_ == self._resting
        return idle and workflow.info().is_continue_as_new_suggested()

    async def settled(self) -> None:
        """Wait for every operation that was begun: a step that failed ends the task, not what runs beside it."""
        cancelled = False
        for settle in self._settling:
            while not settle.done():
                try:
                    await asyncio.wait([settle])
                except asyncio.CancelledError:
                    cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    async def _settle_and_keep(self, request: OperationRequest) -> OperationResult:
        result = await self._settle(request)
        self.done.append(result)
        return result

    async def _settle(self, request: OperationRequest) -> OperationResult:
        operation_id = derive_operation_id(request.tenant, request.task_id, request.step, request.iteration)
        ref = OperationRef(
            tenant=request.tenant, destination=request.destination, action=request.action, operation_id=operation_id
        )
        try:
            if terms_of(self._rules.get(request.destination, ()), request.action, request.payload, request.approval):
                await self._approved(request, ref)
            self._note(ref, f"{request.step}: issuing")
            issued = 0
            while True:
                result = await self._issue(request, ref, issued)
                issued += 1
                if result is not None and result.status in ("committed", "refused", "closed"):
                    return _final(result, operation_id)
                if result is None or result.status != "ready":
                    settled = await self._reconcile(request, ref, issued)
                    if settled is not None:
                        return settled
                elif result.quarantined:
                    self._note(ref, f"{request.step}: {result.how}")
                    await self._nudge_after(self._nudges, look_s=_try_again_s(issued))
                else:
                    await self._pause(result, issued)
        finally:
            self._open.pop(ref, None)
            self.show()

    async def _approved(self, request: OperationRequest, ref: OperationRef) -> None:
        """Ask people, and wait. Whatever the end is but a rejection, the permit's transaction judges it again."""
        nudges = self._nudges  # before each look, so that a nudge during it is not lost
        seen = await self._ask("actonce.propose.v1", request, f"propose {request.step}")
        try:
            while seen.state == "pending" and not seen.issued:  # what was issued before is held: it waits there
                self._waits_for[ref] = seen.approval_id
                self._note(ref, f"{request.step}: {seen.words}")
                await self._nudge_after(nudges, or_cancelled=True)
                if self._cancelled:
                    raise asyncio.CancelledError
                nudges = self._nudges
                seen = await self._ask("actonce.approval.v1", ref, f"look for {request.step}")
        finally:
            self._waits_for.pop(ref, None)
        self._note(ref, f"{request.step}: {seen.words}")
        if self._cancelled and not seen.issued:
            raise asyncio.CancelledError  # whatever was decided: nothing was sent, and nothing will be
        if seen.state == "rejected":
            raise ApprovalRejected(request.step, seen)

    async def _ask(self, name: str, argument: OperationRequest | OperationRef, summary: str) -> ApprovalSeen:
        try:
            return await self._ledger_step(name, argument, ApprovalSeen, summary)
        except ActivityError as error:
            raise _definite(error) from error

    async def _issue(self, request: OperationRequest, ref: OperationRef, issued: int) -> IssueResult | None:
        """One issue activity; None when its end is not known here."""
        times = self._times_of(request.destination)
        failed, how = self._unrecorded.get(ref, (0, ""))
        try:
            issued_result: IssueResult = await workflow.execute_activity(
                "actonce.issue.v1",
                request.model_copy(update={"failed_before": failed, "last_failure": how}),
                result_type=IssueResult,
                start_to_close_timeout=timedelta(seconds=times.activity_timeout_s),
                heartbeat_timeout=timedelta(seconds=times.heartbeat_timeout_s),
                retry_policy=RetryPolicy(maximum_attempts=1),
                summary=f"issue {request.step}: {request.action} at {request.destination}, try {issued + 1}",
            )
            return issued_result
        except ActivityError as error:
            definite = _definite(error)
            if definite is not error:
                raise definite from error
            self._unrecorded[ref] = (failed + 1, str(error.cause)[:500])
            return None

    async def _reconcile(self, request: OperationRequest, ref: OperationRef, issued: int) -> OperationResult | None:
        """Read until the outcome is established. Returns a final result, or None when it may be issued (again)."""
        reads = 0
        while True:
            read: ReconcileResult = await self._step("actonce.reconcile.v1", ref, f"reconcile {request.step}")
            self._note(ref, f"{request.step}: {read.verdict} {read.reason or ''} {read.words}")
            if read.next == "done":
                return _final(read, ref.operation_id)
            if read.next == "issue":
                if read.state == "none":  # the issue failed before its intent: not at once again
                    await self._wait(min(_PAUSE_MAX_S, _UNRECORDED_PAUSE_S * 2 ** min(issued, 10)))
                else:
                    self._unrecorded.pop(ref, None)
                return None
            if read.next == "hold":
                read = await self._held(request, ref, read)
                if read.next == "done":
                    return _final(read, ref.operation_id)
                if read.next == "issue":
                    return None
                # a late acknowledgement ended the hold, and it still has to be read back: reading goes on
            if read.next in _JOURNALED:
                await self._journaled(request, ref, read)
            await self._wait(_read_again_s(read, reads))
            reads += 1

    async def _journaled(self, request: OperationRequest, ref: OperationRef, read: ReconcileResult) -> None:
        """A beacon, a probe or a key cancel: harmless, journaled, and no end of the story when it fails."""
        try:
            await workflow.execute_activity(
                f"actonce.{read.next}.v1",
                ref,
                start_to_close_timeout=_READ_TIMEOUT,
                heartbeat_timeout=_HEARTBEAT_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=2),
                summary=f"{read.next} for {request.step}",
            )
        except ActivityError as error:
            workflow.logger.warning("%s of %s failed: %s", read.next, ref.operation_id, error.cause)
            await self._wait(self._times_of(request.destination).read_again_s)

    async def _held(self, request: OperationRequest, ref: OperationRef, read: ReconcileResult) -> ReconcileResult:
        """A person is paged (by the hold's own transaction). Wait for evidence or a recorded decision."""
        self._held_for[ref] = read.reason or ""
        self._note(ref, f"{request.step}: HELD {read.reason}: {read.words}")
        nudges = self._nudges
        seen = await self._step("actonce.hold.v1", ref, f"hold {request.step}: {read.reason}")
        while seen.next == "hold":
            await self._nudge_after(nudges)
            nudges = self._nudges  # before the look, so that a nudge during it is not lost
            seen = await self._step("actonce.decide.v1", ref, f"decide {request.step}")
        del self._held_for[ref]
        self._note(ref, f"{request.step}: {seen.words}")
        return seen

    async def _nudge_after(self, nudges: int, *, or_cancelled: bool = False, look_s: float = _LOOK_S) -> None:
        """Wait for the next nudge; look at the ledger now and then without one."""
        self._resting += 1
        try:
            await workflow.wait_condition(
                lambda: self._nudges > nudges or (or_cancelled and self._cancelled),
                timeout=timedelta(seconds=look_s),
            )
        except TimeoutError:
            workflow.logger.info("no nudge for %s s; looking at the ledger", look_s)
        finally:
            self._resting -= 1

    async def _step(self, name: str, ref: OperationRef, summary: str) -> ReconcileResult:
        return await self._ledger_step(name, ref, ReconcileResult, summary, retry=_STEP_RETRY)

    async def _ledger_step(
        self, name: str, argument: Any, result: type[T], summary: str, retry: RetryPolicy = _LEDGER_RETRY
    ) -> T:
        """An activity that only asks the ledger and reads: tried again until it answers."""
        seen: T = await workflow.execute_activity(
            name,
            argument,
            result_type=result,
            start_to_close_timeout=_READ_TIMEOUT,
            heartbeat_timeout=_HEARTBEAT_TIMEOUT,
            retry_policy=retry,
            summary=summary,
        )
        return seen

    async def _pause(self, result: IssueResult, issued: int) -> None:
        """Before the next permit, after a provable not-sent or not-accepted."""
        await self._wait(result.retry_in_s if result.retry_in_s is not None else _try_again_s(issued))

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(max(0.05, seconds))

    def _times_of(self, destination: str) -> Times:
        try:
            return self._times[destination]
        except KeyError:
            raise ApplicationError(
                f"no contract is registered for destination {destination!r} (known: {sorted(self._times)}); "
                "register it in worker.py",
                type="ContractError",
                non_retryable=True,
            ) from None

    async def report(self, state: Literal["complete", "failed", "cancelled"], summary: str) -> TaskReport:
        """Store the outcome, when every operation is final. The ledger refuses `complete` without evidence."""
        if self.degraded:
            summary = f"{summary}; DEGRADED: {'; '.join(self.degraded)}"
        report = TaskReport(task_id=self.task.task_id, state=state, summary=summary, operations=self.done)
        stored: TaskReport = await workflow.execute_activity(
            "actonce.report.v1",
            report,
            result_type=TaskReport,
            start_to_close_timeout=timedelta(seconds=30),
            heartbeat_timeout=_HEARTBEAT_TIMEOUT,
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=200),
                maximum_interval=timedelta(seconds=5),
                non_retryable_error_types=[*FINAL_ERRORS, "LedgerError"],
            ),
            summary=f"report {state}",
        )
        self.show(state)
        return stored

    def _note(self, ref: OperationRef, words: str) -> None:
        self._open[ref] = words
        workflow.set_current_details("\n".join(f"- `{o.operation_id}` {text}" for o, text in self._open.items()))
        self.show()

    def show(self, ended: str | None = None) -> None:
        """Keep the search attributes true; an upsert only when something changed."""
        reasons = [*self._held_for.values(), *("memory_unavailable" for _ in self._waits_for_memory)]
        waiting = "waiting_for_approval" if self._waits_for else "running"
        state = ended or ("held" if reasons else waiting)
        reason = "" if ended else next(iter(reasons), "")
        if (state, reason) != self._shown:
            self._shown = (state, reason)
            workflow.upsert_search_attributes([STATE.value_set(state), REASON.value_set(reason)])


async def run_task(
    task: TaskInput, steps: Callable[[Operations], Awaitable[str]], proposal: dict[str, Any] | None = None
) -> TaskReport:
    """Run a task: make its plan durable (or find the one made before), do its steps, store its outcome.

    `steps` returns the summary of a completed task. A definite failure of a step ends the task as failed, a
    cancellation as cancelled, each after everything that may have been sent is settled.
    """
    try:
        plan = await workflow.execute_activity(
            "actonce.plan.v1",
            PlanRequest(task=task, proposal=proposal),
            result_type=PlanResult,
            start_to_close_timeout=timedelta(seconds=120),
            heartbeat_timeout=_HEARTBEAT_TIMEOUT,
            retry_policy=_LEDGER_RETRY,
            summary="make the plan durable",
        )
    except ActivityError as error:
        return await Operations(task, PlanResult(plan={}, times={})).report("failed", f"no plan: {error.cause}")
    ops = Operations(task, plan)
    workflow.set_signal_handler(NUDGE, ops.nudged)
    ops.show()
    try:
        summary = await _run(task, ops, steps)
    except (asyncio.CancelledError, FailureError) as error:
        if is_cancelled_exception(error):
            return await asyncio.shield(ops.report("cancelled", f"cancelled after {len(ops.done)} operations"))
        definite = isinstance(error, ApplicationError) and error.non_retryable
        if not definite and workflow.info().retry_policy is not None:
            raise  # the next run finds every operation where this one left it
        return await ops.report("failed", str(error))
    return await ops.report("complete", summary)


async def _run(task: TaskInput, ops: Operations, steps: Callable[[Operations], Awaitable[str]]) -> str:
    """Run the steps; while all of them wait for people and the history has grown long, go on in a new run.

    The new run begins with the first step again and finds in the ledger what was done, asked and decided.
    """
    work = asyncio.ensure_future(steps(ops))
    try:
        await workflow.wait_condition(lambda: work.done() or ops.may_continue_as_new())
    except asyncio.CancelledError:
        work.cancel()
    else:
        if not work.done():
            workflow.continue_as_new(task)
    try:
        return await work
    finally:
        await ops.settled()


def _definite(error: ActivityError) -> FailureError:
    """The error that trying again cannot cure, if it is one; else the same error."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type in FINAL_ERRORS:
        return ApplicationError(cause.message, type=cause.type, non_retryable=True)  # `str` has the type in it
    return error


def _try_again_s(tries: int) -> float:
    """The pause after so many tries to send, in seconds. Nothing limits their number: a quarantine may last."""
    return min(_PAUSE_MAX_S, 0.5 * 2.0 ** min(tries - 1, 10))


def _read_again_s(read: ReconcileResult, reads: int) -> float:
    """The pause before the next reading, in seconds: grows with their number; a long wait has a short history."""
    longest_s = max(_PAUSE_MAX_S, _PAUSE_SHARE * read.wait_max_s)
    grown_s = min(longest_s, read.wait_s * 1.3 ** min(max(0, reads - 5), 50))
    return max(read.wait_s, min(read.wait_max_s, grown_s))


def _final(result: IssueResult | ReconcileResult, operation_id: str) -> OperationResult:
    state = result.status if isinstance(result, IssueResult) else result.state
    how = result.how if isinstance(result, IssueResult) else result.words
    return OperationResult.model_validate(
        {
            "operation_id": operation_id,
            "state": state,
            "object_id": result.object_id,
            "completion": result.completion,
            "how": how,
            "attempts": result.attempt,
        }
    )
