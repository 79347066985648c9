"""The backlog and its release: bounded, oldest first, by rate and window, paused and not while nobody works."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from actonce.contracts.errors import BacklogFull
from actonce.ledger import release, tasks, watch
from actonce.ledger.store import Ledger
from actonce.stack import Stack
from actonce.testing.waiting import eventually
from tests.integration.entry_bench import Bench, bench

QUEUE = "release-tests"  # nobody polls it


async def nobody_works(on: Bench, state: str = "down") -> None:
    await watch.set_dependency(on.ledger, name=f"pollers:{QUEUE}", kind="pollers", state=state, how="a test says so")


async def released(on: Bench) -> list[str]:
    """Task keys in the order in which they were released."""
    async with on.ledger.transaction() as connection:
        rows = await (
            await connection.execute(
                "SELECT task_key FROM actonce.task WHERE released_at IS NOT NULL ORDER BY released_at, created_at"
            )
        ).fetchall()
    return [row["task_key"] for row in rows]


async def change(on: Bench, expected: int, **more: Any) -> Any:
    body = {"expected_version": expected, "name": "Ada", "why": "after the repair", **more}
    return await on.http.post("/v1/release/single", json=body)


async def standing(on: Bench) -> dict[str, Any]:
    found = (await on.http.get("/v1/release")).json()
    return next(one for one in found if one["task_type"] == "single")


async def test_tasks_wait_in_the_ledger_while_nobody_works_and_go_oldest_first(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, servers.temporal_address, task_queue=QUEUE, start_again_s=0.05) as on:
        await nobody_works(on)
        for number in range(5):
            shown = (await on.start(f"k{number}")).json()
            assert shown["state"] == "queued" and shown["ahead"] == number
            assert "nobody asks for work" in shown["why"]
        await on.starter.start_accepted()
        assert await released(on) == []
        assert (await standing(on))["backlog"] == 5
        await nobody_works(on, "up")
        await eventually(lambda: _count(on, 5), within_s=10, what="all released")
        assert await released(on) == [f"k{number}" for number in range(5)]


async def _count(on: Bench, wanted: int) -> bool:
    return len(await released(on)) == wanted


async def test_old_reading_that_nobody_works_is_not_believed(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, servers.temporal_address, task_queue=QUEUE, start_again_s=60) as on:
        await nobody_works(on)
        async with on.ledger.transaction() as connection:
            await connection.execute("UPDATE actonce.dependency SET checked_at = checked_at - interval '1 minute'")
        await on.start("k")
        assert await released(on) == ["k"]


async def test_no_more_than_the_window_is_in_temporal_when_workers_do_not_take_them(
    servers: Stack, fresh_dsn: str
) -> None:
    async with bench(fresh_dsn, servers.temporal_address, task_queue=QUEUE, start_again_s=60) as on:
        assert (await change(on, 1, window_max=3)).status_code == 200
        for number in range(6):
            await on.start(f"k{number}")
        await on.starter.start_accepted()
        assert await released(on) == ["k0", "k1", "k2"]
        assert "the window is 3" in (await standing(on))["why_not"]
        await tasks.started(on.ledger, "default/single/k1")
        await on.starter.start_accepted()
        assert await released(on) == ["k0", "k1", "k2", "k3"]


async def test_window_holds_however_many_ask_at_once(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, task_queue=QUEUE, start_again_s=60) as on:
        assert (await change(on, 1, window_max=5)).status_code == 200
        for number in range(30):
            await tasks.accept(on.ledger, "default", "single", f"k{number:02}", {"n": number})
        await asyncio.gather(*(release.turn(on.ledger, "single", QUEUE, limit=1) for _ in range(20)))
        assert await released(on) == [f"k{number:02}" for number in range(5)]


async def test_pause_keeps_everything_and_says_who_paused_and_why(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, servers.temporal_address, task_queue=QUEUE, start_again_s=60) as on:
        assert (await change(on, 1, paused=True)).json()["paused"] is True
        shown = (await on.start("k")).json()
        assert "paused by Ada: after the repair" in shown["why"]
        assert "python -m actonce.client release" in shown["what_to_do"]
        await on.starter.start_accepted()
        assert await released(on) == []
        assert (await change(on, 2, paused=False)).status_code == 200
        await on.starter.start_accepted()
        assert await released(on) == ["k"]


async def test_rate_lets_no_more_go_than_its_time_has_earned(servers: Stack, fresh_dsn: str) -> None:
    """Checked against the ledger's own clock: so many released, so much time must have passed."""
    rate = 20.0
    async with bench(fresh_dsn, None, task_queue=QUEUE, start_again_s=60) as on:
        await change(on, 1, rate_per_s=rate, window_max=1000)
        for number in range(60):
            await tasks.accept(on.ledger, "default", "single", f"k{number:03}", {"n": number})
        while len(await released(on)) < 40:
            await release.turn(on.ledger, "single", QUEUE, limit=1000)
            await asyncio.sleep(0.02)
        async with on.ledger.transaction() as connection:
            cursor = await connection.execute(
                "SELECT extract(epoch FROM max(released_at) - r.changed_at)::float8 AS took_s, count(released_at) AS n"
                " FROM actonce.task, actonce.release r GROUP BY r.changed_at"
            )
            row = await cursor.fetchone()
        assert row is not None and row["n"] <= row["took_s"] * rate + 1


async def test_full_backlog_refuses_new_tasks_whole_and_still_knows_the_old_ones(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, task_queue=QUEUE, start_again_s=60, backlog_max=2) as on:
        await nobody_works(on)
        for number in range(2):
            assert (await on.start(f"k{number}")).status_code == 202
        refused = await on.start("k2")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "30")
        assert "nothing was recorded" in refused.json()["detail"]
        assert await tasks.get(on.ledger, "default/single/k2") is None
        assert (await on.start("k0")).status_code == 202
        async with on.ledger.transaction() as connection:
            rows = await (await connection.execute("SELECT kind, task_id FROM actonce.audit")).fetchall()
        assert not any(row["task_id"] == "default/single/k2" for row in rows)


async def test_bound_of_the_backlog_holds_however_many_come_at_once(fresh_dsn: str) -> None:
    """Each counts what is committed and itself: without waiting for one another all of them would fit."""
    patient = Ledger(fresh_dsn, deadline_s=30.0)
    async with bench(fresh_dsn, None, task_queue=QUEUE, start_again_s=60) as on, patient as ledger:

        async def one(number: int) -> bool:
            asked = {"recording_wait_s": 30.0, "backlog_max": 5}
            try:
                await tasks.accept(ledger, "default", "single", f"k{number:02}", {"n": number}, **asked)  # type: ignore[arg-type]
            except BacklogFull:
                return False
            return True

        async with await psycopg.AsyncConnection.connect(fresh_dsn) as link:
            await link.execute("LOCK TABLE actonce.audit IN SHARE MODE")  # all have come in before the first can commit
            ends = asyncio.gather(*(one(number) for number in range(8)))
            await eventually(lambda: _blocked(fresh_dsn, 8), within_s=20, what="eight have come in")
        assert sum(await ends) == 5
        assert (await standing(on))["backlog"] == 5


async def _blocked(dsn: str, count: int) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:
        row = await (await link.execute(query)).fetchone()
    return bool(row and row[0] >= count)


async def test_change_of_release_is_recorded_once_and_refused_on_something_older(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None, task_queue=QUEUE) as on:
        first, again = await change(on, 1, paused=True), await change(on, 1, paused=True)
        assert first.json() == again.json() and first.json()["version"] == 2
        stale = await change(on, 1, rate_per_s=5)
        assert stale.status_code == 409 and "by Ada" in stale.json()["detail"]
        async with on.ledger.transaction() as connection:
            rows = await (
                await connection.execute("SELECT body FROM actonce.audit WHERE kind = 'release.changed'")
            ).fetchall()
        assert [(row["body"]["name"], row["body"]["paused"]) for row in rows] == [("Ada", True)]


async def test_cancelled_task_leaves_the_backlog_without_ever_reaching_temporal(servers: Stack, fresh_dsn: str) -> None:
    async with bench(fresh_dsn, servers.temporal_address, task_queue=QUEUE, start_again_s=0.05) as on:
        await nobody_works(on)
        await on.start("never-released")
        await on.http.post("/v1/tasks/default/single/never-released/cancel")

        async def ended() -> bool:
            task = await tasks.get(on.ledger, "default/single/never-released")
            return task is not None and task.state == "cancelled"

        await eventually(ended, within_s=10, what="cancelled")
        assert await released(on) == []


async def test_deadline_is_kept_shown_and_changed_on_record(fresh_dsn: str) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    async with bench(fresh_dsn, None, task_queue=QUEUE) as on:
        await nobody_works(on)
        shown = (await on.start("k", **{"Actonce-Deadline": soon.isoformat()})).json()
        assert datetime.fromisoformat(shown["deadline"]) == soon
        again = await on.start("k", **{"Actonce-Deadline": (soon + timedelta(hours=1)).isoformat()})
        assert datetime.fromisoformat(again.json()["deadline"]) == soon, "the first one stands"
        later = (soon + timedelta(days=1)).isoformat()
        body = {"deadline": later, "expected_deadline": soon.isoformat(), "name": "Ada", "why": "the owner agreed"}
        changed = await on.http.post("/v1/tasks/default/single/k/deadline", json=body)
        assert changed.status_code == 200 and changed.json()["deadline"] == later.replace("+00:00", "Z")
        stale = await on.http.post("/v1/tasks/default/single/k/deadline", json=body | {"deadline": soon.isoformat()})
        assert stale.status_code == 409


BEYOND = ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"]  # no year of ours, as seen from Greenwich


@pytest.mark.parametrize("given", ["tomorrow", "2026-01-31T12:00:00", "", *BEYOND])
async def test_deadline_that_is_no_time_is_refused_before_anything_is_recorded(fresh_dsn: str, given: str) -> None:
    async with bench(fresh_dsn, None, task_queue=QUEUE) as on:
        answer = await on.start("k", **{"Actonce-Deadline": given})
        assert answer.status_code == 400 and "with an offset" in answer.json()["detail"]
        assert await tasks.get(on.ledger, "default/single/k") is None


@pytest.mark.parametrize("given", BEYOND)
async def test_deadline_that_no_clock_here_can_hold_is_refused(fresh_dsn: str, given: str) -> None:
    async with bench(fresh_dsn, None, task_queue=QUEUE) as on:
        await nobody_works(on)
        await on.start("k")
        body = {"deadline": given, "expected_deadline": None, "name": "Ada", "why": "never"}
        answer = await on.http.post("/v1/tasks/default/single/k/deadline", json=body)
        assert answer.status_code == 422 and "a year between" in answer.json()["detail"]
