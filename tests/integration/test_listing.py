"""Lists in pages are whole and stable while rows are added; the entry gives them, and what the console shows."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actonce.ledger import listing
from actonce.ledger.listing import BadCursor, Page
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from tests.integration.console_stage import stage
from tests.integration.entry_bench import Bench, bench

ROWS = 53
_ADD = """
WITH t AS (
    INSERT INTO actonce.task (task_id, tenant, task_type, task_key, workflow_id, payload, payload_digest, created_at)
    SELECT 'x/t/' || n, 'x', 't', n, n, '{}', 'd', now() - (n / 5) * interval '1 s'
    FROM generate_series(%s::int, %s::int) n
    RETURNING task_id, created_at)
INSERT INTO actonce.operation (tenant, destination, action, operation_id, task_id, step, iteration, payload,
    payload_digest, account, contract_version, contract_digest, guarantee, epoch, created_at)
SELECT 'x', 'd', 'a', 'op1_' || task_id, task_id, 's', 0, '{}', 'd', 'a', 1, 'c', 'none', 1, created_at FROM t
"""
Walk = Callable[[Ledger, str | None], Awaitable[Page[Any]]]


async def add(ledger: Ledger, first: int, last: int) -> None:
    """Rows of which five each have the same time."""
    async with ledger.transaction() as connection:
        await connection.execute(_ADD, (first, last))


def _tasks(ledger: Ledger, cursor: str | None) -> Awaitable[Page[Any]]:
    return listing.tasks(ledger, tenant="x", cursor=cursor, limit=7)


def _operations(ledger: Ledger, cursor: str | None) -> Awaitable[Page[Any]]:
    return listing.operations(ledger, tenant="x", cursor=cursor, limit=7)


def _audit(ledger: Ledger, cursor: str | None) -> Awaitable[Page[Any]]:
    return listing.audit(ledger, kind="task.accepted", cursor=cursor, limit=7)


def name(item: Any) -> str:
    if isinstance(item, dict):
        return str(item["task_id"])
    return str(item.task.task_id if isinstance(item, listing.TaskLine) else item.task_id)


@pytest.mark.parametrize("walk", [_tasks, _operations, _audit])
async def test_every_row_is_on_exactly_one_page_while_others_are_added(fresh_dsn: str, walk: Walk) -> None:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as ledger:
        await add(ledger, 1, ROWS)
        seen: list[str] = []
        cursor, turn = None, 0
        while True:
            page = await walk(ledger, cursor)
            assert len(page) <= 7
            seen += [name(item) for item in page]
            turn += 1
            await add(ledger, 1000 * turn, 1000 * turn + 3)  # newer by id, older and newer by time
            cursor = page.next
            if cursor is None or turn > ROWS:
                break
        before = [one for one in seen if int(one.split("/")[2]) <= ROWS]
        assert sorted(before) == sorted(f"x/t/{n}" for n in range(1, ROWS + 1))
        assert len(set(seen)) == len(seen)


async def test_page_by_page_is_the_same_list_as_at_once(fresh_dsn: str) -> None:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as ledger:
        await add(ledger, 1, ROWS)
        whole = await listing.operations(ledger, limit=1000)
        assert whole.next is None and len(whole) == ROWS
        first = await listing.operations(ledger, limit=ROWS)
        assert first.next is None, "a page that holds the last row is the last one"
        parts: list[Any] = []
        page = await listing.operations(ledger, limit=10)
        parts += page
        while page.next:
            page = await listing.operations(ledger, limit=10, cursor=page.next)
            parts += page
        assert [o.operation_id for o in parts] == [o.operation_id for o in whole]


@pytest.mark.parametrize(
    "cursor", ["", "x", "WzFd", "bnVsbA", "WyIyMDI2LTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwiXHUwMDAwIl0", "é"]
)
async def test_cursor_of_another_list_is_refused(fresh_dsn: str, cursor: str) -> None:
    async with Ledger(fresh_dsn) as ledger:
        with pytest.raises(BadCursor):
            await listing.tasks(ledger, cursor=cursor)


async def test_entry_names_the_next_page_in_a_link(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None) as on:
        await add(on.ledger, 1, 12)
        seen: list[str] = []
        url: str | None = "/v1/tasks?tenant=x&limit=5"
        while url:
            answer = await on.http.get(url)
            assert answer.status_code == 200, answer.text
            seen += [row["task_id"] for row in answer.json()]
            link = re.fullmatch(r'<([^>]+)>; rel="next"', answer.headers.get("link", ""))
            url = link[1] if link else None
            assert url is None or "tenant=x" in url
        assert sorted(seen) == sorted(f"x/t/{n}" for n in range(1, 13)) and len(seen) == 12
        refused = await on.http.get("/v1/operations?cursor=x")
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:actonce:problem:bad-cursor")


async def test_what_the_console_shows_is_json_at_the_entry(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None) as on:
        staged = await stage(on.ledger)
        overview = await ask(on, "/v1/overview")
        assert overview["holds"]["route_unavailable"]["n"] == 2 and overview["working"] == {"actonce": "yes"}
        assert {name: overview["tasks"][name] for name in ("complete", "attested", "unproven")} == {
            "complete": 3,
            "attested": 1,
            "unproven": 1,
        }
        listed = {row["task_id"]: row["shown"] for row in await ask(on, "/v1/tasks")}
        assert listed[staged.tasks["nothing"]] == "unproven" and listed[staged.tasks["ada"]] == "complete"
        story = await ask(on, f"/v1/story/{staged.tasks['held']}")
        assert [one["what"] for one in story][:2] == ["Request accepted", "Released to Temporal"]
        assert (await on.http.get("/v1/story/a/b/c")).status_code == 404
        found = (await on.http.post("/v1/search", json={"word": "held@example.com"})).json()
        assert [(one["how"], one["task"]["task_id"]) for one in found] == [("customer", staged.tasks["held"])]
        events = await ask(on, f"/v1/audit?task_id={staged.tasks['held']}")
        assert all(event["whole"] for event in events) and {"task.accepted", "operation.permit"} <= {
            event["kind"] for event in events
        }


async def ask(on: Bench, address: str) -> Any:
    answer = await on.http.get(address)
    assert answer.status_code == 200, answer.text
    return answer.json()
