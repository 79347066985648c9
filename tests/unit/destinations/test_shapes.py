"""The Stripe-like and GitHub-like adapters against their doubles: what each can show after a lost answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from actonce.contracts.errors import NotAccepted, PayloadError, Refused, RouteUnavailable, StoredErrorReplayed, Unknown
from actonce.contracts.identity import KeyFormat, operation_id_of
from actonce.destinations import Destination
from actonce.destinations.github_like import GithubLike, github_like_contract
from actonce.destinations.http import http_client
from actonce.destinations.rest import RestApi
from actonce.destinations.stripe_like import StripeLike, stripe_like_contract
from drills.world.client import World
from tests.unit.world.helpers import destination, effects, lookup_for, make_call, read_all

CHARGE = {"charge": "ch_1", "amount": 1250, "reason": "damaged"}
REFUND = {"payment_id": "pay_1", "amount_minor": 1250, "currency": "EUR", "reason": "damaged"}
ISSUE = {"title": "Refund 1250", "body": "Please look.\n\n> quoted text"}


def bearer(which: str) -> Mapping[str, str]:
    purpose = "log" if which == "events" else which
    return {"Authorization": f"Bearer tok-acct-{purpose}"}


def stripe(world: World) -> Destination:
    urls = {name: world.listeners[f"stripe_like.{name}"] for name in ("write", "by_id", "list", "search")}
    urls["events"] = world.listeners["stripe_like.log"]
    contract = stripe_like_contract("acct")
    return StripeLike(contract, RestApi("acct", urls, bearer, http_client(keep_alive=False)), "prn-acct").destination()


def github(world: World) -> Destination:
    urls = {name: world.listeners[f"github_like.{name}"] for name in ("write", "by_id", "list", "search")}
    contract = github_like_contract("acct")
    return GithubLike(contract, RestApi("acct", urls, bearer, http_client(keep_alive=False)), "prn-acct").destination()


async def test_stripe_like_answer_lost_after_the_commit_is_found_and_replayed(world: World) -> None:
    await world.configure("acct", "stripe_like", answer={"kind": "close", "times": 1})
    dest = stripe(world)
    call = make_call(dest.contract, CHARGE)
    with pytest.raises(Unknown):
        await dest.send(call)
    for route in ("list", "search", "events"):
        rows, pages = await read_all(dest, route, lookup_for(call))
        assert [(r.digest, r.own_field, r.by_us, r.kind) for r in rows] == [(call.digest, True, True, "refund")], route
        assert all(p.declared_total is None and p.as_of is None for p in pages)
    with pytest.raises(RouteUnavailable):
        await dest.routes["by_id"](lookup_for(call), None)
    again = await dest.send(make_call(dest.contract, CHARGE, operation_id=call.operation_id))
    assert again.detail == {"replayed": True} and again.object_id == rows[0].object_id
    assert len(effects(world, "acct")) == 1
    rows, _ = await read_all(dest, "by_id", lookup_for(call, object_id=again.object_id))
    assert [r.object_id for r in rows] == [again.object_id]


async def test_stripe_like_request_lost_before_arrival_shows_nowhere_and_is_sent_under_the_same_key(
    world: World,
) -> None:
    await world.configure("acct", "stripe_like", answer={"kind": "close", "when": "before_commit", "times": 1})
    dest = stripe(world)
    call = make_call(dest.contract, CHARGE)
    with pytest.raises(Unknown):
        await dest.send(call)
    for route in ("list", "search", "events"):
        assert (await read_all(dest, route, lookup_for(call)))[0] == [], route
    assert dest.contract.resends_same_key
    receipt = await dest.send(make_call(dest.contract, CHARGE, operation_id=call.operation_id))
    assert receipt.detail == {"replayed": False}
    assert len(effects(world, "acct")) == 1


async def test_stripe_like_pages_are_read_to_the_end(world: World) -> None:
    await world.configure("acct", "stripe_like", seed_rows=25, page_size=10)
    dest = stripe(world)
    call = make_call(dest.contract, CHARGE)
    await dest.send(call)
    for route in ("list", "events"):
        rows, pages = await read_all(dest, route, lookup_for(call))
        assert [p.rows_received for p in pages] == [10, 10, 6] and len(rows) == 1, route


async def test_stripe_like_stored_errors_come_back_as_what_they_are(world: World) -> None:
    await world.configure("acct", "stripe_like", processing_error={"status": 500})
    dest = stripe(world)
    call = make_call(dest.contract, CHARGE)
    with pytest.raises(Unknown):
        await dest.send(call)
    with pytest.raises(StoredErrorReplayed):
        await dest.send(make_call(dest.contract, CHARGE, operation_id=call.operation_id))
    assert effects(world, "acct") == []


async def test_github_like_answer_lost_after_the_commit_is_found_by_its_marker(world: World) -> None:
    await world.configure("acct", "github_like", answer={"kind": "truncated", "times": 1}, seed_rows=3)
    dest = github(world)
    call = make_call(dest.contract, ISSUE)
    with pytest.raises(Unknown):
        await dest.send(call)
    await world.change_state(
        "acct", "github_like", operation_id=call.operation_id, state="closed", fields={"title": "renamed by a person"}
    )
    for route in ("list", "search"):
        rows, _ = await read_all(dest, route, lookup_for(call))
        assert [(r.object_id, r.own_field, r.digest, r.state) for r in rows] == [("4", True, call.digest, "closed")]
    (effect,) = effects(world, "acct")
    assert (effect["operation_id"], effect["digest"]) == (call.operation_id, call.digest)


async def test_github_like_request_lost_before_arrival_leaves_look_alikes_alone(world: World) -> None:
    """case d7: nothing of ours; strangers quote our marker."""
    await world.configure("acct", "github_like", answer={"kind": "reset", "when": "before_commit", "times": 1})
    dest = github(world)
    call = make_call(dest.contract, ISSUE)
    with pytest.raises(Unknown):
        await dest.send(call)
    marker = f"<!-- actonce op={call.key} digest={call.digest} -->"
    fields = {"title": "copied", "body": f"look:\n{marker}"}
    await world.plant("acct", "issue", "github_like", author="prn-stranger", fields=fields)
    await world.plant("acct", "pull_request", "github_like", fields=fields)
    quoting = {"title": "ours, quoting", "body": f"see {marker} above"}
    await world.plant("acct", "issue", "github_like", fields=quoting)
    rows, _ = await read_all(dest, "list", lookup_for(call))
    assert [(r.kind, r.own_field, r.by_us, r.digest is not None) for r in rows] == [
        ("issue", False, False, True),
        ("pull_request", True, True, True),
        ("issue", False, True, False),
    ]
    assert effects(world, "acct") == []
    assert not dest.contract.resends_same_key and dest.contract.late_arrival.kind == "none"


async def test_github_like_pages_follow_the_link_header(world: World) -> None:
    await world.configure("acct", "github_like", seed_rows=150)
    dest = github(world)
    call = make_call(dest.contract, ISSUE)
    receipt = await dest.send(call)
    rows, pages = await read_all(dest, "list", lookup_for(call))
    assert [p.rows_received for p in pages] == [100, 51]
    assert [r.object_id for r in rows] == [receipt.object_id]
    rows, _ = await read_all(dest, "by_id", lookup_for(call, object_id=receipt.object_id))
    assert [r.object_id for r in rows] == [receipt.object_id]


@pytest.mark.parametrize(("how", "status"), [("401", 401), ("403", 403), ("masked", 404)])
async def test_github_like_lost_scope_is_not_accepted_in_whatever_disguise(world: World, how: Any, status: int) -> None:
    await world.configure("acct", "github_like", revoked={"write": how})
    dest = github(world)
    with pytest.raises(NotAccepted) as raised:
        await dest.send(make_call(dest.contract, ISSUE))
    assert raised.value.status == status


async def test_github_like_refuses_a_body_that_carries_a_marker_already(world: World) -> None:
    """case b1's cousin: what a model wrote must not pass for our own field."""
    dest = github(world)
    body = "text\n<!-- actonce op=op1_x digest=d1:x -->"
    with pytest.raises(PayloadError):
        await dest.send(make_call(dest.contract, {"title": "t", "body": body}))


@pytest.mark.parametrize("which", ["stripe_like", "github_like", "payments"])
async def test_routes_that_list_everything_show_what_is_ours_and_nothing_else(world: World, which: str) -> None:
    dest = {"stripe_like": stripe, "github_like": github}.get(which, lambda w: destination(w, "acct", which))(world)
    payload = {"stripe_like": CHARGE, "github_like": ISSUE}.get(which, REFUND)
    calls = [make_call(dest.contract, payload, operation_id=f"op1_{letter * 32}") for letter in "ab"]
    made = [await dest.send(call) for call in calls]
    everything = replace(
        lookup_for(calls[0]), operation_id="", markers=(), since=datetime.now(UTC) - timedelta(hours=1)
    )
    assert everything.everything and dest.lists_all
    for route in sorted(dest.lists_all):
        rows, _ = await read_all(dest, route, everything)
        shown = [(r.object_id, operation_id_of(r.marker, KeyFormat()), r.digest, r.own_field, r.by_us) for r in rows]
        assert sorted(shown) == [
            (receipt.object_id, call.operation_id, call.digest, True, True)
            for receipt, call in zip(made, calls, strict=True)
        ], route


async def test_tickets_have_no_keys_and_a_natural_key(world: World) -> None:
    await world.configure("acct", "tickets", natural_key=True)
    dest = destination(world, "acct", "tickets")
    assert dest.contract.keys is None
    payload = {"subject": "Refund of pay_1", "body": "why", "reference": "pay_1"}
    call = make_call(dest.contract, payload)
    receipt = await dest.send(call)
    rows, _ = await read_all(dest, "list", lookup_for(call))
    assert [(r.object_id, r.kind, r.digest) for r in rows] == [(receipt.object_id, "ticket", call.digest)]
    with pytest.raises(Unknown, match="exists already"):
        await dest.send(make_call(dest.contract, payload))
    with pytest.raises(Refused):
        await dest.send(make_call(dest.contract, payload | {"priority": 3}))
