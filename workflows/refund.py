"""An agent handles a refund request: refund the payment, open a ticket, tell the customer.

`refund.v2` asks its memory first: earlier refunds of this customer may refuse the request by policy, so it waits while
the memory is unavailable, and never takes a silent "nothing" for an answer. The refund is remembered as soon as it is
committed. `refund.v1` knows no memory; it stays for tasks that began with it.

The plan is durable before its first step. Each later step needs the one before it; a step that the destination
refuses ends the task as failed, with what was done on record.
"""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.memory import K_MAX
    from actonce.contracts.messages import TaskInput, TaskReport
    from actonce.effects.guard import Operations, run_task

from workflows.policy import earlier_refunds, why_refused

DONE = "refunded, ticket opened, customer notified"


@workflow.defn(name="refund.v1")
class RefundTask:
    """See the module."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        return await run_task(task, self.steps)

    async def steps(self, ops: Operations) -> str:
        for step in ops.plan["steps"]:
            await _perform(ops, step)
        return DONE


@workflow.defn(name="refund.v2")
class RefundTaskWithMemory:
    """See the module."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        return await run_task(task, self.steps)

    async def steps(self, ops: Operations) -> str:
        request, customer = ops.task.payload, str(ops.task.payload["customer"])
        said = await ops.recall(
            "earlier_refunds", query=_remembered_as(request), k=K_MAX, filter=earlier_refunds(customer)
        )
        why = why_refused(request, said, ops.task.task_id, workflow.now())
        if why is not None:
            raise ApplicationError(f"refused by policy: {why}", type="RefusedByPolicy", non_retryable=True)
        refund, *rest = ops.plan["steps"]
        await _perform(ops, refund)
        # The customer does not wait for the memory, and the memory not for the customer.
        await asyncio.gather(self._remember(ops), self._rest(ops, rest))
        return DONE

    async def _remember(self, ops: Operations) -> None:
        request = ops.task.payload
        facts = {
            **earlier_refunds(str(request["customer"])),
            "payment_id": request["payment_id"],
            "amount_minor": request["amount_minor"],
            "currency": request["currency"],
            "task_id": ops.task.task_id,
            "refunded_at": workflow.now().isoformat(),
        }
        await ops.remember(
            "remember_refund", key=f"refund:{ops.task.task_id}", text=_remembered_as(request), facts=facts
        )

    async def _rest(self, ops: Operations, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            await _perform(ops, step)


async def _perform(ops: Operations, step: dict[str, Any]) -> None:
    await ops.perform(step["step"], destination=step["destination"], action=step["action"], payload=step["payload"])


def _remembered_as(request: dict[str, Any]) -> str:
    return f"refund of payment {request['payment_id']} for customer {request['customer']}: {request['reason']}"
