"""A double with the shape of Stripe's refunds: what its public interface offers, and nothing more convenient.

Keys are registered on arrival and kept (24 h unless a mode says otherwise), and stored errors are replayed. Reads: by
its own id only; a list, newest first, that declares no total (`has_more`, `starting_after`); a search over metadata
that lags; an events log. There is no lookup by our key, no position and no beacon.
"""

from __future__ import annotations

from typing import Any

from actonce.testing.listener import Reply, Request
from drills.world.desk import Desk, Shape, problem
from drills.world.modes import RouteName
from drills.world.truth import Thing, View

DAY_S = 86_400.0


def render(thing: Thing) -> dict[str, Any]:
    return {
        "id": thing.object_id,
        "object": thing.kind,
        "status": thing.state,
        "created": int(thing.committed_at.timestamp()),
        "created_by": thing.author,
        **thing.fields,
        "metadata": thing.metadata,
        **({"description": thing.text} if thing.text is not None else {}),
    }


def reads(desk: Desk, name: RouteName, request: Request, view: View) -> Reply:
    """`/v1/{account}/refunds/{id}`, `…/refunds`, `…/refunds/search?query=`, `…/events`."""
    if name == "by_id":
        thing = next((t for t in view.things if t.object_id == request.segments[-1]), None)
        return Reply(200, render(thing)) if thing else problem(404, "resource_missing", "no such refund")
    if name == "search":
        text = request.query.get("query", [""])[0]
        # metadata["operation_id"]:"VALUE", the only kind of query this double understands
        value = text.rpartition(":")[2].strip('"')
        found = [t for t in view.things if value and value in t.markers()]
        return Reply(200, {"object": "search_result", "data": [render(t) for t in found], "has_more": False})
    newest = [t for t in reversed(view.things) if name == "log" or t.kind == desk.shape.kind]
    after = request.query.get("starting_after", [None])[0]
    ids = [_item_id(name, t) for t in newest]
    start = ids.index(after) + 1 if after in ids else 0
    page = newest[start : start + desk.modes.page_size]
    more = start + len(page) < len(newest)
    if desk.modes.route(name).mode == "looping":
        page, more = newest[: desk.modes.page_size], True
    items = [_event(t) if name == "log" else render(t) for t in page]
    return Reply(200, {"object": "list", "data": items, "has_more": more})


def _item_id(name: RouteName, thing: Thing) -> str:
    return f"evt_{thing.seq:05d}" if name == "log" else thing.object_id


def _event(thing: Thing) -> dict[str, Any]:
    return {
        "id": _item_id("log", thing),
        "object": "event",
        "type": f"{thing.kind}.created",
        "created": int(thing.committed_at.timestamp()),
        "data": {"object": render(thing)},
    }


STRIPE_LIKE = Shape(
    destination="stripe_like",
    kind="refund",
    collection="refunds",
    fields={"charge": str, "amount": int, "reason?": str},
    natural=("charge", "reason"),
    render=render,
    defaults={"late_arrival": "key_on_arrival", "key_retention_s": DAY_S, "replays_stored_errors": True},
    reads=reads,
)
