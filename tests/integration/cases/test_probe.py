"""The reference probe: an act that only succeeds on an existing object, while the canonical reader still denies it."""

from __future__ import annotations

from actonce.contracts.errors import RouteUnavailable
from actonce.effects.perform import perform
from actonce.effects.reconcile import reconcile, settle_step
from actonce.stack import eventually
from tests.integration.cases.kit import Lab, key_of, settle, side_by_side


@side_by_side
async def test_an_acknowledged_object_that_every_route_denies_is_proven_by_its_probe(lab: Lab) -> None:
    """case d4, and the field report: the id answered a reference while the canonical reader denied it existed."""
    async with lab.bench(completion="read_back", modes={"routes": {"*": "denies"}}) as bench:
        system = await bench.system()
        assert (await perform(system, bench.request())).status == "acknowledged"
        assert (await reconcile(system, key_of(bench.request()))).next == "probe"
        seen = await settle(system, bench.request())
        row = await bench.operation()
        (probe,) = await bench.rows("probe")
        assert (seen.verdict, row["state"], row["completion"]) == ("committed", "committed", "read_back")
        assert row["receipt"]["source"] == "probe"
        assert (probe["object_id"], probe["object_exists"]) == (row["object_id"], True)
        assert len(bench.requests()) == len(bench.effects()) == 1


@side_by_side
async def test_a_probe_that_gets_no_answer_delays_the_page_and_does_not_prevent_it(lab: Lab) -> None:
    """Nothing is stuck without hold and page (P4), and an unanswered probe proves nothing."""
    async with lab.bench(completion="read_back", modes={"routes": {"*": "denies"}}) as bench:
        unreachable = {**bench.settings.listeners, "payments.probe": "http://127.0.0.1:9"}
        system = await bench.system(listeners=unreachable)
        assert (await perform(system, bench.request())).status == "acknowledged"
        refused = 0

        async def held() -> bool:
            nonlocal refused
            try:
                return (await settle_step(system, key_of(bench.request()))).next == "hold"
            except RouteUnavailable:
                refused += 1
                return False

        await eventually(held, within_s=30, what="the operation is held", every_s=0.2)
        row = await bench.operation()
        assert refused > 0 and (row["state"], row["reason"]) == ("held", "not_visible")
        assert len(await bench.rows("page")) == 1


@side_by_side
async def test_reading_back_stops_at_the_first_route_that_shows_it(lab: Lab) -> None:
    """SPEC 2.7: one route is enough after an acknowledgement; a long list is not read for every clean operation."""
    async with lab.bench(completion="read_back") as bench:
        system = await bench.system()
        assert (await perform(system, bench.request())).status == "acknowledged"
        seen = await settle(system, bench.request())
        (verdict,) = await bench.rows("verdict")
        assert (seen.verdict, [r["route"] for r in verdict["readings"]]) == ("committed", ["by_id"])


@side_by_side
async def test_a_look_alike_on_the_first_route_does_not_end_the_reading(lab: Lab) -> None:
    """Only a proven match is enough; what carries our key and is not ours is not."""
    async with lab.bench(completion="read_back") as bench:
        request = bench.request()
        await lab.world.plant_look_alikes(bench.account, key_of(request).operation_id, "refund", request.payload)
        await bench.configure(routes={"by_id": "denies", "search": "denies"})
        system = await bench.system()
        assert (await perform(system, request)).status == "acknowledged"
        seen = await settle(system, request)
        row = await bench.operation()
        assert (seen.verdict, row["object_id"]) == ("committed", bench.effects()[0]["object_id"])
