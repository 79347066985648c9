"""The activities every guarded operation uses. Thin; names are versioned, a changed meaning gets a new version.

`actonce.issue.v1` runs once (the guard sets maximum_attempts=1); all others are free to be retried. All heartbeat.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, ParamSpec, Protocol, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from actonce.contracts.errors import LedgerError, PayloadError, StaleWrite
from actonce.contracts.identity import OperationKey
from actonce.contracts.messages import (
    ApprovalSeen,
    IssueResult,
    OperationRef,
    OperationRequest,
    PlanRequest,
    PlanResult,
    ReconcileResult,
    TaskInput,
    TaskReport,
    Times,
)
from actonce.contracts.verdict import Reason
from actonce.effects.approve import look, propose
from actonce.effects.decide import decide
from actonce.effects.perform import perform
from actonce.effects.reconcile import cancel_keys, probe_object, reconcile, write_beacon
from actonce.effects.system import System
from actonce.ledger import pages, tasks, watch

_HEARTBEATS_PER_TIMEOUT = 4
FAILURES_MAX = 5  # in a row and without a record of anything; the guard's pauses are 31 s by then: people are told
Params = ParamSpec("Params")
T = TypeVar("T")


class Planner(Protocol):
    """Proposes the steps of a task. It never names an operation_id or a key."""

    async def propose(self, task: TaskInput) -> dict[str, Any]: ...


def key_of(ref: OperationRef) -> OperationKey:
    return OperationKey(ref.tenant, ref.destination, ref.action, ref.operation_id)


def beating(act: Callable[Params, Awaitable[T]]) -> Callable[Params, Coroutine[Any, Any, T]]:
    """Heartbeat in the background while the activity runs: one given to a frozen worker is missed soon."""

    @functools.wraps(act)
    async def acting(*args: Params.args, **kwargs: Params.kwargs) -> T:
        beats = asyncio.create_task(_beat(activity.info().heartbeat_timeout))
        try:
            return await act(*args, **kwargs)
        finally:
            beats.cancel()

    return acting


async def _beat(timeout: timedelta | None) -> None:
    while timeout is not None:
        await asyncio.sleep(timeout.total_seconds() / _HEARTBEATS_PER_TIMEOUT)
        activity.heartbeat()


class OperationActivities:
    """The activities of one worker, bound to its composed system.

    `planner`: asked once for the plan of a task whose workflow brings none to `run_task`; without one such tasks fail.
    """

    def __init__(self, system: System, planner: Planner | None = None) -> None:
        self.system = system
        self.planner = planner

    def all(self) -> list[Callable[..., Any]]:
        """What to register with the worker."""
        return [
            self.plan,
            self.propose,
            self.approval,
            self.issue,
            self.reconcile,
            self.beacon,
            self.probe,
            self.cancel_key,
            self.hold,
            self.decide,
            self.report,
        ]

    @asynccontextmanager
    async def _told(self, task_id: str, step: str, failures: int, how: str) -> AsyncIterator[None]:
        """Before a step is tried once more a person hears that it kept failing; the hold ends with its success.

        Before, because a step that kills its process has no afterwards.
        """
        tell = failures >= FAILURES_MAX
        if tell:
            words = f"it failed {failures} times in a row and nothing of it is on record; last: {how}"
            async with self.system.ledger.transaction() as connection:
                await pages.hold_task(connection, task_id, step, Reason.STEP_FAILING, words)
        yield
        if tell:
            async with self.system.ledger.transaction() as connection:
                await pages.close_task_hold(connection, task_id, step, "evidence:it succeeded")

    def _retried(self, task_id: str, step: str) -> AbstractAsyncContextManager[None]:
        """`_told` for an activity that Temporal tries again by itself."""
        info = activity.info()
        how = f"see activity {info.activity_type} of workflow {info.workflow_id} in the Temporal UI"
        return self._told(task_id, step, info.attempt - 1, how)

    @activity.defn(name="actonce.plan.v1")
    @beating
    async def plan(self, request: PlanRequest) -> PlanResult:
        """Make the plan durable before its first step; the first plan of a task stands."""
        async with self._retried(request.task.task_id, "plan"):
            return await self._plan(request)

    async def _plan(self, request: PlanRequest) -> PlanResult:
        task = request.task
        known = await tasks.plan_of(self.system.ledger, task.task_id)
        if known is None:
            known = await tasks.save_plan(self.system.ledger, task.task_id, await self._proposal(request))
        else:
            await tasks.started(self.system.ledger, task.task_id)
        rules = {d.contract.name: list(d.contract.approvals) for d in self.system.registry if d.contract.approvals}
        return PlanResult(plan=known, times=self._times(), approvals=rules)

    async def _proposal(self, request: PlanRequest) -> dict[str, Any]:
        if request.proposal is not None:
            return request.proposal
        if self.planner is None:
            raise PayloadError(
                f"task {request.task.task_id}: its workflow brings no plan and this worker has no planner; give "
                "run_task a proposal, or OperationActivities a planner. Nothing was sent"
            )
        return await self.planner.propose(request.task)

    def _times(self) -> dict[str, Times]:
        return {
            d.contract.name: Times(
                activity_timeout_s=d.contract.timing.activity_timeout_s,
                heartbeat_timeout_s=d.contract.timing.heartbeat_timeout_s,
                read_again_s=d.contract.timing.read_again_s,
                attempts_max=d.contract.attempts_max,
            )
            for d in self.system.registry
        }

    @activity.defn(name="actonce.propose.v1")
    @beating
    async def propose(self, request: OperationRequest) -> ApprovalSeen:
        """Ask people whether exactly this may be done, or find what was asked before."""
        return await propose(self.system, request)

    @activity.defn(name="actonce.approval.v1")
    @beating
    async def approval(self, ref: OperationRef) -> ApprovalSeen:
        """Where the approval of an operation stands."""
        return await look(self.system, key_of(ref))

    @activity.defn(name="actonce.issue.v1")
    @beating
    async def issue(self, request: OperationRequest) -> IssueResult:
        """Intent, permit, one send, record."""
        step = f"{request.step}: {request.action} at {request.destination}, iteration {request.iteration}"
        async with self._told(request.task_id, step, request.failed_before, request.last_failure):
            return await perform(self.system, request)

    @activity.defn(name="actonce.reconcile.v1")
    @beating
    async def reconcile(self, ref: OperationRef) -> ReconcileResult:
        """Read the destination by every route; one verdict."""
        return await reconcile(self.system, key_of(ref))

    @activity.defn(name="actonce.beacon.v1")
    @beating
    async def beacon(self, ref: OperationRef) -> str:
        """Write a harmless object that every route able to see must show."""
        return await write_beacon(self.system, key_of(ref))

    @activity.defn(name="actonce.probe.v1")
    @beating
    async def probe(self, ref: OperationRef) -> bool:
        """Act harmlessly on an acknowledged object that the routes deny."""
        return await probe_object(self.system, key_of(ref))

    @activity.defn(name="actonce.cancel_key.v1")
    @beating
    async def cancel_key(self, ref: OperationRef) -> dict[str, str]:
        """Ask the destination to cancel the keys we sent."""
        return await cancel_keys(self.system, key_of(ref))

    @activity.defn(name="actonce.hold.v1")
    @beating
    async def hold(self, ref: OperationRef) -> ReconcileResult:
        """Confirm that the hold and its page are on record (the verdict's own transaction wrote them)."""
        seen = await reconcile(self.system, key_of(ref))
        if seen.next != "hold":
            await watch.mark_seen(self.system.ledger, key_of(ref))
        return seen

    @activity.defn(name="actonce.decide.v1")
    @beating
    async def decide(self, ref: OperationRef) -> ReconcileResult:
        """Read once more, consume the recorded decision if there is one, and say what holds now."""
        key = key_of(ref)
        try:
            operation, result = await decide(self.system, key)
        except StaleWrite as error:
            raise ApplicationError(str(error), type="StaleWrite") from error  # retried
        activity.logger.info("decision of %s: %s, now %s", operation.operation_id, result, operation.state)
        seen = await reconcile(self.system, key)
        if seen.next != "hold":
            await watch.mark_seen(self.system.ledger, key)
        return seen.model_copy(update={"decided": result})

    @activity.defn(name="actonce.report.v1")
    @beating
    async def report(self, report: TaskReport) -> TaskReport:
        """Store the task's outcome; the first stored one stands."""
        async with self._retried(report.task_id, "report"):
            return await self._report(report)

    async def _report(self, report: TaskReport) -> TaskReport:
        try:
            task = await tasks.report(self.system.ledger, report)
        except LedgerError as error:
            if type(error) is LedgerError:
                raise ApplicationError(str(error), type="LedgerError", non_retryable=True) from error
            raise
        if task is None or task.outcome is None:
            return report
        return TaskReport.model_validate(task.outcome)
