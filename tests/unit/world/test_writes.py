"""case i1, for the world's own modes: keys, deadlines, ingress, cancel, latches, reversal, each on the wire."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from actonce.contracts.errors import DuplicateRefused, NotAccepted, Unknown
from drills.world.client import World, WorldError
from tests.unit.world.helpers import REFUND, destination, effects, eventually, lookup_for, make_call, read_all, writes


async def order_of(world: World, kind: str, **facts: Any) -> int:
    def found() -> int | None:
        for line in world.journal():
            if line["kind"] == kind and all(line.get(k) == v for k, v in facts.items()):
                return int(line["order"])
        return None

    return int(await eventually(found))


async def test_a_key_registered_on_arrival_stops_the_second_request_in_progress(world: World) -> None:
    """PROTOCOL cell 13: still being processed when attempt 2 arrives."""
    await world.configure("acct", late_arrival="key_on_arrival")
    dest = destination(world, "acct", late_arrival="key_on_arrival")
    latch = await world.latch("acct", "processing")
    call = make_call(dest.contract)
    first = asyncio.create_task(dest.send(call))
    await world.wait_latch("acct", latch)
    with pytest.raises(Unknown, match="request_in_progress"):
        await dest.send(make_call(dest.contract, operation_id=call.operation_id))
    await world.release("acct", latch)
    receipt = await first
    again = await dest.send(make_call(dest.contract, operation_id=call.operation_id))
    assert again.object_id == receipt.object_id and again.detail["replayed"]
    assert len(effects(world, "acct")) == 1


async def test_a_key_registered_at_commit_lets_two_in_flight_through(world: World) -> None:
    """PROTOCOL trap 13"""
    await world.configure("acct", late_arrival="key_at_commit")
    dest = destination(world, "acct", late_arrival="key_at_commit")
    latch = await world.latch("acct", "processing")
    call = make_call(dest.contract)
    first = asyncio.create_task(dest.send(call))
    await world.wait_latch("acct", latch)
    await dest.send(make_call(dest.contract, operation_id=call.operation_id))
    await world.release("acct", latch)
    await first
    assert len(effects(world, "acct")) == 2


async def test_a_key_is_forgotten_after_its_retention(world: World) -> None:
    """case b3"""
    await world.configure("acct", late_arrival="key_on_arrival", key_retention_s=0.3)
    dest = destination(world, "acct", late_arrival="key_on_arrival")
    call = make_call(dest.contract)
    await dest.send(call)
    assert (await dest.send(make_call(dest.contract, operation_id=call.operation_id))).detail["replayed"]

    async def sent_anew() -> bool:
        receipt = await dest.send(make_call(dest.contract, operation_id=call.operation_id))
        return not receipt.detail["replayed"]

    await eventually(sent_anew)
    assert len(effects(world, "acct")) == 2
    await order_of(world, "key_expired")


@pytest.mark.parametrize(("scope", "made"), [("account", 1), ("credential", 2)])
async def test_a_key_holds_in_its_scope_only(world: World, scope: str, made: int) -> None:
    await world.configure("acct", late_arrival="key_on_arrival", key_scope=scope)
    body = REFUND | {"metadata": {"operation_id": "op", "key": "op"}}
    statuses = []
    async with httpx.AsyncClient(base_url=world.listeners["payments.write"]) as client:
        for token in ("tok-acct-write", "tok-acct-write.2", "tok-other-write", "tok-acct-write2"):
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "op"}
            statuses.append((await client.post("/v1/acct/refunds", json=body, headers=headers)).status_code)
    assert statuses == [201, 201, 401, 401]
    assert len(effects(world, "acct")) == made


async def test_stored_errors_are_replayed_only_where_the_mode_says_so(world: World) -> None:
    for replays, second_effects in ((True, 0), (False, 1)):
        account = f"acct-{replays}"
        await world.configure(
            account, late_arrival="key_on_arrival", replays_stored_errors=replays, processing_error={"status": 500}
        )
        dest = destination(world, account, late_arrival="key_on_arrival")
        call = make_call(dest.contract)
        with pytest.raises(Unknown):
            await dest.send(call)
        again = make_call(dest.contract, operation_id=call.operation_id)
        if replays:
            with pytest.raises(Unknown, match="stored error"):
                await dest.send(again)
        else:
            await dest.send(again)
        assert len(effects(world, account)) == second_effects


@pytest.mark.parametrize(("kind", "point"), [("deadline_on_arrival", "arrived"), ("deadline_at_commit", "processing")])
async def test_a_deadline_is_enforced_where_the_contract_says(world: World, kind: Any, point: str) -> None:
    await world.configure("acct", late_arrival=kind)
    dest = destination(world, "acct", late_arrival=kind)
    latch = await world.latch("acct", point)
    call = make_call(dest.contract, not_after_in_s=0.2)
    sending = asyncio.create_task(dest.send(call))
    held = await world.wait_latch("acct", latch)
    await eventually(lambda: _passed(call))
    await world.release("acct", latch)
    with pytest.raises(NotAccepted, match="deadline_passed"):
        await sending
    assert held["operation_id"] == call.operation_id and effects(world, "acct") == []
    await dest.send(make_call(dest.contract))


async def test_a_deadline_on_arrival_does_not_stop_slow_processing(world: World) -> None:
    await world.configure("acct", late_arrival="deadline_on_arrival")
    dest = destination(world, "acct", late_arrival="deadline_on_arrival")
    latch = await world.latch("acct", "processing")
    call = make_call(dest.contract, not_after_in_s=0.2)
    sending = asyncio.create_task(dest.send(call))
    await world.wait_latch("acct", latch)
    await eventually(lambda: _passed(call))
    await world.release("acct", latch)
    await sending
    assert len(effects(world, "acct")) == 1


async def test_a_destination_clock_that_is_behind_lets_late_requests_in(world: World) -> None:
    await world.configure("acct", late_arrival="deadline_at_commit", clock_skew_s=-5.0)
    dest = destination(world, "acct", late_arrival="deadline_at_commit")
    await dest.send(make_call(dest.contract, not_after_in_s=-2.0))
    await world.configure("acct", clock_skew_s=0.0)
    with pytest.raises(NotAccepted):
        await dest.send(make_call(dest.contract, not_after_in_s=-2.0))


def _passed(call: Any) -> bool:
    return bool(datetime.now(UTC) > call.not_after)


async def test_the_ingress_drops_a_request_that_is_not_complete_in_time(world: World) -> None:
    """`bounded`: what is enforced, and that it is."""
    await world.configure("acct", request_read_timeout_s=0.3)
    url = urlsplit(world.listeners["payments.write"])
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(b"POST /v1/acct/refunds HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 10\r\n\r\n{")
    assert await reader.read() == b""  # closed without an answer
    writer.close()
    line = next(x for x in world.journal() if x["kind"] == "request_incomplete")
    assert (line["why"], line["account"], line["key"]) == ("ingress_timeout", "acct", "k")
    assert line["after_s"] == pytest.approx(0.3, abs=0.25)


@pytest.mark.parametrize(("limit_s", "arrives"), [(0.3, False), (None, True)])
async def test_a_request_held_on_the_way_arrives_only_where_nothing_bounds_it(
    world: World, limit_s: float | None, arrives: bool
) -> None:
    """The connection stands early and the whole request comes late, as from a proxy that held it."""
    await world.configure("acct", request_read_timeout_s=limit_s)
    url = urlsplit(world.listeners["payments.write"])
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    await order_of(world, "connection", listener="payments.write")
    await asyncio.sleep(0.5)  # not synchronisation: the lateness itself is what is tested
    body = json.dumps(REFUND | {"metadata": {"operation_id": "op", "key": "op"}}).encode()
    head = (
        "POST /v1/acct/refunds HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tok-acct-write\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    first = await reader.read(12)
    writer.close()
    assert (first == b"HTTP/1.1 201") is arrives
    assert len(effects(world, "acct")) == (1 if arrives else 0)
    if not arrives:
        line = next(x for x in world.journal() if x["kind"] == "request_incomplete")
        assert (line["why"], line["operation_id"]) == ("ingress_timeout", "op")


async def test_cancel_by_key_beats_a_request_that_arrives_later_and_one_in_progress(world: World) -> None:
    await world.configure("acct", late_arrival="cancel_by_key")
    dest = destination(world, "acct", late_arrival="cancel_by_key")
    assert dest.cancel_key is not None
    latch = await world.latch("acct", "processing")
    call = make_call(dest.contract)
    sending = asyncio.create_task(dest.send(call))
    await world.wait_latch("acct", latch)
    assert await dest.cancel_key(call.key, 2.0) is None
    await world.release("acct", latch)
    with pytest.raises(Unknown, match="key_cancelled"):
        await sending
    assert effects(world, "acct") == []


@pytest.mark.parametrize("point", ["arrived", "committed"])
async def test_latches_stop_on_their_side_of_the_commit(world: World, point: str) -> None:
    dest = destination(world, "acct")
    call = make_call(dest.contract)
    other = make_call(dest.contract)
    latch = await world.latch("acct", point, operation_id=call.operation_id)
    await dest.send(other)  # another operation is not stopped
    sending = asyncio.create_task(dest.send(call))
    held = await world.wait_latch("acct", latch)
    assert (held["name"], held["operation_id"]) == (point, call.operation_id)
    mine = [e for e in effects(world, "acct") if e["operation_id"] == call.operation_id]
    assert len(mine) == (1 if point == "committed" else 0)
    assert not any(x["kind"] == "answer_begun" and x["request_id"] == held["request_id"] for x in world.journal())
    await world.release("acct", latch)
    await sending


async def test_the_responding_latch_stops_after_the_head_of_the_answer(world: World) -> None:
    dest = destination(world, "acct")
    latch = await world.latch("acct", "responding")
    sending = asyncio.create_task(dest.send(make_call(dest.contract)))
    held = await world.wait_latch("acct", latch)
    assert any(x["kind"] == "answer_begun" and x["request_id"] == held["request_id"] for x in world.journal())
    await world.release("acct", latch)
    await sending


async def test_a_request_dropped_at_a_latch_leaves_no_effect_and_no_key(world: World) -> None:
    for point in ("arrived", "processing"):
        await world.configure(point, late_arrival="key_on_arrival")
        dest = destination(world, point, late_arrival="key_on_arrival")
        latch = await world.latch(point, point)
        call = make_call(dest.contract)
        sending = asyncio.create_task(dest.send(call))
        await world.wait_latch(point, latch)
        await world.release(point, latch, action="drop")
        with pytest.raises(Unknown):
            await sending
        assert effects(world, point) == []
        await order_of(world, "dropped", account=point)
        receipt = await dest.send(make_call(dest.contract, operation_id=call.operation_id))
        assert not receipt.detail["replayed"]


async def test_a_release_can_spoil_the_answer(world: World) -> None:
    dest = destination(world, "acct")
    latch = await world.latch("acct", "committed")
    sending = asyncio.create_task(dest.send(make_call(dest.contract)))
    await world.wait_latch("acct", latch)
    await world.release("acct", latch, answer={"kind": "gateway", "status": 504})
    with pytest.raises(Unknown, match="504"):
        await sending
    await order_of(world, "answer_replaced", status=504)
    assert len(effects(world, "acct")) == 1


async def test_a_caller_that_goes_away_does_not_stop_the_commit(world: World) -> None:
    """case d1: times out, and the effect comes later."""
    dest = destination(world, "acct")
    latch = await world.latch("acct", "processing")
    with pytest.raises(Unknown):
        await dest.send(make_call(dest.contract, deadline_s=0.3))
    await world.wait_latch("acct", latch)
    await order_of(world, "caller_gone")
    await world.release("acct", latch)
    await eventually(lambda: len(effects(world, "acct")) == 1)
    await order_of(world, "answer_failed")


async def test_nothing_waiting_at_a_latch_is_an_error(world: World) -> None:
    """case i3"""
    latch = await world.latch("acct", "committed")
    with pytest.raises(WorldError, match="no operation is in the wanted state"):
        await world.wait_latch("acct", latch, wait_s=0.1)


async def test_a_reversal_is_an_effect_of_its_own_on_an_object_that_stays(world: World) -> None:
    dest = destination(world, "acct")
    undo = destination(world, "acct", "reversals")
    call = make_call(dest.contract)
    receipt = await dest.send(call)
    back = make_call(undo.contract, {"reverses": receipt.object_id, "reason": "mistake"})
    reversal = await undo.send(back)
    with pytest.raises(DuplicateRefused):
        await undo.send(make_call(undo.contract, {"reverses": receipt.object_id, "reason": "again"}))
    rows, _ = await read_all(dest, "list", lookup_for(call))
    assert [(r.object_id, r.state) for r in rows] == [(receipt.object_id, "reversed")]
    rows, _ = await read_all(undo, "list", lookup_for(back))
    assert [(r.object_id, r.kind, r.digest) for r in rows] == [(reversal.object_id, "reversal", back.digest)]
    await order_of(world, "reversed", object_id=receipt.object_id)


async def test_the_journal_counts_without_gaps_and_tells_how_long_it_is(world: World) -> None:
    dest = destination(world, "acct")
    await dest.send(make_call(dest.contract))
    lines = world.journal()
    assert [x["order"] for x in lines] == list(range(1, len(lines) + 1))
    assert await world.journal_lines() == len(world.journal())
    (write,) = writes(world, "acct")
    kinds = [x["kind"] for x in lines if x.get("request_id") == write["request_id"]]
    assert kinds == ["request", "effect", "answer_begun"]
    assert (write["role"], write["subject"]) == ("effect", "pay_1")
