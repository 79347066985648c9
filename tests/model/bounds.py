"""The library's own R1 arithmetic (`actonce.contracts.bounds`), asked in ticks relative to now.

The model has no formula of its own: a bound that the library gets wrong is a counterexample here.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache

from actonce.contracts import bounds
from actonce.contracts.contract import (
    Bounded,
    CancelByKey,
    Contract,
    DeadlineAtCommit,
    DeadlineOnArrival,
    KeyHonoured,
    Keys,
    Route,
    Timing,
    Unbounded,
    WritePath,
)
from actonce.contracts.verdict import AttemptFact
from tests.model.world import NEVER, Rules

_NOW = datetime(2000, 1, 1, tzinfo=UTC)
Limits = tuple[tuple[int, int], ...]


@cache
def contract(rules: Rules) -> Contract:
    """The contract that declares what the rules declare, one second for each tick."""
    late = {
        "bounded": Bounded(transit_s=rules.transit, enforced_by="the model"),
        "none": Unbounded(),
        "key_honoured": KeyHonoured(),
        "cancel_by_key": CancelByKey(),
        "deadline_at_commit": DeadlineAtCommit(),
        "deadline_on_arrival": DeadlineOnArrival(),
    }[rules.kind]
    registered = "arrival" if rules.keys == "arrival" or rules.treat_key_as_arrival else "commit"
    return Contract(
        name="model",
        version=1,
        actions=frozenset({"act"}),
        account="a",
        object_kind="effect",
        business_fields=("f",),
        late_arrival=late,
        completion="receipt" if rules.completion == "receipt" else "read_back",
        write=WritePath(network="w", store="w", credential="w"),
        routes=tuple(
            Route(name=n, kind="list", network=n, store=n, credential=n, lag_s=rules.lag, declares_total=True)
            for n in ("a", "b")
        ),
        keys=None
        if rules.keys == "none"
        else Keys(registered=registered, retention_s=rules.retention, margin_s=rules.margin),
        timing=Timing(
            connect_timeout_s=rules.life / 2,
            write_timeout_s=rules.life / 2,
            permit_lifetime_s=rules.life,
            send_deadline_s=rules.life,
            activity_timeout_s=rules.life + 0.1,
            reconcile_after_s=max(rules.reconcile_after, rules.life + 2 * rules.skew + 0.2),
            page_grace_s=0,
        ),
        processing_bound_s=rules.processing,
        clock_skew_s=rules.skew,
    )


def _facts(rules: Rules, limits: Limits) -> list[AttemptFact]:
    return [
        AttemptFact(
            epoch=1,
            attempt=permit,
            generation=0,
            issued_at=_NOW + timedelta(seconds=limit - rules.life),
            not_after=_NOW + timedelta(seconds=limit),
        )
        for permit, limit in limits
    ]


def _ticks(moment: datetime | None) -> int:
    """Relative to now; NEVER where nothing bounds it, and the past where nothing was sent."""
    if moment is None:
        return -NEVER
    seconds = (moment - _NOW).total_seconds()
    return int(seconds) if seconds == int(seconds) else int(seconds // 1) + 1


@cache
def may_commit_until(rules: Rules, limits: Limits) -> int:
    """T; NEVER where it is infinite."""
    until, unbounded = bounds.may_commit_until(contract(rules), _facts(rules, limits))
    return NEVER if unbounded else _ticks(until)


@cache
def last_bound(rules: Rules, limits: Limits) -> int:
    """The last finite bound: from here `absent` may be read (where it can be at all), and recounts are due."""
    return _ticks(bounds.last_bound(contract(rules), _facts(rules, limits)))


@cache
def reconcile_at(rules: Rules, limits: Limits) -> int:
    return _ticks(bounds.reconcile_at(contract(rules), _facts(rules, limits)))


@cache
def floor(rules: Rules) -> int:
    """Where limits stop counting down: below it every comparison has the same answer."""
    waits = rules.transit + rules.processing + rules.lag + 4 * rules.skew
    return -(max(waits, rules.reconcile_after + 2 * rules.skew, rules.retention) + 2)
