"""The payments adapter against the running sandbox, over real sockets."""

from __future__ import annotations

import pytest

from actonce.contracts.errors import DuplicateRefused, NotAccepted, Refused, RouteUnavailable, Unknown
from actonce.destinations.sandbox import ROUTE_NAMES
from drills.world.client import World
from tests.unit.world.helpers import (
    REFUND,
    Window,
    destination,
    effects,
    eventually,
    lookup_for,
    make_call,
    read_all,
    writes,
)


async def test_a_refund_is_one_request_one_effect_and_shows_on_every_route(world: World) -> None:
    dest = destination(world, "acct")
    window = Window()
    call = make_call(dest.contract, window=window)
    receipt = await dest.send(call)
    assert window.events == ["entered", "left"]
    assert len(writes(world, "acct")) == 1
    (effect,) = effects(world, "acct")
    assert (effect["operation_id"], effect["object_id"]) == (call.operation_id, receipt.object_id)
    assert (effect["digest"], effect["amount_minor"]) == (call.digest, 1250)
    for route in ROUTE_NAMES:
        rows, _ = await read_all(dest, route, lookup_for(call))
        assert [(r.object_id, r.own_field, r.by_us, r.digest) for r in rows] == [
            (receipt.object_id, True, True, call.digest)
        ], route


async def test_the_list_declares_its_total_and_is_read_page_by_page(world: World) -> None:
    await world.configure("acct", seed_rows=150, page_size=100)
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    await dest.send(call)
    rows, pages = await read_all(dest, "list", lookup_for(call))
    assert len(rows) == 1
    assert [p.rows_received for p in pages] == [100, 51]
    assert {p.declared_total for p in pages} == {151}


@pytest.mark.parametrize("how", ["close", "reset", "truncated", "garbage", "silent"])
async def test_an_answer_lost_after_the_commit_is_unknown_and_one_request(world: World, how: str) -> None:
    """case a3: whatever the loss looks like."""
    await world.configure("acct", answer={"kind": how})
    dest = destination(world, "acct")
    window = Window()
    call = make_call(dest.contract, window=window, deadline_s=0.7)
    with pytest.raises(Unknown):
        await dest.send(call)
    assert window.events == ["entered", "left"]
    assert len(writes(world, "acct")) == 1
    assert len(effects(world, "acct")) == 1


@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("when", ["after_commit", "before_commit"])
async def test_a_gateway_error_is_unknown_on_both_sides_of_the_commit(world: World, status: int, when: str) -> None:
    """case a2"""
    await world.configure("acct", answer={"kind": "gateway", "status": status, "when": when})
    dest = destination(world, "acct")
    with pytest.raises(Unknown, match=str(status)):
        await dest.send(make_call(dest.contract))
    assert len(effects(world, "acct")) == (1 if when == "after_commit" else 0)


async def test_redirects_are_not_followed(world: World) -> None:
    await world.configure("acct", answer={"kind": "redirect"})
    dest = destination(world, "acct")
    with pytest.raises(Unknown, match="307"):
        await dest.send(make_call(dest.contract))
    assert len(writes(world, "acct")) == 1


async def test_accepted_202_is_unknown_and_applies_late(world: World) -> None:
    await world.configure("acct", applies_late_s=0.2)
    dest = destination(world, "acct")
    with pytest.raises(Unknown, match="202"):
        await dest.send(make_call(dest.contract))
    assert effects(world, "acct") == []
    await eventually(lambda: effects(world, "acct"))


async def test_a_decline_is_final_and_a_lost_credential_is_not(world: World) -> None:
    await world.configure("acct", decline=["pay_1"])
    dest = destination(world, "acct")
    with pytest.raises(Refused) as declined:
        await dest.send(make_call(dest.contract))
    assert (declined.value.status, declined.value.code) == (402, "declined")
    await world.configure("acct", decline=[], revoked={"write": "401"})
    with pytest.raises(NotAccepted) as lost:
        await dest.send(make_call(dest.contract))
    assert lost.value.status == 401
    assert effects(world, "acct") == []


async def test_a_duplicate_refusal_is_its_own_error(world: World) -> None:
    """case a6, as the destination's natural key shows it."""
    await world.configure("acct", natural_key=True)
    dest = destination(world, "acct", natural_key=True)
    await dest.send(make_call(dest.contract))
    with pytest.raises(DuplicateRefused):
        await dest.send(make_call(dest.contract))
    assert len(effects(world, "acct")) == 1


async def test_keys_on_arrival_replay_and_refuse_another_payload(world: World) -> None:
    await world.configure("acct", late_arrival="key_on_arrival")
    dest = destination(world, "acct", late_arrival="key_on_arrival")
    call = make_call(dest.contract)
    first = await dest.send(call)
    again = await dest.send(make_call(dest.contract, operation_id=call.operation_id))
    assert (again.object_id, again.detail["replayed"]) == (first.object_id, True)
    other = make_call(dest.contract, REFUND | {"amount_minor": 9}, operation_id=call.operation_id)
    with pytest.raises(Unknown, match="idempotency_key_reused"):
        await dest.send(other)
    assert len(effects(world, "acct")) == 1


async def test_a_route_without_an_answer_is_unavailable_never_empty(world: World) -> None:
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    await dest.send(call)
    for mode in ("down", "dropped"):
        await world.configure("acct", routes={"*": mode})
        for route in ROUTE_NAMES:
            with pytest.raises(RouteUnavailable):
                await read_all(dest, route, lookup_for(call))
    await world.configure("acct", routes={"*": "healthy"}, revoked={"list": "403", "by_id": "401"})
    for route in ("list", "by_id"):
        with pytest.raises(RouteUnavailable):
            await read_all(dest, route, lookup_for(call))


async def test_beacon_probe_and_cancel(world: World) -> None:
    await world.configure("acct", late_arrival="cancel_by_key")
    dest = destination(world, "acct", late_arrival="cancel_by_key")
    assert dest.beacon is not None and dest.cancel_key is not None
    at = await dest.beacon("bcn_1", 2.0)
    assert await dest.beacon("bcn_1", 2.0) == at
    call = make_call(dest.contract)
    for route in ROUTE_NAMES:
        rows, _ = await read_all(dest, route, lookup_for(call, "bcn_1"))
        assert [(r.kind, r.marker, r.committed_at) for r in rows] == [("beacon", "bcn_1", at)], route
    assert await dest.cancel_key(call.key, 2.0) is None
    with pytest.raises(Unknown, match="key_cancelled"):
        await dest.send(call)
    assert effects(world, "acct") == []
    next_key = make_call(dest.contract, operation_id=call.operation_id, key=f"{call.operation_id}/1")
    receipt = await dest.send(next_key)
    assert await dest.cancel_key(next_key.key, 2.0) == receipt.object_id
