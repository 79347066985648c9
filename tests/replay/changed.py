"""Workflows as somebody might change them without a new version: their histories must not replay."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.messages import TaskInput, TaskReport
    from actonce.effects.guard import Operations, run_task


@workflow.defn(name="single.v1")
class Changed:
    """`single.v1` with another operation in front of its own."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        return await run_task(task, self.steps)

    async def steps(self, ops: Operations) -> str:
        (step,) = ops.plan["steps"]
        for name in ("before", step["step"]):
            await ops.perform(name, destination=step["destination"], action=step["action"], payload=step["payload"])
        return "twice"


@workflow.defn(name="refund.v1")
class Empty:
    """`refund.v1` that does nothing any more."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        return TaskReport(task_id=task.task_id, state="complete", summary="nothing")
