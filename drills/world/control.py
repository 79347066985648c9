"""The control interface (token): what a drill may order. It answers with orders taken, never with what happened.

PUT  /control/accounts/{account}                  {destination, …modes}
PUT  /control/accounts/{account}/latch            {destination, point, match}      → {latch_id}
GET  /control/accounts/{account}/latch?wait=S     [&destination=&latch_id=]        → {held: [...]}
POST /control/accounts/{account}/latch/release    {destination, latch_id?, action, answer?}
POST /control/accounts/{account}/plant            {destination, kind, author, …}   → {object_id}
POST /control/accounts/{account}/state            {destination, object_id | operation_id, state}
PUT  /control/accounts/{account}/leases           {…modes of drills.world.leases, token?}
POST /control/accounts/{account}/leases/end       {purpose?, parent?, restart?, why?}          → {ended: [...]}
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from actonce.testing.latches import LatchOrder, Release
from actonce.testing.listener import Reply, Request
from drills.world.desk import problem
from drills.world.leases import Ending

if TYPE_CHECKING:
    from drills.world.app import World

WAIT_S_MAX = 60.0


class Plant(BaseModel):
    """An object that somebody else, or we under a false flag, put there."""

    model_config = ConfigDict(extra="forbid")
    destination: str = "payments"
    kind: str
    author: str | None = None  # None: our own principal
    fields: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    text: str | None = None


class StateChange(BaseModel):
    """Closed, archived, renamed: the object is still there."""

    model_config = ConfigDict(extra="forbid")
    destination: str = "payments"
    object_id: str | None = None
    operation_id: str | None = None
    state: str | None = None
    fields: dict[str, Any] = {}  # renames and edits


class Control:
    def __init__(self, world: World, token: str) -> None:
        self._world = world
        self._token = token

    async def handle(self, request: Request) -> Reply:
        if request.path == "/challenge":
            return self._world.challenge(request)
        if request.path == "/health":
            return Reply(200, {"ok": True})
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given, f"Bearer {self._token}"):
            return problem(401, "token", "the control token is missing or wrong")
        if request.path == "/control/journal":
            return Reply(200, {"lines": self._world.journal.lines})
        segments = request.segments
        if segments[:2] != ["control", "accounts"] or len(segments) < 3:
            return problem(404, "not_found", f"no {request.path}")
        try:
            return await self._account(request, segments[2], "/".join(segments[3:]))
        except ValidationError as error:
            return problem(422, "invalid", str(error))
        except KeyError as error:
            return problem(404, "not_found", f"no destination {error}")

    async def _account(self, request: Request, account: str, what: str) -> Reply:
        body = request.json()
        match (request.method, what):
            case ("PUT", ""):
                destination = str(body.pop("destination", "payments"))
                modes = self._world.configure(destination, account, body)
                return Reply(200, modes.model_dump(mode="json"))
            case ("PUT", "latch"):
                order = LatchOrder.model_validate(body)
                desk = self._world.desk(order.destination, account)
                desk.latch_count += 1
                latch = desk.latches.set(order, f"{order.destination}/{account}/{desk.latch_count}")
                return Reply(200, {"latch_id": latch.latch_id})
            case ("GET", "latch"):
                query = {name: values[0] for name, values in request.query.items()}
                desk = self._world.desk(query.get("destination", "payments"), account)
                wait_s = min(float(query.get("wait", "0")), WAIT_S_MAX)
                return Reply(200, {"held": await desk.latches.wait_hit(wait_s, query.get("latch_id"))})
            case ("POST", "latch/release"):
                release = Release.model_validate(body)
                desk = self._world.desk(release.destination, account)
                return Reply(200, {"released": desk.latches.release(release)})
            case ("POST", "plant"):
                return self._plant(account, Plant.model_validate(body))
            case ("PUT", "leases"):
                return Reply(200, self._world.leases.configure(account, body).model_dump(mode="json"))
            case ("POST", "leases/end"):
                return Reply(200, {"ended": self._world.leases.end(account, Ending.model_validate(body))})
            case ("POST", "state"):
                return self._change(account, StateChange.model_validate(body))
        return problem(404, "not_found", f"no {request.method} {what}")

    def _plant(self, account: str, plant: Plant) -> Reply:
        desk = self._world.desk(plant.destination, account)
        thing = desk.truth.add(
            plant.kind,
            plant.fields,
            plant.metadata,
            author=plant.author,
            text=plant.text,
            skew_s=desk.modes.clock_skew_s,
        )
        desk.note("planted", object_id=thing.object_id, object_kind=thing.kind, thing=thing.record())
        return Reply(201, {"object_id": thing.object_id})

    def _change(self, account: str, change: StateChange) -> Reply:
        desk = self._world.desk(change.destination, account)
        for thing in desk.truth.things:
            named = change.object_id == thing.object_id if change.object_id else False
            marked = change.operation_id is not None and thing.metadata.get("operation_id") == change.operation_id
            if named or marked:
                thing.state = change.state or thing.state
                thing.fields = thing.fields | change.fields
                desk.note("state_changed", object_id=thing.object_id, state=thing.state, fields=change.fields)
                return Reply(200, {"object_id": thing.object_id})
        return problem(404, "not_found", "no such object")
