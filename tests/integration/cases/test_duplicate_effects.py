"""Duplicate effects: cases a1 to a9, and keys: b1, b2 and b7."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Schedule, ScheduleActionStartWorkflow, ScheduleSpec
from temporalio.common import RetryPolicy

from actonce.contracts.errors import IntentConflict, PayloadError
from actonce.effects.perform import perform
from actonce.testing.waiting import eventually
from tests.integration.cases.kit import (
    REFUND,
    ROOT,
    Bench,
    Lab,
    activities_of,
    key_of,
    operation_id_of,
    settle,
    side_by_side,
)
from tests.integration.cases.model import Model

AGAIN = "tests/workflows/again_worker.py"


async def client(bench: Bench, entry_url: str, *args: str) -> tuple[int, list[Any]]:
    """Run the client in a process of its own. Return its exit status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "actonce.client", *args, "--json"),
        env={**os.environ, "ACTONCE_ENTRY_URL": entry_url, "ACTONCE_ENTRY_TOKEN": bench.lab.parts.access.token},
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await process.communicate()
    assert process.returncode in (0, 1), errors.decode()
    return process.returncode, [json.loads(line) for line in said.decode().splitlines()]


@side_by_side
async def test_three_new_processes_submit_the_same_request(lab: Lab) -> None:
    """case a1: committed and answered too late: one operation, one effect, the same final answer for all three."""
    async with lab.bench(modes={"answer_delay_s": 4.0}) as bench:
        entry, _ = await asyncio.gather(bench.entry(), bench.worker())
        payload = json.dumps(bench.task().payload)
        start = ("start", "single", "--key", bench.task().task_key, "--payload", payload, "--wait")
        ends = [await client(bench, entry, *start)]
        ends += await asyncio.gather(client(bench, entry, *start), client(bench, entry, *start))
        answers = [said[-1] for _, said in ends]
        assert [(status, a["state"], a["task_id"]) for (status, _), a in zip(ends, answers, strict=True)] == [
            (0, "complete", bench.task().task_id)
        ] * 3
        assert len({json.dumps(a["outcome"], sort_keys=True) for a in answers}) == 1
        assert len(bench.requests()) == len(bench.effects()) == len(await bench.rows("operation")) == 1
        assert "reconcile" in await activities_of(lab.temporal.get_workflow_handle(bench.task().task_id))


@side_by_side
async def test_new_decision_after_a_definite_decline_is_a_new_operation(lab: Lab) -> None:
    """case a1, second half: a new task key, or a new iteration by the task; the declined one stays declined."""
    async with lab.bench() as bench:
        first, other = bench.task("1"), bench.task("2")
        again = bench.task("3", "again", {"how": "decline", "refund": {**REFUND, "payment_id": "declined"}})
        await bench.configure(decline=[first.payload["payload"]["payment_id"], "declined"])
        await bench.worker(AGAIN)
        declined, repeated, taken, iterated = [
            await (await bench.start_task(task)).result() for task in (first, first, other, again)
        ]
        assert (declined["state"], repeated["state"], taken["state"]) == ("failed", "failed", "complete")
        assert declined["operations"][0]["state"] == repeated["operations"][0]["state"] == "refused"
        assert len(bench.requests(operation_id_of(first))) == 1, "a decline is final: not asked again"
        assert [o["state"] for o in iterated["operations"]] == ["refused", "committed"]
        assert [o["operation_id"] for o in iterated["operations"]] == [
            operation_id_of(again, "refund", 0),
            operation_id_of(again, "refund", 1),
        ]
        assert len(bench.effects()) == 2


@pytest.mark.parametrize("status", [502, 503, 504])
@side_by_side
async def test_gateway_error_after_commit(lab: Lab, status: int) -> None:
    """case a2: something on the way says 502, 503 or 504: unknown, reconciled. Never "failed, retry"."""
    async with lab.bench(modes={"answer": {"kind": "gateway", "status": status, "times": 1}}) as bench:
        await bench.worker()
        handle = await bench.start_task(bench.task())
        result = await handle.result()
        assert (result["state"], result["operations"][0]["completion"]) == ("complete", "read_back")
        assert len(bench.requests()) == len(bench.effects()) == 1
        assert (await activities_of(handle))[:3] == ["plan", "issue", "reconcile"]
        (attempt,) = await bench.rows("attempt")
        assert attempt["outcome"] == "unknown" and str(status) in attempt["detail"]


@pytest.mark.parametrize("when", ["after_commit", "before_commit"])
@pytest.mark.parametrize("kind", ["reset", "close", "truncated", "garbage", "redirect"])
@side_by_side
async def test_answer_spoiled_after_the_body_was_sent(lab: Lab, kind: str, when: str) -> None:
    """case a3: exactly one request on the wire per permit, no retry and no redirect in the transport; a verdict."""
    async with lab.bench(modes={"answer": {"kind": kind, "when": when, "times": 1}}) as bench:
        system, request = await bench.system(), bench.request()
        assert (await perform(system, request)).status == "unknown"
        assert len(bench.requests()) == 1
        seen = await settle(system, request)
        committed = when == "after_commit"
        assert seen.verdict == ("committed" if committed else "absent")
        if not committed:
            assert (await perform(system, request)).status == "committed"
        assert len(bench.requests()) == len(await bench.rows("attempt")) == (1 if committed else 2)
        assert len(bench.effects()) == 1


@side_by_side
async def test_model_that_fails_until_the_whole_task_is_run_again(lab: Lab) -> None:
    """case a4: the tool commits, the next model call fails twice over: each new run reuses the tool's outcome."""
    async with lab.bench() as bench, Model() as model:
        task = bench.task("1", "again", {"how": "model", "refund": REFUND})
        await bench.worker(AGAIN, TEST_MODEL_URL=model.url)
        model.fails = 4  # two runs of two tries each
        policy = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_attempts=3)
        result = await (await bench.start_task(task, retry_policy=policy)).result()
        assert (result["state"], model.requests) == ("complete", 5)
        assert result["operations"][0]["object_id"] == bench.effects()[0]["object_id"]
        assert len(bench.requests()) == len(bench.effects()) == len(await bench.rows("attempt")) == 1


@side_by_side
async def test_two_workers_with_separate_ledgers(lab: Lab) -> None:
    """case a6: the destination's "duplicate" is no ordinary error: reconciled, and paged."""
    async with lab.bench(modes={"natural_key": True}) as bench:
        second_dsn = await bench.ledger_database(f"{bench.database}_other")
        first, second = await bench.system(), await bench.system(dsn=second_dsn)
        assert (await perform(first, bench.request())).status == "committed"
        result = await perform(second, bench.request())
        assert (result.status, result.how) == ("unknown", "unknown") and "DuplicateRefused" in result.detail
        (page,) = await bench.rows("page", dsn=second_dsn)
        assert page["reason"] == "duplicate_refused" and page["operation_id"] == key_of(bench.request()).operation_id
        seen = await settle(second, bench.request())
        assert (seen.verdict, len(bench.effects())) == ("committed", 1)
        (row,) = await bench.rows("operation", dsn=second_dsn)
        assert row["object_id"] == bench.effects()[0]["object_id"]
        assert [p["closed_at"] for p in await bench.rows("page", dsn=second_dsn)] == [None], "a person must look"


@side_by_side
async def test_schedule_and_person_start_the_same_operation(lab: Lab) -> None:
    """case a9: the schedule's run has a workflow id of its own; still one operation_id, one effect, one outcome."""
    async with lab.bench() as bench:
        entry, _ = await asyncio.gather(bench.entry(), bench.worker())
        task = bench.task()
        action = ScheduleActionStartWorkflow("single.v1", task, id=f"schedule/{task.task_id}", task_queue=bench.queue)
        schedule = await lab.temporal.create_schedule(
            f"nightly-{bench.account}", Schedule(action=action, spec=ScheduleSpec()), trigger_immediately=True
        )
        try:
            start = ("start", "single", "--key", task.task_key, "--payload", json.dumps(task.payload), "--wait")
            status, said = await client(bench, entry, *start)
            assert (status, said[-1]["state"]) == (0, "complete")
            await eventually(lambda: _ran(schedule), within_s=30, what="the schedule's run ended", every_s=0.2)
        finally:
            await schedule.delete()
        (row,) = await bench.rows("operation")
        assert row["operation_id"] == operation_id_of(task)
        assert said[-1]["outcome"]["operations"][0]["object_id"] == row["object_id"]
        assert len(bench.requests()) == len(bench.effects()) == 1


async def _ran(schedule: Any) -> bool:
    info = (await schedule.describe()).info
    return bool(info.recent_actions) and not info.running_actions


@side_by_side
async def test_keys_that_a_model_supplies_are_not_used(lab: Lab) -> None:
    """case b1: two keys of the model's own for one step: ours is sent; one effect."""
    async with lab.bench(late_arrival="key_on_arrival") as bench:
        system = await bench.system()
        base = bench.request().payload
        for model_key in ("model-1", "model-2"):
            stray = {"idempotency_key": model_key, "metadata": {"key": model_key, "operation_id": model_key}}
            result = await perform(system, bench.request(payload=base | stray))
            assert result.status == "committed"
        (effect,), (sent,) = bench.effects(), bench.requests()
        assert sent["key"] == effect["key"] == effect["operation_id"] == key_of(bench.request()).operation_id


@side_by_side
async def test_same_operation_rendered_again(lab: Lab) -> None:
    """case b2: a new timestamp and nonce, other key order: same operation_id, same digest, no second send."""
    async with lab.bench() as bench:
        system = await bench.system()
        base = bench.request().payload
        renderings = [
            {**base, "rendered_at": "2026-01-01T00:00:00Z", "nonce": 1},
            dict(reversed(base.items())) | {"rendered_at": "2026-01-02T00:00:00Z", "nonce": 2, "ratio": 0.5},
        ]
        results = [await perform(system, bench.request(payload=payload)) for payload in renderings]
        assert len({r.operation_id for r in results}) == len(bench.requests()) == len(bench.effects()) == 1
        assert [r.status for r in results] == ["committed", "committed"]


@side_by_side
async def test_one_operation_id_at_two_destinations(lab: Lab) -> None:
    """case b7: separate records, an effect each; the same identity with another payload is refused loudly."""
    async with lab.bench() as bench:
        system = await bench.system()
        refund = bench.request()
        ticket = bench.request(
            destination="tickets", action="open", payload={"subject": "s", "body": "b", "reference": "r"}
        )
        assert key_of(refund).operation_id == key_of(ticket).operation_id
        assert [(await perform(system, r)).status for r in (refund, ticket)] == ["committed", "committed"]
        assert len(await bench.rows("operation")) == 2
        assert (len(bench.effects()), len(bench.effects(destination="tickets"))) == (1, 1)
        with pytest.raises(IntentConflict, match="same identity was used with digest"):
            await perform(system, bench.request(payload={**refund.payload, "amount_minor": 1}))
        assert len(bench.requests()) == 1
        (page,) = await bench.rows("page")
        assert page["reason"] == "payload_conflict" and "Nothing was sent" in page["body"]


@side_by_side
async def test_a_declared_natural_effect_key_is_unique_across_tasks_that_say_nothing_of_it(lab: Lab) -> None:
    """SPEC 1: one refund per payment and reason, derived from the payload by the contract."""
    async with lab.bench(natural_key=True) as bench:
        system = await bench.system()
        first = bench.request("1")
        assert (await perform(system, first)).status == "committed"
        with pytest.raises(IntentConflict, match="natural effect key"):
            await perform(system, bench.request("2", payload={**first.payload, "amount_minor": 1}))
        assert len(bench.requests()) == 1 and len(await bench.rows("page")) == 1


@side_by_side
async def test_a_reversal_that_names_no_committed_original_sends_nothing(lab: Lab) -> None:
    """SPEC 2.8: allowed only once the original is committed."""
    async with lab.bench() as bench:
        system = await bench.system()
        undo = bench.request(
            "undo", destination="reversals", action="reverse", payload={"reverses": "r", "reason": "x"}
        )
        with pytest.raises(PayloadError, match="reverses"):
            await perform(system, undo)
        with pytest.raises(IntentConflict, match="not committed"):
            await perform(system, undo.model_copy(update={"reverses": key_of(bench.request("1")).operation_id}))
        assert bench.requests() == []


@side_by_side
async def test_natural_effect_key_is_unique_across_tasks(lab: Lab) -> None:
    """SPEC 1: two tasks, one business fact: the second is refused before any call, and paged."""
    async with lab.bench() as bench:
        system = await bench.system()
        assert (await perform(system, bench.request("1", natural_key="pay_1/damaged"))).status == "committed"
        with pytest.raises(IntentConflict, match="natural effect key"):
            await perform(system, bench.request("2", natural_key="pay_1/damaged"))
        assert len(bench.requests()) == 1 and len(await bench.rows("page")) == 1
