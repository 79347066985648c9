"""`single.v1`: exactly one operation. Payload: {"destination", "action", "payload", "natural_key"?}."""

from __future__ import annotations

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.messages import TaskInput, TaskReport
    from actonce.effects.guard import Operations


@workflow.defn(name="single.v1")
class SingleTask:
    """See the module."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        ops = await Operations.begin(task)
        step = ops.plan["steps"][0]
        try:
            result = await ops.perform(
                step["step"],
                destination=step["destination"],
                action=step["action"],
                payload=step["payload"],
                natural_key=step.get("natural_key"),
            )
        except asyncio.CancelledError:
            return await ops.cancelled("cancelled", [])
        if result.state != "committed":
            return await ops.fail(f"the operation ended {result.state}: {result.how}", [result])
        return await ops.complete(f"{step['action']} at {step['destination']}", [result])
