"""The entry accepts a task once, whoever starts it, and replays its stored outcome (cases a9, c8)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from actonce.contracts.messages import TaskReport
from actonce.ledger import outcomes, tasks
from actonce.stack import Stack
from actonce.testing.waiting import eventually
from tests.integration.entry_bench import Bench, bench, contract

PROBLEM = "application/problem+json"


async def gone(client: Client, handle: WorkflowHandle[Any, Any]) -> bool:
    try:
        await handle.describe()
    except RPCError as error:
        return error.status is RPCStatusCode.NOT_FOUND
    return False


async def purge(client: Client, workflow_id: str) -> None:
    """What retention does: Temporal forgets the workflow (in 0.4 s; once it is closed, only after 90 s)."""
    await client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=client.namespace, workflow_execution=WorkflowExecution(workflow_id=workflow_id)
        )
    )
    handle = client.get_workflow_handle(workflow_id)
    await eventually(lambda: gone(client, handle), within_s=20, what=f"{workflow_id} deleted")


async def store_outcome(on: Bench, task_id: str) -> None:
    await tasks.report(on.ledger, TaskReport(task_id=task_id, state="complete", summary="refunded"))


async def test_twenty_starts_at_once_are_one_task_and_one_workflow(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, servers.temporal_address) as on:
        answers = await asyncio.gather(*(on.start("rf-1") for _ in range(20)))
        assert {a.status_code for a in answers} == {202}
        assert {a.json()["task_id"] for a in answers} == {"default/single/rf-1"}
        assert on.temporal is not None
        handle = on.temporal.get_workflow_handle("default/single/rf-1")
        assert len([e async for e in handle.fetch_history_events() if e.event_type == 1]) == 1
        async with on.ledger.transaction() as connection:
            rows = await (
                await connection.execute("SELECT kind FROM actonce.audit WHERE kind LIKE 'task.%'")
            ).fetchall()
        assert [row["kind"] for row in rows] == ["task.accepted", "task.released"]


async def test_schedule_and_person_start_the_same_business_operation(servers: Stack, fresh_dsn: str) -> None:
    """case a9: same key from two callers, rendered differently: one task, and the second gets the first's outcome."""
    async with bench(fresh_dsn, servers.temporal_address) as on:
        by_schedule = await on.start("inv-7", {"amount_minor": 5, "currency": "EUR"})
        by_person = await on.http.post(
            "/v1/tasks/single",
            content=b'{ "currency" : "EUR",\n "amount_minor": 5 }',
            headers={"Idempotency-Key": '"inv-7"'},
        )
        assert by_schedule.json()["task_id"] == by_person.json()["task_id"]
        await store_outcome(on, "default/single/inv-7")
        again = await on.start("inv-7", {"amount_minor": 5, "currency": "EUR"})
        assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")
        assert again.json()["outcome"]["summary"] == "refunded"


async def test_start_while_running_attaches(servers: Stack, fresh_dsn: str) -> None:
    """case c8, running."""
    async with bench(fresh_dsn, servers.temporal_address) as on:
        first = await on.start("run-1")
        assert on.temporal is not None
        before = await on.temporal.get_workflow_handle("default/single/run-1").describe()
        second = await on.start("run-1")
        after = await on.temporal.get_workflow_handle("default/single/run-1").describe()
        assert (first.status_code, second.status_code) == (202, 202)
        assert before.run_id == after.run_id
        assert "Idempotent-Replayed" not in second.headers


@pytest.mark.parametrize("purged", [False, True])
async def test_start_after_completion_replays_the_stored_outcome(servers: Stack, fresh_dsn: str, purged: bool) -> None:
    """case c8: after completion, and after Temporal's retention. Never a second run, never failed."""
    async with bench(fresh_dsn, servers.temporal_address) as on:
        key = f"done-{purged}"
        await on.start(key)
        task_id = f"default/single/{key}"
        await store_outcome(on, task_id)
        assert on.temporal is not None
        if purged:
            await purge(on.temporal, task_id)
        else:
            await on.temporal.get_workflow_handle(task_id).terminate("stands for completion")
        replay = await on.start(key)
        assert (replay.status_code, replay.headers["Idempotent-Replayed"]) == (200, "true")
        shown = await on.show(task_id)
        assert replay.json()["state"] == shown["state"] == "complete"
        assert shown["outcome"]["summary"] == "refunded"
        assert shown["workflow"]["status"] == ("not_found" if purged else "TERMINATED")
        if purged:
            assert await gone(on.temporal, on.temporal.get_workflow_handle(task_id))


async def test_terminated_behind_our_back_is_told_and_starts_again_by_the_same_id(
    servers: Stack, fresh_dsn: str
) -> None:
    """case c2: terminate + start again with the same business id is the same task."""
    async with bench(fresh_dsn, servers.temporal_address) as on:
        await on.start("term-1")
        assert on.temporal is not None
        handle = on.temporal.get_workflow_handle("default/single/term-1")
        first = await handle.describe()
        await handle.terminate()
        shown = await on.show("default/single/term-1")
        assert (shown["state"], shown["reason"]) == ("held", "orphaned") and "TERMINATED" in shown["why"]
        again = await on.start("term-1")
        assert again.status_code == 202
        second = await on.temporal.get_workflow_handle("default/single/term-1").describe()
        assert second.run_id != first.run_id and second.status is not None and second.status.name == "RUNNING"
        assert (await on.show("default/single/term-1"))["state"] == "queued"


async def listed(on: Bench, task_id: str) -> tuple[str, str | None]:
    """(state, reason) in the list."""
    (task,) = [t for t in (await on.http.get("/v1/tasks")).json() if t["task_id"] == task_id]
    return task["state"], task["reason"]


@pytest.mark.parametrize("purged", [False, True])
async def test_a_task_whose_workflow_is_gone_is_held_in_the_list_and_paged_once(
    servers: Stack, fresh_dsn: str, purged: bool
) -> None:
    """SPEC 2.10: it has no operation at all, and nobody would ever work on it again."""
    task_id = f"default/single/gone-{purged}"
    async with bench(fresh_dsn, servers.temporal_address) as on:
        await on.start(f"gone-{purged}")
        assert on.temporal is not None
        if purged:
            await purge(on.temporal, task_id)
        else:
            await on.temporal.get_workflow_handle(task_id).terminate("behind our back")

        async def missed() -> bool:
            return await listed(on, task_id) == ("held", "orphaned")

        await eventually(missed, within_s=10, what="the task held")
        assert await on.starter.look_for_workflows() == 0
        (page,) = (await on.http.get("/v1/pages")).json()
        assert (page["reason"], page["task_id"], page["operation_id"]) == ("orphaned", task_id, None)
        assert (page["seen_again"], page["closed_at"]) == (0, None)
        assert (await on.show(task_id))["what_to_do"][-1].startswith(
            "python -m actonce.client start single --key gone-"
        )
        assert (await on.start(f"gone-{purged}")).status_code == 202
        assert await listed(on, task_id) == ("queued", None)
        assert await on.starter.look_for_workflows() == 0
        rows = (await on.http.get("/v1/pages", params={"all": True})).json()
        assert all(row["closed_at"] is not None for row in rows)


async def test_a_namespace_that_the_server_does_not_know_is_no_word_about_a_workflow(
    servers: Stack, fresh_dsn: str
) -> None:
    """A server that is just being set up would else make every task look lost."""
    async with bench(fresh_dsn, servers.temporal_address) as on:
        await on.start("elsewhere")
        on.starter._client = await Client.connect(str(servers.temporal_address), namespace="nobody-made-this")
        run = await on.starter.describe("default/single/elsewhere")
        assert (run.status, run.why_not, run.gone) == (None, "unreachable", None)
        await on.starter.look_for_workflows()
        assert await listed(on, "default/single/elsewhere") == ("queued", None)


async def test_a_finished_task_is_not_missed_and_a_cancelled_one_ends(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, servers.temporal_address) as on:
        assert on.temporal is not None
        for key in ("done-9", "lost-9"):
            await on.start(key)
        await store_outcome(on, "default/single/done-9")
        for key in ("done-9", "lost-9"):
            await on.temporal.get_workflow_handle(f"default/single/{key}").terminate()

        async def missed() -> bool:
            return await listed(on, "default/single/lost-9") == ("held", "orphaned")

        await eventually(missed, within_s=10, what="the task held")
        assert await listed(on, "default/single/done-9") == ("complete", None)
        await on.http.post("/v1/tasks/default/single/lost-9/cancel")

        async def ended() -> bool:
            return (await listed(on, "default/single/lost-9"))[0] == "cancelled"

        await eventually(ended, within_s=10, what="the cancelled task ended")
        rows = (await on.http.get("/v1/pages", params={"all": True})).json()
        assert [(row["task_id"], row["closed_at"] is None) for row in rows] in ([], [("default/single/lost-9", False)])


async def test_accepts_while_temporal_is_down_and_starts_when_it_is_back(tmp_path: Path, fresh_dsn: str) -> None:
    async with Stack.open(tmp_path, {"temporal"}) as stack:
        await stack.part("temporal").kill()
        async with bench(fresh_dsn, None, start_deadline_s=1.0) as off:
            answer = await off.start("early")
            assert answer.status_code == 202
            task = answer.json()
            assert task["state"] == "queued" and "Temporal has not taken it yet" in task["why"]
            assert (await off.start("early")).json()["task_id"] == task["task_id"]
        await stack.part("temporal").start()
        async with bench(fresh_dsn, stack.temporal_address) as on:
            stored = await eventually(lambda: _recorded(on, "default/single/early"), within_s=20, what="started")
            assert stored.state == "queued"
            assert on.temporal is not None
            assert (await on.temporal.get_workflow_handle("default/single/early").describe()).run_id


async def test_outage_of_temporal_under_a_living_entry_delays_and_loses_nothing(tmp_path: Path, fresh_dsn: str) -> None:
    async with Stack.open(tmp_path, {"temporal"}) as stack, bench(fresh_dsn, stack.temporal_address) as on:
        await on.start("before")
        await stack.part("temporal").kill()
        answers = [await on.start(f"during-{n}") for n in range(5)]
        assert [a.status_code for a in answers] == [202] * 5
        assert on.starter.away is not None
        await stack.part("temporal").start()
        for n in range(5):
            await eventually(lambda n=n: _recorded(on, f"default/single/during-{n}"), within_s=30, what="started")
        assert on.temporal is not None
        for n in range(5):
            assert (await on.temporal.get_workflow_handle(f"default/single/during-{n}").describe()).run_id


async def _recorded(on: Bench, task_id: str) -> tasks.Task | None:
    task = await tasks.get(on.ledger, task_id)
    return task if task and task.recorded else None


async def insert_first(connection: psycopg.AsyncConnection[Any], digest: str) -> None:
    """What the very first request does, up to its commit."""
    await connection.execute(
        "INSERT INTO actonce.task (task_id, tenant, task_type, task_key, workflow_id, payload, payload_digest) VALUES"
        " ('default/single/k', 'default', 'single', 'k', 'default/single/k', '{\"amount_minor\": 9}', %s)",
        (digest,),
    )


@pytest.mark.parametrize("ends_by", ["commit", "rollback"])
async def test_409_only_while_the_very_first_request_is_being_recorded(fresh_dsn: str, ends_by: str) -> None:
    async with bench(fresh_dsn, None, recording_wait_s=0.2) as on:
        digest = (await on.start("other", {"amount_minor": 9})).json()["payload_digest"]
        async with await psycopg.AsyncConnection.connect(fresh_dsn) as first:
            await insert_first(first, digest)
            refused = await on.start("k", {"amount_minor": 9})
            assert (refused.status_code, refused.headers["content-type"]) == (409, PROBLEM)
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["type"] == "urn:actonce:problem:still-recording"
            await (first.commit() if ends_by == "commit" else first.rollback())
        after = await on.start("k", {"amount_minor": 9})
        assert after.status_code == 202
        assert len((await on.http.get("/v1/tasks")).json()) == 2


async def test_second_request_waits_for_the_first_ones_commit(fresh_dsn: str) -> None:
    """No 409 when the first request is recorded within the wait: the second attaches."""
    async with bench(fresh_dsn, None, recording_wait_s=10, start_deadline_s=0.2) as on:
        digest = (await on.start("other", {"amount_minor": 9})).json()["payload_digest"]
        async with await psycopg.AsyncConnection.connect(fresh_dsn) as first:
            await insert_first(first, digest)
            second = asyncio.create_task(on.start("k", {"amount_minor": 9}))
            await eventually(lambda: _somebody_waits(fresh_dsn), within_s=5, what="the second request waits")
            await first.commit()
        assert (await second).status_code == 202


async def _somebody_waits(dsn: str) -> bool:
    async with await psycopg.AsyncConnection.connect(dsn) as look:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        row = await (await look.execute(query)).fetchone()
        return row is not None and row[0] > 0


async def test_same_key_with_another_payload_is_422(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None) as on:
        await on.start("k", {"amount_minor": 1})
        other = await on.start("k", {"amount_minor": 2})
        assert (other.status_code, other.headers["content-type"]) == (422, PROBLEM)
        assert other.json()["type"] == "urn:actonce:problem:payload-differs"
        assert (await on.start("k", {"amount_minor": 1})).status_code == 202


@pytest.mark.parametrize(
    ("headers", "content", "status", "type_"),
    [
        ({}, b"{}", 400, "idempotency-key-missing"),
        ({"Idempotency-Key": " "}, b"{}", 400, "idempotency-key-missing"),
        ({"Idempotency-Key": "a b"}, b"{}", 400, "idempotency-key-malformed"),
        ({"Idempotency-Key": '""'}, b"{}", 400, "idempotency-key-malformed"),
        ({"Idempotency-Key": "k" * 201}, b"{}", 400, "idempotency-key-malformed"),
        ({"Idempotency-Key": "k", "Actonce-Tenant": "a/b"}, b"{}", 400, "tenant-malformed"),
        ({"Idempotency-Key": "k"}, b"", 400, "not-json"),
        ({"Idempotency-Key": "k"}, b"{", 400, "not-json"),
        ({"Idempotency-Key": "k"}, b'{"a": 1, "a": 2}', 400, "not-json"),
        ({"Idempotency-Key": "k"}, b'{"a": NaN}', 400, "not-json"),
        ({"Idempotency-Key": "k"}, b'{"a": "\xff"}', 400, "not-json"),
        ({"Idempotency-Key": "k"}, b"[" * 100_000, 400, "not-json"),
        ({"Idempotency-Key": "k"}, b"[1]", 422, "payload-is-no-object"),
        ({"Idempotency-Key": "k"}, b'{"amount": 1.5}', 422, "payload-has-no-digest"),
        ({"Idempotency-Key": "k"}, b'{"a": "\\u0000"}', 422, "payload-has-no-digest"),
        ({"Idempotency-Key": "k"}, b'{"a": "\\ud800"}', 422, "payload-has-no-digest"),
        ({"Idempotency-Key": "k"}, b'{"a": "' + b"x" * 70_000 + b'"}', 422, "payload-has-no-digest"),
        ({"Idempotency-Key": "k"}, b'{"a": "' + b"x" * 200_000 + b'"}', 413, None),
    ],
)
async def test_what_cannot_be_accepted_is_a_problem_and_leaves_no_task(
    fresh_dsn: str, headers: dict[str, str], content: bytes, status: int, type_: str | None
) -> None:
    async with bench(fresh_dsn, None) as on:
        answer = await on.http.post("/v1/tasks/single", content=content, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text
        assert answer.json()["status"] == status and answer.json()["title"]
        if type_:
            assert answer.json()["type"] == f"urn:actonce:problem:{type_}" and answer.json()["detail"]
        assert (await on.http.get("/v1/tasks")).json() == []


async def test_unknown_type_task_operation_and_page_are_404_problems(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None) as on:
        answers = [
            await on.http.post("/v1/tasks/nothing", json={}, headers={"Idempotency-Key": "k"}),
            await on.http.get("/v1/tasks/default/single/none"),
            await on.http.post("/v1/tasks/default/single/none/cancel"),
            await on.http.get("/v1/operations/op1_none"),
            await on.http.post("/v1/pages/1/acknowledge", json={"name": "Ada"}),
            await on.http.get("/nowhere"),
        ]
        assert [(a.status_code, a.headers["content-type"]) for a in answers] == [(404, PROBLEM)] * 6


@pytest.mark.parametrize("key", ["a/b", "../up", "x/cancel", "100%", "q?a=1#f", "ключ".encode().hex(), "a//b"])
async def test_any_key_can_be_shown_again(fresh_dsn: str, key: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        answer = await on.start(key)
        shown = await on.http.get(answer.headers["Location"])
        assert shown.json()["task_key"] == key


async def test_tenants_with_one_key_have_two_tasks(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        one = await on.start("k", **{"Actonce-Tenant": "north"})
        two = await on.start("k", {"amount_minor": 2}, **{"Actonce-Tenant": "south"})
        assert (one.json()["task_id"], two.json()["task_id"]) == ("north/single/k", "south/single/k")
        assert [t["tenant"] for t in (await on.http.get("/v1/tasks?tenant=north")).json()] == ["north"]


async def test_cancel_voids_the_unused_permit_and_names_what_may_have_been_sent(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, servers.temporal_address) as on:
        await on.start("c-1")
        await on.start("c-2")
        sent = await on.dispatched("default/single/c-1", contract(bounded=True))
        unused = await on.dispatched("default/single/c-2", contract(bounded=True))
        await outcomes.record_loss(on.ledger, unused, "not_sent", "connection refused")
        in_flight = (await on.http.post("/v1/tasks/default/single/c-1/cancel")).json()
        assert in_flight["in_flight"] == [sent.operation.operation_id] and in_flight["workflow_told"]
        voided = (await on.http.post("/v1/tasks/default/single/c-2/cancel")).json()
        assert voided["in_flight"] == []
        assert (await on.show("default/single/c-2"))["operations"][0]["state"] == "closed"
        shown = await on.show("default/single/c-1")
        assert shown["cancel_requested"] and sent.operation.operation_id in shown["why"]
        assert on.temporal is not None
        events = on.temporal.get_workflow_handle("default/single/c-1").fetch_history_events()
        assert [e async for e in events if e.HasField("workflow_execution_cancel_requested_event_attributes")]


async def test_cancel_of_a_task_that_never_started_ends_it(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.3) as off:
        await off.start("never")
        cancelled = await off.http.post("/v1/tasks/default/single/never/cancel")
        assert cancelled.status_code == 202 and cancelled.json()["workflow_told"] is False
    async with bench(fresh_dsn, servers.temporal_address) as on:
        task = await eventually(lambda: _ended(on, "default/single/never"), within_s=10, what="cancelled")
        assert task.state == "cancelled" and "nothing was sent" in (task.detail or "")
        again = await on.http.post("/v1/tasks/default/single/never/cancel")
        assert (again.status_code, again.json()["state"]) == (200, "cancelled")


async def _ended(on: Bench, task_id: str) -> tasks.Task | None:
    task = await tasks.get(on.ledger, task_id)
    return task if task and task.outcome else None


async def test_task_that_temporal_refuses_says_why_and_holds_up_no_other(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as off:
        for number in range(3):
            await tasks.accept(off.ledger, "default", "retired", f"old-{number}", {"n": number})
        await off.start("good")
    async with bench(fresh_dsn, servers.temporal_address) as on:
        await eventually(lambda: _recorded(on, "default/single/good"), within_s=10, what="the good one is started")
        shown = await on.show("default/retired/old-0")
        assert shown["state"] == "queued" and "ACTONCE_TASK_TYPES" in shown["why"]
