"""Record the histories that CI replays: `python -m tests.replay.record` (real servers, about a minute).

Writes `histories/{workflow}.{story}.json`, each {"workflow_id", "history"}. Record again only when a workflow gets a
new version: a history of a released version stays, because runs that began with it may still be open.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHandle

from actonce.contracts.identity import OperationKey
from actonce.contracts.messages import DecisionRequest, TaskInput
from actonce.ledger import decisions
from actonce.stack import Stack
from tests.integration.cases.kit import REFUND, Bench, Lab, open_lab, operation_id_of

HISTORIES = Path(__file__).parent / "histories"
LOST_AFTER = {"answer": {"kind": "close", "when": "after_commit", "times": 1}}
LOST_BEFORE = {"answer": {"kind": "close", "when": "before_commit", "times": 1}}


async def save(handle: WorkflowHandle[Any, Any], name: str) -> None:
    result = await handle.result()
    history = without_this_machine((await handle.fetch_history()).to_json_dict())
    text = json.dumps({"workflow_id": handle.id, "history": history}, sort_keys=True)
    (HISTORIES / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(f"{name}: {len(history['events'])} events, {result['state']}")


def without_this_machine(value: Any) -> Any:
    """Stack traces and worker identities name this machine; a replay does not look at them."""
    if isinstance(value, dict):
        kept = {k: without_this_machine(v) for k, v in value.items() if k != "stackTrace"}
        return kept | ({"identity": "worker"} if "identity" in kept else {})
    if isinstance(value, str):
        return re.sub(r"\b\d+@[\w.-]+", "worker", value)  # pid@host, also within the name of a sticky queue
    return [without_this_machine(item) for item in value] if isinstance(value, list) else value


async def single(lab: Lab, story: str, modes: dict[str, Any], declined: bool = False) -> None:
    async with lab.bench(modes=modes) as bench:
        if declined:
            await bench.configure(decline=[bench.task().payload["payload"]["payment_id"]])
        await bench.worker()
        await save(await bench.start_task(bench.task()), f"single.v1.{story}")


async def held_and_resolved(lab: Lab) -> None:
    """Nothing bounds a late arrival: held, and a person permits one retry."""
    async with lab.bench(modes=LOST_BEFORE, late_arrival="none") as bench:
        await bench.worker()
        handle = await bench.start_task(bench.task())
        await decide(bench, handle, operation_id_of(bench.task()))
        await save(handle, "single.v1.held_resolved")


async def decide(bench: Bench, handle: WorkflowHandle[Any, Any], operation_id: str) -> None:
    row = await bench.until_state("held", operation_id=operation_id)
    system = await bench.system()
    key = OperationKey(row["tenant"], row["destination"], row["action"], operation_id)
    request = DecisionRequest(
        action="permit_one_retry",
        name="ada",
        reason="the bank shows nothing",
        expected_epoch=row["epoch"],
        expected_version=row["version"],
    )
    await decisions.record(system.ledger, key, request)
    await handle.signal("actonce.nudge")


async def refund(lab: Lab, story: str, modes: dict[str, Any]) -> None:
    payload = {**REFUND, "customer": "ada@customer.invalid"}
    async with lab.bench(modes=modes) as bench:
        await bench.worker()
        await save(await bench.start_task(bench.task("1", "refund", payload)), f"refund.v1.{story}")


async def batch(lab: Lab) -> None:
    steps = [
        {
            "step": f"refund-{n}",
            "destination": "payments",
            "action": "refund",
            "payload": REFUND | {"payment_id": f"p{n}"},
        }
        for n in range(3)
    ]
    async with lab.bench(modes=LOST_AFTER) as bench:
        await bench.worker()
        task: TaskInput = bench.task("1", "batch", {"steps": steps, "concurrency": 2})
        await save(await bench.start_task(task), "batch.v1.reconciled")


async def main() -> None:
    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="actonce-record.") as temporary:
        async with Stack.open(Path(temporary) / "stack", {"postgres", "temporal"}) as stack:
            folder = Path(temporary) / "lab"
            folder.mkdir()
            async with open_lab(stack, folder) as lab:
                await single(lab, "clean", {})
                await single(lab, "reconciled", LOST_AFTER)
                await single(lab, "issued_twice", LOST_BEFORE)
                await single(lab, "declined", {}, declined=True)
                await held_and_resolved(lab)
                await refund(lab, "clean", {})
                await refund(lab, "reconciled", LOST_AFTER)
                await batch(lab)


if __name__ == "__main__":
    asyncio.run(main())
