"""`refund.v1`: an agent handles a refund request: refund the payment, open a ticket, tell the customer.

The plan is durable before its first step. Each later step needs the one before it; a step that the destination
refuses ends the task as failed, with what was done on record.
"""

from __future__ import annotations

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.messages import OperationResult, TaskInput, TaskReport
    from actonce.effects.guard import Operations


@workflow.defn(name="refund.v1")
class RefundTask:
    """See the module."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        ops = await Operations.begin(task)
        done: list[OperationResult] = []
        try:
            for step in ops.plan["steps"]:
                result = await ops.perform(
                    step["step"], destination=step["destination"], action=step["action"], payload=step["payload"]
                )
                done.append(result)
                if result.state != "committed":
                    return await ops.fail(f"step {step['step']} ended {result.state}: {result.how}", done)
        except asyncio.CancelledError:
            return await ops.cancelled(f"cancelled after {len(done)} steps", done)
        return await ops.complete("refunded, ticket opened, customer notified", done)
