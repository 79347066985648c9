"""The read routes of a desk: by key or id, list with declared total, search index, statement log.

Each has its own credential, lag and mode. A lost scope looks as it does in the field: 404 by id, empty 200 elsewhere.
"""

from __future__ import annotations

from typing import Any

from actonce.testing.journal import iso_utc
from actonce.testing.listener import Discard, Reply, Request
from drills.world.desk import Desk, problem
from drills.world.modes import RouteName
from drills.world.truth import View, look, principal_of


async def read(desk: Desk, name: RouteName, request: Request) -> Reply:
    """Serve one page of one route."""
    mode = desk.modes.route(name)
    if mode.mode == "dropped":
        raise Discard
    if mode.mode == "down":
        return problem(mode.status, "unavailable", f"route {name} is down")
    refusal = desk.refuse_credential(request, name)
    if refusal is not None:
        return refusal
    view = look(desk.truth, desk.modes, name, desk.shape.kind)
    if desk.modes.revocation(name) == "masked":
        view = View([], 0, None)
    if desk.shape.reads is not None:
        return desk.shape.reads(desk, name, request, view)
    if name == "by_id":
        return _by_id(desk, view, request)
    if name == "search":
        return _search(desk, view, request)
    return _pages(desk, view, request, name)


def _by_id(desk: Desk, view: View, request: Request) -> Reply:
    """`/v1/{account}/{collection}/by-key/{key}` or `/v1/{account}/{collection}/{object id}`."""
    rest = request.segments[3:]
    if len(rest) == 2 and rest[0] == "by-key":
        ours = principal_of(desk.account)
        found = [t for t in view.things if t.author == ours and rest[1] in (t.metadata.get("key"), _beacon(t.metadata))]
    else:
        found = [t for t in view.things if rest and t.object_id == rest[0]]
    if not found:
        return problem(404, "not_found", "there is no such object")
    return Reply(200, {"data": [desk.shape.render(t) for t in found]})


def _beacon(metadata: dict[str, Any]) -> str | None:
    value = metadata.get("beacon_id")
    return str(value) if value is not None else None


def _search(desk: Desk, view: View, request: Request) -> Reply:
    markers = request.query.get("marker", [])
    found = [t for t in view.things if any(t.mentions(m) for m in markers)]
    return Reply(200, {"data": [desk.shape.render(t) for t in found], "has_more": False})


def _pages(desk: Desk, view: View, request: Request, name: RouteName) -> Reply:
    """Oldest first. The cursor carries the position of the first page: a list does not move while it is read."""
    raw = request.query.get("cursor", [""])[0]
    upto_text, _, offset_text = raw.partition(":")
    upto = int(upto_text) if upto_text else max((t.seq for t in view.things), default=0)
    offset = int(offset_text) if offset_text else 0
    things = [t for t in view.things if t.seq <= upto]
    later = len(view.things) - len(things)
    page = things[offset : offset + desk.modes.page_size]
    end = offset + len(page)
    more = end < len(things)
    cursor = f"{upto}:{end}" if more else None
    if desk.modes.route(name).mode == "looping":
        more, cursor = True, f"{upto}:0"
    rows = [desk.shape.render(t) for t in page]
    if name == "log":
        entries = [{"type": f"{t.kind}.created", "object": row} for t, row in zip(page, rows, strict=True)]
        as_of = iso_utc(view.as_of) if view.as_of is not None else None
        return Reply(200, {"entries": entries, "as_of": as_of, "next": cursor})
    body: dict[str, Any] = {"data": rows, "has_more": more, "next": cursor}
    if view.declared_total is not None:
        body["total"] = view.declared_total - later
    return Reply(200, body)
