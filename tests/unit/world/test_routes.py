"""case i1, for the world's own modes: each route mode shows on the wire what its name says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import httpx
import pytest

from actonce.contracts.errors import Unknown
from actonce.destinations.sandbox import ROUTE_NAMES
from drills.world.client import World, WorldError
from tests.unit.world.helpers import REFUND, destination, effects, eventually, lookup_for, make_call, read_all


async def test_a_lag_hides_what_is_younger(world: World) -> None:
    """case d2: 150 records, pages of 100, oldest first, the search lags."""
    await world.configure("acct", seed_rows=150, page_size=100, routes={"search": {"lag_s": 0.4}})
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    await dest.send(call)
    assert (await read_all(dest, "search", lookup_for(call)))[0] == []
    assert len((await read_all(dest, "list", lookup_for(call)))[0]) == 1

    async def shown() -> bool:
        return bool((await read_all(dest, "search", lookup_for(call)))[0])

    await eventually(shown)


async def test_a_stale_route_is_frozen_and_its_position_with_it(world: World) -> None:
    dest = destination(world, "acct")
    before = make_call(dest.contract)
    await dest.send(before)
    await world.configure("acct", routes={"*": "stale"})
    frozen_at = datetime.now(UTC)
    after = make_call(dest.contract)
    await dest.send(after)
    assert dest.beacon is not None
    await dest.beacon("bcn_1", 2.0)
    for route in ROUTE_NAMES:
        rows, pages = await read_all(dest, route, lookup_for(after, before.key, "bcn_1"))
        assert [r.marker for r in rows] == [before.key], route
        if route == "log":
            assert pages[-1].as_of is not None and pages[-1].as_of <= frozen_at


async def test_short_by_one_declares_the_full_total(world: World) -> None:
    """case d9"""
    await world.configure("acct", seed_rows=24, routes={"list": "short_by_one"})
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    await dest.send(call)
    rows, pages = await read_all(dest, "list", lookup_for(call))
    assert rows == []
    assert [(p.rows_received, p.declared_total, p.next_cursor) for p in pages] == [(24, 25, None)]
    assert len((await read_all(dest, "search", lookup_for(call)))[0]) == 1


async def test_short_by_one_is_short_also_where_nothing_of_ours_exists(world: World) -> None:
    await world.configure("acct", seed_rows=5, routes={"list": "short_by_one"})
    dest = destination(world, "acct")
    _, pages = await read_all(dest, "list", lookup_for(make_call(dest.contract)))
    assert [(p.rows_received, p.declared_total) for p in pages] == [(4, 5)]


async def test_short_without_total_leaves_nothing_to_count(world: World) -> None:
    await world.configure("acct", seed_rows=5, routes={"list": "short_no_total"})
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    await dest.send(call)
    rows, pages = await read_all(dest, "list", lookup_for(call))
    assert rows == [] and [(p.rows_received, p.declared_total) for p in pages] == [(5, None)]


async def test_denying_routes_agree_with_themselves(world: World) -> None:
    """The canonical pair denies the row: 404 by id, a list and a total without it; beacons are shown."""
    await world.configure("acct", routes={"by_id": "denies", "list": "denies"})
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    await dest.send(call)
    assert dest.beacon is not None
    await dest.beacon("bcn_1", 2.0)
    for route in ("by_id", "list"):
        rows, pages = await read_all(dest, route, lookup_for(call, "bcn_1"))
        assert [r.kind for r in rows] == ["beacon"], route
        if route == "list":
            assert pages[-1].declared_total == sum(p.rows_received for p in pages)
    assert len((await read_all(dest, "log", lookup_for(call)))[0]) == 1


@pytest.mark.parametrize("how", ["mode", "scope"])
async def test_a_masked_route_answers_empty_and_shows_no_beacon(world: World, how: str) -> None:
    """case d3"""
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    await dest.send(call)
    assert dest.beacon is not None
    await dest.beacon("bcn_1", 2.0)
    if how == "mode":
        await world.configure("acct", routes={"*": "masked"})
    else:
        await world.configure("acct", revoked=dict.fromkeys(ROUTE_NAMES, "masked"))
    for route in ROUTE_NAMES:
        rows, pages = await read_all(dest, route, lookup_for(call, "bcn_1"))
        assert rows == [] and sum(p.rows_received for p in pages) == 0, route
        assert all(p.as_of is None for p in pages)


async def test_a_looping_list_repeats_its_cursor(world: World) -> None:
    await world.configure("acct", seed_rows=5, page_size=2, routes={"list": "looping", "log": "looping"})
    dest = destination(world, "acct")
    for route in ("list", "log"):
        _, pages = await read_all(dest, route, lookup_for(make_call(dest.contract)), pages_max=6)
        cursors = [p.next_cursor for p in pages]
        assert None not in cursors and len(set(cursors)) < len(cursors), route


async def test_look_alikes_are_told_apart(world: World) -> None:
    """cases d7 and d2"""
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    await world.plant_look_alikes("acct", call.operation_id, "refund", REFUND)
    rows, _ = await read_all(dest, "list", lookup_for(call))
    assert [(r.kind, r.own_field, r.by_us) for r in rows] == [
        ("refund", True, False),
        ("note", False, False),
        ("dispute", True, True),
    ]
    assert effects(world, "acct") == []


async def test_an_object_is_found_in_whatever_state_it_moved_to(world: World) -> None:
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    await dest.send(call)
    await world.change_state("acct", operation_id=call.operation_id, state="archived")
    for route in ROUTE_NAMES:
        rows, _ = await read_all(dest, route, lookup_for(call))
        assert [(r.state, r.digest) for r in rows] == [("archived", call.digest)], route


async def test_an_edited_object_has_another_digest(world: World) -> None:
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    await dest.send(call)
    await world.change_state("acct", operation_id=call.operation_id, fields={"amount_minor": 1})
    rows, _ = await read_all(dest, "list", lookup_for(call))
    assert rows[0].digest is not None and rows[0].digest != call.digest


async def test_a_list_does_not_move_while_it_is_read(world: World) -> None:
    await world.configure("acct", seed_rows=3, page_size=2)
    dest = destination(world, "acct")
    first = await dest.routes["list"](lookup_for(make_call(dest.contract)), None)
    await dest.send(make_call(dest.contract))
    second = await dest.routes["list"](lookup_for(make_call(dest.contract)), first.next_cursor)
    assert (first.rows_received + second.rows_received, second.declared_total) == (3, 3)
    assert second.next_cursor is None


async def test_a_mode_that_does_not_exist_is_refused(world: World) -> None:
    with pytest.raises(WorldError, match="422"):
        await world.configure("acct", routes={"list": "shortish"})
    with pytest.raises(WorldError, match="422"):
        await world.configure("acct", anwser={"kind": "close"})
    with pytest.raises(WorldError, match="404"):
        await world.configure("acct", destination="nowhere")


async def test_accounts_do_not_touch_each_other(world: World) -> None:
    await world.configure("one", answer={"kind": "close"}, routes={"*": "masked"})
    one, two = destination(world, "one"), destination(world, "two")
    lost, fine = make_call(one.contract), make_call(two.contract)
    results = await asyncio.gather(one.send(lost), two.send(fine), return_exceptions=True)
    assert isinstance(results[0], Unknown) and not isinstance(results[1], BaseException)
    assert len((await read_all(two, "list", lookup_for(fine)))[0]) == 1
    assert (await read_all(two, "list", lookup_for(lost)))[0] == []


async def test_a_defect_of_the_world_is_on_record_and_no_silence(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    async with httpx.AsyncClient(base_url=world.listeners["payments.list"]) as client:
        headers = {"Authorization": "Bearer tok-acct-list"}
        response = await client.get("/v1/acct/refunds", params={"cursor": "nonsense"}, headers=headers)
    assert response.status_code == 500
    assert any(line["kind"] == "world_error" for line in world.journal())
    assert "ValueError" in capsys.readouterr().err
