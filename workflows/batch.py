"""`batch.v1`: independent operations with bounded concurrency. A held one does not stop the others."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.messages import OperationResult, TaskInput, TaskReport
    from actonce.effects.guard import Operations

CONCURRENCY_DEFAULT = 5


@workflow.defn(name="batch.v1")
class BatchTask:
    """Payload: {"steps": [{"step", "destination", "action", "payload"}, ...], "concurrency": n}."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        ops = await Operations.begin(task)
        steps: list[dict[str, Any]] = ops.plan["steps"]
        names = [step["step"] for step in steps]
        if len(set(names)) != len(names):
            raise ApplicationError(f"step names of a batch must differ, got {names}", non_retryable=True)
        limit = asyncio.Semaphore(int(task.payload.get("concurrency", CONCURRENCY_DEFAULT)))

        async def one(step: dict[str, Any]) -> OperationResult:
            async with limit:
                return await ops.perform(
                    step["step"], destination=step["destination"], action=step["action"], payload=step["payload"]
                )

        results = list(await asyncio.gather(*(one(step) for step in steps)))
        refused = [r.operation_id for r in results if r.state != "committed"]
        if refused:
            return await ops.fail(f"{len(refused)} of {len(results)} operations did not happen: {refused}", results)
        return await ops.complete(f"{len(results)} operations", results)
