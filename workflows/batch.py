"""`batch.v1`: independent operations with bounded concurrency. One that is held or fails stops no other."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.messages import TaskInput, TaskReport
    from actonce.effects.guard import Operations, run_task

CONCURRENCY_DEFAULT = 5


@workflow.defn(name="batch.v1")
class BatchTask:
    """Payload: {"steps": [{"step", "destination", "action", "payload"}, ...], "concurrency": n}."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        return await run_task(task, self.steps)

    async def steps(self, ops: Operations) -> str:
        steps: list[dict[str, Any]] = ops.plan["steps"]
        names = [step["step"] for step in steps]
        if len(set(names)) != len(names):
            raise ApplicationError(f"step names of a batch must differ, got {names}", non_retryable=True)
        limit = asyncio.Semaphore(int(ops.task.payload.get("concurrency", CONCURRENCY_DEFAULT)))

        async def one(step: dict[str, Any]) -> str | None:
            """Return why this operation did not happen, if so."""
            async with limit:
                try:
                    await ops.perform(
                        step["step"], destination=step["destination"], action=step["action"], payload=step["payload"]
                    )
                except ApplicationError as error:
                    return str(error)
            return None

        failures = [why for why in await asyncio.gather(*(one(step) for step in steps)) if why]
        if failures:
            raise ApplicationError(
                f"{len(failures)} of {len(steps)} operations did not happen: {'; '.join(failures)}", non_retryable=True
            )
        return f"{len(steps)} operations"
