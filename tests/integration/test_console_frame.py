"""What holds for every page of the console: headers, files, errors, who is served, and its life as a process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterable

import httpx
import pytest
from fastapi import FastAPI

from actonce.console.headers import CSP
from actonce.ledger import watch
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger, audit
from tests.integration.console_bench import console, routes_of, session

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


def addresses(app: FastAPI) -> Iterable[str]:
    """Every address that is asked for with GET, its parts filled with something that is not there."""
    for path, methods in routes_of(app):
        if "GET" in methods and path != "/events":
            yield re.sub(r"\{\w+(:path)?\}", "none", path)


@pytest.mark.parametrize("there", [True, False])
async def test_every_answer_has_the_policy_that_runs_nothing_inline(fresh_dsn: str, there: bool) -> None:
    """Also errors, also while the ledger does not answer."""
    if there:
        migrate(fresh_dsn)
    async with console(fresh_dsn if there else NOWHERE) as (app, http):
        asked = [*addresses(app), "/nothing/there"]
        assert len(asked) > 10
        seen = await asyncio.gather(
            *(http.get(path) for path in asked)
        )  # each waits as long as the ledger may be silent
        seen += [await http.post("/"), await http.get("/static/console.css"), await http.get("/?cursor=%00")]
        for answer in seen:
            assert answer.headers["content-security-policy"] == CSP, answer.url
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"
            assert "unsafe" not in CSP
            assert answer.status_code < 500 or answer.status_code == 503, (answer.url, answer.text)
            if answer.headers.get("content-type", "").startswith("text/html"):
                assert answer.headers["cache-control"] == "no-store"
                assert "<script>" not in answer.text and " style=" not in answer.text and " onclick" not in answer.text


@pytest.mark.parametrize("host", ["console:abc", "console:99999", "a@b", "[::1", "", "x y", "console:-1", "a/b"])
async def test_host_that_names_no_place_is_refused_before_anything_is_made_with_it(host: str) -> None:
    async with console(NOWHERE) as (_, http):
        answer = await http.get("/sign-in", headers={"Host": host})
        assert answer.status_code == 400 and answer.headers["content-security-policy"] == CSP
        good = await http.get("/sign-in", headers={"Host": "[::1]:65535"})
        assert good.status_code == 200


async def test_ledger_that_does_not_answer_is_told_on_every_page() -> None:
    async with console(NOWHERE) as (_, http):
        answer = await http.get("/")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "The ledger does not answer" in answer.text and "127.0.0.1:1" not in answer.text


async def test_empty_database_and_foreign_ledger_are_told_apart(fresh_dsn: str) -> None:
    async with console(fresh_dsn) as (_, http):
        assert "There is no ledger here yet" in (await http.get("/")).text
    migrate(fresh_dsn)
    async with console(fresh_dsn, ledger_id="00000000-0000-0000-0000-000000000000") as (_, http):
        answer = await http.get("/")
        assert answer.status_code == 503 and "not the ledger of this deployment" in answer.text


async def test_files_have_their_types_and_are_kept_only_by_their_version(fresh_dsn: str) -> None:
    migrate(fresh_dsn)
    async with console(fresh_dsn) as (_, http):
        page = (await http.get("/")).text
        for name, kind in {"console.css": "text/css", "console.js": "text/javascript", "mark.svg": "image/svg"}.items():
            address = next(a for a in page.split('"') if a.startswith(f"/static/{name}?v="))
            kept = await http.get(address)
            assert kept.status_code == 200 and kept.headers["content-type"].startswith(kind)
            assert "immutable" in kept.headers["cache-control"]
            bare = await http.get(f"/static/{name}")
            assert bare.headers["cache-control"] == "no-cache"
            again = await http.get(f"/static/{name}", headers={"If-None-Match": bare.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert (await http.get("/static/%2e%2e%2fapp.py")).status_code == 404
        assert (await http.get("/static/none.css")).status_code == 404


async def test_script_stays_small_and_needs_nothing_from_elsewhere(fresh_dsn: str) -> None:
    async with console(fresh_dsn) as (_, http):
        script = (await http.get("/static/console.js")).text
        style = (await http.get("/static/console.css")).text
        assert len(script.splitlines()) <= 150
        assert "innerHTML" not in script and "eval(" not in script and "http" not in script
        assert "@import" not in style and "http" not in style and "url(" not in style


async def test_open_pages_hear_that_something_was_recorded_and_not_what(fresh_dsn: str) -> None:
    """Served for real: a stream does not end, and the process ends all the same."""
    migrate(fresh_dsn)
    env = {k: v for k, v in os.environ.items() if not k.startswith("ACTONCE_")} | {"ACTONCE_LEDGER_DSN": fresh_dsn}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "actonce.console"), env=env, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        assert (ready["event"], ready["program"]) == ("ready", "console")
        async with Ledger(fresh_dsn) as ledger:
            cookie = {f"actonce-session-{httpx.URL(ready['url']).port}": await session(ledger, "viewer")}
        async with httpx.AsyncClient(base_url=ready["url"], timeout=20, cookies=cookie) as http:
            page = await http.get("/")
            after = page.text.split('name="pulse" content="')[1].split('"')[0]
            async with http.stream("GET", "/events", params={"after": after}) as stream:
                assert stream.headers["content-type"].startswith("text/event-stream")
                assert stream.headers["content-security-policy"] == CSP
                lines = stream.aiter_lines()
                assert await anext(lines) == "retry: 2000"
                await record_something(fresh_dsn)
                told = [line async for line in take_until(lines, "data:")]
                assert "event: change" in told and "hush" not in "".join(told)
                process.terminate()
                assert await asyncio.wait_for(process.wait(), 20) in (0, -signal.SIGTERM)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def record_something(dsn: str) -> None:
    async with Ledger(dsn) as ledger, ledger.transaction() as connection:
        await audit(connection, "test.event", None, {"hush": "hush"})


async def take_until(lines: AsyncIterator[str], start: str) -> AsyncIterator[str]:
    async for line in lines:
        yield line
        if line.startswith(start):
            return


async def test_first_page_is_green_beside_what_nobody_can_ask_and_not_beside_what_is_unknown(fresh_dsn: str) -> None:
    """A relay without a route (mail) would else make every deployment amber for good."""
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as ledger, console(fresh_dsn, stale_after_s=3600) as (_, http):

        async def reads(name: str, state: str, detail: str = "", **measures: float) -> str:
            kind = name.partition(":")[0]
            await watch.set_dependency(
                ledger, name=name, kind=kind, state=state, how="asked", detail=detail, measures=measures
            )
            return (await http.get("/")).text

        for name in ("ledger", "temporal", "watch:evaluator"):
            await reads(name, "up")
        page = await reads("destination:mail", "unknown", "it has no route", routes=0)
        assert "Nothing waits for a person" in page and "all 3 readings of what it needs are up" in page
        deps = page.split('id="deps"')[1].split("</section>")[0]
        assert "nobody can ask" in deps and "destination:mail" in deps and "it has no route" in deps
        assert "nobody can ask" in (await http.get("/dependencies")).text
        page = await reads("destination:payments", "unknown", "3 of 4 routes answer", routes=4)
        assert "not everything is known to work" in page and "Nothing waits for a person" not in page


async def test_first_page_tells_how_long_events_wait_to_be_sealed_and_what_is_quarantined(fresh_dsn: str) -> None:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as ledger, console(fresh_dsn) as (_, http):
        trail = (await http.get("/")).text.split('id="trail"')[1].split("</section>")[0]
        assert "sealing lags" not in trail and "not quarantined" in trail
        async with ledger.transaction() as connection:
            await connection.execute(
                "INSERT INTO actonce.audit (kind, body, at)"
                " VALUES ('test.event', '{}', clock_timestamp() - interval '1 h')"
            )
            await connection.execute(
                "UPDATE actonce.identity SET quarantined = true, restore_epoch = restore_epoch + 1"
            )
        page = (await http.get("/")).text
        trail = page.split('id="trail"')[1].split("</section>")[0]
        assert "sealing lags" in trail and "oldest 1 h" in trail and "restore epoch 2" in trail
        assert "not quarantined" not in trail and "quarantined" in trail
