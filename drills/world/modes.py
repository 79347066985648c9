"""How one account of one destination behaves: every switch a drill can set, with its honest default.

A contract (`actonce.destinations.sandbox`) declares one of these behaviours; a drill may also make the destination
break its word. Times are seconds.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from actonce.testing.latches import AnswerFaultMode

LateArrivalKind = Literal[
    "key_on_arrival",
    "key_at_commit",
    "cancel_by_key",
    "deadline_at_commit",
    "deadline_on_arrival",
    "bounded",
    "none",
]
RouteMode = Literal[
    "healthy", "stale", "short_by_one", "short_no_total", "denies", "masked", "looping", "down", "dropped"
]
RouteName = Literal["by_id", "list", "search", "log"]
INGRESS_TIMEOUT_S = 1.0  # of `bounded`; the sandbox contract declares 1.5 s of transit, the rest is for slow accepts


class _Modes(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RouteModes(_Modes):
    """One route. Its store is its own: what it shows depends on its own lag and mode only."""

    mode: RouteMode = "healthy"
    lag_s: float = Field(default=0.0, ge=0)
    stale_since_ns: int | None = None  # set by the world when `stale` is configured
    status: int = 503  # what `down` answers
    omit: str | None = None  # operation_id whose row is left out; default: the newest row of ours


class ProcessingError(_Modes):
    """The destination itself fails before it commits."""

    status: int = 500
    times: int | None = 1


class Modes(_Modes):
    """One account of one destination."""

    late_arrival: LateArrivalKind | None = None  # shorthand for the switches below; the default is `bounded`
    keys: Literal["ignored", "arrival", "commit"] = "ignored"
    key_retention_s: float = Field(default=86400.0, gt=0)
    key_scope: Literal["account", "credential"] = "account"
    replays_stored_errors: bool = False
    cancel_by_key: bool = False
    deadline: Literal["ignored", "arrival", "commit"] = "ignored"
    clock_skew_s: float = 0.0  # of the destination's own clock
    request_read_timeout_s: float | None = INGRESS_TIMEOUT_S  # from accept to the last byte; None: not enforced
    natural_key: bool = False
    answer_delay_s: float = Field(default=0.0, ge=0)
    processing_delay_s: float = Field(default=0.0, ge=0)
    applies_late_s: float | None = None  # answers 202 at once and commits after this
    decline: tuple[str, ...] = ()  # payment ids that are declined for good
    answer: AnswerFaultMode | None = None
    processing_error: ProcessingError | None = None
    routes: dict[Literal["*", "by_id", "list", "search", "log"], RouteModes] = {}
    page_size: int = Field(default=100, ge=1, le=1000)
    seed_rows: int = Field(default=3, ge=0, le=10_000)  # rows of other principals that were always there
    leased: bool = False  # credentials are leases of the world's lease manager, with scope and expiry
    revoked: dict[str, Literal["masked", "401", "403"]] = {}  # purpose ("*" for all) → how a lost scope looks

    def route(self, name: RouteName) -> RouteModes:
        return self.routes.get(name) or self.routes.get("*") or _HEALTHY

    def revocation(self, purpose: str) -> str | None:
        return self.revoked.get(purpose) or self.revoked.get("*")


_HEALTHY = RouteModes()

_PLAIN: dict[str, Any] = {
    "keys": "ignored",
    "cancel_by_key": False,
    "deadline": "ignored",
    "request_read_timeout_s": None,
}
# Each kind turns on its own protection and turns off every other.
_SHORTHAND: dict[LateArrivalKind, dict[str, Any]] = {
    "key_on_arrival": _PLAIN | {"keys": "arrival"},
    "key_at_commit": _PLAIN | {"keys": "commit"},
    "cancel_by_key": _PLAIN | {"keys": "commit", "cancel_by_key": True},
    "deadline_at_commit": _PLAIN | {"deadline": "commit"},
    "deadline_on_arrival": _PLAIN | {"deadline": "arrival"},
    "bounded": _PLAIN | {"request_read_timeout_s": INGRESS_TIMEOUT_S},
    "none": _PLAIN,
}


def merge_modes(old: Modes, change: dict[str, Any], now_ns: int) -> Modes:
    """Return the modes after a change; `routes` merge by route, everything else is replaced.

    Raises pydantic.ValidationError for a switch that does not exist: a misspelt fault must never pass as none.
    """
    kind = change.get("late_arrival")
    merged = old.model_dump() | (_SHORTHAND.get(kind, {}) if kind else {}) | change
    routes = dict(old.model_dump()["routes"])
    for name, value in (change.get("routes") or {}).items():
        route = {"mode": value} if isinstance(value, str) else dict(value)
        base = routes.get(name) or routes.get("*") or RouteModes().model_dump()
        routes[name] = base | route
        if route.get("mode") == "stale" and "stale_since_ns" not in route:
            routes[name]["stale_since_ns"] = now_ns
    merged["routes"] = routes
    return Modes.model_validate(merged)
