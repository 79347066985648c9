"""Reading after writing: cases d1 to d9, on the sandbox's own routes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actonce.contracts.contract import Contract
from actonce.contracts.errors import ContractError
from actonce.effects.perform import perform
from actonce.effects.reconcile import reconcile
from actonce.effects.system import System
from tests.integration.cases import kit
from tests.integration.cases.kit import Bench, Lab, key_of, settle, side_by_side

CLOSED = {"kind": "close", "times": 1}
LOST_AFTER = {"answer": {**CLOSED, "when": "after_commit"}}
LOST_BEFORE = {"answer": {**CLOSED, "when": "before_commit"}}


async def lost(bench: Bench, **change: Any) -> System:
    system = await bench.system(**change)
    await kit.lost(system, bench.request())
    return system


async def last_verdict(bench: Bench) -> dict[str, Any]:
    return max(await bench.rows("verdict"), key=lambda v: int(v["verdict_id"]))


async def outcomes(bench: Bench) -> set[str]:
    return {v["outcome"] for v in await bench.rows("verdict")}


@side_by_side
async def test_effect_that_comes_after_two_truthful_denials(lab: Lab) -> None:
    """case d1: the caller gives up, all routes say "no", it is applied a second and a half later: never absent."""
    modes = {"processing_delay_s": 4.0}
    async with lab.bench(modes=modes, processing_bound_s=4.5) as bench:
        system = await lost(bench)
        early = await reconcile(system, key_of(bench.request()))
        assert (early.verdict, early.reason) == ("ambiguous", "too_early") and bench.effects() == []
        seen = await settle(system, bench.request())
        assert (seen.verdict, len(bench.effects()), len(bench.requests())) == ("committed", 1, 1)
        assert await outcomes(bench) == {"ambiguous", "committed"}


@pytest.mark.parametrize("loss", [LOST_AFTER, LOST_BEFORE], ids=["committed", "not_arrived"])
@side_by_side
async def test_long_list_and_lagging_search(lab: Lab, loss: dict[str, Any]) -> None:
    """case d2: 150 rows in pages of 100, oldest first, search 8 s behind, an object of another type with our marker."""
    modes = {**loss, "seed_rows": 149, "page_size": 100, "routes": {"search": {"mode": "healthy", "lag_s": 8.0}}}
    async with lab.bench(modes=modes) as bench:
        operation_id = key_of(bench.request()).operation_id
        marked = {"operation_id": operation_id, "key": operation_id}
        await lab.world.plant(bench.account, "dispute", fields={}, metadata=marked)
        system = await lost(bench)
        seen = await settle(system, bench.request())
        readings = {r["route"]: r for r in (await last_verdict(bench))["readings"]}
        assert (readings["list"]["pages"], readings["list"]["complete"]) == (2, True)
        assert readings["list"]["rows_received"] == readings["list"]["declared_total"] >= 150
        if loss is LOST_AFTER:
            assert (seen.verdict, len(bench.effects())) == ("committed", 1)
            object_id = (await bench.operation())["object_id"]
            assert object_id == bench.effects()[0]["object_id"]
        else:  # list and log agree; the dispute is no match, and under our key in our own field nothing is absent
            assert (seen.verdict, seen.reason, len(bench.effects())) == ("ambiguous", "look_alike", 0)


@side_by_side
async def test_short_page_of_a_long_list_is_never_absent(lab: Lab) -> None:
    """case d2, other half: the effect is there, on the page that a lagging search and a short list do not show."""
    routes = {"search": {"mode": "healthy", "lag_s": 60.0}, "list": "short_no_total", "by_id": "down", "log": "down"}
    async with lab.bench(modes={**LOST_AFTER, "seed_rows": 149, "routes": routes}) as bench:
        seen = await settle(await lost(bench), bench.request())
        assert (seen.verdict, seen.next) == ("ambiguous", "hold")
        assert await outcomes(bench) == {"ambiguous"}


@side_by_side
async def test_reading_credential_that_lost_its_scope(lab: Lab) -> None:
    """case d3: committed; then route A says 404 and B answers empty 200: it cannot see, so it proves nothing."""
    async with lab.bench(modes=LOST_AFTER) as bench:
        await bench.configure(revoked={"by_id": "masked", "list": "masked", "search": "masked", "log": "masked"})
        seen = await settle(await lost(bench), bench.request())
        assert (seen.verdict, seen.reason, seen.next) == ("ambiguous", "not_visible", "hold")
        assert await outcomes(bench) == {"ambiguous"} and len(bench.effects()) == len(bench.requests()) == 1
        (page,) = await bench.rows("page")
        assert page["reason"] == "not_visible" and page["closed_at"] is None


@pytest.mark.parametrize("how", ["401", "403"])
@side_by_side
async def test_reading_credential_that_is_refused(lab: Lab, how: str) -> None:
    """case d3: a denied reading is no reading."""
    async with lab.bench(modes={**LOST_BEFORE, "revoked": {"by_id": how, "list": how, "log": how}}) as bench:
        seen = await settle(await lost(bench), bench.request())
        assert (seen.verdict, seen.reason, seen.next) == ("ambiguous", "route_unavailable", "hold")


@side_by_side
async def test_acknowledged_id_wins_over_a_route_that_denies_it(lab: Lab) -> None:
    """case d4: created with 201 and an id; reading by id says 404 for a while: stored, wins, the route is flagged."""
    async with lab.bench(completion="read_back", modes={"routes": {"*": "denies"}}) as bench:
        system = await bench.system()
        issued = await perform(system, bench.request())
        (effect,) = bench.effects()
        assert (issued.status, issued.object_id) == ("acknowledged", effect["object_id"])
        denied = await reconcile(system, key_of(bench.request()))
        assert (denied.verdict, denied.reason) == ("ambiguous", "too_early")
        await bench.configure(routes={"list": "healthy", "search": "healthy", "log": "healthy"})
        seen = await settle(system, bench.request())
        row = await bench.operation()
        assert (seen.verdict, row["completion"]) == ("committed", "read_back")
        assert row["object_id"] == effect["object_id"]
        assert "by_id" in (await last_verdict(bench))["body"]["flagged"]
        assert len(bench.requests()) == 1


def _route(bench: Bench, name: str) -> dict[str, Any]:
    system_route = {"network": f"payments.{name}", "credential": f"{bench.account}/{name}", "lag_s": 0.5}
    return {"name": name, "kind": name, "store": f"store-{name}", "declares_total": name == "list"} | system_route


@side_by_side
async def test_routes_on_one_replica_count_as_one(lab: Lab) -> None:
    """case d5: a false claim is refused at registration; declared as sharing, their agreement is never absent."""
    async with lab.bench(modes=LOST_BEFORE) as bench:
        shared = [_route(bench, name) | {"store": "replica-1"} for name in ("list", "log")]
        declared = (await bench.system()).destination("payments").contract.model_dump()
        with pytest.raises(ContractError, match="claim independence but share \\['store'\\]"):
            Contract.model_validate(declared | {"routes": [r | {"claims_independence": True} for r in shared]})
        honest = {"contracts": bench.settings.contracts | {"payments": {"routes": shared}}}
        seen = await settle(await lost(bench, **honest), bench.request())
        assert (seen.verdict, seen.reason, seen.next) == ("ambiguous", "not_independent", "hold")


@side_by_side
async def test_a_comment_that_quotes_us_is_no_match(lab: Lab) -> None:
    """case d7: our call never arrived; a stranger's note quotes our operation_id."""
    async with lab.bench(modes=LOST_BEFORE) as bench:
        request = bench.request()
        quoting = f"see {key_of(request).operation_id}, thanks"
        await lab.world.plant(bench.account, "note", author="prn-stranger", text=quoting)
        seen = await settle(await lost(bench), request)
        assert (seen.verdict, seen.next) == ("absent", "issue")
        assert len((await last_verdict(bench))["body"]["look_alikes"]) >= 1


@side_by_side
async def test_another_principals_object_under_our_key_is_no_match_and_is_not_absent(lab: Lab) -> None:
    """case d7: our call never arrived, and in our own field stands our key, by a principal that is not ours (any
    more): nobody can tell from here whether that is our own effect from before a rotation."""
    async with lab.bench(modes=LOST_BEFORE) as bench:
        request = bench.request()
        await lab.world.plant_look_alikes(bench.account, key_of(request).operation_id, "refund", request.payload)
        seen = await settle(await lost(bench), request)
        assert (seen.verdict, seen.reason, seen.next) == ("ambiguous", "look_alike", "hold")


@side_by_side
async def test_look_alikes_where_absent_cannot_be_earned(lab: Lab) -> None:
    """case d7: paged at once as look_alike."""
    async with lab.bench(late_arrival="none", modes=LOST_BEFORE) as bench:
        request = bench.request()
        await lab.world.plant_look_alikes(bench.account, key_of(request).operation_id, "refund", request.payload)
        seen = await settle(await lost(bench), request)
        assert (seen.verdict, seen.reason, seen.next) == ("ambiguous", "look_alike", "hold")


@pytest.mark.parametrize("others", ["healthy", "down"])
@side_by_side
async def test_list_that_is_one_short_of_its_own_total(lab: Lab, others: str) -> None:
    """case d9: declares 25, serves 24, has no more; the others hold the row: committed. With them down: ambiguous."""
    routes = {"list": "short_by_one", "by_id": others, "search": others, "log": others}
    async with lab.bench(modes={**LOST_AFTER, "seed_rows": 24, "routes": routes}) as bench:
        seen = await settle(await lost(bench), bench.request())
        flagged = (await last_verdict(bench))["body"]["flagged"]
        assert flagged["list"] == "incomplete: declares 25, served 24 rows" or others == "down"
        if others == "healthy":
            assert (seen.verdict, len(bench.effects())) == ("committed", 1)
        else:
            assert (seen.verdict, seen.next) == ("ambiguous", "hold")
            assert flagged["list"].startswith("incomplete: declares ")
        assert "absent" not in await outcomes(bench)


@side_by_side
async def test_object_that_has_moved_on_is_still_the_effect(lab: Lab) -> None:
    """SPEC 2.4: closed and archived since: committed, in whatever state it is."""
    async with lab.bench(modes=LOST_AFTER) as bench:
        system = await lost(bench)
        await lab.world.change_state(bench.account, operation_id=key_of(bench.request()).operation_id, state="archived")
        assert (await settle(system, bench.request())).verdict == "committed"
        assert (await bench.operation())["receipt"]["detail"]["state"] == "archived"


@side_by_side
async def test_route_that_loops_is_no_reading(lab: Lab) -> None:
    """A cursor that comes back never ends a reading, and never is `absent`."""
    routes = {"list": "looping", "log": "looping"}
    async with lab.bench(modes={**LOST_BEFORE, "routes": routes, "page_size": 2}) as bench:
        seen = await asyncio.wait_for(settle(await lost(bench), bench.request()), 60)
        assert (seen.verdict, seen.reason, seen.next) == ("ambiguous", "route_incomplete", "hold")
