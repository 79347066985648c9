"""The project's worker with one more workflow and an activity that asks a model by HTTP. Run like worker.py."""

from __future__ import annotations

import os
import sys

import httpx
from temporalio import activity

import activities
import worker
import workflows
from tests.workflows.again import ASK_MODEL, AgainTask


@activity.defn(name=ASK_MODEL)
async def ask_model() -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(os.environ["TEST_MODEL_URL"], json={"prompt": "what now?"})
        answer.raise_for_status()
        return answer.text


if __name__ == "__main__":
    guarded = activities.all_of
    activities.all_of = lambda system: [*guarded(system), ask_model]
    workflows.ALL = [*workflows.ALL, AgainTask]
    worker.main(sys.argv[1:])
