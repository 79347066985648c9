"""`refund.v1`: an agent handles a refund request: refund the payment, open a ticket, tell the customer.

The plan is durable before its first step. Each later step needs the one before it; a step that the destination
refuses ends the task as failed, with what was done on record.
"""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.messages import TaskInput, TaskReport
    from actonce.effects.guard import Operations, run_task


@workflow.defn(name="refund.v1")
class RefundTask:
    """See the module."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        return await run_task(task, self.steps)

    async def steps(self, ops: Operations) -> str:
        for step in ops.plan["steps"]:
            await ops.perform(
                step["step"], destination=step["destination"], action=step["action"], payload=step["payload"]
            )
        return "refunded, ticket opened, customer notified"
