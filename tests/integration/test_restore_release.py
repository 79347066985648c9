"""The way out of quarantine as people take it: through the entry, and at the console."""

from __future__ import annotations

from typing import Any

from actonce.effects.sweep import sweep
from actonce.ledger import tasks
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from tests.integration.console_bench import desk, press
from tests.integration.entry_bench import bench
from tests.integration.restore_bench import Shelf, now_of, past_bounds, process, quarantine, rows

ADA: dict[str, Any] = {"name": "ada", "reason": "compared", "expected_epoch": 2}


async def restored(dsn: str, *, swept: bool = True) -> Shelf:
    """A ledger in quarantine with one task that has not begun; and whether it was compared."""
    migrate(dsn)
    shelf = Shelf()
    async with Ledger(dsn) as ledger:
        await tasks.accept(ledger, "default", "single", "k1", {"n": 1})
    restore = await quarantine(dsn, await now_of(dsn))
    if swept:
        await past_bounds(dsn, restore)
        async with process(dsn, shelf.destination()) as system:
            await sweep(system)
    return shelf


async def test_the_entry_tells_how_it_stands_and_releases_once(fresh_dsn: str) -> None:
    await restored(fresh_dsn)
    async with bench(fresh_dsn, None) as on:
        found = (await on.http.get("/v1/restore")).json()
        assert (found["epoch"], found["quarantined"], found["why_not"]) == (2, True, None)
        assert found["waiting"] == {"settled": 0, "resumable": 1, "held": 0}
        assert found["sweep"]["totals"][0]["balances"] is True
        refused = await on.http.post("/v1/restore/release", json={**ADA, "group": "resumable", "expected_epoch": 1})
        assert (refused.status_code, refused.json()["code"]) == (409, "stale")
        asked = {"json": {**ADA, "group": "resumable"}, "headers": {"Idempotency-Key": "p1"}}
        first = await on.http.post("/v1/restore/release", **asked)
        again = await on.http.post("/v1/restore/release", **asked)
        assert first.status_code == 200 and first.json() == again.json() and first.json()["tasks"] == 1
        assert "Idempotent-Replayed" not in first.headers and again.headers["Idempotent-Replayed"] == "true"
        closed = await on.http.post("/v1/restore/close", json=ADA)
        assert closed.status_code == 200 and closed.json()["closed_by"] == "ada"
        assert (await on.http.get("/v1/restore")).json()["why_not"] == "no restore is open"
    assert len(await rows(fresh_dsn, "restore_release")) == 1


async def test_nothing_is_released_before_the_sweep_is_done(fresh_dsn: str) -> None:
    await restored(fresh_dsn, swept=False)
    async with bench(fresh_dsn, None) as on:
        assert "worker.py restore sweep" in (await on.http.get("/v1/restore")).json()["why_not"]
        for path, body in (("release", {**ADA, "group": "resumable"}), ("close", ADA)):
            refused = await on.http.post(f"/v1/restore/{path}", json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "not_swept")
    (identity,) = await rows(fresh_dsn, "identity")
    assert identity["quarantined"] is True and await rows(fresh_dsn, "restore_release") == []


async def test_an_operator_releases_at_the_console_and_the_banner_is_on_every_page_until_then(fresh_dsn: str) -> None:
    await restored(fresh_dsn)
    async with desk(fresh_dsn) as at:
        viewer, operator = await at.browser("viewer"), await at.browser("operator")
        for page in ("/", "/tasks", "/operations", "/approvals", "/alerts", "/release", "/restore", "/audit"):
            assert "Quarantined after a restore" in (await operator.get(page)).text, page
        assert "needs the role operator" in (await viewer.get("/restore")).text
        empty = await press(operator, "/restore", "/restore/release/resumable", reason="")
        assert empty.status_code == 422 and "Nothing was recorded" in empty.text
        stale = await press(operator, "/restore", "/restore/release/resumable", reason="compared", epoch="1")
        assert stale.status_code == 409 and "restored again" in stale.text
        pressed = await press(operator, "/restore", "/restore/release/resumable", reason="compared")
        assert (pressed.status_code, pressed.headers["location"]) == (303, "/restore?done=restore-released")
        page = (await operator.get("/restore")).text
        assert "Quarantined after a restore" not in page and "released 1 tasks of group resumable: compared" in page
        closed = await press(operator, "/restore", "/restore/close", reason="all is known")
        assert closed.status_code == 303 and "all is known" in (await operator.get("/restore")).text
    assert len(await rows(fresh_dsn, "restore_release")) == 1
