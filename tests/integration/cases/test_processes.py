"""Workers that die, freeze, stop and come late, and workflows that run again: cases b6, c1, c2, c4, c5, c8 and j1.

Every process is real and every signal goes to a pid that was seen to own the request. Latches of the world give the
exact point.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode

from actonce.effects.perform import perform
from actonce.effects.watcher import WatchSettings, watch_once
from actonce.stack import Stack
from actonce.testing.processes import Process
from actonce.testing.waiting import eventually
from tests.integration.cases.kit import REFUND, Bench, Lab, activities_of, operation_id_of, side_by_side

AGAIN = "tests/workflows/again_worker.py"
# As in the drills: room for a worker that starts while a request is held. Seconds.
ROOMY = {
    "permit_lifetime_s": 4.0,
    "send_deadline_s": 4.0,
    "activity_timeout_s": 6.0,
    "reconcile_after_s": 7.0,
    "heartbeat_timeout_s": 2.0,
}


async def owner_at(bench: Bench, point: str, workers: int = 1) -> tuple[Process, str, WorkflowHandle[Any, Any]]:
    """Start workers and a task; return, held at `point`, the one whose request it is: it is in flight."""
    latch = await bench.world.latch(bench.account, point)
    started = await asyncio.gather(*(bench.worker() for _ in range(workers)))
    handle = await bench.start_task(bench.task())
    await bench.world.wait_latch(bench.account, latch)
    (attempt,) = await bench.rows("attempt")
    assert attempt["outcome"] is None, "the owner still waits for its answer"
    (owner,) = [w for w in started if w.pid == attempt["owner"]["pid"]]
    return owner, latch, handle


@pytest.mark.parametrize("point", ["arrived", "committed"])
@side_by_side
async def test_worker_killed_after_send_leaves_one_effect(lab: Lab, point: str) -> dict[str, float] | None:
    """cases c5 and b6: SIGKILL between the send and the answer: reconciliation, no direct re-send."""
    async with lab.bench(timing=ROOMY) as bench:
        owner, latch, handle = await owner_at(bench, point, workers=2)
        killed = time.monotonic()
        owner.signal(signal.SIGKILL)
        assert await owner.ended() == -signal.SIGKILL
        if point == "arrived":
            await bench.world.release(bench.account, latch)  # it commits although its sender is dead
        await bench.until_state("committed")
        seconds = time.monotonic() - killed
        result = await handle.result()
        assert (result["state"], result["operations"][0]["completion"]) == ("complete", "read_back")
        assert len(bench.requests()) == len(bench.effects()) == 1
        assert (await activities_of(handle))[:3] == ["plan", "issue", "reconcile"]
        return {"kill_to_verdict_s": round(seconds, 2)} if point == "committed" else None


@side_by_side
async def test_worker_killed_and_started_again_later(lab: Lab) -> None:
    """case b6, later: nobody works for a while; the watcher, or the next worker, goes on. One effect."""
    async with lab.bench(timing=ROOMY) as bench:
        owner, latch, handle = await owner_at(bench, "committed")
        owner.signal(signal.SIGKILL)
        await owner.ended()
        await bench.world.release(bench.account, latch)
        await bench.watch()
        row = await bench.until_state("committed")
        assert row["completion"] == "read_back"
        await bench.worker()
        assert (await handle.result())["operations"][0]["object_id"] == row["object_id"]
        assert len(bench.requests()) == len(bench.effects()) == 1


@side_by_side
async def test_owner_frozen_before_its_fence_wakes_up_late(lab: Lab) -> None:
    """case c1: attempt 1 sleeps past its timeout, attempt 2 is sent, attempt 1 wakes: fenced before its send."""
    async with lab.bench(timing=ROOMY) as bench:
        proxy = await bench.pg_proxy()
        owner = await bench.worker(ACTONCE_LEDGER_DSN=proxy.dsn)
        # The frozen worker's polls are still out and take workflow tasks with them: miss those soon.
        handle = await bench.start_task(bench.task(), task_timeout=timedelta(seconds=2))
        await eventually(lambda: _planned(bench), within_s=20, what="the plan on record", every_s=0.01)
        proxy.at_next_commit("hold_answer")  # of the permit: the very next commit of this worker
        await asyncio.wait_for(proxy.struck.wait(), 20)
        await owner.stop()
        (first,) = await bench.rows("attempt")
        assert first["owner"]["pid"] == owner.pid and bench.requests() == []
        await bench.worker()
        result = await handle.result()
        assert (result["state"], result["operations"][0]["attempts"]) == ("complete", 2)
        proxy.release.set()
        owner.signal(signal.SIGCONT)
        # Its last word on attempt 1: fenced, or cancelled while it still waited for its permit.
        last_words = ("record came too late", "Activity cancelled")
        await eventually(
            lambda: any(words in owner.tail(200) for words in last_words), within_s=20, what="the thawed owner's word"
        )
        assert len(bench.requests()) == len(bench.effects()) == 1
        assert (await bench.operation())["state"] == "committed"


async def _planned(bench: Bench) -> bool:
    return bool(await bench.rows("plan"))


@side_by_side
async def test_owner_frozen_after_its_send_records_the_late_answer(lab: Lab) -> None:
    """case c1: it had sent already: its late acknowledgement is recorded, not dropped."""
    async with lab.bench(timing=ROOMY) as bench:
        owner, latch, handle = await owner_at(bench, "committed", workers=2)
        await owner.stop()
        await bench.world.release(bench.account, latch)
        row = await bench.until_state("committed")
        assert (row["state"], row["completion"], row["acknowledged_at"]) == ("committed", "read_back", None)
        await eventually(lambda: _past_deadline(bench), within_s=20, what="the send deadline", every_s=0.1)
        owner.signal(signal.SIGCONT)
        (ack,) = await eventually(lambda: bench.rows("acknowledgement"), within_s=20, what="the late acknowledgement")
        assert (ack["state_before"], ack["contradicts"], ack["object_id"]) == ("committed", False, row["object_id"])
        after = await bench.operation()
        assert after["state"] == "committed" and after["acknowledged_at"] is not None
        assert after["version"] > row["version"]
        assert (await handle.result())["state"] == "complete"
        assert len(bench.requests()) == len(bench.effects()) == 1


async def _past_deadline(bench: Bench) -> bool:
    (attempt,) = await bench.rows("attempt")
    deadline = attempt["issued_at"] + timedelta(seconds=bench.settings.timing["send_deadline_s"] + 0.5)
    return bool(attempt["issued_at"].now(attempt["issued_at"].tzinfo) > deadline)


@pytest.mark.parametrize("grace_s", [0, 5])
@side_by_side
async def test_worker_stopped_while_a_committed_answer_is_held(lab: Lab, grace_s: int) -> None:
    """case c4: SIGTERM with a grace of 0 and 5 s: left unknown, not failed; the next worker reconciles."""
    patient = {"permit_lifetime_s": 9.0, "send_deadline_s": 9.0, "activity_timeout_s": 12.0, "reconcile_after_s": 13.0}
    async with lab.bench(timing=ROOMY | patient) as bench:
        latch = await bench.world.latch(bench.account, "committed")
        owner = await bench.worker(ACTONCE_SHUTDOWN_GRACE_S=str(grace_s))
        handle = await bench.start_task(bench.task())
        await bench.world.wait_latch(bench.account, latch)
        started = time.monotonic()
        owner.signal(signal.SIGTERM)
        assert await owner.ended() == 0
        assert grace_s <= time.monotonic() - started < grace_s + 4
        row = await bench.operation()
        assert (row["state"], row["reason"], len(bench.effects())) == ("unknown", None, 1)
        await bench.world.release(bench.account, latch)
        await bench.worker()
        result = await handle.result()
        assert (result["state"], result["operations"][0]["completion"]) == ("complete", "read_back")
        assert len(bench.requests()) == len(bench.effects()) == 1


@side_by_side
async def test_worker_stopped_with_a_grace_in_which_the_answer_comes(lab: Lab) -> None:
    """case c4, the other end: an answer within the grace is recorded by the worker that is leaving."""
    async with lab.bench(timing=ROOMY) as bench:
        owner, latch, handle = await owner_at(bench, "committed")
        owner.signal(signal.SIGTERM)
        await bench.world.release(bench.account, latch)
        assert await owner.ended() == 0
        row = await bench.operation()
        assert (row["state"], row["completion"]) == ("committed", "receipt")
        await bench.worker()
        assert (await handle.result())["state"] == "complete"
        assert len(bench.requests()) == 1


# Running again (case c2).


async def _one_effect(bench: Bench, operation_id: str, runs: int, handle: WorkflowHandle[Any, Any]) -> None:
    (row,) = await bench.rows("operation")
    assert row["operation_id"] == operation_id
    assert len(bench.requests()) == len(bench.effects()) == len(await bench.rows("attempt")) == 1
    found = [e.run_id async for e in bench.lab.temporal.list_workflows(f'WorkflowId="{handle.id}"')]
    assert len(found) == runs


@pytest.mark.parametrize("how", ["retry", "continue"])
@side_by_side
async def test_run_again_by_temporal_itself(lab: Lab, how: str) -> None:
    """case c2: workflow retry and continue-as-new: same operation_id, one effect."""
    async with lab.bench() as bench:
        await bench.worker(AGAIN)
        task = bench.task("1", "again", {"how": how, "refund": REFUND})
        policy = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_attempts=2)
        handle = await bench.start_task(task, retry_policy=policy)
        result = await handle.result()
        assert result["state"] == "complete"
        await _seen_runs(lab, handle, 2)
        await _one_effect(bench, operation_id_of(task, "refund"), 2, handle)


async def _seen_runs(lab: Lab, handle: WorkflowHandle[Any, Any], runs: int) -> None:
    async def count() -> bool:
        return len([e async for e in lab.temporal.list_workflows(f'WorkflowId="{handle.id}"')]) == runs

    await eventually(count, within_s=20, what=f"{runs} runs of {handle.id} listed", every_s=0.2)


@side_by_side
async def test_workflow_reset_to_before_its_first_step(lab: Lab) -> None:
    """case c2: reset: the second run issues again, gets no permit, and adopts what the ledger knows."""
    async with lab.bench() as bench:
        await bench.worker()
        handle = await bench.start_task(bench.task())
        first = await handle.result()
        history = await handle.fetch_history()
        point = next(e.event_id for e in history.events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)
        await lab.temporal.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=lab.temporal.namespace,
                workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=handle.result_run_id),
                reason="case c2",
                request_id=f"reset-{bench.account}",
                workflow_task_finish_event_id=point,
            )
        )
        again = lab.temporal.get_workflow_handle(handle.id, result_type=dict)
        second = await again.result()
        assert second["operations"][0]["object_id"] == first["operations"][0]["object_id"]
        assert (await activities_of(again))[:2] == ["plan", "issue"]
        await _seen_runs(lab, handle, 2)
        await _one_effect(bench, operation_id_of(bench.task()), 2, handle)


@side_by_side
async def test_terminated_in_flight_and_started_again(lab: Lab) -> None:
    """cases c2, c8: terminated while its request is held, started again with the same business id."""
    async with lab.bench(timing=ROOMY) as bench:
        _, latch, handle = await owner_at(bench, "committed")
        await handle.terminate("case c2")
        again = await bench.start_task(bench.task())
        await bench.world.release(bench.account, latch)
        assert (await again.result())["state"] == "complete"
        await _seen_runs(lab, handle, 2)
        await _one_effect(bench, operation_id_of(bench.task()), 2, handle)


@side_by_side
async def test_terminated_and_not_started_again(lab: Lab) -> None:
    """cell 11, R11: dispatched, its workflow terminated, its worker killed: the watcher alone settles it."""
    async with lab.bench(timing=ROOMY) as bench:
        owner, latch, handle = await owner_at(bench, "committed")
        await handle.terminate("nobody starts it again")
        owner.signal(signal.SIGKILL)
        await owner.ended()
        await bench.world.release(bench.account, latch)
        assert (await bench.operation())["state"] in ("dispatched", "unknown")
        await bench.watch()
        row = await bench.until_state("committed")
        assert (row["completion"], len(bench.requests())) == ("read_back", 1)


@side_by_side
async def test_zombie_attempt_overlaps_its_successor(lab: Lab) -> None:
    """SPEC 2.9: two executions of one operation at the same time, of two workflows: one permit, one request."""
    async with lab.bench(timing=ROOMY) as bench:
        _, latch, handle = await owner_at(bench, "committed")
        twin = await lab.temporal.start_workflow(
            "single.v1", bench.task(), id=f"twin/{handle.id}", task_queue=bench.queue, result_type=dict
        )
        other = await twin.result()  # established from the destination, while the first still waits for its answer
        assert (other["state"], other["operations"][0]["completion"]) == ("complete", "read_back")
        await bench.world.release(bench.account, latch)
        assert (await handle.result())["operations"][0]["object_id"] == other["operations"][0]["object_id"]
        assert len(bench.requests()) == len(bench.effects()) == 1


@side_by_side
async def test_task_started_again_while_running_when_done_and_when_purged(lab: Lab) -> None:
    """case c8: attached, stored outcome, stored outcome. No second effect; never failed."""
    async with lab.bench(timing=ROOMY) as bench:
        task, latch = bench.task(), await bench.world.latch(bench.account, "committed")
        entry, _ = await asyncio.gather(bench.entry(), bench.worker())
        async with bench.caller(entry) as http:

            async def start() -> httpx.Response:
                headers = {"Idempotency-Key": task.task_key}
                return await http.post("/v1/tasks/single", content=json.dumps(task.payload), headers=headers)

            first = await start()
            await bench.world.wait_latch(bench.account, latch)
            running = await start()
            assert (first.status_code, running.status_code, running.json()["state"]) == (202, 202, "running")
            await bench.world.release(bench.account, latch)
            handle = lab.temporal.get_workflow_handle(task.task_id, result_type=dict)
            assert (await handle.result())["state"] == "complete"
            done = await start()
            await lab.temporal.workflow_service.delete_workflow_execution(
                DeleteWorkflowExecutionRequest(
                    namespace=lab.temporal.namespace, workflow_execution=WorkflowExecution(workflow_id=task.task_id)
                )
            )
            await eventually(lambda: _purged(handle), within_s=60, what="the history purged", every_s=0.2)
            purged = await start()
            for answer in (done, purged):
                assert (answer.status_code, answer.headers["Idempotent-Replayed"]) == (200, "true")
                assert answer.json()["state"] == "complete"
            assert done.json()["outcome"] == purged.json()["outcome"]
            assert await _purged(handle), "not started again"
        assert len(bench.requests()) == len(bench.effects()) == 1


async def _purged(handle: WorkflowHandle[Any, Any]) -> bool:
    try:
        await handle.describe()
    except RPCError as error:
        return error.status is RPCStatusCode.NOT_FOUND
    return False


@side_by_side
async def test_temporal_stopped_and_killed_mid_operation(lab: Lab) -> None:
    """case j1: SIGINT, then SIGKILL, each with a request in flight; started again on the same file; both resume."""
    async with lab.bench(timing=ROOMY) as bench, Stack.open(bench.folder / "temporal", {"temporal"}) as stack:
        client = await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)
        await bench.worker(TEMPORAL_ADDRESS=stack.temporal_address)
        for name, number in (("int", signal.SIGINT), ("kill", signal.SIGKILL)):
            task = bench.task(name)
            latch = await bench.world.latch(bench.account, "committed", operation_id=operation_id_of(task))
            handle = await client.start_workflow(
                "single.v1", task, id=task.task_id, task_queue=bench.queue, result_type=dict
            )
            await bench.world.wait_latch(bench.account, latch)
            await stack.part("temporal").kill(number)
            await bench.world.release(bench.account, latch)
            await stack.part("temporal").start()
            assert (await handle.result())["state"] == "complete"
            assert len(bench.effects(operation_id_of(task))) == len(bench.requests(operation_id_of(task))) == 1


@side_by_side
async def test_process_frozen_in_its_armed_window_dies_instead_of_sending(lab: Lab) -> None:
    """cell 1, R4, trap 2: stopped between fence and write, thawed past `not_after`: the kernel's timer is first."""
    async with lab.bench() as bench:
        (bench.folder / "request.json").write_text(bench.request().model_dump_json())
        frozen = await bench.start(
            "tests/integration/cases/freezes.py",
            role="freezes",
            TEST_REQUEST=str(bench.folder / "request.json"),
        )
        await eventually(lambda: _stopped(frozen.pid), within_s=20, what="it stopped itself in its window")
        (attempt,) = await bench.rows("attempt")
        assert attempt["owner"]["pid"] == frozen.pid and bench.requests() == []
        system = await bench.system()

        async def settled() -> bool:
            await watch_once(system, WatchSettings(idle_s=0.2))
            return (await bench.operation())["state"] == "ready"

        await eventually(settled, within_s=30, what="judged absent", every_s=0.2)
        assert (await perform(system, bench.request())).status == "committed"
        frozen.signal(signal.SIGCONT)
        assert await frozen.ended() == -signal.SIGALRM
        assert len(bench.requests()) == len(bench.effects()) == 1


def _stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
