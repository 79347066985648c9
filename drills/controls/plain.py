"""The same work without actonce: what people write on plain Temporal, for the comparison.

    python -m drills.controls.plain ARM       ARM: plain_default, plain_strict, key_only, key_lookup

    plain_default   an activity that posts the refund; Temporal retries it, as it does by default
    plain_strict    one attempt, no retry
    key_only        as plain_default, with one stable idempotency key per task
    key_lookup      as key_only; every attempt after the first looks the refund up by its key before it sends

Uses nothing of actonce. Same destination, same faults, same deadlines as the guarded arm.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

SEND_DEADLINE_S = 3.0
ACTIVITY_TIMEOUT_S = 5.0
ATTEMPTS_MAX = 10  # enough for every fault here; without an end a failing cell would never settle


@workflow.defn(name="plain.v1")
class Plain:
    """One refund."""

    @workflow.run
    async def run(self, task: dict[str, Any]) -> dict[str, Any]:
        attempts = 1 if task["arm"] == "plain_strict" else ATTEMPTS_MAX
        object_id = await workflow.execute_activity(
            "refund",
            task,
            start_to_close_timeout=timedelta(seconds=ACTIVITY_TIMEOUT_S),
            retry_policy=RetryPolicy(maximum_attempts=attempts),
        )
        return {"state": "complete", "object_id": object_id}


@activity.defn(name="refund")
async def refund(task: dict[str, Any]) -> str:
    """Post it; any answer but a success is an error, which Temporal retries."""
    world = json.loads(Path(os.environ["ACTONCE_WORLD"]).read_text(encoding="utf-8"))
    account, key = world["account"], str(activity.info().workflow_id)
    keyed = task["arm"] in ("key_only", "key_lookup")
    async with httpx.AsyncClient(timeout=SEND_DEADLINE_S, trust_env=False) as client:
        if task["arm"] == "key_lookup" and activity.info().attempt > 1:
            found = await client.get(
                f"{world['listeners']['payments.by_id']}/v1/{account}/refunds/by-key/{quote(key, safe='')}",
                headers={"Authorization": f"Bearer tok-{account}-by_id"},
            )
            rows = found.json().get("data", []) if found.status_code == 200 else []
            if rows:
                return str(rows[0]["id"])
        answer = await client.post(
            f"{world['listeners']['payments.write']}/v1/{account}/refunds",
            json={**task["payment"], "metadata": {"key": key} if keyed else {}},
            headers={
                "Authorization": f"Bearer tok-{account}-write",
                **({"Idempotency-Key": key} if keyed else {}),
            },
        )
        answer.raise_for_status()
        return str(answer.json()["id"])


async def serve() -> None:
    """A worker until told to stop."""
    config = ClientConfig.load_client_connect_config()
    client = await Client.connect(**config, data_converter=pydantic_data_converter)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    worker = Worker(
        client,
        task_queue=os.environ["ACTONCE_TASK_QUEUE"],
        workflows=[Plain],
        activities=[refund],
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules("httpx", "temporalio", "pydantic")
        ),
    )
    async with worker:
        print(json.dumps({"event": "ready", "role": "plain", "pid": os.getpid()}), flush=True)
        await stopping.wait()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: plain ARM")
    asyncio.run(serve())
