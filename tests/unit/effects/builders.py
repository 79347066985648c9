"""Small contracts, facts and readings for the verdict rule's tests. Times are seconds after T0."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from actonce.contracts.contract import Bounded, Contract, KeyHonoured, Keys, Route, Timing, Unbounded, WritePath
from actonce.contracts.verdict import AttemptFact, Facts, Reading, Row

T0 = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "d1:" + "a" * 64
TIMING = Timing(
    connect_timeout_s=1,
    write_timeout_s=1,
    permit_lifetime_s=3,
    send_deadline_s=3,
    activity_timeout_s=5,
    reconcile_after_s=6,
    page_grace_s=3,
)
# not_after 3 + transit 1.5 + processing 0.5 + 2 x skew 0.1 = 5.2; plus lag 0.5 = 5.7; reconcile-after 6; page at 9
UNTIL_S, ABSENT_S, PAGE_S = 5.2, 6.0, 9.0


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def route(name: str, kind: str, **more: Any) -> Route:
    own = {"network": f"net-{name}", "store": f"store-{name}", "credential": f"cred-{name}", "lag_s": 0.5}
    return Route(name=name, kind=kind, **{**own, **more})


def contract(**more: Any) -> Contract:
    base: dict[str, Any] = {
        "name": "payments",
        "version": 1,
        "actions": frozenset({"refund"}),
        "account": "acct",
        "object_kind": "refund",
        "business_fields": ("payment_id", "amount_minor"),
        "late_arrival": Bounded(transit_s=1.5, enforced_by="ingress"),
        "completion": "read_back",
        "write": WritePath(network="net-write", store="primary", credential="cred-write"),
        "routes": (
            route("by_id", "by_id"),
            route("list", "list", declares_total=True),
            route("search", "search"),
        ),
        "timing": TIMING,
        "processing_bound_s": 0.5,
        "clock_skew_s": 0.1,
        "has_beacon": True,
        "sandbox": True,
    }
    return Contract.model_validate({**base, **more})


def key_honoured(retention_s: float = 3600.0, margin_s: float = 10.0) -> dict[str, Any]:
    keys = Keys(registered="arrival", retention_s=retention_s, margin_s=margin_s)
    return {"late_arrival": KeyHonoured(), "keys": keys}


def unbounded() -> dict[str, Any]:
    return {"late_arrival": Unbounded()}


def facts(**more: Any) -> Facts:
    sent = AttemptFact(epoch=1, attempt=1, generation=0, issued_at=at(0), not_after=at(3))
    base: dict[str, Any] = {
        "operation_id": "op1_x",
        "keys": ("op1_x",),
        "digest": DIGEST,
        "account": "acct",
        "object_kind": "refund",
        "acknowledged_object_id": None,
        "attempts": (sent,),
    }
    return Facts(**{**base, **more})


def row(**more: Any) -> Row:
    base: dict[str, Any] = {
        "object_id": "ref_1",
        "kind": "refund",
        "account": "acct",
        "marker": "op1_x",
        "own_field": True,
        "by_us": True,
        "digest": DIGEST,
        "committed_at": at(1),
    }
    return Row(**{**base, **more})


def reading(name: str, *rows: Row, start_s: float = 6.5, **more: Any) -> Reading:
    """A complete, fresh reading, unless told otherwise."""
    base: dict[str, Any] = {
        "route": name,
        "status": "read",
        "candidates": rows,
        "rows_received": 3 + len(rows),
        "declared_total": 3 + len(rows) if name == "list" else None,
        "pages": 1,
        "complete": True,
        "beacon_at": at(5.9),
        "started_at": at(start_s),
        "finished_at": at(start_s + 0.1),
    }
    return Reading(**{**base, **more})


def three(**more: Any) -> list[Reading]:
    return [reading(name, **more) for name in ("by_id", "list", "search")]
