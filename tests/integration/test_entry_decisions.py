"""Decisions, pages and dependencies through the entry's door."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import psycopg

from actonce.ledger import watch
from actonce.ledger.store import Operation
from actonce.stack import Stack
from actonce.testing.waiting import eventually
from tests.integration.entry_bench import QUICK, Bench, bench, contract

TASK = "default/single/h-1"


def body(operation: Operation, action: str, **more: Any) -> dict[str, Any]:
    return {
        "action": action,
        "name": "Ada",
        "reason": "looked at the statement",
        "expected_epoch": operation.epoch,
        "expected_version": operation.version,
        **more,
    }


async def decide(on: Bench, operation: Operation, action: str, **more: Any) -> Any:
    return await on.http.post(
        f"/v1/operations/{operation.operation_id}/decisions", json=body(operation, action, **more)
    )


async def test_retry_and_absent_are_refused_while_the_effect_may_still_happen(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("h-1")
        operation = await on.held(TASK, contract(bounded=True))
        for action in ("permit_one_retry", "mark_absent"):
            refused = await decide(on, operation, action)
            assert refused.status_code == 409, refused.text
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["code"] == "too_early"
            assert datetime.fromisoformat(refused.json()["may_commit_until"]) > datetime.now(UTC)
        record = (await on.http.get(f"/v1/operations/{operation.operation_id}")).json()["records"][0]
        assert record["decisions"] == []
        now = {d["action"]: (d["allowed"], d["code"]) for d in record["decisions_now"]}
        assert now == {
            "mark_committed": (True, None),
            "mark_absent": (False, "too_early"),
            "permit_one_retry": (False, "too_early"),
        }


async def test_decision_is_a_row_before_the_workflow_is_told(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, servers.temporal_address) as on:
        await on.start("h-1")
        operation = await on.held(TASK, contract(bounded=True))
        recorded = await decide(on, operation, "mark_committed", object_id="re_1", evidence="statement line 4")
        assert recorded.status_code == 201 and recorded.json()["workflow_told"] is True
        record = (await on.http.get(f"/v1/operations/{operation.operation_id}")).json()["records"][0]
        assert [(d["decision"], d["name"], d["evidence"]) for d in record["decisions"]] == [
            ("mark_committed", "Ada", "statement line 4")
        ]
        assert {d["code"] for d in record["decisions_now"]} == {"decided"}
        assert on.temporal is not None
        events = [e async for e in on.temporal.get_workflow_handle(TASK).fetch_history_events()]
        told = [e for e in events if e.HasField("workflow_execution_signaled_event_attributes")]
        assert [e.workflow_execution_signaled_event_attributes.signal_name for e in told] == ["actonce.nudge"]
        double = await decide(on, operation, "mark_committed", object_id="re_1")
        assert (double.status_code, double.json()["code"]) == (409, "decided")


async def test_same_press_twice_is_one_decision_and_another_press_is_told_who_was_first(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("h-1")
        operation = await on.held(TASK, contract(bounded=True))
        url = f"/v1/operations/{operation.operation_id}/decisions"
        press = {"Idempotency-Key": "form-1"}
        asked = body(operation, "mark_committed", object_id="re_1")
        both = await asyncio.gather(*(on.http.post(url, json=asked, headers=press) for _ in range(4)))
        assert sorted(a.status_code for a in both) == [200, 200, 200, 201]
        assert len({a.json()["decision_id"] for a in both}) == 1
        assert {a.headers.get("idempotent-replayed") for a in both if a.status_code == 200} == {"true"}
        other = await on.http.post(url, json={**asked, "object_id": "re_2"}, headers=press)
        assert (other.status_code, other.json()["code"]) == (422, "press_reused")
        rival = await on.http.post(url, json={**asked, "name": "Bo"}, headers={"Idempotency-Key": "form-2"})
        assert (rival.status_code, rival.json()["code"]) == (409, "decided")
        assert rival.json()["decided_by"] == "Ada" and "mark_committed by Ada" in rival.json()["detail"]
        malformed = await on.http.post(url, json=asked, headers={"Idempotency-Key": "two words"})
        assert malformed.status_code == 400


async def test_refused_decision_is_on_record_as_a_click(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("h-1")
        operation = await on.held(TASK, contract(bounded=True))
        await decide(on, operation, "mark_committed", object_id="re_1", expected_version=1)
        await decide(on, operation, "permit_one_retry")
        async with await psycopg.AsyncConnection.connect(fresh_dsn) as connection:
            rows = await connection.execute(
                "SELECT operation_id, body ->> 'name', body ->> 'decision', body ->> 'code' FROM actonce.audit"
                " WHERE kind = 'decision.refused' ORDER BY audit_id"
            )
            assert await rows.fetchall() == [
                (operation.operation_id, "Ada", "mark_committed", "stale"),
                (operation.operation_id, "Ada", "permit_one_retry", "too_early"),
            ]


async def test_who_cancelled_stays_on_record_whoever_asks_again(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("h-1")
        await on.dispatched(TASK, contract(bounded=True))
        for name in ("Ada", "Bo"):
            said = await on.http.post(f"/v1/tasks/{TASK}/cancel", json={"name": name, "why": "wrong customer"})
            assert said.status_code == 202, said.text
        task = await on.show(TASK)
        assert (task["cancel_by"], task["cancel_why"]) == ("Ada", "wrong customer")
        assert "asked for by Ada: wrong customer" in task["why"]
        async with await psycopg.AsyncConnection.connect(fresh_dsn) as connection:
            rows = await connection.execute(
                "SELECT body ->> 'cancel_by' FROM actonce.audit WHERE kind = 'task.cancel_requested'"
            )
            assert await rows.fetchall() == [("Ada",)]
        nameless = await on.http.post(f"/v1/tasks/{TASK}/cancel", json={"name": "", "why": "x"})
        assert nameless.status_code == 422


async def test_decision_stands_while_temporal_is_away(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("h-1")
        operation = await on.held(TASK, contract(bounded=True))
        recorded = await decide(on, operation, "mark_committed", object_id="re_1")
        assert recorded.status_code == 201 and recorded.json()["workflow_told"] is False


async def test_unbounded_retry_is_refused_before_reconcile_after_and_then_carries_its_risk(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("h-1")
        early = await on.held(TASK, contract(bounded=False))
        assert (await decide(on, early, "permit_one_retry")).json()["code"] == "too_early"
        await on.start("h-2")
        operation = await on.held("default/single/h-2", contract(bounded=False, timing=QUICK))

        async def allowed() -> Any:
            answer = await decide(on, operation, "permit_one_retry")
            return answer if answer.status_code == 201 else None

        recorded = await eventually(allowed, within_s=5, what="reconcile-after has passed")
        assert "second effect" in recorded.json()["residual_risk"]


async def test_stale_unheld_and_incomplete_decisions_are_refused_by_code(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("h-1")
        operation = await on.held(TASK, contract(bounded=True))
        stale = await decide(on, operation, "mark_committed", object_id="x", expected_version=1)
        nameless = await decide(on, operation, "mark_committed")
        assert [(a.status_code, a.json()["code"]) for a in (stale, nameless)] == [
            (409, "stale"),
            (409, "object_id_missing"),
        ]
        await on.start("h-2")
        sent = await on.dispatched("default/single/h-2", contract(bounded=True))
        not_held = await decide(on, sent.operation, "mark_committed", object_id="x")
        assert (not_held.status_code, not_held.json()["code"]) == (409, "not_held")
        unsigned = await decide(on, operation, "mark_committed", object_id="x", name="")
        invented = await decide(on, operation, "just_do_it")
        assert [a.status_code for a in (unsigned, invented)] == [422, 422]
        url = f"/v1/operations/{operation.operation_id}/decisions"
        broken = await on.http.post(url, content=b"{", headers={"Content-Type": "application/json"})
        assert broken.status_code == 400


async def test_held_task_says_why_and_the_commands_of_the_next_step(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2, temporal_ui_url="http://ui:1/") as on:
        await on.start("h-1")
        operation = await on.held(TASK, contract(bounded=True))
        task = await on.show(TASK)
        assert (task["state"], task["reason"]) == ("held", "not_visible")
        assert f"python -m actonce.client show {operation.operation_id}" in task["what_to_do"]
        assert "procedure: docs/operations/not_visible.md" in task["what_to_do"]
        shown = task["operations"][0]
        assert shown["facts"]["issued"] and not shown["facts"]["committed"] and not shown["facts"]["acknowledged"]
        assert shown["hold"]["reason"] == "not_visible" and "may still commit until" in shown["may_commit"]
        assert task["workflow"]["ui"] == "http://ui:1/namespaces/default/workflows/default%2Fsingle%2Fh-1"
        steps = (await on.http.get(f"/v1/operations/{operation.operation_id}")).json()["records"][0]["what_to_do"]
        assert any("--action mark_committed" in s and f"--expected-version {operation.version}" in s for s in steps)
        assert any(s.startswith("permit_one_retry is refused now (too_early)") for s in steps)


async def test_page_is_listed_and_acknowledged_once(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("h-1")
        await on.held(TASK, contract(bounded=True))
        [page] = (await on.http.get("/v1/pages")).json()
        assert page["reason"] == "not_visible" and page["acknowledged_by"] is None
        for name in ("Ada", "Grace"):
            answer = await on.http.post(f"/v1/pages/{page['page_id']}/acknowledge", json={"name": name})
            assert answer.status_code == 200 and answer.json()["acknowledged_by"] == "Ada"
        [page] = (await on.http.get("/v1/pages")).json()
        assert page["acknowledged_by"] == "Ada" and page["closed_at"] is None


async def test_old_reading_is_stale_and_never_up(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, stale_after_s=5, start_deadline_s=0.2) as on:
        assert (await on.http.get("/dependencies")).json()["state"] == "unknown"
        await watch.set_dependency(on.ledger, name="temporal", kind="temporal", state="up", how="asked it")
        fresh = (await on.http.get("/dependencies")).json()
        assert (fresh["state"], fresh["dependencies"][0]["state"]) == ("up", "up")
        async with on.ledger.transaction() as connection:
            await connection.execute("UPDATE actonce.dependency SET checked_at = checked_at - interval '6 seconds'")
        stale = (await on.http.get("/dependencies")).json()
        assert stale["state"] == "unknown"
        assert (stale["dependencies"][0]["state"], stale["dependencies"][0]["last_reading"]) == ("stale", "up")


async def test_queued_tells_with_and_without_anyone_working(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, servers.temporal_address, task_queue="q") as on:
        unknown = (await on.start("w-1")).json()
        assert (unknown["state"], unknown["working"]) == ("queued", "unknown")
        for state, working, words in (("down", "no", "nobody is working"), ("up", "yes", "workers were there")):
            await watch.set_dependency(on.ledger, name="pollers:q", kind="pollers", state=state, how="asked Temporal")
            task = await on.show("default/single/w-1")
            assert task["working"] == working and words in task["why"]


async def test_lost_ledger_is_a_503_with_retry_after_and_shown_as_down(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("k")
        await watch.set_dependency(on.ledger, name="ledger", kind="ledger", state="up", how="wrote and read")
        await on.http.get("/dependencies")
        on.ledger.deadline_s = 0.5
        name = fresh_dsn.rsplit("/", 1)[1]
        admin = fresh_dsn.rsplit("/", 1)[0] + "/postgres"
        async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as connection:
            await connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')  # type: ignore[call-overload]
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )
        answer = await on.start("k")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        assert int(answer.headers["Retry-After"]) >= 1 and "same key" in answer.json()["detail"]
        found = (await on.http.get("/dependencies")).json()
        assert found["state"] == "down"
        assert [(d["name"], d["state"]) for d in found["dependencies"]] == [("ledger", "down")]
        assert (await on.http.get("/health")).json()["status"] == "ok"
