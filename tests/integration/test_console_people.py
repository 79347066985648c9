"""People and tokens at the console, and at the entry behind it: each button, and what must not come out of it."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from actonce.contracts.people import Role, Scope
from actonce.ledger import people, sessions, tokens
from actonce.ledger.migrate import migrate
from actonce.stack import Stack
from tests.databases import empty_database
from tests.integration.console_bench import Desk, carry, desk, form_of, press

pytestmark = pytest.mark.asyncio(loop_scope="module")
PASSWORD, ANOTHER = "correct horse battery", "another horse battery"
TWICE = {"password": PASSWORD, "password_again": PASSWORD}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(postgres_server: Stack) -> AsyncIterator[Desk]:
    async with empty_database(postgres_server.postgres.dsn) as dsn:
        migrate(dsn)
        async with desk(dsn) as found:
            yield found


@pytest_asyncio.fixture(loop_scope="module")
async def ada(at: Desk) -> AsyncIterator[httpx.AsyncClient]:
    """An administrator's browser."""
    async with await at.browser("admin", "Ada") as http:
        yield http


async def somebody(at: Desk, *roles: Role, password: str | None = None) -> str:
    """A person of this test's own, without a password where none is needed: hashing one takes its time."""
    name = f"p{secrets.token_hex(4)}"
    await people.add_person(at.on.ledger, name, roles or (Role.VIEWER,), password=password, by="setup")
    return name


async def signed_in(at: Desk, name: str) -> str:
    """A session of a person who is there. Returns the cookie's value."""
    async with at.on.ledger.transaction() as connection:
        row = await (await connection.execute("SELECT * FROM actonce.person WHERE name = %s", (name,))).fetchone()
        assert row is not None
        return (await sessions._begin(connection, people.person_of(row), "tests", 600.0))[1]


async def events(at: Desk, kind: str, name: str) -> list[dict[str, Any]]:
    async with at.on.ledger.transaction() as connection:
        cursor = await connection.execute(
            "SELECT body FROM actonce.audit WHERE kind = %s AND body ->> 'name' = %s ORDER BY audit_id", (kind, name)
        )
        return [row["body"] for row in await cursor.fetchall()]


async def test_somebody_is_added_once_however_often_it_is_pressed(at: Desk, ada: httpx.AsyncClient) -> None:
    filled = {"person": "nora", "role_operator": "yes", **TWICE}
    page = (await ada.get("/people")).text
    form = {**form_of(page, "/people"), **filled}
    answers = await asyncio.gather(*(ada.post("/people", data=form) for _ in range(2)))
    answers.append(await ada.post("/people", data=form))
    assert [a.headers["location"] for a in answers] == ["/people/nora?done=person-added"] * 3
    (event,) = await events(at, "person.added", "nora")
    assert (event["roles"], event["changed_by"]) == (["operator"], "Ada")
    shown = (await ada.get("/people/nora?done=person-added")).text
    assert "They may sign in from now on" in shown and PASSWORD not in shown
    await sessions.sign_in(at.on.ledger, "nora", PASSWORD, "198.51.100.9")
    other = await ada.post("/people", data={**form, "password": ANOTHER, "password_again": ANOTHER})
    assert other.status_code == 409 and "somebody of that name already" in other.text
    assert ANOTHER not in other.text and 'value="nora"' in other.text


async def test_what_does_not_do_is_said_and_nothing_is_recorded(at: Desk, ada: httpx.AsyncClient) -> None:
    good = {"person": "olaf", "role_viewer": "yes", **TWICE}
    for wrong, told in (
        ({"role_viewer": "no"}, "at least one role"),
        ({"password_again": ANOTHER}, "not the same"),
        ({"password": "short", "password_again": "short"}, "12 to 1000 characters"),
        ({"person": "a  b"}, "cannot be a person"),
        ({"person": ""}, "Fill in: person"),
    ):
        answer = await press(ada, "/people", "/people", **{**good, **wrong})
        assert answer.status_code == 422 and told in answer.text.replace("&#39;", "'"), (wrong, answer.text)
        assert 'value="short"' not in answer.text and 'value="correct' not in answer.text
    assert await people.get_person(at.on.ledger, "olaf") is None


async def test_roles_are_set_on_what_was_looked_at_and_a_stale_page_says_who_changed_it(
    at: Desk, ada: httpx.AsyncClient
) -> None:
    name = await somebody(at)
    address = "/people/roles"
    form = form_of((await ada.get(f"/people/{name}")).text, address)
    await people.set_roles(at.on.ledger, name, [Role.APPROVER], by="Bo")
    stale = await ada.post(address, data={**form, "role_operator": "yes"})
    assert stale.status_code == 409 and "What changed since you looked" in stale.text
    assert "<strong>Bo</strong>: version 2: roles are approver" in stale.text
    fresh = form_of(stale.text, address)
    done = [await ada.post(address, data={**fresh, "role_operator": "yes", "role_viewer": "yes"}) for _ in range(2)]
    assert [a.status_code for a in done] == [303, 303]
    found = await people.get_person(at.on.ledger, name)
    assert found is not None and found.roles == {Role.OPERATOR, Role.VIEWER}
    assert [e["changed_by"] for e in await events(at, "person.changed", name)] == ["Bo", "Ada"]


async def test_to_disable_somebody_their_name_is_typed_and_their_sessions_end_at_once(
    at: Desk, ada: httpx.AsyncClient
) -> None:
    name = await somebody(at, Role.OPERATOR)
    _, value = await tokens.create_token(at.on.ledger, "theirs", [Scope.READ], by="setup", person=name)
    async with await at.browser("viewer", "Eve") as theirs:
        carry(theirs, await signed_in(at, name))
        assert (await theirs.get("/tasks")).status_code == 200
        for typed in ("", "somebody-else"):
            refused = await press(ada, f"/people/{name}", "/people/disabled", confirm=typed)
            assert refused.status_code == 422 and "It is not confirmed" in refused.text
        assert (await theirs.get("/tasks")).status_code == 200
        gone = await press(ada, f"/people/{name}", "/people/disabled", confirm=name.upper())
        assert gone.headers["location"] == f"/people/{name}?done=person-disabled"
        assert (await theirs.get("/tasks")).headers["location"].startswith("/sign-in")
        bearer = {"Authorization": f"Bearer {value}"}
        assert (await at.on.http.get("/v1/tasks", headers=bearer)).status_code == 401
        back = await press(ada, f"/people/{name}", "/people/enabled")
        assert back.headers["location"].endswith("person-enabled")
        assert (await theirs.get("/tasks")).status_code == 303, "a session that was ended stays so"
        assert (await at.on.http.get("/v1/tasks", headers=bearer)).status_code == 200


async def test_the_last_administrator_stays_one(postgres_server: Stack) -> None:
    async with empty_database(postgres_server.postgres.dsn) as dsn:
        migrate(dsn)
        async with desk(dsn) as alone, await alone.browser("admin", "Only") as http:
            for address, more in (("/people/disabled", {"confirm": "Only"}), ("/people/roles", {"role_viewer": "yes"})):
                filled = {**form_of((await http.get("/people/Only")).text, address), **more}
                refused = await http.post(address, data=filled)
                assert refused.status_code == 409 and "last one with role admin" in refused.text
            assert (await http.get("/people")).status_code == 200


async def test_a_password_that_an_administrator_sets_signs_out_and_is_set_once(
    at: Desk, ada: httpx.AsyncClient
) -> None:
    name = await somebody(at)
    async with await at.browser("viewer", "Eve") as theirs:
        carry(theirs, await signed_in(at, name))
        form = {**form_of((await ada.get(f"/people/{name}")).text, "/people/passwords"), **TWICE}
        answers = [await ada.post("/people/passwords", data=form) for _ in range(2)]
        assert [a.status_code for a in answers] == [303, 303]
        assert (await theirs.get("/tasks")).status_code == 303
    assert [e["changed_what"] for e in await events(at, "person.changed", name)] == ["password"]
    stale = await ada.post("/people/passwords", data={**form, "password": ANOTHER, "password_again": ANOTHER})
    assert stale.status_code == 409 and "another password" in stale.text and ANOTHER not in stale.text


async def test_ones_own_password_is_changed_by_who_knows_it_and_ends_the_other_sessions(at: Desk) -> None:
    name = await somebody(at, Role.VIEWER, password=PASSWORD)
    async with await at.browser("viewer", "Eve") as here, await at.browser("viewer", "Eve") as there:
        for http in (here, there):
            carry(http, await signed_in(at, name))
        fresh = {"password": ANOTHER, "password_again": ANOTHER}
        wrong = await press(here, "/you", "/you/password", current="not it at all", **fresh)
        assert wrong.status_code == 422 and "current password is another one" in wrong.text
        assert (await there.get("/tasks")).status_code == 200
        form = {**form_of((await here.get("/you")).text, "/you/password"), "current": PASSWORD, **fresh}
        done = [await here.post("/you/password", data=form) for _ in range(2)]
        assert [a.headers["location"] for a in done] == ["/you?done=own-password"] * 2
        assert (await here.get("/tasks")).status_code == 200
        assert (await there.get("/tasks")).status_code == 303
    assert [e["changed_by"] for e in await events(at, "person.changed", name)] == [name]
    await sessions.sign_in(at.on.ledger, name, ANOTHER, "198.51.100.10")


async def test_whoever_finds_an_open_page_cannot_try_passwords_there_for_ever(at: Desk) -> None:
    name = await somebody(at)
    async with await at.browser("viewer", "Eve") as http:
        carry(http, await signed_in(at, name))
        form = {**form_of((await http.get("/you")).text, "/sign-out"), **TWICE}
        said = [await http.post("/you/password", data={**form, "current": f"guess {n}"}) for n in range(6)]
        assert [a.status_code for a in said] == [422] * 5 + [429]
        assert int(said[-1].headers["retry-after"]) > 0


async def test_a_tokens_value_is_shown_by_the_press_that_made_it_and_never_again(
    at: Desk, ada: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    name = await somebody(at, Role.OPERATOR)
    form = form_of((await ada.get("/tokens")).text, "/tokens")
    filled = {**form, "label": "nightly", "scope_read": "yes", "scope_decide": "yes", "person": name, "days": "7"}
    made = await ada.post("/tokens", data=filled)
    assert made.status_code == 200 and made.headers["cache-control"] == "no-store"
    (value,) = set(re.findall(r"actonce_[A-Za-z0-9_-]{43}", made.text))
    shown = await tokens.presented(at.on.ledger, value)
    assert shown is not None and shown.token.expires_at is not None
    assert (shown.token.scopes, shown.token.person, shown.token.created_by) == (
        {Scope.READ, Scope.DECIDE},
        name,
        "Ada",
    )
    again = await ada.post("/tokens", data=filled)
    assert again.status_code == 200 and "This press had made it before" in again.text
    token_id = shown.token.token_id
    told = [again.text, *[(await ada.get(p)).text for p in ("/tokens", f"/tokens/{token_id}", f"/people/{name}")]]
    told += [(await ada.get("/audit?kind=token.created")).text, caplog.text, str(made.headers)]
    assert not [text for text in told if value in text]
    other = await ada.post("/tokens", data={**filled, "label": "something else"})
    assert other.status_code == 422 and "press of its own" in other.text
    assert [t.label for t in await tokens.list_tokens(at.on.ledger) if t.person == name] == ["nightly"]


async def test_to_revoke_a_token_its_number_is_typed(at: Desk, ada: httpx.AsyncClient) -> None:
    token, value = await tokens.create_token(at.on.ledger, "<b>leaked</b>", [Scope.READ], by="setup")
    page, address = f"/tokens/{token.token_id}", "/tokens/revocations"
    assert "<b>leaked" not in (await ada.get(page)).text
    assert (await press(ada, page, address, confirm="leaked")).status_code == 422
    form = {**form_of((await ada.get(page)).text, address), "confirm": str(token.token_id)}
    assert (await ada.post(address, data={**form, "label": "another"})).status_code == 409
    assert (await at.on.http.get("/v1/tasks", headers={"Authorization": f"Bearer {value}"})).status_code == 200
    done = [await ada.post(address, data=form) for _ in range(2)]
    assert [a.headers["location"] for a in done] == [f"{page}?done=token-revoked"] * 2
    assert (await at.on.http.get("/v1/tasks", headers={"Authorization": f"Bearer {value}"})).status_code == 401
    after = (await ada.get(page)).text
    assert "by Ada" in after and address not in after


@pytest.mark.parametrize("path", ["/people", "/people/Ada", "/tokens", "/tokens/1"])
async def test_only_administrators_see_people_and_tokens(at: Desk, path: str) -> None:
    async with await at.browser("operator", "Olga") as http:
        answer = await http.get(path)
        assert answer.status_code == 403 and "needs the role admin" in answer.text
        assert '"/people"' not in (await http.get("/")).text


async def test_the_entry_says_who_may_sign_in_to_administrators_only(at: Desk, ada: httpx.AsyncClient) -> None:
    found = {p["name"]: p for p in (await at.on.http.get("/v1/people")).json()}
    assert found["Ada"]["roles"] == ["admin"] and "password_hash" not in str(found)
    assert all("digest" not in t for t in (await at.on.http.get("/v1/tokens")).json())
    _, value = await tokens.create_token(at.on.ledger, "reads", set(Scope) - {Scope.ADMIN, Scope.ACT_FOR}, by="setup")
    for path in ("/v1/people", "/v1/tokens"):
        answer = await at.on.http.get(path, headers={"Authorization": f"Bearer {value}"})
        assert answer.status_code == 403 and "admin" in answer.json()["detail"]
    wanted = {"name": "x", "person": "y", "roles": ["viewer"], "password": "secret"}
    short = await at.on.http.post("/v1/people", json=wanted)
    assert short.status_code == 422 and "secret" not in short.text


async def test_policy_and_restore_say_what_is_on_record(at: Desk, ada: httpx.AsyncClient) -> None:
    page = (await ada.get("/policy")).text
    assert "No worker has recorded a contract yet" in page and "No decision needs a second person" in page
    assert page.count('href="/procedures/') == len((await at.on.http.get("/v1/policy")).json()["reasons"]) > 30
    shown = (await ada.get("/restore")).text
    async with at.on.ledger.transaction() as connection:
        row = await (await connection.execute("SELECT ledger_id::text AS id FROM actonce.identity")).fetchone()
    assert row is not None and row["id"] in shown and "no memory has answered yet" in shown
