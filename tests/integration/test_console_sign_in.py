"""Signing in and out: who is let in, with which cookie, how often it may be tried, and what ends it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psycopg
import pytest
import pytest_asyncio
from fastapi import FastAPI

from actonce.console.app import create_app
from actonce.console.settings import ConsoleSettings
from actonce.contracts.people import Role
from actonce.ledger import people
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from actonce.stack import Stack
from tests.databases import empty_database
from tests.integration.console_bench import COOKIE, carry, form_of, routes_of, served
from tests.unit.console.provider_double import CLIENT, SECRET, Double, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")
PASSWORD = "correct horse battery"
ORIGIN = {"Origin": "http://console"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dsn(postgres_server: Stack) -> AsyncIterator[str]:
    """One ledger for all: what is counted is counted by name and by address, and each test has its own."""
    async with empty_database(postgres_server.postgres.dsn) as found:
        migrate(found)
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(dsn: str) -> AsyncIterator[FastAPI]:
    made = create_app(ConsoleSettings(ledger_dsn=dsn))  # type: ignore[arg-type]
    async with made.router.lifespan_context(made):
        await people.add_person(ledger_of(made), "Another admin", [Role.ADMIN], password=None, by="tests")
        yield made


def ledger_of(app: FastAPI) -> Ledger:
    ledger: Ledger = app.state.console.ledger
    return ledger


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ada(app: FastAPI) -> str:
    """Somebody who may decide."""
    return await added(app, "Ada")


async def added(app: FastAPI, name: str) -> str:
    await people.add_person(ledger_of(app), name, [Role.OPERATOR], password=PASSWORD, by="tests")
    return name


async def sign_in(http: httpx.AsyncClient, name: str, password: str = PASSWORD, **more: Any) -> httpx.Response:
    page = await http.get("/sign-in", params={"next": more.pop("next", "/")})
    fields = {**form_of(page.text, "/sign-in"), "name": name, "password": password}
    return await http.post("/sign-in", data=fields, headers=more.pop("headers", ORIGIN))


async def test_nobody_sees_a_page_before_signing_in_and_then_goes_on_where_they_wanted(app: FastAPI, ada: str) -> None:
    async with served(app) as http:
        asked = await http.get("/")
        assert (asked.status_code, asked.headers["location"]) == (303, "/sign-in")
        stream = await http.get("/events")
        assert stream.status_code == 401
        done = await sign_in(http, ada, next="/nothing/there")
        assert (done.status_code, done.headers["location"]) == (303, "/nothing/there")
        page = await http.get("/")
        assert page.status_code == 200 and ada in page.text and "Sign out" in page.text
        assert (await http.get("/sign-in")).headers["location"] == "/"


async def test_every_page_but_those_about_signing_in_needs_a_session(app: FastAPI) -> None:
    """Whatever page is added: it is not open to all by being forgotten."""
    is_open = {"/health", "/static/{name}", "/sign-in", "/sign-in/here", "/sign-in/with-provider", "/sign-in/back"}
    async with served(app) as http:
        seen = 0
        for path, methods in routes_of(app):
            if path in is_open or "GET" not in methods:
                continue
            answer = await http.get(re.sub(r"\{\w+(:\w+)?\}", "1", path))
            assert answer.status_code in (303, 401), path
            assert answer.status_code == 401 or answer.headers["location"].startswith("/sign-in"), path
            seen += 1
        assert seen >= 2


async def test_cookie_is_read_by_no_script_sent_to_no_other_site_and_kept_by_nobody(app: FastAPI, ada: str) -> None:
    async with served(app) as http:
        done = await sign_in(http, ada)
        (cookie,) = [c for c in done.headers.get_list("set-cookie") if c.startswith(COOKIE)]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
        assert "Max-Age" not in cookie and "expires" not in cookie.lower()
        value = http.cookies[COOKIE]
    async with served(app) as other:  # the value from before signing in is worth nothing afterwards
        carry(other, "chosen-by-somebody-else")
        await sign_in(other, ada)
        assert other.cookies[COOKIE] not in (value, "chosen-by-somebody-else")


async def test_behind_https_the_cookie_is_secure_and_of_this_host_only(dsn: str, ada: str) -> None:
    made = create_app(ConsoleSettings(ledger_dsn=dsn, console_url="https://console"))  # type: ignore[arg-type]
    async with made.router.lifespan_context(made), served(made, "https://console") as http:
        assert (await sign_in(http, ada, headers={"Origin": "http://console"})).status_code == 403
        done = await sign_in(http, ada, headers={"Origin": "https://console"})
        (cookie,) = [c for c in done.headers.get_list("set-cookie") if c.startswith("__Host-actonce-session=")]
        assert "Secure" in cookie and "Path=/" in cookie and "Domain" not in cookie
        assert (await http.get("/")).status_code == 200


async def test_wrong_name_and_wrong_password_get_the_same_words(app: FastAPI, ada: str) -> None:
    async with served(app, peer="192.0.2.1") as http:
        known = await sign_in(http, ada, "wrong horse battery")
        unknown = await sign_in(http, "Nobody", "wrong horse battery")
        assert known.status_code == unknown.status_code == 401
        words = [re.search(r'role="alert">(.*?)</div></div>', a.text, re.S) for a in (known, unknown)]
        assert words[0] and words[1] and words[0][1] == words[1][1] and "sign anybody in" in words[0][1]
        assert "horse" not in known.text and COOKIE not in http.cookies
        assert f'value="{ada}"' in known.text  # what was typed is there again, but for the password


async def test_too_many_attempts_are_refused_with_a_time_also_after_a_restart(app: FastAPI, dsn: str) -> None:
    bo = await added(app, "Bo")
    async with served(app, peer="192.0.2.2") as http:
        tried = [(await sign_in(http, bo, "wrong horse battery")).status_code for _ in range(5)]
        assert tried == [401] * 5
        blocked = await sign_in(http, bo)
        assert blocked.status_code == 429 and 0 < int(blocked.headers["retry-after"]) <= 900
        assert "Too many attempts" in blocked.text and f"{blocked.headers['retry-after']} s" in blocked.text
        assert COOKIE not in http.cookies
    again = create_app(ConsoleSettings(ledger_dsn=dsn))  # type: ignore[arg-type]
    async with again.router.lifespan_context(again), served(again, peer="192.0.2.3") as http:
        assert (await sign_in(http, bo)).status_code == 429


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://elsewhere"},
        {"Origin": "null"},
        {"Origin": "http://console:81"},
        {"Origin": "https://console"},
        {"Origin": "http://console.elsewhere"},
        {"Referer": "http://elsewhere/http://console"},
        {},
    ],
)
async def test_sign_in_from_another_site_is_refused(app: FastAPI, ada: str, headers: dict[str, str]) -> None:
    """Else somebody could sign you in as themselves, and read what you then do."""
    async with served(app) as http:
        refused = await sign_in(http, ada, headers=headers)
        assert refused.status_code == 403 and "nothing was recorded" in refused.text
        assert "open the console by that address" in refused.text  # localhost and 127.0.0.1 are two places
        assert COOKIE not in http.cookies


async def test_sign_in_without_the_forms_token_or_its_cookie_is_refused(app: FastAPI, ada: str) -> None:
    async with served(app) as http:
        fields = form_of((await http.get("/sign-in")).text, "/sign-in") | {"name": ada, "password": PASSWORD}
        for token in ("", "0" * 64):
            assert (await http.post("/sign-in", data={**fields, "csrf": token}, headers=ORIGIN)).status_code == 403
        http.cookies.clear()
        assert (await http.post("/sign-in", data=fields, headers=ORIGIN)).status_code == 403
        json = await http.post("/sign-in", json=fields, headers=ORIGIN)
        assert json.status_code == 415
        large = await http.post("/sign-in", data={**fields, "name": "x" * 70_000}, headers=ORIGIN)
        assert large.status_code == 413


async def test_signed_out_is_out_everywhere_and_so_is_who_was_disabled(app: FastAPI) -> None:
    cy = await added(app, "Cy")
    async with served(app) as http, served(app) as copy:
        await sign_in(http, cy)
        carry(copy, http.cookies[COOKIE])
        token = form_of((await http.get("/")).text, "/sign-out")
        assert (await http.post("/sign-out", data={"csrf": "0" * 64}, headers=ORIGIN)).status_code == 403
        assert (await copy.get("/")).status_code == 200
        out = await http.post("/sign-out", data=token, headers=ORIGIN)
        assert out.status_code == 303 and COOKIE not in http.cookies
        assert "You are signed out" in (await http.get(out.headers["location"])).text
        assert (await copy.get("/")).status_code == 303
        await sign_in(http, cy)
        await people.disable(ledger_of(app), cy, by="tests")
        assert (await http.get("/")).status_code == 303


async def test_session_outlives_a_restart_of_the_console(app: FastAPI, dsn: str, ada: str) -> None:
    async with served(app) as http:
        await sign_in(http, ada)
        token = form_of((await http.get("/")).text, "/sign-out")
        value = http.cookies[COOKIE]
    again = create_app(ConsoleSettings(ledger_dsn=dsn))  # type: ignore[arg-type]
    async with again.router.lifespan_context(again), served(again) as http:
        carry(http, value)
        assert ada in (await http.get("/")).text
        assert form_of((await http.get("/")).text, "/sign-out") == token  # a form from before is still good


async def test_page_that_refreshes_itself_keeps_no_session_awake(app: FastAPI, ada: str) -> None:
    async def seen_at() -> object:
        async with ledger_of(app).transaction() as connection:
            cursor = await connection.execute("SELECT max(seen_at) AS at FROM actonce.session")
            return await cursor.fetchone()

    async with served(app) as http:
        await sign_in(http, ada)
        async with ledger_of(app).transaction() as connection:
            await connection.execute("UPDATE actonce.session SET seen_at = clock_timestamp() - interval '30 min'")
        before = await seen_at()
        assert (await http.get("/", headers={"Sec-Fetch-Mode": "cors"})).status_code == 200
        assert await seen_at() == before
        assert (await http.get("/", headers={"Sec-Fetch-Mode": "navigate"})).status_code == 200
        assert await seen_at() != before
        async with ledger_of(app).transaction() as connection:
            await connection.execute("UPDATE actonce.session SET seen_at = clock_timestamp() - interval '61 min'")
        assert (await http.get("/")).status_code == 303  # idle for too long


async def test_link_from_another_site_asks_once_more_from_here(app: FastAPI, ada: str) -> None:
    """The strict cookie does not come with a click in a chat; it does with what this console's own page asks for."""
    async with served(app) as http, served(app) as stranger:
        await sign_in(http, ada)
        elsewhere = {"Sec-Fetch-Site": "cross-site"}
        page = await stranger.get("/sign-in", params={"next": "/operations/op1_x"}, headers=elsewhere)
        found = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', page.text)
        assert found and found[1] == "/sign-in/here?next=%2Foperations%2Fop1_x"
        assert (await http.get(found[1])).headers["location"] == "/operations/op1_x"
        back = (await stranger.get(found[1])).headers["location"]
        assert "refresh" not in (await stranger.get(back, headers=elsewhere)).text  # no circle


async def test_identity_provider_signs_in_whom_it_vouches_for_with_the_roles_it_says(dsn: str) -> None:
    async with serving() as double, by_provider(dsn, double) as http:
        page = (await http.get("/sign-in", params={"next": "/operations"})).text
        assert 'href="/sign-in/with-provider?next=%2Foperations"' in page
        off = await http.get("/sign-in/with-provider", params={"next": "/operations"})
        (kept,) = off.headers.get_list("set-cookie")
        assert "HttpOnly" in kept and "SameSite=lax" in kept and "Max-Age=600" in kept
        back = double.allow(off.headers["location"], preferred_username="Pia", groups=["on-call"])
        done = await http.get("/sign-in/back", params=back, headers={"Sec-Fetch-Site": "cross-site"})
        assert (done.status_code, done.headers["location"]) == (303, "/operations")
        (cookie,) = [c for c in done.headers.get_list("set-cookie") if c.startswith(COOKIE)]
        assert "SameSite=strict" in cookie
        page = (await http.get("/")).text
        assert ">Pia</a>" in page and 'title="operator"' in page
        again = await http.get("/sign-in/back", params=back)  # the browser's back button: the attempt is over
        assert again.status_code == 401 and "has not begun to sign in" in again.text


async def test_identity_provider_that_vouches_for_nobody_here_lets_nobody_in(dsn: str) -> None:
    async with serving() as double, by_provider(dsn, double) as http:
        for name, group, told in (("ann", "chess club", "nothing of"), ("<b>", "on-call", "&lt;b&gt;")):
            url = (await http.get("/sign-in/with-provider")).headers["location"]
            refused = await http.get(
                "/sign-in/back", params=double.allow(url, sub=name, preferred_username=name, groups=[group])
            )
            assert refused.status_code == 401 and told in refused.text and "<b>" not in refused.text
        url = (await http.get("/sign-in/with-provider")).headers["location"]
        good = double.allow(url)
        foreign = await http.get("/sign-in/back", params={**good, "state": "of-somebody-else"})
        assert foreign.status_code == 401 and "another attempt" in foreign.text and good["code"] not in foreign.text
        assert COOKIE not in http.cookies
    async with by_provider(dsn, double) as http:  # it is away now; passwords still work
        away = await http.get("/sign-in/with-provider")
        assert away.status_code == 401 and "does not answer" in away.text and 'name="password"' in away.text


@contextlib.asynccontextmanager
async def by_provider(dsn: str, double: Double) -> AsyncIterator[httpx.AsyncClient]:
    settings: Any = {
        "ledger_dsn": dsn,
        "console_oidc_issuer": double.url,
        "console_oidc_client_id": CLIENT,
        "console_oidc_client_secret": SECRET,
        "console_oidc_roles": {"on-call": "operator"},
    }
    made = create_app(ConsoleSettings(**settings))
    async with made.router.lifespan_context(made), served(made) as http:
        yield http


async def test_without_a_provider_there_is_no_way_to_one(app: FastAPI) -> None:
    async with served(app) as http:
        assert "with-provider" not in (await http.get("/sign-in")).text
        for path in ("/sign-in/with-provider", "/sign-in/back"):
            assert (await http.get(path)).status_code == 404


async def test_password_and_cookie_are_in_no_log_and_no_address(
    app: FastAPI, ada: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with served(app) as http:
        wrong = await sign_in(http, ada, f"{PASSWORD} not")
        right = await sign_in(http, ada)
        said = capsys.readouterr()
        told = said.out + said.err + caplog.text + wrong.text + right.headers["location"]
        assert PASSWORD not in told and http.cookies[COOKIE] not in told
        async with await psycopg.AsyncConnection.connect(ledger_of(app).dsn) as connection:
            rows = await (await connection.execute("SELECT body::text FROM actonce.audit")).fetchall()
            assert rows and not any(PASSWORD in row[0] or http.cookies[COOKIE] in row[0] for row in rows)


async def test_markup_in_a_name_stays_text(app: FastAPI) -> None:
    async with served(app, peer="192.0.2.9") as http:
        page = await sign_in(http, '"><script>alert(1)</script>', "wrong horse battery")
        assert page.status_code == 401
        assert "<script>alert" not in page.text and "&lt;script&gt;alert" in page.text
