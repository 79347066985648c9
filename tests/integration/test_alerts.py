"""Alerts on a real ledger: they fire after their time, page once, outlive the evaluator, and end with their cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import psycopg
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from actonce.contracts.errors import LedgerUnavailable
from actonce.contracts.verdict import Reason
from actonce.health.evaluator import Evaluator
from actonce.health.exposition import own_metrics, serving
from actonce.health.metrics import METRICS, Collector
from actonce.health.rules import Rule, load_rules
from actonce.health.turns import Turns
from actonce.ledger import alerts, listing, pages, records, watch
from actonce.ledger.alerts import Seen
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger, many
from tests.integration.entry_bench import bench, contract

RULES = {rule.name: rule for rule in load_rules()}


@pytest_asyncio.fixture
async def ledger(fresh_dsn: str) -> AsyncIterator[Ledger]:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as opened:
        yield opened


def evaluator(ledger: Ledger, *rules: Rule) -> Evaluator:
    return Evaluator(Collector(ledger), rules)


def at_once(name: str) -> Rule:
    return replace(RULES[name], for_s=0.0)


async def queue(ledger: Ledger, state: str) -> None:
    await watch.set_dependency(ledger, name="pollers:q", kind="pollers", state=state, how="asked Temporal")


async def back(ledger: Ledger, table: str, column: str, seconds: float) -> None:
    """As if it had begun so much earlier."""
    async with ledger.transaction() as connection:
        await connection.execute(
            f"UPDATE actonce.{table} SET {column} = {column} - make_interval(secs => %s)",  # type: ignore[arg-type]
            (seconds,),
        )


async def states(ledger: Ledger) -> dict[str, str]:
    return {row["incident"]: row["state"] for row in await alerts.listing(ledger, resolved=True)}


NOBODY = "alert:NobodyWorks:task_queue=q"


async def test_alert_is_pending_for_its_time_then_fires_with_one_page_and_is_closed_when_it_is_over(
    ledger: Ledger,
) -> None:
    await queue(ledger, "down")
    await evaluator(ledger, RULES["NobodyWorks"]).evaluate_once()
    assert await states(ledger) == {NOBODY: "pending"} and await listing.pages(ledger) == []
    await back(ledger, "alert", "since", 61)
    for _ in range(3):  # another evaluator each time: nothing of it lives in a process
        await evaluator(ledger, RULES["NobodyWorks"]).evaluate_once()
    [page] = await listing.pages(ledger)
    assert (page["incident"], page["reason"], page["severity"], page["seen_again"]) == (
        NOBODY,
        "nobody_works",
        "page",
        0,
    )
    assert "docs/operations/nobody_works.md" in page["body"] and "task queue q" in page["title"]
    await queue(ledger, "up")
    await evaluator(ledger, RULES["NobodyWorks"]).evaluate_once()
    assert await states(ledger) == {NOBODY: "resolved"} and await listing.pages(ledger) == []
    async with ledger.transaction() as connection:
        events = await many(connection, "SELECT kind FROM actonce.audit WHERE kind LIKE 'alert.%' ORDER BY audit_id")
    assert [row["kind"] for row in events] == ["alert.firing", "alert.resolved"]


async def test_what_comes_again_waits_again_and_has_a_page_of_its_own(ledger: Ledger) -> None:
    evaluate = evaluator(ledger, RULES["NobodyWorks"])
    for number in (1, 2):
        await queue(ledger, "down")
        await evaluate.evaluate_once()
        assert await states(ledger) == {NOBODY: "pending"}
        await back(ledger, "alert", "since", 61)
        await evaluate.evaluate_once()
        [row] = await alerts.listing(ledger)
        assert (row["state"], row["firings"], row["resolved_at"]) == ("firing", number, None)
        await queue(ledger, "up")
        await evaluate.evaluate_once()
    assert len(await listing.pages(ledger, open_only=False)) == 2


async def test_condition_that_passes_before_its_time_pages_nobody(ledger: Ledger) -> None:
    evaluate = evaluator(ledger, RULES["NobodyWorks"])
    await queue(ledger, "down")
    await evaluate.evaluate_once()
    await queue(ledger, "up")
    await evaluate.evaluate_once()
    assert await states(ledger) == {NOBODY: "resolved"}
    assert await listing.pages(ledger, open_only=False) == []


async def test_two_evaluators_at_once_fire_once(ledger: Ledger) -> None:
    await queue(ledger, "down")
    await asyncio.gather(*(evaluator(ledger, at_once("NobodyWorks")).evaluate_once() for _ in range(6)))
    [page] = await listing.pages(ledger, open_only=False)
    assert page["seen_again"] == 0 and (await alerts.listing(ledger))[0]["firings"] == 1


async def test_collection_that_fails_resolves_nothing(ledger: Ledger) -> None:
    await queue(ledger, "down")
    await evaluator(ledger, at_once("NobodyWorks")).evaluate_once()
    async with Ledger("postgresql://nobody@127.0.0.1:1/none", deadline_s=0.5) as broken:
        blind = Evaluator(Collector(broken), [at_once("NobodyWorks")])
        with pytest.raises(LedgerUnavailable):
            await blind.evaluate_once()
    assert await states(ledger) == {NOBODY: "firing"}


async def test_old_reading_that_was_bad_keeps_its_alert_and_one_that_was_good_makes_none(ledger: Ledger) -> None:
    await queue(ledger, "down")
    await evaluator(ledger, at_once("NobodyWorks")).evaluate_once()
    await back(ledger, "dependency", "checked_at", 3600)
    await evaluator(ledger, at_once("NobodyWorks")).evaluate_once()
    assert await states(ledger) == {NOBODY: "firing"}


async def test_rule_that_is_taken_away_ends_its_alert(ledger: Ledger) -> None:
    await queue(ledger, "down")
    await evaluator(ledger, at_once("NobodyWorks")).evaluate_once()
    await evaluator(ledger).evaluate_once()
    assert await states(ledger) == {NOBODY: "resolved"}


async def test_firing_and_its_page_are_one_transaction(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(pages, "open_page", breaks)
        with pytest.raises(LedgerUnavailable):
            await alerts.record(ledger, [Seen("X", {}, Reason.BACKLOG, 1.0, 0.0, "s", "d")])
    assert await states(ledger) == {}
    fired, _ = await alerts.record(ledger, [Seen("X", {}, Reason.BACKLOG, 1.0, 0.0, "s", "d")])
    assert fired == ["alert:X:"]


async def test_every_shipped_rule_can_be_evaluated_on_an_empty_ledger_and_finds_nothing(ledger: Ledger) -> None:
    await evaluator(ledger, *RULES.values()).evaluate_once()
    assert await states(ledger) == {}
    assert set(await Collector(ledger).collect()) == {spec.name for spec in METRICS}


async def test_what_is_in_the_ledger_is_in_the_metrics(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2, task_queue="q") as on:
        await on.start("h-1")
        await queue(on.ledger, "down")
        await on.start("h-2")
        operation = await on.held("default/single/h-1", contract(bounded=True))
        for table, column in (("hold", "opened_at"), ("page", "opened_at"), ("task", "created_at")):
            await back(on.ledger, table, column, 20_000)
        found = await Collector(on.ledger).collect()

        def value(name: str, **labels: str) -> float:
            [sample] = [s for s in found[name] if dict(s.labels) == labels]
            return sample.value

        assert value("actonce_holds", reason="not_visible") == 1
        assert value("actonce_holds_oldest_age_seconds", reason="not_visible") > 14_400
        assert value("actonce_pages_unacknowledged", severity="page") == 1
        assert value("actonce_pages_unacknowledged_oldest_age_seconds", severity="page") > 1800
        assert value("actonce_operations_unresolved", destination=operation.destination, state="held") == 1
        assert value("actonce_permits_total", destination=operation.destination) == 1
        assert value("actonce_tasks_open", task_type="single", state="held") == 1
        assert value("actonce_backlog_tasks", task_type="single") >= 1
        assert value("actonce_backlog_oldest_age_seconds", task_type="single") > 900
        await evaluator(on.ledger, at_once("HoldOld"), at_once("NobodyAnswers"), at_once("BacklogOld")).evaluate_once()
        firing = {row["name"] for row in await alerts.listing(on.ledger) if row["state"] == "firing"}
        assert firing == {"HoldOld", "NobodyAnswers", "BacklogOld"}


async def test_unanswered_page_about_unanswered_pages_does_not_keep_itself_alive(ledger: Ledger) -> None:
    async with ledger.transaction() as connection:
        await pages.open_page(connection, incident="operation:x", reason="not_visible", title="held", body="Do: …")
    await back(ledger, "page", "opened_at", 3600)
    await evaluator(ledger, at_once("NobodyAnswers")).evaluate_once()
    [about, page] = await listing.pages(ledger)
    assert about["reason"] == "nobody_answers"
    await back(ledger, "page", "opened_at", 3600)
    await watch.acknowledge_page(ledger, page["page_id"], "Ada")
    await evaluator(ledger, at_once("NobodyAnswers")).evaluate_once()
    assert [row["incident"] for row in await listing.pages(ledger)] == ["operation:x"]


async def test_operation_past_its_time_that_nobody_settles_is_overdue(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("h-1")
        await on.dispatched("default/single/h-1", contract(bounded=True))
        await evaluator(on.ledger, at_once("OperationsOverdue")).evaluate_once()
        assert await states(on.ledger) == {}
        async with on.ledger.transaction() as connection:
            await connection.execute(
                "UPDATE actonce.operation SET decide_at = clock_timestamp() - interval '10 minutes',"
                " reconcile_at = clock_timestamp() - interval '11 minutes'"
            )
        await evaluator(on.ledger, at_once("OperationsOverdue")).evaluate_once()
        assert set((await states(on.ledger)).values()) == {"firing"}


async def test_metrics_are_served_and_a_lost_ledger_is_said(ledger: Ledger, fresh_dsn: str) -> None:
    await queue(ledger, "up")
    with serving(Collector(ledger), "127.0.0.1", 0) as url:
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(url)
            read = {f.name: f for f in text_string_to_metric_families(answer.text)}
            assert read["actonce_ledger_readable"].samples[0].value == 1
            assert read["actonce_task_queue_polled"].samples[0].labels == {"task_queue": "q"}
            assert (await own_metrics(url)).state == "up"
            await asyncio.gather(*(http.get(url) for _ in range(8)))
            ledger.dsn, ledger.deadline_s = "postgresql://nobody@127.0.0.1:1/none", 0.5
            admin = fresh_dsn.rsplit("/", 1)[0] + "/postgres"
            name = fresh_dsn.rsplit("/", 1)[1]
            async with await psycopg.AsyncConnection.connect(admin, autocommit=True) as connection:
                await connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')  # type: ignore[call-overload]
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
                )
            lost = await http.get(url, timeout=20)
            assert "actonce_ledger_readable 0.0" in lost.text and "actonce_task_queue_polled" not in lost.text
            assert (await own_metrics(url)).state == "down"
    with pytest.raises(httpx.ConnectError):
        await own_metrics(url)


async def test_loop_that_fails_is_down_and_one_that_stands_still_is_overdue(ledger: Ledger) -> None:
    turns, fails = Turns(ledger), [False]

    async def act() -> None:
        if fails[0]:
            raise ZeroDivisionError("a defect")

    turn = turns.watched("watcher", 1.0, act)
    await turn()
    shown = {r["name"]: r for r in await records.list_dependencies(ledger)}
    assert (shown["watch:watcher"]["state"], shown["watch:watcher"]["kind"]) == ("up", "watch")
    fails[0] = True
    with pytest.raises(ZeroDivisionError):
        await turn()
    [row] = await records.list_dependencies(ledger)
    assert (row["state"], row["detail"]) == ("down", "ZeroDivisionError: a defect")
    fails[0] = False
    await turn()
    await evaluator(ledger, at_once("WatchStalled")).evaluate_once()
    assert await states(ledger) == {}
    await back(ledger, "dependency", "checked_at", 90)  # it hangs: nothing is written any more
    await evaluator(ledger, at_once("WatchStalled")).evaluate_once()
    assert await states(ledger) == {"alert:WatchStalled:loop=watcher": "firing"}


async def test_entry_tells_alerts_and_whether_they_are_evaluated(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, start_deadline_s=0.2, stale_after_s=5) as on:
        never = (await on.http.get("/v1/alerts")).json()
        assert (never["evaluated"], never["alerts"]) == ("never", []) and never["what_to_do"]
        await queue(on.ledger, "down")
        turn = Turns(on.ledger).watched("evaluator", 5.0, evaluator(on.ledger, at_once("NobodyWorks")).evaluate_once)
        await turn()
        current = (await on.http.get("/v1/alerts")).json()
        [one] = current["alerts"]
        assert (current["evaluated"], one["state"], one["reason"]) == ("current", "firing", "nobody_works")
        assert one["procedure"] == "docs/operations/nobody_works.md" and one["value"] == 0
        await back(on.ledger, "dependency", "checked_at", 6)  # it has a pause of 5 s, and 5 s are believed
        assert (await on.http.get("/v1/alerts")).json()["evaluated"] == "current"
        await back(on.ledger, "dependency", "checked_at", 6)
        assert (await on.http.get("/v1/alerts")).json()["evaluated"] == "stale"
        await queue(on.ledger, "up")
        await evaluator(on.ledger, at_once("NobodyWorks")).evaluate_once()
        assert (await on.http.get("/v1/alerts")).json()["alerts"] == []
        over = (await on.http.get("/v1/alerts", params={"all": "true"})).json()["alerts"]
        assert [(one["state"], one["firings"]) for one in over] == [("resolved", 1)]


async def test_reading_of_what_was_taken_away_is_forgotten(ledger: Ledger) -> None:
    await queue(ledger, "up")
    await watch.set_dependency(ledger, name="page:old", kind="paging", state="up", how="…")
    await back(ledger, "dependency", "checked_at", 90_000)
    await queue(ledger, "up")
    await watch.forget_dependencies(ledger, 86_400)
    assert [r["name"] for r in await records.list_dependencies(ledger)] == ["pollers:q"]
