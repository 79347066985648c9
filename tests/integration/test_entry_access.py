"""Who gets through the entry's door: every route of the running app, and every way not to be let in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio
from fastapi import APIRouter, FastAPI
from pydantic import ValidationError

from actonce.contracts.people import Role, Scope
from actonce.entry import access
from actonce.entry.access import Access, Caller, guarded_router, include
from actonce.entry.settings import EntrySettings
from actonce.ledger import people, tokens
from actonce.ledger.store import one
from tests.integration.entry_bench import Bench, bench

OPEN = {("GET", "/health"), ("GET", "/dependencies")}
# Whoever adds a route says here, too, what opens it.
OPENED_BY = {
    ("POST", "/v1/tasks/{task_type}"): {"start"},
    ("POST", "/v1/tasks/{task_id}/cancel"): {"start", "decide"},
    ("POST", "/v1/tasks/{task_id}/deadline"): {"decide"},
    ("POST", "/v1/operations/{operation_id}/decisions"): {"decide"},
    ("POST", "/v1/operations/{operation_id}/decisions/{decision_id}/second"): {"decide"},
    ("POST", "/v1/pages/{page_id}/acknowledge"): {"decide"},
    ("POST", "/v1/approvals/{approval_id}/approve"): {"approve"},
    ("POST", "/v1/approvals/{approval_id}/reject"): {"approve"},
    ("POST", "/v1/approvals/{approval_id}/withdraw"): {"approve"},
    ("POST", "/v1/approvals/{approval_id}/renew"): {"approve"},
    ("POST", "/v1/release/{task_type}"): {"release"},
    ("POST", "/v1/restore/release"): {"decide"},
    ("POST", "/v1/restore/close"): {"decide"},
    ("POST", "/v1/credentials/rotations"): {"access"},
    ("POST", "/v1/credentials/revocations"): {"access"},
    ("POST", "/v1/access-policy"): {"access"},
    ("POST", "/v1/search"): {"read"},
    ("POST", "/v1/people"): {"admin"},
    ("POST", "/v1/people/roles"): {"admin"},
    ("POST", "/v1/people/passwords"): {"admin"},
    ("POST", "/v1/people/disabled"): {"admin"},
    ("POST", "/v1/people/enabled"): {"admin"},
    ("POST", "/v1/tokens"): {"admin"},
    ("POST", "/v1/tokens/revocations"): {"admin"},
}
SEEN_BY_ADMIN_ALONE = {("GET", "/v1/people"), ("GET", "/v1/tokens")}
READS = {("POST", "/v1/search")}  # so that what is looked for is in no address
PARAMETERS = {
    "task_id": "default%2Fsingle%2Fnone",
    "task_type": "single",
    "page_id": "1",
    "operation_id": "op1_none",
    "decision_id": "1",
    "approval_id": "apr_none",
}
NAME = {"name": "Eve"}
WHY = {**NAME, "reason": "r"}
OF_NOBODY = {**NAME, "person": "nobody", "expected_version": 1}
# A body that fits, for every route whose body says whose words it brings.
NAMED: dict[str, dict[str, Any]] = {
    "/v1/tasks/{task_id}/cancel": {**NAME, "why": "w"},
    "/v1/tasks/{task_id}/deadline": {**NAME, "why": "w", "deadline": "2030-01-01T00:00:00Z", "expected_deadline": None},
    "/v1/operations/{operation_id}/decisions": {
        **WHY,
        "action": "mark_absent",
        "evidence": "e",
        "expected_epoch": 1,
        "expected_version": 1,
    },
    "/v1/operations/{operation_id}/decisions/{decision_id}/second": {**NAME, "agrees": True, "why": "w"},
    "/v1/pages/{page_id}/acknowledge": NAME,
    "/v1/approvals/{approval_id}/approve": {**NAME, "note": "n", "digest": "d1:" + "0" * 64},
    "/v1/approvals/{approval_id}/reject": {**NAME, "note": "n", "digest": "d1:" + "0" * 64},
    "/v1/approvals/{approval_id}/withdraw": {**NAME, "note": "n"},
    "/v1/approvals/{approval_id}/renew": {**NAME, "note": "n"},
    "/v1/release/{task_type}": {**NAME, "why": "w", "evidence": "e", "expected_version": 1, "paused": True},
    "/v1/restore/release": {**WHY, "group": "settled", "expected_epoch": 1},
    "/v1/restore/close": {**WHY, "expected_epoch": 1},
    "/v1/credentials/rotations": {**WHY, "credential": "c", "expected_generation": 1},
    "/v1/credentials/revocations": {**WHY, "credential": "c", "expected_generation": 1},
    "/v1/access-policy": {**WHY, "policy": {"version": 1, "rules": []}},
    "/v1/people": {**NAME, "person": "Zed", "roles": ["viewer"], "password": "a password of Zed's"},
    "/v1/people/roles": {**OF_NOBODY, "roles": ["viewer"]},
    "/v1/people/passwords": {**OF_NOBODY, "password": "a password of Zed's"},
    "/v1/people/disabled": OF_NOBODY,
    "/v1/people/enabled": OF_NOBODY,
    "/v1/tokens": {**NAME, "label": "l", "scopes": ["read"]},
    "/v1/tokens/revocations": {**NAME, "token_id": 999, "label": "l"},
}


@pytest_asyncio.fixture
async def on(fresh_dsn: str) -> AsyncIterator[Bench]:
    async with bench(fresh_dsn, None, start_deadline_s=0.2, token_cache_s=0) as running:
        yield running


async def token(on: Bench, *scopes: Scope, **more: Any) -> dict[str, str]:
    """Headers that show a new token."""
    _, value = await tokens.create_token(on.ledger, "t", scopes or [Scope.READ], by="tests", **more)
    return shown(value)


def shown(value: str, person: str | None = None) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"} | ({"Actonce-Person": quote(person)} if person else {})


async def routes(on: Bench) -> list[tuple[str, str, dict[str, Any]]]:
    """(method, path, what the app says of it), of everything that it says it has."""
    described = (await on.http.get("/openapi.json")).json()
    return [
        (method.upper(), path, said) for path, methods in described["paths"].items() for method, said in methods.items()
    ]


def writes(route: tuple[str, str]) -> bool:
    return route[0] != "GET" and route not in READS


async def ask(on: Bench, method: str, path: str, headers: dict[str, str], **more: Any) -> httpx.Response:
    filled = path
    for name, value in PARAMETERS.items():
        filled = filled.replace(f"{{{name}}}", value)
    assert "{" not in filled, f"{path}: a path parameter that this test does not know"
    on.http.headers.pop("Authorization", None)
    return await on.http.request(method, filled, headers={"Idempotency-Key": "k", **headers}, **more)


async def answers(on: Bench, headers: dict[str, str], **more: Any) -> dict[tuple[str, str], int]:
    """What every guarded route answers to these headers."""
    found = [(m, p) for m, p, _ in await routes(on) if (m, p) not in OPEN]
    assert len(found) > 20
    return {(m, p): (await ask(on, m, p, headers, **(more if m != "GET" else {}))).status_code for m, p in found}


def refused(found: dict[tuple[str, str], int]) -> set[tuple[str, str]]:
    return {key for key, status in found.items() if status == 403}


async def rows(on: Bench) -> int:
    async with on.ledger.transaction() as connection:
        found = await one(connection, "SELECT count(*) AS n FROM actonce.audit")
    assert found is not None
    return int(found["n"])


# every route ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"{}", b"{not json", b"[" * 5000])
async def test_nothing_is_answered_without_a_token_whatever_is_sent(on: Bench, body: bytes) -> None:
    before = await rows(on)
    for headers in ({}, {"Authorization": "Basic YTpi"}, {"Authorization": "Bearer"}, shown("actonce_" + "A" * 43)):
        found = await answers(on, {"Content-Type": "application/json", **headers}, content=body)
        assert set(found.values()) == {401}, found
    assert await rows(on) == before


async def test_the_walk_over_all_routes_finds_a_door_that_lets_everybody_in(
    on: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test above: with the check taken out it would fail."""

    async def everybody(*_: object) -> Caller:
        return Caller(frozenset(Scope), None)

    monkeypatch.setattr(Access, "allow", everybody)
    assert set((await answers(on, {}, content=b"{}")).values()) & {200, 202, 404, 422}


async def test_a_token_to_read_reads_everything_and_writes_nothing(on: Bench) -> None:
    headers = await token(on)
    before = await rows(on)
    found = await answers(on, headers, content=b"{}")
    assert refused(found) == {key for key in found if writes(key)} | SEEN_BY_ADMIN_ALONE
    assert {status for key, status in found.items() if not writes(key)} <= {200, 403, 404, 422}
    assert await rows(on) == before


async def test_each_scope_opens_what_it_is_for_and_nothing_else(on: Bench) -> None:
    posts = {(m, p): said for m, p, said in await routes(on) if m != "GET"}
    assert posts.keys() == OPENED_BY.keys()
    for key, said in posts.items():
        assert {scope for one in said["security"] for scope in one["token"]} == OPENED_BY[key], key
        assert {"401", "403"} <= said["responses"].keys()
    for scope in Scope:
        found = await answers(on, await token(on, scope), content=b"{}")
        opened = {key for key, status in found.items() if status != 403}
        wanted = {key for key, scopes in OPENED_BY.items() if scope.value in scopes}
        assert {key for key in opened if key[0] != "GET"} == wanted, scope
        reads = {key for key in opened if key[0] == "GET"}
        assert (reads == SEEN_BY_ADMIN_ALONE) if scope is Scope.ADMIN else (bool(reads) == (scope is Scope.READ)), scope


async def test_a_refusal_says_what_is_missing_in_body_and_header(on: Bench) -> None:
    missing = await ask(on, "GET", "/v1/tasks", {})
    assert missing.headers["www-authenticate"] == "Bearer"
    assert missing.headers["content-type"] == "application/problem+json"
    unknown = await ask(on, "GET", "/v1/tasks", shown("nonsense"))
    assert unknown.headers["www-authenticate"] == 'Bearer error="invalid_token"' and "nonsense" not in unknown.text
    refused = await ask(on, "POST", "/v1/tasks/{task_id}/cancel", await token(on))
    assert refused.json()["type"] == "urn:actonce:problem:scope-missing"
    assert "decide or start" in refused.json()["detail"] and "carries read" in refused.json()["detail"]
    assert refused.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="decide start"'


async def test_health_dependencies_and_the_description_need_no_token(on: Bench) -> None:
    for path in ("/health", "/dependencies", "/openapi.json", "/docs"):
        assert (await ask(on, "GET", path, {})).status_code == 200


def test_a_route_that_does_not_say_what_opens_it_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="say which scope"):
        guarded_router("/v1/new", "new").get("")(lambda: None)
    plain = APIRouter(prefix="/v1/new")
    plain.get("")(lambda: None)
    with pytest.raises(TypeError, match="open to everybody"):
        include(FastAPI(), plain)


# tokens -----------------------------------------------------------------------------------------------------------


async def test_revoked_and_expired_tokens_and_those_of_disabled_people_open_nothing(on: Bench) -> None:
    await people.add_person(on.ledger, "dana", [Role.VIEWER], password=None, by="tests")
    made, value = await tokens.create_token(on.ledger, "t", [Scope.READ], by="tests")
    of_dana = await token(on, Scope.READ, person="dana")
    assert (await ask(on, "GET", "/v1/tasks", shown(value))).status_code == 200
    assert (await ask(on, "GET", "/v1/tasks", of_dana)).status_code == 200
    await tokens.revoke_token(on.ledger, made.token_id, by="Ada")
    await people.disable(on.ledger, "dana", by="Ada")
    for headers, says in (
        (shown(value), "revoked by Ada"),
        (of_dana, "no longer, a person"),
        (await token(on, lifetime_s=0.0), "expired"),
    ):
        answer = await ask(on, "GET", "/v1/tasks", headers)
        assert answer.status_code == 401 and says in answer.json()["detail"]


async def test_a_revoked_token_counts_no_longer_than_it_is_remembered(fresh_dsn: str) -> None:
    """Within that time it still does: that is the stated delay, and how we know that anything is remembered."""
    async with bench(fresh_dsn, None, token_cache_s=60) as on:
        made, value = await tokens.create_token(on.ledger, "t", [Scope.READ], by="tests")
        assert (await ask(on, "GET", "/v1/tasks", shown(value))).status_code == 200
        await tokens.revoke_token(on.ledger, made.token_id, by="Ada")
        assert (await ask(on, "GET", "/v1/tasks", shown(value))).status_code == 200
        later = Access(on.ledger, 60)
        with pytest.raises(Exception, match="not known"):
            await later.caller(value, None)


async def test_who_cannot_be_looked_up_is_not_let_in(on: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = await token(on)
    monkeypatch.setattr(on.ledger, "deadline_s", 0.0)
    answer = await ask(on, "GET", "/v1/tasks", headers)
    assert answer.status_code == 503 and answer.json()["type"] == "urn:actonce:problem:ledger-unavailable"


# people -----------------------------------------------------------------------------------------------------------


async def test_a_persons_token_can_do_what_both_allow_and_follows_their_roles(on: Bench) -> None:
    await people.add_person(on.ledger, "dana", [Role.APPROVER], password=None, by="tests")
    headers = await token(on, *(set(Scope) - {Scope.ACT_FOR}), person="dana")
    approve = ("POST", "/v1/approvals/{approval_id}/approve")
    decide = ("POST", "/v1/operations/{operation_id}/decisions")
    assert (await ask(on, *approve, headers, json={})).status_code == 422
    assert (await ask(on, *decide, headers, json={})).status_code == 403
    await people.set_roles(on.ledger, "dana", [Role.OPERATOR], by="tests")
    assert (await ask(on, *approve, headers, json={})).status_code == 403
    assert (await ask(on, *decide, headers, json={})).status_code == 422
    narrow = await token(on, Scope.READ, person="dana")
    assert (await ask(on, *decide, narrow, json={})).status_code == 403


async def test_nobody_brings_words_in_anothers_name_at_any_route(on: Bench) -> None:
    await people.add_person(on.ledger, "Dana", [Role.ADMIN], password=None, by="tests")
    headers = await token(on, *(set(Scope) - {Scope.ACT_FOR}), person="dana")
    described = (await on.http.get("/openapi.json")).json()
    with_a_name = set()
    for method, path, said in await routes(on):
        schema = json.dumps(said.get("requestBody", {}))
        named = [name for name, it in described["components"]["schemas"].items() if "name" in it.get("properties", {})]
        if method != "GET" and any(f'schemas/{name}"' in schema for name in named):
            with_a_name.add(path)
    assert with_a_name == NAMED.keys()
    before = await rows(on)
    for path, body in NAMED.items():
        denied = await ask(on, "POST", path, headers, json=body)
        assert denied.status_code == 403 and denied.json()["type"].endswith("name-differs"), (path, denied.text)
    assert await rows(on) == before
    for path, body in NAMED.items():
        own = await ask(on, "POST", path, headers, json={**body, "name": "Dana"})
        assert own.status_code != 403, (path, own.text)
    unbound = await token(on, Scope.DECIDE)
    own = await ask(on, "POST", "/v1/pages/{page_id}/acknowledge", unbound, json={"name": "anybody"})
    assert own.status_code == 404


async def test_a_payload_may_have_a_name_in_it_whoever_brings_it(on: Bench) -> None:
    await people.add_person(on.ledger, "dana", [Role.ADMIN], password=None, by="tests")
    headers = await token(on, Scope.START, Scope.READ, person="dana")
    started = await ask(on, "POST", "/v1/tasks/{task_type}", headers, json={"name": "Eve"})
    assert started.status_code == 202


async def test_speaking_for_a_person_never_allows_more_than_their_roles(on: Bench) -> None:
    await people.add_person(on.ledger, "李雷", [Role.VIEWER], password=None, by="tests")
    _, console = await tokens.create_token(on.ledger, "console", [Scope.ACT_FOR], by="tests")
    alone = await answers(on, shown(console), content=b"{}")
    assert set(alone.values()) == {403}, "of its own it opens nothing"
    as_viewer = await answers(on, shown(console, "李雷"), content=b"{}")
    assert refused(as_viewer) == {key for key in as_viewer if writes(key)} | SEEN_BY_ADMIN_ALONE
    assert {status for key, status in as_viewer.items() if not writes(key)} <= {200, 403, 404, 422}
    await people.set_roles(on.ledger, "李雷", [Role.OPERATOR], by="tests")
    seen = ("POST", "/v1/pages/{page_id}/acknowledge")
    assert (await ask(on, *seen, shown(console, "李雷"), json={"name": "李雷"})).status_code == 404
    assert (await ask(on, *seen, shown(console, "李雷"), json={"name": "Eve"})).status_code == 403
    everything = await tokens.create_token(on.ledger, "all", Scope, by="tests")
    assert (await ask(on, "POST", "/v1/access-policy", shown(everything[1], "李雷"), json={})).status_code == 403


async def test_only_a_token_for_it_speaks_for_people_and_only_for_those_there_are(on: Bench) -> None:
    await people.add_person(on.ledger, "root", [Role.ADMIN], password=None, by="tests")
    plain = await token(on, *(set(Scope) - {Scope.ACT_FOR}))
    refused = await ask(on, "GET", "/v1/tasks", {**plain, "Actonce-Person": "root"})
    assert refused.status_code == 403 and "act_for" in refused.json()["detail"]
    _, console = await tokens.create_token(on.ledger, "console", [Scope.ACT_FOR], by="tests")
    for person in ("nobody", "", "%00", "root%0d%0a"):
        answer = await ask(on, "GET", "/v1/tasks", {**shown(console), "Actonce-Person": person})
        assert answer.status_code == 401, person


# where it listens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "entry.example", "", "127.0.0.1.example"])
def test_it_does_not_listen_for_other_machines_in_plain_text(host: str) -> None:
    with pytest.raises(ValidationError, match="ACTONCE_ENTRY_TLS_CERT"):
        EntrySettings(ledger_dsn="postgresql://nobody", entry_host=host)
    EntrySettings(ledger_dsn="postgresql://nobody", entry_host=host, entry_behind_tls_proxy=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_on_the_loopback_interface_it_listens_as_it_is(host: str) -> None:
    EntrySettings(ledger_dsn="postgresql://nobody", entry_host=host)


def test_half_a_certificate_and_a_missing_one_are_refused() -> None:
    for half in ({"entry_tls_cert": "/c.pem"}, {"entry_tls_key": "/k.pem"}):
        with pytest.raises(ValidationError, match="go together"):
            EntrySettings(ledger_dsn="postgresql://nobody", **half)
    with pytest.raises(ValidationError, match="there is no file"):
        EntrySettings(ledger_dsn="postgresql://nobody", entry_tls_cert="/c.pem", entry_tls_key="/k.pem")


def test_the_cache_cannot_be_made_long() -> None:
    with pytest.raises(ValidationError):
        EntrySettings(ledger_dsn="postgresql://nobody", token_cache_s=61)
    assert access.PERSON_HEADER == "Actonce-Person"
