"""Record the histories that CI replays: `python -m tests.replay.record [NAME …]` (real servers, about a minute).

Writes `histories/{workflow}.{story}.json`, each {"workflow_id", "history"}. Record again only when a workflow gets a
new version: a history of a released version stays, because runs that began with it may still be open.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import psycopg
from temporalio.client import WorkflowHandle

from actonce.contracts.approval import ApprovalVote
from actonce.contracts.identity import OperationKey
from actonce.contracts.messages import DecisionRequest, TaskInput
from actonce.ledger import approvals, decisions, listing
from actonce.memory import HashingEmbedder
from actonce.memory.setting_up import rebuild_index, set_up
from actonce.stack import Stack
from actonce.testing.waiting import eventually
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


async def refund_with_memory(lab: Lab, story: str, *, waits: bool) -> None:
    """`waits`: the memory's index is gone, and is rebuilt once the task is held for it."""
    payload = {**REFUND, "customer": "ada@customer.invalid"}
    async with lab.bench() as bench:
        await asyncio.to_thread(set_up, bench.dsn, HashingEmbedder())
        if waits:
            async with await psycopg.AsyncConnection.connect(bench.dsn, autocommit=True) as link:
                await link.execute("DROP INDEX actonce_memory.item_embedding")
        await bench.worker()
        task = bench.task("1", "refund", payload)
        handle = await lab.temporal.start_workflow(
            "refund.v2", task, id=task.task_id, task_queue=bench.queue, result_type=dict
        )
        if waits:
            await eventually(lambda: bench.rows("hold"), within_s=20, what="held for its memory")
            await asyncio.to_thread(rebuild_index, bench.dsn)
        await save(handle, f"refund.v2.{story}")


async def asked(lab: Lab, story: str, decision: Literal["approve", "reject"]) -> None:
    """People are asked; the workflow waits until they have decided."""
    contracts = {"payments": {"approvals": [{"action": "refund"}]}}
    async with lab.bench(contracts=contracts) as bench:
        await bench.worker()
        handle = await bench.start_task(bench.task())
        system = await bench.system()
        ledger = system.ledger
        (asked_for,) = await eventually(
            lambda: listing.approvals(ledger, state="pending"), within_s=20, what="people are asked", every_s=0.1
        )
        await eventually(lambda: _waits(handle), within_s=20, what="it says that it waits", every_s=0.1)
        given = ApprovalVote(name="ada", note="looked at it", digest=asked_for.digest)
        await approvals.vote(ledger, asked_for.approval_id, decision, given)
        await handle.signal("actonce.nudge")
        await save(handle, f"single.v1.{story}")


async def _waits(handle: WorkflowHandle[Any, Any]) -> bool:
    return bool((await handle.describe()).search_attributes.get("ActonceState") == ["waiting_for_approval"])


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


def stories(lab: Lab) -> dict[str, Callable[[], Awaitable[None]]]:
    """Every history by its name."""
    return {
        "single.v1.clean": lambda: single(lab, "clean", {}),
        "single.v1.reconciled": lambda: single(lab, "reconciled", LOST_AFTER),
        "single.v1.issued_twice": lambda: single(lab, "issued_twice", LOST_BEFORE),
        "single.v1.declined": lambda: single(lab, "declined", {}, declined=True),
        "single.v1.held_resolved": lambda: held_and_resolved(lab),
        "single.v1.approved": lambda: asked(lab, "approved", "approve"),
        "single.v1.rejected": lambda: asked(lab, "rejected", "reject"),
        "refund.v1.clean": lambda: refund(lab, "clean", {}),
        "refund.v1.reconciled": lambda: refund(lab, "reconciled", LOST_AFTER),
        "refund.v2.clean": lambda: refund_with_memory(lab, "clean", waits=False),
        "refund.v2.waited": lambda: refund_with_memory(lab, "waited", waits=True),
        "batch.v1.reconciled": lambda: batch(lab),
    }


async def main(names: list[str]) -> None:
    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="actonce-record.") as temporary:
        async with Stack.open(Path(temporary) / "stack", {"postgres", "temporal"}) as stack:
            folder = Path(temporary) / "lab"
            folder.mkdir()
            async with open_lab(stack, folder) as lab:
                for name, record in stories(lab).items():
                    if not names or name in names:
                        await record()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
