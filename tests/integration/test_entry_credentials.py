"""Credentials and the access policy through the entry's door and the client: names, states, generations; no secret."""

from __future__ import annotations

import json
from typing import Any

from actonce.contracts.credential import Lease
from actonce.credentials import Broker, BrokerSettings, MemoryProvider
from actonce.credentials.memory import Account
from actonce.health import Prober
from actonce.ledger.authorising import Use
from actonce.ledger.leases import Leases
from actonce.stack import Stack
from tests.integration.entry_bench import Bench, bench
from tests.integration.test_entry_client import client, desk

NAME = "acct/write"
SECRET = "marked-secret-of-this-test"
RULE = {"principal": "agent", "destination": "payments", "actions": ["refund"], "scope": "payments:write"}
USE = Use(NAME, "payments", "refund", "payments:write")


async def leased(on: Bench) -> tuple[Broker, MemoryProvider]:
    provider = MemoryProvider({NAME: Account("agent", ("payments:write",), secret=SECRET)})
    broker = Broker(provider, BrokerSettings(tick_s=3600))
    await broker.open(Leases(on.ledger, [USE], "host:1:1"))
    assert isinstance(await broker.lease(NAME), Lease)
    return broker, provider


async def put_policy(on: Bench, version: int, *rules: dict[str, Any]) -> Any:
    body = {"policy": {"version": version, "rules": list(rules)}, "name": "sam", "reason": "agreed"}
    return await on.http.post("/v1/access-policy", json=body)


async def change(on: Bench, what: str, generation: int, name: str = "olga", credential: str = NAME) -> Any:
    body = {"credential": credential, "expected_generation": generation, "name": name, "reason": "planned"}
    return await on.http.post(f"/v1/credentials/{what}", json=body)


async def test_credentials_are_listed_with_their_leases_and_checks_and_no_secret(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None) as on:
        assert (await put_policy(on, 1, RULE)).status_code == 200
        broker, _ = await leased(on)
        answer = await on.http.get("/v1/credentials")
        (one,) = answer.json()
        (lease,) = one["leases"]
        assert (one["name"], one["state"], one["generation"]) == (NAME, "active", 1)
        assert (lease["principal"], lease["scope"], lease["holder"]) == ("agent", ["payments:write"], "host:1:1")
        assert [c["allowed"] for c in lease["checks"]] == [True]
        assert SECRET not in answer.text
        await broker.close()


async def test_a_rotation_is_taken_once_and_tells_who_was_faster(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None) as on:
        await put_policy(on, 1, RULE)
        broker, provider = await leased(on)
        first, again = await change(on, "rotations", 1), await change(on, "rotations", 1)
        assert (first.status_code, first.json()["generation"]) == (200, 2) and again.json() == first.json()
        late = await change(on, "rotations", 1, "paul")
        assert (late.status_code, late.json()["code"]) == (409, "stale") and "olga" in late.json()["detail"]
        unknown = await change(on, "rotations", 1, credential="nobody")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown")
        await broker.tick()
        (one,) = (await on.http.get("/v1/credentials")).json()
        assert [lease["generation"] for lease in one["leases"]] == [1, 2]
        assert provider.asked["issue"] == 2
        await broker.close()


async def test_a_revoked_credential_says_what_to_do_and_has_no_lease_left(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None) as on:
        broker, _ = await leased(on)
        revoked = await change(on, "revocations", 1)
        assert revoked.json()["state"] == "revoked"
        assert any("python -m actonce.client rotate" in step for step in revoked.json()["what_to_do"])
        (one,) = (await on.http.get("/v1/credentials")).json()
        assert one["leases"] == []
        await broker.close()


async def test_the_policy_only_goes_forward_and_names_what_it_allows(fresh_dsn: str) -> None:
    async with bench(fresh_dsn, None) as on:
        assert (await on.http.get("/v1/access-policy")).status_code == 404
        assert (await put_policy(on, 2, RULE)).status_code == 200
        assert (await put_policy(on, 2, RULE)).status_code == 200  # the same again
        for version in (1, 2):
            refused = await put_policy(on, version)
            assert (refused.status_code, refused.json()["code"]) == (409, "stale")
        assert (await put_policy(on, 3, {**RULE, "scope": "*"})).status_code == 422
        shown = (await on.http.get("/v1/access-policy")).json()
        assert (shown["version"], shown["rules"], shown["name"]) == (2, [RULE], "sam")


async def test_the_client_lists_rotates_revokes_and_sets_the_policy(fresh_dsn: str) -> None:
    async with desk(fresh_dsn) as (url, on):
        broker, _ = await leased(on)

        async def told(*words: str) -> str:
            said = await client(*words, "--entry", url)
            assert said.status == 0, said.err
            return said.out

        policy = json.dumps({"version": 1, "rules": [RULE]})
        who = ("--name", "olga", "--reason", "planned")
        assert "policy 1" in await told("access-policy", "--set", policy, *who)
        assert "agent" in await told("access-policy")
        await broker.tick()
        assert "allowed: policy 1 allows refund" in await told("credentials")
        assert "generation 2" in await told("rotate", NAME, "--expected-generation", "1", *who)
        assert "revoked" in await told("revoke", NAME, "--expected-generation", "2", *who)
        shown = await told("credentials")
        assert "rotate" in shown and SECRET not in shown
        await broker.close()


async def test_the_dependency_page_tells_a_credential_by_really_asking_for_a_lease(
    servers: Stack, fresh_dsn: str
) -> None:
    from worker import credential_probe

    async with bench(fresh_dsn, servers.temporal_address) as on:
        broker, provider = await leased(on)
        prober = Prober(on.ledger, [], others={f"credential:{NAME}": credential_probe(broker, NAME, "sending")})
        for spoil, state in ((None, "up"), ("away", "degraded"), ("restart", "down")):
            if spoil == "away":
                provider.away = True
            elif spoil == "restart":
                provider.away = False
                provider.restart()
            await broker.tick()
            await prober.probe_once()
            rows = (await on.http.get("/dependencies")).json()["dependencies"]
            (row,) = [r for r in rows if r["name"] == f"credential:{NAME}"]
            assert row["state"] == state, row
        await broker.close()
