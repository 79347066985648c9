"""A task that needs its memory waits for it, and never takes a silent nothing for an answer (case g1)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from temporalio import workflow
from temporalio.client import WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.planner import ScriptedPlanner
from actonce.contracts.memory import Empty, Found, Trouble, Unavailable
from actonce.contracts.messages import TaskInput, TaskReport
from actonce.effects.activities import OperationActivities
from actonce.effects.guard import Operations, run_task
from actonce.effects.remembering import MemoryActivities, adopt_memory, check_memory
from actonce.effects.system import System
from actonce.ledger import memory_use, tasks, watch
from actonce.memory import HashingEmbedder, Memory
from actonce.memory.setting_up import rebuild_index, set_up
from actonce.testing.waiting import eventually
from tests.integration.cases.kit import REFUND, Bench, Lab, side_by_side

CUSTOMER = "ada@customer.invalid"
DROP = "DROP INDEX actonce_memory.item_embedding"


async def memory_of(bench: Bench, name: str = "memory") -> str:
    """A database of the memory's own, so that it can be broken and the ledger cannot; its DSN."""
    dsn = urlunsplit(urlsplit(bench.dsn)._replace(path=f"/{bench.database}_{name}"))
    async with await psycopg.AsyncConnection.connect(bench.dsn, autocommit=True) as link:
        await link.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(f"{bench.database}_{name}")))
    await asyncio.to_thread(set_up, dsn, HashingEmbedder())
    return dsn


async def run_sql(dsn: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:
        await link.execute(statement)  # type: ignore[arg-type]


async def three_refunds_before(dsn: str) -> None:
    """So many that policy refuses the next one."""
    memory = Memory(dsn)
    for number in range(3):
        facts = {"kind": "refund", "customer": CUSTOMER, "payment_id": f"old-{number}", "task_id": f"old/{number}"}
        facts["refunded_at"] = datetime.now(UTC).isoformat()
        said = await memory.remember("default", f"old-{number}", f"refund of payment old-{number}", facts)
        assert said.status == "remembered"
    await memory.close()


def refund(bench: Bench) -> TaskInput:
    return bench.task("1", "refund", {**REFUND, "payment_id": f"pay-{bench.account}", "customer": CUSTOMER})


async def start(bench: Bench, task: TaskInput) -> WorkflowHandle[Any, Any]:
    return await bench.lab.temporal.start_workflow(
        "refund.v2", task, id=task.task_id, task_queue=bench.queue, result_type=dict
    )


async def open_hold(bench: Bench) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        return next((h for h in await bench.rows("hold") if h["closed_at"] is None), None)

    return await eventually(look, within_s=30, what=f"a hold of {bench.account}", every_s=0.1)


@side_by_side
async def test_a_refund_is_remembered_and_the_fourth_is_refused_by_policy(lab: Lab) -> None:
    async with lab.bench() as bench:
        dsn = await memory_of(bench)
        await bench.worker(ACTONCE_MEMORY_DSN=dsn)
        first = await (await start(bench, refund(bench))).result()
        assert first["state"] == "complete", first
        memory = Memory(dsn)
        found = await memory.recall("default", "refund", filter={"customer": CUSTOMER})
        assert isinstance(found, Found) and found.items[0].facts["payment_id"] == f"pay-{bench.account}"
        await memory.close()
        await three_refunds_before(dsn)
        later = refund(bench).model_copy(update={"task_id": f"default/refund/{bench.account}-2"})
        second = await (await start(bench, later)).result()
        assert (second["state"], second["operations"]) == ("failed", [])
        assert "refused by policy" in second["summary"]
        assert len(bench.effects()) == 1


@side_by_side
async def test_case_g1_a_task_waits_for_its_memory_and_goes_on_by_itself(lab: Lab) -> None:
    async with lab.bench() as bench:
        dsn = await memory_of(bench)
        await three_refunds_before(dsn)
        await run_sql(dsn, DROP)
        await bench.worker(ACTONCE_MEMORY_DSN=dsn)
        await bench.watch(ACTONCE_MEMORY_DSN=dsn, ACTONCE_PROBE_EVERY_S="0.5")
        handle = await start(bench, refund(bench))
        hold = await open_hold(bench)
        assert (hold["reason"], hold["step"], hold["operation_id"]) == ("memory_unavailable", "earlier_refunds", None)
        (page,) = await bench.rows("page")
        assert "index_missing" in page["body"] and "docs/operations/memory_unavailable.md" in page["body"]
        assert bench.requests() == []
        await eventually(lambda: dependency(bench, "down"), within_s=20, what="the memory is down", every_s=0.2)
        await asyncio.to_thread(rebuild_index, dsn)
        result = await asyncio.wait_for(handle.result(), 30)
        assert "refused by policy" in result["summary"] and bench.requests() == []
        assert [h["closed_by"] for h in await bench.rows("hold")] == ["evidence:memory canary"]
        assert all(p["closed_at"] for p in await bench.rows("page"))
        (use,) = await bench.rows("memory_use")
        assert (use["status"], use["items"]) == ("found", 3) and use["looks"] > 1
        said = [a["body"]["status"] for a in await bench.rows("audit") if a["kind"] == "task.memory_recall"]
        assert said == ["unavailable", "found"]


async def dependency(bench: Bench, state: str) -> bool:
    return any(d["name"] == "memory" and d["state"] == state for d in await bench.rows("dependency"))


@side_by_side
async def test_a_memory_that_fails_to_an_empty_list_makes_the_refund_that_policy_forbids(lab: Lab) -> None:
    """The negative control: what the whole of it is for."""
    async with lab.bench() as bench:
        dsn = await memory_of(bench)
        await three_refunds_before(dsn)
        await run_sql(dsn, DROP)
        await bench.start(
            "-m drills.controls.broken", "memory_failure_as_empty", "run", role="worker", ACTONCE_MEMORY_DSN=dsn
        )
        result = await (await start(bench, refund(bench))).result()
        assert result["state"] == "complete"
        assert len(bench.effects()) == 1  # the fourth refund within 30 days


@side_by_side
async def test_a_task_that_asks_nothing_does_not_notice_that_the_memory_is_gone(lab: Lab) -> None:
    async with lab.bench() as bench:
        await bench.worker(ACTONCE_MEMORY_DSN="postgresql://nobody:x@127.0.0.1:1/none")
        result = await (await bench.start_task(bench.task())).result()
        assert result["state"] == "complete" and await bench.rows("hold") == []


@side_by_side
async def test_what_was_done_is_remembered_late_rather_than_forgotten(lab: Lab) -> None:
    """The memory is lost between the recall and the refund; the customer is told all the same."""
    async with lab.bench() as bench:
        dsn = await memory_of(bench)
        latch = await lab.world.latch(bench.account, "committed")
        await bench.worker(ACTONCE_MEMORY_DSN=dsn)
        handle = await start(bench, refund(bench))
        await lab.world.wait_latch(bench.account, latch, wait_s=20)
        await run_sql(dsn, "ALTER TABLE actonce_memory.item RENAME TO away")
        await lab.world.release(bench.account, latch)
        hold = await open_hold(bench)
        assert hold["step"] == "remember_refund" and "collection_missing" in hold["words"]
        await eventually(lambda: len(bench.effects(destination="mail")) == 1, within_s=20, what="the notice is sent")
        await run_sql(dsn, "ALTER TABLE actonce_memory.away RENAME TO item")
        result = await asyncio.wait_for(handle.result(), 40)
        assert result["state"] == "complete"


@side_by_side
async def test_a_task_cancelled_while_it_waits_for_its_memory_leaves_no_open_hold_or_page(lab: Lab) -> None:
    async with lab.bench() as bench:
        dsn = await memory_of(bench)
        await run_sql(dsn, DROP)
        await bench.worker(ACTONCE_MEMORY_DSN=dsn)
        url = await bench.entry()
        task = refund(bench)
        async with bench.caller(url) as http:
            started = await http.post(
                "/v1/tasks/refund",
                headers={"Idempotency-Key": task.task_key, "Actonce-Tenant": "default"},
                json=task.payload,
            )
            assert started.status_code in (200, 201, 202), started.text
            await open_hold(bench)
            shown = (await http.get(f"/v1/tasks/{task.task_id}")).json()
            assert (shown["state"], shown["reason"]) == ("held", "memory_unavailable")
            assert [(m["step"], m["status"], m["trouble"]) for m in shown["memory"]] == [
                ("earlier_refunds", "unavailable", "index_missing")
            ]
            assert "procedure: docs/operations/memory_unavailable.md" in shown["what_to_do"]
            await http.post(f"/v1/tasks/{task.task_id}/cancel")
            result = await lab.temporal.get_workflow_handle(task.task_id, result_type=dict).result()
            assert result["state"] == "cancelled" and bench.requests() == []
        assert all(h["closed_at"] for h in await bench.rows("hold"))
        assert all(p["closed_at"] for p in await bench.rows("page"))


@workflow.defn(name="degraded.v1")
class Degraded:
    """Asks, and goes on without an answer."""

    @workflow.run
    async def run(self, task: TaskInput) -> TaskReport:
        return await run_task(task, self.steps)

    async def steps(self, ops: Operations) -> str:
        said = await ops.recall("hints", query="anything", if_unavailable="go_on")
        return f"done with {said.status}"


@side_by_side
async def test_a_task_that_may_do_without_says_in_its_report_that_it_did(lab: Lab) -> None:
    async with lab.bench() as bench:
        system = await with_memory(bench, "postgresql://nobody:x@127.0.0.1:1/none")
        activities = [*OperationActivities(system, ScriptedPlanner()).all(), *MemoryActivities(system).all()]
        task = bench.task("1", "single")
        async with Worker(
            lab.temporal,
            task_queue=bench.queue,
            workflows=[Degraded],
            activities=activities,
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):
            result = await lab.temporal.execute_workflow(
                "degraded.v1", task, id=task.task_id, task_queue=bench.queue, result_type=dict
            )
        assert result["state"] == "complete"
        assert result["summary"] == "done with unavailable; DEGRADED: hints was unavailable (unreachable)"
        assert await bench.rows("hold") == [] and await bench.rows("page") == []
        (use,) = await bench.rows("memory_use")
        assert (use["status"], use["waits"]) == ("unavailable", False)


async def with_memory(bench: Bench, dsn: str) -> System:
    system = await bench.system()
    system.memory = Memory(dsn)
    return system


@side_by_side
async def test_another_healthy_memory_is_no_answer_until_a_person_adopts_it(lab: Lab) -> None:
    """A database made anew behind the same address knows nothing of what was remembered."""
    async with lab.bench() as bench:
        system = await with_memory(bench, await memory_of(bench))
        assert system.memory is not None
        said = await system.memory.recall("default", "anything")
        await memory_use.record(system.ledger, task_id="t", step="s", kind="recall", said=said)
        await system.memory.close()
        system.memory = Memory(await memory_of(bench, "other"))
        fresh = await system.memory.recall("default", "anything")
        assert isinstance(fresh, Empty)
        told = await memory_use.record(system.ledger, task_id="t", step="later", kind="recall", said=fresh)
        assert isinstance(told, Unavailable) and told.trouble == "foreign"
        assert (await check_memory(system)).status == "unavailable"
        await adopt_memory(system, "olga", "the old one burnt")
        assert (await check_memory(system)).status == "empty"
        assert [a["body"]["name"] for a in await bench.rows("audit") if a["kind"] == "memory.adopted"] == ["olga"]
        await system.memory.close()


@side_by_side
async def test_who_waits_is_nudged_once_for_each_time_the_memory_comes_back(lab: Lab) -> None:
    async with lab.bench() as bench:
        ledger = (await bench.system()).ledger
        task, _ = await tasks.accept(ledger, "default", "refund", bench.account, {})

        async def reading(state: str) -> list[str]:
            await watch.set_dependency(ledger, name="memory", kind="memory", state=state, how="asked")
            return await memory_use.workflows_to_nudge(ledger)

        assert await reading("up") == []
        gone = Unavailable(trouble=Trouble.TIMEOUT, words="no answer")
        await memory_use.record(ledger, task_id=task.task_id, step="s", kind="recall", said=gone)
        assert await reading("down") == []
        assert await reading("up") == [task.workflow_id]
        assert await reading("up") == []
        assert await reading("down") == []
        assert await reading("up") == [task.workflow_id]
        said = Empty(memory_id="00000000-0000-0000-0000-000000000001")
        await memory_use.record(ledger, task_id=task.task_id, step="s", kind="recall", said=said)
        assert await reading("down") == await reading("up") == []
        assert await memory_use.answer_of(ledger, task.task_id, "s") == said
        later = await tasks.get(ledger, task.task_id)
        assert later is not None and later.state == "running"


@side_by_side
async def test_a_look_that_tells_the_same_moves_no_since_and_adds_no_event(lab: Lab) -> None:
    async with lab.bench() as bench:
        ledger = (await bench.system()).ledger
        task, _ = await tasks.accept(ledger, "default", "refund", bench.account, {})
        seen = []
        for words in ("no answer", "no answer", "refused"):
            gone = Unavailable(trouble=Trouble.TIMEOUT, words=words)
            await memory_use.record(ledger, task_id=task.task_id, step="s", kind="recall", said=gone)
            (row,) = await bench.rows("task")
            seen.append((row["state"], row["since"]))
        assert seen[0] == seen[1] == seen[2] and seen[0][0] == "held"
        before = ("token.created", "person.added", "contract.registered", "task.accepted")
        kinds = [a["kind"] for a in await bench.rows("audit") if a["kind"] not in before]
        first = ["hold.opened", "task.held", "page.opened", "task.memory_recall"]
        assert kinds == [*first, "hold.reason", "task.memory_recall"]  # the second look said nothing new
        (page,) = await bench.rows("page")
        assert "refused" in page["body"]
