"""What holds for every button of the console: where it must come from, what it must bring, and who may press it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from actonce.ledger.migrate import migrate
from actonce.stack import Stack
from tests.databases import empty_database
from tests.integration.console_bench import Desk, desk, form_of, routes_of, session
from tests.integration.entry_bench import contract

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROLES = ("viewer", "operator", "approver", "admin")
OPERATOR, APPROVER, ALL = {"operator", "admin"}, {"approver", "admin"}, set(ROLES)
MAY = {  # every button there is, and who may press it
    "/sign-out": ALL,
    "/operations/{operation_id}/decisions": OPERATOR,
    "/operations/{operation_id}/decisions/{decision_id}/second": OPERATOR,
    "/approvals/{approval_id}/approve": APPROVER,
    "/approvals/{approval_id}/reject": APPROVER,
    "/approvals/{approval_id}/withdraw": APPROVER,
    "/approvals/{approval_id}/renew": APPROVER,
    "/pages/{page_id}/acknowledge": OPERATOR,
    "/release/{task_type}": OPERATOR,
    "/restore/release/{group}": OPERATOR,
    "/restore/close": OPERATOR,
    "/credentials/rotations": {"admin"},
    "/credentials/revocations": {"admin"},
    "/tasks/{task_id:path}/cancel": OPERATOR,
    "/tasks/{task_id:path}/deadline": OPERATOR,
    "/people": {"admin"},
    "/people/roles": {"admin"},
    "/people/passwords": {"admin"},
    "/people/disabled": {"admin"},
    "/people/enabled": {"admin"},
    "/tokens": {"admin"},
    "/tokens/revocations": {"admin"},
    "/you/password": ALL,
}
OTHERS = {  # buttons that change nothing here
    "/sign-in",  # by who is not signed in yet: test_console_sign_in.py
    "/search",  # by POST so that what is searched for is in no address
}
FILLED = {  # good enough to reach the entry, about nothing that is there
    "epoch": "1",
    "version": "1",
    "action": "mark_absent",
    "reason": "x",
    "evidence": "x",
    "note": "x",
    "digest": "a1:x",
    "why": "x",
    "agrees": "no",
    "credential": "none",
    "generation": "1",
    "do": "pause",
    "deadline": "2031-01-01T00:00",
    "person": "nobody",
    "role_viewer": "yes",
    "password": "correct horse battery",
    "password_again": "correct horse battery",
    "confirm": "nobody",
    "current": "none",
    "label": "",  # what is made by the first role that may would be there for the second
    "token_id": "1",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(postgres_server: Stack) -> AsyncIterator[Desk]:
    async with empty_database(postgres_server.postgres.dsn) as dsn:
        migrate(dsn)
        async with desk(dsn) as found:
            await found.on.start("p-1")
            operation = await found.on.held("default/single/p-1", contract(bounded=True))
            THERE["operation_id"] = operation.operation_id
            yield found


THERE = {
    "decision_id": "1",
    "task_id": "default%2Fsingle%2Fp-1",
    "task_type": "single",
    "group": "settled",
    "page_id": "1",
    "approval_id": "ap1_none",
}


def address(path: str) -> str:
    return re.sub(r"\{(\w+)(:path)?\}", lambda found: THERE[found[1]], path)


async def recorded(at: Desk) -> object:
    """What is on record about anything that a button could change."""
    async with at.on.ledger.transaction() as connection:
        cursor = await connection.execute(
            "SELECT (SELECT count(*) FROM actonce.decision) AS decisions,"
            " (SELECT count(*) FROM actonce.audit WHERE kind NOT LIKE 'session.%' AND kind NOT LIKE 'person.%') AS"
            " events, (SELECT count(*) FROM actonce.session WHERE ended_at IS NOT NULL) AS ended,"
            " (SELECT cancel_requested FROM actonce.task LIMIT 1) AS cancelled,"
            " (SELECT count(*) FROM actonce.page WHERE acknowledged_at IS NOT NULL) AS acknowledged"
        )
        return await cursor.fetchone()


async def test_every_button_is_in_the_table(at: Desk) -> None:
    """Whatever is added is checked by the tests below, or this one fails."""
    changing = {path for path, methods in routes_of(at.app) if methods - {"GET", "HEAD", "OPTIONS"}}
    assert changing == set(MAY) | OTHERS


@pytest.mark.parametrize("path", sorted(MAY))
async def test_button_without_session_token_or_origin_changes_nothing(at: Desk, path: str) -> None:
    async with await at.browser("admin") as http, await at.browser("admin", "Other") as other:
        good = {**FILLED, "csrf": form_of((await http.get("/")).text, "/sign-out")["csrf"]}
        theirs = {**FILLED, "csrf": form_of((await other.get("/")).text, "/sign-out")["csrf"]}
        before = await recorded(at)
        refused = {
            "no token": await http.post(address(path), data=FILLED),
            "empty token": await http.post(address(path), data={**FILLED, "csrf": ""}),
            "wrong token": await http.post(address(path), data={**FILLED, "csrf": "0" * 64}),
            "token of another session": await http.post(address(path), data=theirs),
            "token in the address": await http.post(f"{address(path)}?csrf={good['csrf']}", data=FILLED),
            "foreign origin": await http.post(address(path), data=good, headers={"Origin": "http://elsewhere"}),
            "null origin": await http.post(address(path), data=good, headers={"Origin": "null"}),
            "other port": await http.post(address(path), data=good, headers={"Origin": "http://console:81"}),
        }
        del http.headers["Origin"]
        refused["no origin"] = await http.post(address(path), data=good)
        http.headers["Origin"] = "http://console"
        assert {why: answer.status_code for why, answer in refused.items()} == dict.fromkeys(refused, 403)
        asked = await http.get(address(path), params=good)  # nothing changes by a link
        assert asked.status_code in (404, 405, 303, 200)
        assert (await http.post(address(path), json=good)).status_code == 415
        http.cookies.clear()
        nobody = await http.post(address(path), data=good)
        assert nobody.status_code == 401 and "You are not signed in" in nobody.text
        assert await recorded(at) == before


@pytest.mark.parametrize("role", ROLES)
async def test_role_decides_which_buttons_there_are(at: Desk, role: str) -> None:
    async with await at.browser(role) as http:
        token = form_of((await http.get("/")).text, "/sign-out")["csrf"]
        for path in sorted(MAY, key="/sign-out".__eq__):  # last: it ends the session
            before = await recorded(at)
            answer = await http.post(address(path), data={**FILLED, "csrf": token})
            if role in MAY[path]:
                assert answer.status_code in (303, 404, 409, 422), (path, answer.text)
            else:
                assert answer.status_code == 403 and f"you have {role}" in answer.text, path
                assert " or ".join(r for r in ROLES if r in MAY[path]) in answer.text, path
                assert await recorded(at) == before


async def test_role_taken_away_counts_at_the_next_press(at: Desk) -> None:
    async with await at.browser("operator", "Dee") as http:
        token = form_of((await http.get("/")).text, "/sign-out")["csrf"]
        await session(at.on.ledger, "viewer", "Dee")  # the provider says less of them now
        answer = await http.post("/pages/1/acknowledge", data={"csrf": token})
        assert answer.status_code == 403 and "you have viewer" in answer.text
