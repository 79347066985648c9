"""The other side of the bench: a worker whose activity makes the same HTTP call with no guarantee at all.

    python -m drills.bench.bare

Uses nothing of actonce. Same server, same connection reuse, same JSON, same headers.
"""

from __future__ import annotations

import asyncio
import json
import os
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    import httpx


class Bare:
    """One HTTP client per process, as the guarded side has."""

    def __init__(self) -> None:
        self.client = httpx.AsyncClient(trust_env=False)

    @activity.defn(name="bench.post")
    async def post(self, call: dict[str, Any]) -> str:
        answer = await self.client.post(call["url"], json=call["json"], headers=call["headers"])
        answer.raise_for_status()
        return str(answer.json()["id"])


@workflow.defn(name="bench.bare")
class BareBatch:
    """{"calls": [...], "concurrency": n} → object ids, in order."""

    @workflow.run
    async def run(self, task: dict[str, Any]) -> list[str]:
        limit = asyncio.Semaphore(int(task["concurrency"]))

        async def one(call: dict[str, Any]) -> str:
            async with limit:
                object_id: str = await workflow.execute_activity(
                    "bench.post",
                    call,
                    result_type=str,
                    start_to_close_timeout=timedelta(seconds=20),
                    heartbeat_timeout=timedelta(seconds=10),
                    retry_policy=RetryPolicy(maximum_attempts=1),
                )
                return object_id

        return list(await asyncio.gather(*(one(call) for call in task["calls"])))


async def main() -> None:
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    worker = Worker(
        client,
        task_queue=os.environ["ACTONCE_TASK_QUEUE"],
        workflows=[BareBatch],
        activities=[Bare().post],
        max_concurrent_activities=50,
    )
    async with worker:
        print(json.dumps({"event": "ready", "role": "bare", "pid": os.getpid()}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
