"""`again.v1`: does one refund, then runs a second time in one of the ways that Temporal offers, and does it again.

Payload: {"refund": {...}, "how": "retry" | "continue" | "model" | "decline"}. Registered by `again_worker.py`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.messages import OperationResult, TaskInput, TaskReport
    from actonce.effects.guard import NotCommitted, Operations, run_task

ASK_MODEL = "test.ask_model.v1"


@workflow.defn(name="again.v1")
class AgainTask:
    """See the module."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        return await run_task(task, self.steps, {"steps": []})

    async def steps(self, ops: Operations) -> str:
        task = ops.task
        payload: dict[str, Any] = task.payload["refund"]
        how, info = task.payload["how"], workflow.info()
        try:
            await self._refund(ops, payload, 0)
        except NotCommitted as declined:
            if how != "decline" or declined.result.state != "refused":
                raise
            # A definite decline, then a new business decision of this task: another iteration, another operation.
            await self._refund(ops, {**payload, "payment_id": f"{payload['payment_id']}-b"}, 1)
        if how == "retry" and info.attempt == 1:
            raise ApplicationError("fails after its first step, so that the whole run is retried")
        if how == "continue" and info.continued_run_id is None:
            workflow.continue_as_new(task)
        if how == "model":
            await workflow.execute_activity(
                ASK_MODEL,
                start_to_close_timeout=timedelta(seconds=10),
                retry_policy=RetryPolicy(maximum_attempts=2, initial_interval=timedelta(milliseconds=50)),
            )
        return f"refunded by run {info.run_id}"

    async def _refund(self, ops: Operations, payload: dict[str, Any], iteration: int) -> OperationResult:
        return await ops.perform(
            "refund", destination="payments", action="refund", payload=payload, iteration=iteration
        )
