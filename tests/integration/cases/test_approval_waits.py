"""Tasks that wait for people: through restarts, twenty clicks, long histories, rejection, expiry and cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

import workflows
from actonce.contracts.approval import ApprovalAct, ApprovalRenewal, ApprovalVote
from actonce.contracts.messages import TaskInput
from actonce.effects.system import System
from actonce.ledger import approvals, listing, tasks
from actonce.ledger.approvals import Approval
from actonce.stack import Stack
from actonce.stack.temporal import Temporal
from actonce.testing.waiting import eventually
from tests.integration.cases.kit import REFUND, Bench, Lab, activities_of, operation_id_of, side_by_side
from tests.integration.cases.test_approvals import record_resume, wanting

SUGGEST_AFTER = 40  # events; the server's own default is 4096


async def pending(bench: Bench, system: System, within_s: float = 30) -> Approval:
    """The one approval that people are asked for now."""

    async def check() -> Approval | None:
        found = await listing.approvals(system.ledger, state="pending")
        return found[0] if len(found) == 1 else None

    return await eventually(check, within_s=within_s, what=f"{bench.account} asks people", every_s=0.1)


async def vote(system: System, approval: Approval, handle: WorkflowHandle[Any, Any], decision: Any = "approve") -> None:
    given = ApprovalVote(name="olga", note="looked at it", digest=approval.digest)
    await approvals.vote(system.ledger, approval.approval_id, decision, given)
    await handle.signal("actonce.nudge")


async def in_search(handle: WorkflowHandle[Any, Any]) -> Any:
    attributes = (await handle.describe()).search_attributes
    return attributes.get("ActonceState")


async def replays(handle: WorkflowHandle[Any, Any]) -> None:
    replayer = Replayer(workflows=workflows.ALL, data_converter=pydantic_data_converter)
    await replayer.replay_workflow(await handle.fetch_history())


@contextlib.asynccontextmanager
async def temporal_of(folder: Path, **limits: int) -> AsyncIterator[tuple[Stack, Client]]:
    """A Temporal of this case's own."""
    known = Temporal.dynamic_config
    Temporal.dynamic_config = {name.replace("_", "."): value for name, value in limits.items()}
    try:
        stack = await Stack.start(folder, {"temporal"})
    finally:
        Temporal.dynamic_config = known
    try:
        yield stack, await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)
    finally:
        await stack.stop()


@side_by_side
async def test_task_says_that_it_waits_goes_on_when_approved_and_replays(lab: Lab) -> None:
    async with lab.bench(contracts=wanting()) as bench:
        system = await bench.system()
        await bench.worker()
        handle = await bench.start_task(bench.task())
        approval = await pending(bench, system)
        assert approval.operation_id == operation_id_of(bench.task())
        await eventually(lambda: _waits(handle), within_s=10, what="the search attribute says that it waits")
        assert bench.requests() == [] and await bench.rows("operation") == []
        await vote(system, approval, handle)
        assert (await handle.result())["state"] == "complete"
        assert len(bench.effects()) == len(bench.requests()) == 1
        assert (await activities_of(handle))[:4] == ["plan", "propose", "approval", "issue"]
        await replays(handle)


async def _waits(handle: WorkflowHandle[Any, Any]) -> bool:
    return bool(await in_search(handle) == ["waiting_for_approval"])


@side_by_side
async def test_rejected_step_ends_the_task_as_failed_with_nothing_sent(lab: Lab) -> None:
    async with lab.bench(contracts=wanting()) as bench:
        system = await bench.system()
        await bench.worker()
        handle = await bench.start_task(bench.task())
        await vote(system, await pending(bench, system), handle, "reject")
        result = await handle.result()
        assert result["state"] == "failed" and "rejected by olga" in result["summary"]
        assert bench.requests() == [] and await bench.rows("operation") == []
        await replays(handle)


@side_by_side
async def test_expired_while_waiting_is_held_renewed_by_people_and_resumed(lab: Lab) -> None:
    """Case e2, with a workflow that waits: the watcher tells it, nothing is sent, a new approval leads on."""
    async with lab.bench(contracts=wanting(valid_s=5.0)) as bench:
        system = await bench.system()
        await bench.worker()
        await bench.watch()
        entry = await bench.entry()
        async with bench.caller(entry) as http:
            task = bench.task()
            started = await http.post("/v1/tasks/single", json=task.payload, headers={"Idempotency-Key": task.task_key})
            assert started.status_code == 202
            handle = lab.temporal.get_workflow_handle(task.task_id, result_type=dict)
            row = await bench.until_state("held")
            assert row["reason"] == "approval_expired" and bench.requests() == []
            (expired,) = await listing.approvals(system.ledger)
            assert expired.state == "expired"
            pages = [p for p in await bench.rows("page") if p["closed_at"] is None]
            assert [p["reason"] for p in pages] == ["approval_expired"], (
                "the page of the hold took the other one's place"
            )
            shown = (await http.get(f"/v1/tasks/{task.task_id}")).json()
            assert shown["state"] == "held" and "expired" in shown["why"]
            renewal = ApprovalRenewal(name="ada", note="the customer still waits")
            renewed = await approvals.renew(system.ledger, expired.approval_id, renewal)
            await vote(system, renewed, handle)
            await record_resume(bench, system)
            await handle.signal("actonce.nudge")
            assert (await handle.result())["state"] == "complete"
            assert len(bench.effects()) == 1


@side_by_side
async def test_cancelled_while_waiting_ends_at_once_and_asks_nobody_any_more(lab: Lab) -> None:
    """Behind the ledger's back, in Temporal alone: it sends nothing and withdraws what it asked."""
    async with lab.bench(contracts=wanting()) as bench:
        system = await bench.system()
        await bench.worker()
        handle = await bench.start_task(bench.task())
        await accept(system, bench.task())
        approval = await pending(bench, system)
        await handle.cancel()
        assert (await handle.result())["state"] == "cancelled"
        after, _ = await approvals.record(system.ledger, approval.approval_id)
        assert (after.state, after.ended_by) == ("withdrawn", "its task")
        assert bench.requests() == [] and await bench.rows("operation") == []
        await replays(handle)


async def accept(system: System, task: TaskInput) -> None:
    """The entry's part: a task without a row has no outcome to store, and nobody tells it that it may go on."""
    await tasks.accept(system.ledger, task.tenant, task.task_type, task.task_key, task.payload)


@side_by_side
async def test_withdrawn_while_waiting_is_held_as_what_it_is(lab: Lab) -> None:
    async with lab.bench(contracts=wanting()) as bench:
        system = await bench.system()
        await bench.worker()
        handle = await bench.start_task(bench.task())
        approval = await pending(bench, system)
        act = ApprovalAct(name="olga", note="the customer called")
        await approvals.withdraw(system.ledger, approval.approval_id, act)
        await handle.signal("actonce.nudge")
        row = await bench.until_state("held")
        assert row["reason"] == "approval_withdrawn" and bench.requests() == []


@side_by_side
async def test_steps_of_a_batch_wait_for_themselves_only(lab: Lab) -> None:
    steps = [
        {
            "step": f"refund-{amount}",
            "destination": "payments",
            "action": "refund",
            "payload": REFUND | {"payment_id": f"p-{amount}", "amount_minor": amount},
        }
        for amount in (900, 1100, 950)
    ]
    async with lab.bench(contracts=wanting()) as bench:
        system = await bench.system()
        await bench.worker()
        handle = await bench.start_task(bench.task("1", "batch", {"steps": steps, "concurrency": 3}))
        approval = await pending(bench, system)
        assert approval.step == "refund-1100"
        await eventually(lambda: len(bench.effects()) == 2, within_s=20, what="the small ones are done meanwhile")
        await vote(system, approval, handle)
        assert (await handle.result())["state"] == "complete" and len(bench.effects()) == 3


@side_by_side
async def test_server_worker_and_entry_restarted_during_a_wait_change_nothing_about_it(lab: Lab) -> None:
    """Case h1: listed once, can be decided, its deadline unchanged."""
    async with lab.bench(contracts=wanting()) as bench, temporal_of(bench.folder / "temporal") as (stack, client):
        address = {"TEMPORAL_ADDRESS": stack.temporal_address}
        worker = await bench.worker(**address)
        entry = await bench.start("-m actonce.entry", role="entry", ACTONCE_ENTRY_PORT="0", **address)
        task = bench.task()
        async with bench.caller(str(entry.ready["url"])) as http:
            await http.post("/v1/tasks/single", json=task.payload, headers={"Idempotency-Key": task.task_key})
            before = await one_listed(http)
        for process in (worker, entry):
            process.signal(signal.SIGKILL)
            await process.ended()
        await stack.part("temporal").kill(signal.SIGKILL)
        await stack.part("temporal").start()
        await bench.worker(**address)
        entry = await bench.start("-m actonce.entry", role="entry", ACTONCE_ENTRY_PORT="0", **address)
        async with bench.caller(str(entry.ready["url"])) as http:
            after = await one_listed(http)
            assert {k: v for k, v in after.items() if k != "seconds_left"} == {
                k: v for k, v in before.items() if k != "seconds_left"
            }
            assert after["seconds_left"] < before["seconds_left"]
            body = {"name": "olga", "note": "still right", "digest": after["digest"]}
            said = await http.post(f"/v1/approvals/{after['approval_id']}/approve", json=body)
            assert said.status_code == 200 and said.json()["workflow_told"], said.text
        handle = client.get_workflow_handle(task.task_id, result_type=dict)
        assert (await handle.result())["state"] == "complete"
        assert len(bench.effects()) == len(bench.requests()) == 1 and len(await bench.rows("approval")) == 1


async def one_listed(http: httpx.AsyncClient) -> dict[str, Any]:
    async def check() -> dict[str, Any] | None:
        found = (await http.get("/v1/approvals", params={"state": "pending"})).json()
        return dict(found[0]) if len(found) == 1 else None

    return await eventually(check, within_s=40, what="the approval is listed once", every_s=0.2)


@side_by_side
async def test_twenty_clicks_at_once_through_the_door_have_one_winner_and_the_history_replays(lab: Lab) -> None:
    """Case h2."""
    async with lab.bench(contracts=wanting()) as bench:
        await bench.worker()
        entry = await bench.entry()
        async with bench.caller(entry) as http:
            task = bench.task()
            await http.post("/v1/tasks/single", json=task.payload, headers={"Idempotency-Key": task.task_key})
            approval = await one_listed(http)

            async def click(n: int) -> tuple[int, dict[str, Any], str, str]:
                verb, name = ("approve", "reject")[n % 2], f"person-{n}"
                body = {"name": name, "note": "", "digest": approval["digest"]}
                answer = await http.post(f"/v1/approvals/{approval['approval_id']}/{verb}", json=body)
                return answer.status_code, answer.json(), verb, name

            ends = await asyncio.gather(*(click(n) for n in range(20)))
            ((_, won, verb, winner),) = [e for e in ends if e[0] == 200]
            assert won["decided_by"] == winner
            for status, problem, _, _ in (e for e in ends if e[0] != 200):
                assert (status, problem["code"], problem["decided_by"]) == (409, "already_decided", winner)
        handle = lab.temporal.get_workflow_handle(task.task_id, result_type=dict)
        result = await handle.result()
        assert result["state"] == {"approve": "complete", "reject": "failed"}[verb]
        assert len(bench.effects()) == (verb == "approve")
        await replays(handle)


@side_by_side
async def test_effect_approval_effect_approval_with_a_worker_killed_at_each_wait(lab: Lab) -> None:
    """Case h3: effect A, approval, effect B, approval, worker restart between: A once, B once."""
    contracts = {
        "tickets": {"approvals": [{"action": "open"}]},
        "mail": {"clock_skew_s": 0.1, "approvals": [{"action": "send"}]},
    }
    async with lab.bench(contracts=contracts) as bench:
        system = await bench.system()
        worker = await bench.worker()
        payload = {**REFUND, "payment_id": f"pay_{bench.account}", "customer": "ada@customer.invalid"}
        handle = await bench.start_task(bench.task("1", "refund", payload))
        for step, done in (("ticket", (1, 0)), ("notice", (1, 1))):
            approval = await pending(bench, system)
            assert approval.step == step
            assert (len(bench.effects()), len(bench.effects(destination="tickets"))) == done
            worker.signal(signal.SIGKILL)
            await worker.ended()
            await vote(system, approval, handle)
            worker = await bench.worker()
        assert (await handle.result())["state"] == "complete"
        for destination in ("payments", "tickets"):
            assert len(bench.effects(destination=destination)) == len(bench.requests(destination=destination)) == 1
        assert [row["state"] for row in await bench.rows("approval")] == ["consumed", "consumed"]
        await replays(handle)


@side_by_side
async def test_a_long_wait_continues_as_new_before_the_history_is_full_and_keeps_its_ids(lab: Lab) -> None:
    """Case c9. The limit is forced low, and nudges stand for timer ticks: 60,000 of them fill any history."""
    limits = {"limit_historyCount_suggestContinueAsNew": SUGGEST_AFTER}
    async with lab.bench(contracts=wanting()) as bench, temporal_of(bench.folder / "temporal", **limits) as (_, client):
        system = await bench.system()
        await bench.worker(TEMPORAL_ADDRESS=client.service_client.config.target_host)
        task: TaskInput = bench.task()
        first = await client.start_workflow(
            "single.v1", task, id=task.task_id, task_queue=bench.queue, result_type=dict
        )
        approval = await pending(bench, system)
        runs: set[str] = set()

        async def fourth_run() -> bool:
            handle = client.get_workflow_handle(task.task_id)
            await handle.signal("actonce.nudge")
            runs.add(str((await handle.describe()).run_id))
            return len(runs) >= 4

        await eventually(fourth_run, within_s=60, what="its fourth run", every_s=0.05)
        assert await listing.approvals(system.ledger) != [] and bench.requests() == []
        handle = client.get_workflow_handle(task.task_id, result_type=dict)
        await vote(system, approval, handle)
        assert (await first.result())["state"] == "complete", "whoever followed the first run follows the last"
        for run_id in runs:
            history = await client.get_workflow_handle(task.task_id, run_id=run_id).fetch_history()
            assert len(history.events) < 3 * SUGGEST_AFTER
            await replays(client.get_workflow_handle(task.task_id, run_id=run_id))
        (row,) = await bench.rows("approval")
        assert (row["approval_id"], row["expires_at"], row["state"]) == (
            approval.approval_id,
            approval.expires_at,
            "consumed",
        )
        assert (await bench.operation())["operation_id"] == approval.operation_id
        assert len(bench.effects()) == len(bench.requests()) == 1


@side_by_side
async def test_parallel_steps_that_expire_together_are_each_held(lab: Lab) -> None:
    steps = [
        {
            "step": f"refund-{n}",
            "destination": "payments",
            "action": "refund",
            "payload": REFUND | {"payment_id": f"p-{n}", "amount_minor": 5000 + n},
        }
        for n in range(4)
    ]
    async with lab.bench(contracts=wanting(valid_s=2.0)) as bench:
        await bench.worker()
        await bench.watch()
        task = bench.task("1", "batch", {"steps": steps, "concurrency": 4})
        await accept(await bench.system(), task)
        await bench.start_task(task)

        async def all_held() -> bool:
            rows = await bench.rows("operation")
            return [r["reason"] for r in rows if r["state"] == "held"] == ["approval_expired"] * 4

        await eventually(all_held, within_s=40, what="four holds")
        assert bench.requests() == []
        assert {r["state"] for r in await bench.rows("approval")} == {"expired"}
