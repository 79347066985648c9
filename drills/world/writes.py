"""Everything that changes a desk over the wire: the write itself, reversal, note (reference probe), beacon, cancel."""

from __future__ import annotations

from typing import Any

from actonce.testing.journal import iso_utc
from actonce.testing.listener import Reply, Request
from drills.world.desk import Desk, Draft, problem
from drills.world.truth import Thing


async def create(desk: Desk, request: Request) -> Reply:
    """`POST /v1/{account}/{collection}`: the effect."""
    body = request.json()
    fields, wrong = _fields(desk, body)
    if wrong is not None:
        return problem(400, "invalid", wrong)
    return await desk.write(_draft(desk, request, desk.shape.kind, fields, body))


async def reverse(desk: Desk, request: Request) -> Reply:
    """`POST /v1/{account}/{collection}/{id}/reverse`: undo an effect, as an effect of its own."""
    original = desk.truth.by_object_id(request.segments[3])
    if original is None or original.kind != desk.shape.kind:
        return problem(404, "not_found", "there is no such object to reverse")
    if original.state == "reversed":
        return problem(409, "already_exists", "it is reversed already")
    body = request.json()
    draft = _draft(desk, request, "reversal", {"reverses": original.object_id, "reason": body.get("reason")}, body)

    def reversed_now(thing: Thing) -> None:
        original.state = "reversed"
        desk.note(
            "reversed",
            object_id=original.object_id,
            by=thing.object_id,
            request_id=request.request_id,
            operation_id=draft.operation_id,  # of the reversal, which is an operation of its own
            original_operation_id=original.metadata.get("operation_id"),
        )

    draft.on_commit = reversed_now
    return await desk.write(draft)


def note_on(desk: Desk, request: Request) -> Reply:
    """`POST …/{id}/notes`: harmless, and only succeeds on an object that exists."""
    refusal = desk.refuse_credential(request, "probe")
    if refusal is not None:
        return refusal
    target = desk.truth.by_object_id(request.segments[3])
    if target is None:
        desk.note("probe_miss", request_id=request.request_id, object_id=request.segments[3])
        return problem(404, "not_found", "there is no such object")
    note = desk.truth.add("note", {"on": target.object_id}, {}, text=str(request.json().get("text", ""))[:500])
    desk.note("probe_note", request_id=request.request_id, object_id=note.object_id, thing=note.record())
    return Reply(201, {"on": target.object_id})


def beacon(desk: Desk, request: Request) -> Reply:
    """`POST /v1/{account}/beacons`: an object of ours that proves a route can see; idempotent by its id."""
    refusal = desk.refuse_credential(request, "beacon")
    if refusal is not None:
        return refusal
    beacon_id = request.json().get("beacon_id")
    if not isinstance(beacon_id, str) or not beacon_id:
        return problem(400, "invalid", "beacon_id is missing")
    thing = next((t for t in desk.truth.things if t.metadata.get("beacon_id") == beacon_id), None)
    if thing is None:
        thing = desk.truth.add("beacon", {}, {"beacon_id": beacon_id}, skew_s=desk.modes.clock_skew_s)
        desk.note(
            "beacon",
            request_id=request.request_id,
            beacon_id=beacon_id,
            object_id=thing.object_id,
            thing=thing.record(),
        )
    return Reply(201, {"id": thing.object_id, "beacon_id": beacon_id, "committed_at": iso_utc(thing.committed_at)})


def cancel(desk: Desk, request: Request) -> Reply:
    """`POST /v1/{account}/keys/{key}/cancel`."""
    refusal = desk.refuse_credential(request, "cancel")
    if refusal is not None:
        return refusal
    if not desk.modes.cancel_by_key:
        return problem(404, "not_found", "keys cannot be cancelled here")
    return desk.cancel_key(request.segments[3], request)


def _draft(desk: Desk, request: Request, kind: str, fields: dict[str, Any], body: dict[str, Any]) -> Draft:
    raw = desk.shape.metadata_of(body) if desk.shape.metadata_of is not None else body.get("metadata")
    metadata: dict[str, Any] = dict(raw) if isinstance(raw, dict) else {}
    operation_id = metadata.get("operation_id")
    key = request.headers.get("idempotency-key") or metadata.get("key")
    return Draft(
        request=request,
        kind=kind,
        fields=fields,
        metadata=metadata,
        key=str(key) if key else None,
        operation_id=str(operation_id) if operation_id else None,
        text=body.get("text") if isinstance(body.get("text"), str) else None,
    )


def _fields(desk: Desk, body: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    fields: dict[str, Any] = {}
    for declared, kind in desk.shape.fields.items():
        name = declared.removesuffix("?")
        if name not in body:
            if declared.endswith("?"):
                continue
            return {}, f"{name} is missing"
        if not isinstance(body[name], kind) or isinstance(body[name], bool):
            return {}, f"{name} must be {kind.__name__}"
        fields[name] = body[name]
    return fields, None
