"""A nudge that comes while the guard asks the ledger is not lost, whatever it is delivered together with.

The workflow is the shipped one on a real Temporal; its activities are stubs, so that the moment is exact: the decision
and its nudge fall between the activity's look at the ledger and its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import activity
from temporalio.worker import Worker

import workflows
from actonce.contracts.approval import ApprovalRule
from actonce.contracts.messages import (
    ApprovalSeen,
    IssueResult,
    OperationRef,
    OperationRequest,
    PlanRequest,
    PlanResult,
    TaskReport,
    Times,
)
from tests.integration.cases.kit import Lab, side_by_side

TIMES = Times(activity_timeout_s=10, heartbeat_timeout_s=5, read_again_s=0.1, attempts_max=3)


def stubs(lab: Lab) -> list[Callable[..., Any]]:
    looks: list[str] = []

    @activity.defn(name="actonce.plan.v1")
    async def plan(request: PlanRequest) -> PlanResult:
        steps = [{"step": "only", **request.task.payload}]
        return PlanResult(
            plan={"steps": steps}, times={"payments": TIMES}, approvals={"payments": [ApprovalRule(action="refund")]}
        )

    async def look(name: str) -> ApprovalSeen:
        """Pending at this moment; before the answer is there, somebody has decided and told the workflow."""
        looks.append(name)
        state = "pending" if len(looks) < 3 else "approved"
        if state == "pending":
            await lab.temporal.get_workflow_handle(activity.info().workflow_id or "").signal("actonce.nudge")
        return ApprovalSeen(approval_id="ap1_x", state=state, words=state)

    @activity.defn(name="actonce.propose.v1")
    async def propose(request: OperationRequest) -> ApprovalSeen:
        return await look("propose")

    @activity.defn(name="actonce.approval.v1")
    async def approval(ref: OperationRef) -> ApprovalSeen:
        return await look("approval")

    @activity.defn(name="actonce.issue.v1")
    async def issue(request: OperationRequest) -> IssueResult:
        return IssueResult(operation_id="op1_x", status="committed", how=",".join(looks))

    @activity.defn(name="actonce.report.v1")
    async def report(outcome: TaskReport) -> TaskReport:
        return outcome

    return [plan, propose, approval, issue, report]


@side_by_side
async def test_decision_during_the_look_is_seen_at_once(lab: Lab) -> None:
    async with lab.bench() as bench:
        worker = Worker(lab.temporal, task_queue=bench.queue, workflows=workflows.ALL, activities=stubs(lab))
        async with worker:
            handle = await bench.start_task(bench.task())
            result = await handle.result()  # a lost nudge would wait for the next look: ten minutes
        assert result["operations"][0]["how"] == "propose,approval,approval"
