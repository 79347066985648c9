"""Workflows that run operations side by side: every one is settled before the task ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.planner import ScriptedPlanner
from actonce import Destination, OperationActivities, Operations, Receipt, Registry, TaskInput, compose, run_task
from actonce.contracts.errors import Refused, Unknown
from actonce.contracts.messages import DecisionRequest
from actonce.contracts.verdict import Page
from actonce.destinations.base import Call, Lookup
from actonce.effects.activities import FAILURES_MAX
from actonce.effects.perform import perform
from actonce.effects.reconcile import settle_step
from actonce.effects.system import System
from actonce.ledger import decisions, listing, permits, tasks
from actonce.ledger.watch import find_operation, operations_of_task
from actonce.stack import Stack
from actonce.testing.waiting import eventually
from tests.integration.odd_bench import TO_THE_PAGE_S, contract, key_of, ours, request, take

QUEUE = "odd-workflows"


@workflow.defn(name="beside.v1")
class Beside:
    """Two operations side by side; payload: the two steps."""

    @workflow.run
    async def run(self, task: TaskInput) -> Any:
        return await run_task(task, self.steps, {"steps": []})

    async def steps(self, ops: Operations) -> str:
        names: dict[str, str] = ops.task.payload["steps"]
        await asyncio.gather(
            *(ops.perform(step, destination=d, action="do", payload={"amount": 1}) for d, step in names.items())
        )
        return "both"


def destination(name: str, send: Callable[[Call], Awaitable[Receipt]]) -> Destination:
    return Destination(contract(name=name, routes=()), send=send)


async def slow(call: Call) -> Receipt:
    async with call.window():
        pass
    await asyncio.sleep(0.7)
    return Receipt(object_id="slow")


async def refused(call: Call) -> Receipt:
    raise Refused("no", status=422)


async def lost(call: Call) -> Receipt:
    async with call.window():
        pass
    raise Unknown("the answer was lost")


async def started(servers: Stack, system: System, key: str, steps: dict[str, str]) -> tuple[Worker, Any]:
    client = await Client.connect(servers.temporal_address, data_converter=pydantic_data_converter)
    task, _ = await tasks.accept(system.ledger, "t", "beside", key, {"steps": steps})
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Beside],
        activities=OperationActivities(system, ScriptedPlanner()).all(),
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    given = TaskInput(tenant="t", task_id=task.task_id, task_type="beside", task_key=key, payload={"steps": steps})

    async def start() -> WorkflowHandle[Any, Any]:
        return await client.start_workflow("beside.v1", given, id=task.task_id, task_queue=QUEUE, result_type=dict)

    return worker, start


async def test_what_runs_beside_a_refused_step_is_settled_before_the_task_ends(servers: Stack, fresh_dsn: str) -> None:
    registry = Registry([destination("odd", slow), destination("other", refused)])
    async with compose(fresh_dsn, registry) as system:
        worker, start = await started(servers, system, "refused", {"odd": "a", "other": "b"})
        async with worker:
            report = await (await start()).result()
        task = await tasks.get(system.ledger, "t/beside/refused")
    assert task is not None and (task.state, report["state"]) == ("failed", "failed")
    assert {o["object_id"] for o in report["operations"]} == {"slow", None}


async def test_one_step_at_two_destinations_may_be_held_at_both(servers: Stack, fresh_dsn: str) -> None:
    registry = Registry([destination("odd", lost), destination("other", lost)])
    async with compose(fresh_dsn, registry) as system:
        worker, start = await started(servers, system, "held", {"odd": "same", "other": "same"})
        async with worker:
            handle = await start()

            async def both_held() -> bool:
                found = await operations_of_task(system.ledger, "t/beside/held")
                return [o.state for o in found] == ["held", "held"]

            await eventually(both_held, within_s=30, what="both held", every_s=0.1)
            await asyncio.sleep(1.0)  # the workflow has seen both
            for operation in await find_operation(
                system.ledger, (await operations_of_task(system.ledger, "t/beside/held"))[0].operation_id
            ):
                given = DecisionRequest(
                    action="mark_committed",
                    name="n",
                    reason="r",
                    object_id=operation.destination,
                    expected_epoch=operation.epoch,
                    expected_version=operation.version,
                )
                await decisions.record(system.ledger, operation.key, given)
            await handle.signal("actonce.nudge")
            async with asyncio.timeout(20):
                report = await handle.result()
    assert report["state"] == "complete"
    assert {o["object_id"] for o in report["operations"]} == {"odd", "other"}


async def test_an_issue_that_keeps_failing_before_its_intent_is_paged_once_and_goes_on_when_it_succeeds(
    servers: Stack, fresh_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actonce.effects.guard._UNRECORDED_PAUSE_S", 0.01)
    real, failing = permits.take_permit, asyncio.Event()
    tries: list[int] = []

    async def defective(*given: Any) -> Any:
        tries.append(len(tries))
        if not failing.is_set():
            raise RuntimeError("a defect of this worker")
        return await real(*given)

    monkeypatch.setattr(permits, "take_permit", defective)
    registry = Registry([destination("odd", slow), destination("other", slow)])
    async with compose(fresh_dsn, registry) as system:
        worker, start = await started(servers, system, "defect", {"odd": "a"})
        async with worker:
            handle = await start()

            async def told() -> bool:
                rows = await listing.pages(system.ledger)
                return any(row["seen_again"] >= 1 for row in rows)

            await eventually(told, within_s=30, what="paged, and tried again", every_s=0.1)
            (page,) = await listing.pages(system.ledger)
            task = await tasks.get(system.ledger, "t/beside/defect")
            assert task is not None and (task.state, task.reason) == ("held", "step_failing")
            assert (page["reason"], page["task_id"]) == ("step_failing", "t/beside/defect")
            assert "a defect of this worker" in page["body"] and len(tries) > FAILURES_MAX
            failing.set()
            async with asyncio.timeout(20):
                report = await handle.result()
        (page,) = await listing.pages(system.ledger, open_only=False)
    assert report["state"] == "complete" and page["closed_at"] is not None


async def test_a_plan_that_keeps_failing_is_paged(
    servers: Stack, fresh_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actonce.effects.activities.FAILURES_MAX", 2)

    async def defective(*_: Any) -> Any:
        raise RuntimeError("a defect of this planner")

    monkeypatch.setattr(tasks, "plan_of", defective)
    async with compose(fresh_dsn, Registry([destination("odd", slow)])) as system:
        worker, start = await started(servers, system, "plan", {"odd": "a"})
        async with worker:
            handle = await start()

            async def told() -> bool:
                return bool(await listing.pages(system.ledger))

            await eventually(told, within_s=20, what="paged", every_s=0.1)
            task = await tasks.get(system.ledger, "t/beside/plan")
            assert task is not None and (task.state, task.reason) == ("held", "step_failing")
            await handle.terminate()


async def test_worker_without_the_contract_does_not_fail_a_task_whose_request_is_out(
    servers: Stack, fresh_dsn: str
) -> None:
    """A deployment that is being rolled out: the next worker to read does not know the destination."""
    sent = asyncio.Event()

    async def send(call: Call) -> Receipt:
        async with call.window():
            sent.set()
        await asyncio.sleep(0.3)
        raise Unknown("the answer was lost")

    async def read(look: Lookup, _cursor: str | None) -> Page:
        return Page(rows=(ours(look),), rows_received=1)

    known = Registry([Destination(contract(), send=send, routes={"list": read})])
    async with compose(fresh_dsn, known) as system:
        worker, start = await started(servers, system, "bare", {"odd": "a"})
        async with worker, asyncio.timeout(40):
            handle = await start()
            await sent.wait()
            system.registry = Registry([])
            words = "no contract is registered"
            await eventually(lambda: last_failure(handle, words), within_s=20, what="tried to reconcile without it")
            system.registry = known
            report = await handle.result()
    assert (report["state"], report["operations"][0]["object_id"]) == ("complete", "x")


async def test_outcome_of_a_task_waits_for_what_is_still_open(servers: Stack, fresh_dsn: str) -> None:
    """Else its workflow would be gone, and once that is settled the task would run for ever, and nobody be told."""
    registry = Registry([destination("odd", lost)])
    earlier = request(task_id="t/beside/open", step="a", payload={"amount": 2})  # what the task asks for now is another
    async with compose(fresh_dsn, registry) as system:
        assert (await perform(system, earlier)).status == "unknown"
        worker, start = await started(servers, system, "open", {"odd": "a"})
        async with worker, asyncio.timeout(40):
            handle = await start()
            await eventually(lambda: last_failure(handle, "settle them first"), within_s=20, what="refused to end")
            held = await settle_step(system, key_of(earlier))
            await asyncio.sleep(TO_THE_PAGE_S)
            await take(system, earlier, "mark_absent", held.version)
            report = await handle.result()
        task = await tasks.get(system.ledger, "t/beside/open")
    assert task is not None and (task.state, report["state"]) == ("failed", "failed")


async def last_failure(handle: WorkflowHandle[Any, Any], words: str) -> bool:
    """Does an activity that is tried again say this?"""
    pending = (await handle.describe()).raw_description.pending_activities
    return any(words in activity.last_failure.message for activity in pending)


pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
