"""`single.v1`: exactly one operation. Payload: {"destination", "action", "payload", "natural_key"?}."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.messages import TaskInput, TaskReport
    from actonce.effects.guard import Operations, run_task


@workflow.defn(name="single.v1")
class SingleTask:
    """See the module."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        return await run_task(task, self.steps)

    async def steps(self, ops: Operations) -> str:
        step = ops.plan["steps"][0]
        await ops.perform(
            step["step"],
            destination=step["destination"],
            action=step["action"],
            payload=step["payload"],
            natural_key=step.get("natural_key"),
        )
        return f"{step['action']} at {step['destination']}"
