"""Leases in force or nothing sent: expiry, revocation, rotation, authorisation, 401s (cases e4, e5, d3; SPEC §3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from actonce.contracts.credential import AccessPolicy
from actonce.contracts.errors import DecisionRefused
from actonce.contracts.messages import DecisionRequest
from actonce.contracts.verdict import Page, Receipt
from actonce.credentials import Broker
from actonce.destinations.base import Call, Destination, Lookup
from actonce.effects.decide import decide
from actonce.effects.perform import perform
from actonce.effects.reconcile import reconcile
from actonce.effects.system import System
from actonce.ledger import authorising, decisions, leases
from actonce.testing.waiting import eventually
from drills.world.leases import default_token, mark_of
from tests.integration.cases.gates import Gate, before_fence
from tests.integration.cases.kit import Bench, Lab, key_of, lost, settle, side_by_side

TICK_S = 0.3
ROUTES = ("by_id", "list", "search", "log")


def policy(bench: Bench, version: int = 1, *, allows: bool = True, scope: str = "payments:write") -> AccessPolicy:
    """The bench's agent may refund, or may do something else only."""
    rule = {
        "principal": f"agent-{bench.account}",
        "destination": "payments",
        "actions": ["refund" if allows else "look"],
        "scope": scope,
    }
    return AccessPolicy.model_validate({"version": version, "rules": [rule]})


@contextlib.asynccontextmanager
async def leasing(lab: Lab, *, life_s: float = 60.0, **settings: Any) -> AsyncIterator[tuple[Bench, System, Broker]]:
    """A bench whose payments want leases, one process on it, and a policy that allows the refund."""
    async with lab.bench(modes={"leased": True}, **settings) as bench:
        bench.lease_everything()
        await bench.world.lease(bench.account, life_s=life_s)
        broker = bench.broker(TICK_S)
        system = await bench.system(broker=broker)
        await leases.set_policy(system.ledger, policy(bench), "sam", "first policy")
        yield bench, system, broker


async def press(bench: Bench, system: System, action: str, name: str = "1") -> str:
    """What a person does with the held operation."""
    row = await bench.operation()
    request = DecisionRequest.model_validate(
        {
            "action": action,
            "name": "olga",
            "reason": "rotated",
            "evidence": "the list of credentials",
            "expected_epoch": row["epoch"],
            "expected_version": row["version"],
        }
    )
    await decisions.record(system.ledger, key_of(bench.request(name)), request)
    _, result = await decide(system, key_of(bench.request(name)))
    return result


async def resumed_early(bench: Bench, system: System) -> str:
    """A resume before its condition holds is refused; return why."""
    with pytest.raises(DecisionRefused) as refused:
        await press(bench, system, "resume")
    assert refused.value.code == "condition_not_met"
    return str(refused.value)


async def rotate(bench: Bench, system: System, purpose: str = "write", reason: str = "it expired") -> None:
    name = f"{bench.account}/{purpose}"
    (row,) = [r for r in await leases.list_credentials(system.ledger) if r["name"] == name]
    await leases.rotate(system.ledger, name, row["generation"], "olga", reason)


async def until_resumable(bench: Bench, system: System) -> None:
    """The new check is made within a renewal tick."""

    async def ready() -> bool:
        async with system.ledger.transaction() as connection:
            row = await bench.operation()
            operation = await decisions.lock_operation(connection, key_of(bench.request()))
            assert operation is not None and row["state"] == "held"
            return await authorising.unmet(connection, operation) is None

    await eventually(ready, within_s=10, what="a new authorisation check", every_s=0.05)


def lease_events(bench: Bench, event: str, purpose: str | None = None) -> list[dict[str, Any]]:
    """What the lease manager did for this account, by its own journal."""
    return [
        line
        for line in bench.world.journal()
        if line["kind"] == "lease"
        and line["account"] == bench.account
        and line["event"] == event
        and purpose in (None, line.get("purpose"))
    ]


async def kinds(bench: Bench) -> list[str]:
    return [row["kind"] for row in await bench.rows("audit")]


async def until_expired(bench: Bench, purpose: str = "write") -> None:
    async def over() -> bool:
        rows = await bench.rows("credential")
        return any(r["name"] == f"{bench.account}/{purpose}" and r["state"] == "expired" for r in rows)

    await eventually(over, within_s=20, what="the credential has expired", every_s=0.05)


async def until_revoked(bench: Bench, purpose: str = "write") -> None:
    async def over() -> bool:
        rows = await bench.rows("credential")
        return any(r["name"] == f"{bench.account}/{purpose}" and r["state"] == "revoked" for r in rows)

    await eventually(over, within_s=TICK_S + 5.0, what="the revocation is noticed", every_s=0.02)


@side_by_side
async def test_an_effect_is_sent_under_a_lease_that_the_permit_names_and_that_it_does_not_outlive(lab: Lab) -> None:
    async with leasing(lab, life_s=2.0) as (bench, system, _):
        result = await perform(system, bench.request())
        assert result.status == "committed"
        (attempt,), (lease,) = await bench.rows("attempt"), await bench.rows("lease")
        (used,) = bench.lines("credential")
        assert used["lease_id"] == attempt["lease_id"] == lease["lease_id"]
        assert attempt["not_after"] <= lease["expires_at"]
        (check,) = await bench.rows("authorisation")
        assert check["allowed"] and check["policy_version"] == 1
        assert {"lease.issued", "authorisation.checked", "access_policy.set"} <= set(await kinds(bench))


@side_by_side
async def test_a_lease_that_expired_before_the_permit_holds_until_rotation_and_a_new_check(lab: Lab) -> None:
    """Expired between proposal and execution: no send, hold, rotate, new authorisation check, resume."""
    async with leasing(lab, life_s=1.5) as (bench, system, broker):
        await broker.lease(f"{bench.account}/write")
        await bench.world.lease(bench.account, deny=["issue", "renew"])
        await until_expired(bench)
        result = await perform(system, bench.request())
        assert (result.status, result.reason) == ("held", "credential_expired")
        assert bench.requests() == [] and await bench.rows("attempt") == []
        (page,) = await bench.rows("page")
        assert "docs/operations/credential_expired.md" in page["body"]
        assert "rotate it first" in await resumed_early(bench, system)
        await rotate(bench, system)  # while the manager still gives nothing: no new check is possible
        assert "no new authorisation check" in await resumed_early(bench, system)
        await bench.world.lease(bench.account, deny=[], life_s=60)
        await until_resumable(bench, system)
        assert await press(bench, system, "resume") == "resume: applied"
        assert (await perform(system, bench.request())).status == "committed"
        assert len(bench.requests()) == len(bench.effects()) == 1
        assert {"credential.expired", "credential.rotated"} <= set(await kinds(bench))


@side_by_side
async def test_a_rotation_to_a_narrower_scope_is_refused_and_not_resumed(lab: Lab) -> None:
    async with leasing(lab, life_s=1.5) as (bench, system, broker):
        await broker.lease(f"{bench.account}/write")
        await bench.world.lease(bench.account, deny=["issue", "renew"])
        await until_expired(bench)
        await perform(system, bench.request())
        await bench.world.lease(bench.account, deny=[], life_s=60, scope={"write": ["payments:look"]})
        await rotate(bench, system)

        async def refused() -> bool:
            return any(not r["allowed"] for r in await bench.rows("authorisation"))

        await eventually(refused, within_s=10, what="the new check", every_s=0.05)
        assert "new authorisation check refused" in await resumed_early(bench, system)
        other = await perform(system, bench.request("2"))
        assert (other.status, other.reason) == ("held", "not_authorised")
        assert bench.requests() == []


@side_by_side
async def test_a_policy_that_changed_meanwhile_is_asked_at_the_permit_and_before_a_resume(lab: Lab) -> None:
    async with leasing(lab) as (bench, system, broker):
        await broker.lease(f"{bench.account}/write")
        await leases.set_policy(system.ledger, policy(bench, 2, allows=False), "sam", "fewer rights")
        result = await perform(system, bench.request())
        assert (result.status, result.reason) == ("held", "not_authorised")
        assert bench.requests() == []
        await resumed_early(bench, system)
        await leases.set_policy(system.ledger, policy(bench, 3), "sam", "back again")
        await until_resumable(bench, system)
        assert await press(bench, system, "resume") == "resume: applied"
        assert (await perform(system, bench.request())).status == "committed"


@side_by_side
async def test_without_a_policy_nothing_is_allowed(lab: Lab) -> None:
    async with lab.bench(modes={"leased": True}) as bench:
        bench.lease_everything()
        system = await bench.system(broker=bench.broker())
        result = await perform(system, bench.request())
        assert (result.status, result.reason) == ("held", "not_authorised")


@side_by_side
async def test_a_lease_revoked_between_permit_and_send_is_fenced(lab: Lab) -> None:
    async with leasing(lab) as (bench, _, _):
        gate, broker = Gate(), bench.broker(TICK_S)
        owner = await bench.system(change=before_fence(gate), broker=broker)
        going = asyncio.create_task(perform(owner, bench.request()))
        await gate.reached.wait()
        await leases.revoke(owner.ledger, f"{bench.account}/write", 1, "olga", "leaked")
        await asyncio.sleep(0.1)  # older than what makes the permit's own commit the fence
        gate.go.set()
        result = await going
        assert (result.status, result.how) == ("ready", "not_sent"), result
        assert bench.requests() == []
        assert (await perform(owner, bench.request())).reason == "credential_revoked"


@side_by_side
async def test_a_permit_whose_lease_ends_before_the_send_is_not_used(lab: Lab) -> None:
    """Between dispatch and send: `not_after` is the lease's end, and the fence keeps it."""
    async with leasing(lab, life_s=2.0) as (bench, _, _):
        gate, broker = Gate(), bench.broker(tick_s=30)
        owner = await bench.system(change=before_fence(gate), broker=broker)
        going = asyncio.create_task(perform(owner, bench.request()))
        await gate.reached.wait()
        (lease,) = await bench.rows("lease")
        await bench.world.lease(bench.account, deny=["issue", "renew"])

        async def over() -> bool:
            return bool((await owner.ledger.clock()).now() > lease["expires_at"])

        await eventually(over, within_s=10, what="the lease is over", every_s=0.05)
        gate.go.set()
        assert (await going).how == "not_sent"
        assert bench.requests() == []
        held = await perform(owner, bench.request())
        assert (held.status, held.reason) == ("held", "credential_expired")


@side_by_side
async def test_a_401_on_the_write_renews_and_sends_the_same_operation_case_e4(lab: Lab) -> None:
    async with leasing(lab) as (bench, system, _):
        await bench.configure(revoked={"write": "401"})
        first = await perform(system, bench.request())
        assert (first.status, first.how) == ("ready", "not_accepted")
        await bench.configure(revoked={})
        second = await perform(system, bench.request())
        assert second.status == "committed" and second.operation_id == first.operation_id
        used = {a["lease_id"] for a in await bench.rows("attempt")}
        assert len(used) == 2, "the refused lease is not used again"
        assert len(bench.effects()) == 1


@side_by_side
async def test_a_destination_that_refuses_fresh_leases_too_ends_the_credential_and_nothing_spins(lab: Lab) -> None:
    async with leasing(lab) as (bench, system, _):
        await bench.configure(revoked={"write": "401"})
        results = [await perform(system, bench.request()) for _ in range(5)]
        assert [r.status for r in results] == ["ready", "ready", "held", "held", "held"]
        assert results[-1].reason == "credential_revoked"
        assert len(bench.requests()) == 2


@side_by_side
async def test_a_401_after_a_lost_response_reconciles_before_anything_is_sent_case_e4(lab: Lab) -> None:
    """Every route answers 401 until its lease is renewed; meanwhile the effect is not absent (case d3)."""
    async with leasing(lab) as (bench, system, _):
        await bench.configure(answer={"kind": "close", "when": "after_commit", "times": 1})
        await lost(system, bench.request())
        await bench.configure(revoked=dict.fromkeys(ROUTES, "401"))
        seen = await reconcile(system, key_of(bench.request()))
        assert seen.verdict == "ambiguous" and seen.next != "issue"
        await bench.configure(revoked={})
        seen = await settle(system, bench.request())
        assert (seen.next, seen.verdict) == ("done", "committed")
        assert len(bench.requests()) == len(bench.effects()) == 1
        assert all(v["outcome"] != "absent" for v in await bench.rows("verdict"))
        for purpose in ROUTES:
            assert len(lease_events(bench, "issued", purpose)) == 2, "renewed once, then read again"


@side_by_side
async def test_routes_without_a_lease_are_unavailable_and_never_absent_case_d3(lab: Lab) -> None:
    async with leasing(lab) as (bench, system, _):
        await bench.configure(answer={"kind": "close", "when": "before_commit", "times": 1})
        await lost(system, bench.request())
        await bench.world.lease(bench.account, deny=["issue", "renew"], only=ROUTES)
        for purpose in ROUTES:
            await bench.world.end_leases(bench.account, purpose=purpose)
        seen = await settle(system, bench.request())
        assert (seen.next, seen.reason) == ("hold", "route_unavailable")
        assert {v["outcome"] for v in await bench.rows("verdict")} == {"ambiguous"}


@pytest.mark.parametrize("ending", [{"parent": True}, {"restart": True}, {"purpose": "write"}])
@side_by_side
async def test_a_revoked_parent_or_a_restarted_manager_is_noticed_within_one_tick_case_e5(
    lab: Lab, ending: dict[str, Any]
) -> None:
    async with leasing(lab) as (bench, system, broker):
        await broker.lease(f"{bench.account}/write")
        await bench.world.end_leases(bench.account, **ending)
        await until_revoked(bench)
        asked = len(lease_events(bench, "issued"))
        for _ in range(10):
            held = await perform(system, bench.request())
            assert (held.status, held.reason) == ("held", "credential_revoked")
        assert len(lease_events(bench, "issued")) == asked, "the manager is not asked for every operation"
        assert "credential.revoked" in await kinds(bench)
        assert bench.requests() == []


@side_by_side
async def test_a_new_token_of_the_manager_and_a_rotation_cure_a_revoked_parent(lab: Lab) -> None:
    async with leasing(lab) as (bench, system, broker):
        await broker.lease(f"{bench.account}/write")
        await bench.world.end_leases(bench.account, parent=True)
        await until_revoked(bench)
        await perform(system, bench.request())
        token = f"{default_token(bench.account)}x"
        broker._provider._settings.token = type(broker._provider._settings.token)(token)  # type: ignore[attr-defined]
        await bench.world.lease(bench.account, token=token)
        await rotate(bench, system, reason="new token")
        await until_resumable(bench, system)
        assert await press(bench, system, "resume") == "resume: applied"
        assert (await perform(system, bench.request())).status == "committed"


@side_by_side
async def test_refreshes_at_the_same_moment_are_one_and_kill_no_good_lease(lab: Lab) -> None:
    """The manager kills a lease that is renewed twice at once, as rotating refresh tokens do."""
    async with leasing(lab, life_s=2.0) as (bench, system, broker):
        await bench.world.lease(bench.account, jealous=True)
        name = f"{bench.account}/write"
        got = await asyncio.gather(*(broker.lease(name) for _ in range(20)))
        assert len({lease.lease_id for lease in got}) == 1  # type: ignore[union-attr]
        results = await asyncio.gather(
            *(broker.lease(name, min_left_s=2.0) for _ in range(20)),
            *(broker.tick() for _ in range(5)),
            *(perform(system, bench.request(str(n))) for n in range(5)),
        )
        assert lease_events(bench, "renewed") and not lease_events(bench, "ended")
        assert len(lease_events(bench, "issued", "write")) == 1, results
        assert len(bench.effects()) == 5


@side_by_side
async def test_a_rotation_races_no_operation_into_a_hold(lab: Lab) -> None:
    async with leasing(lab) as (bench, system, broker):
        await broker.lease(f"{bench.account}/write")
        await rotate(bench, system, reason="planned")
        result = await perform(system, bench.request())
        assert result.status == "committed"
        (attempt,) = await bench.rows("attempt")
        generations = {r["lease_id"]: r["generation"] for r in await bench.rows("lease")}
        assert generations[attempt["lease_id"]] == 2


@side_by_side
async def test_rotations_and_revocations_are_idempotent_and_compare_the_generation(lab: Lab) -> None:
    async with leasing(lab) as (bench, system, broker):
        name = f"{bench.account}/write"
        await broker.lease(name)
        first = await leases.rotate(system.ledger, name, 1, "olga", "planned")
        again = await leases.rotate(system.ledger, name, 1, "olga", "planned")
        assert first["generation"] == again["generation"] == 2
        for wrong in (leases.rotate, leases.revoke):
            with pytest.raises(Exception, match="generation 2"):
                await wrong(system.ledger, name, 1, "paul", "did not look")
        one = await leases.revoke(system.ledger, name, 2, "olga", "leaked")
        two = await leases.revoke(system.ledger, name, 2, "paul", "me too")
        assert one == two and one["changed_by"] == "olga"
        assert (await kinds(bench)).count("credential.rotated") == (await kinds(bench)).count("credential.revoked") == 1


@side_by_side
async def test_a_manager_that_is_away_leaves_a_lease_with_time_alone(lab: Lab) -> None:
    async with leasing(lab, life_s=3.0) as (bench, system, broker):
        lease = await broker.lease(f"{bench.account}/write")
        await bench.world.lease(bench.account, away=True)
        await eventually(lambda: lease_events(bench, "away"), within_s=5, what="the manager was asked", every_s=0.05)
        assert await broker.lease(f"{bench.account}/write") == lease
        assert (await perform(system, bench.request())).status == "committed"
        health = await broker.health(f"{bench.account}/write")
        assert health.state == "degraded", health


@side_by_side
async def test_a_lease_that_makes_us_somebody_else_than_the_contract_says_is_not_authorised(lab: Lab) -> None:
    """What people approve names the principal; a lease of another one must not run it."""
    async with lab.bench(modes={"leased": True}, contracts={"payments": {"principal": "somebody"}}) as bench:
        bench.lease_everything()
        system = await bench.system(broker=bench.broker())
        await leases.set_policy(system.ledger, policy(bench), "sam", "first policy")
        result = await perform(system, bench.request())
        assert (result.status, result.reason) == ("held", "not_authorised")
        assert "acts as somebody" in result.detail and bench.requests() == []


@side_by_side
async def test_an_error_that_quotes_the_secret_is_kept_without_it_case_c12(lab: Lab) -> None:
    """Of the send and of a route; and what the ledger holds afterwards has no marked secret in it."""

    def quoting(destination: Destination) -> Destination:
        if destination.contract.name != "payments":
            return destination

        async def send(call: Call) -> Receipt:
            async with call.window():
                raise RuntimeError(f"Authorization: Bearer {call.secret()} was not understood")

        async def read(lookup: Lookup, cursor: str | None) -> Page:
            raise RuntimeError(f"Authorization: Bearer {lookup.secret()} was not understood")

        return replace(destination, send=send, routes=dict.fromkeys(destination.routes, read))

    async with leasing(lab) as (bench, _, _):
        owner = await bench.system(change=quoting, broker=bench.broker(TICK_S))
        result = await perform(owner, bench.request())
        assert (result.status, "[secret] was not understood" in result.detail) == ("unknown", True)
        seen = await reconcile(owner, key_of(bench.request()))
        assert seen.verdict == "ambiguous"
        (verdict,) = await bench.rows("verdict")
        assert all("[secret]" in reading["error"] for reading in verdict["readings"])
        tables = ("attempt", "verdict", "operation", "audit", "page", "lease", "authorisation", "dependency")
        kept = "".join([str(await bench.rows(table)) for table in tables])
        assert len(kept) > 1000 and mark_of(bench.account) not in kept
