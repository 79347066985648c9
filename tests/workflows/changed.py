"""`single.v1` as somebody changed it without a new version: its histories cannot be continued."""

from __future__ import annotations

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.messages import TaskInput, TaskReport
    from actonce.effects.guard import Operations, run_task


@workflow.defn(name="single.v1")
class WaitsFirst:
    """It waits before anything else, which no history of the real one does."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        await asyncio.sleep(1)
        return await run_task(task, self.steps)

    async def steps(self, ops: Operations) -> str:
        return f"nothing of {len(ops.plan['steps'])} steps"
