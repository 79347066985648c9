"""The cells of PROTOCOL.md by name, the odd ones that single controls need, and which control is caught by which cell.

Endings are derived as in `drills.reference`, by hand, with the rule they rest on beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from drills import deciding, late, plays
from drills.cells import Axes
from drills.reference import Expected
from drills.strike import HELD_AT_TAP_S
from drills.table import Play, table_play

# An owner that stands still must not be past its permit's life when it goes on. What it holds up besides its send is
# its workflow's next task, which Temporal gives to another worker only after the workflow task timeout (10 s).
PATIENT = {
    "permit_lifetime_s": 30.0,
    "send_deadline_s": 30.0,
    "activity_timeout_s": 32.0,
    "reconcile_after_s": 33.0,
}


def _committed(*why: str) -> Expected:
    done = frozenset({"committed"})
    return Expected(done, done, (1, 1), False, why)


def _held(reasons: tuple[str, ...], effects: tuple[int, int], *why: str) -> Expected:
    held = frozenset(f"held:{reason}" for reason in reasons)
    found = frozenset({"committed"}) if effects[1] else frozenset()
    return Expected(held, held | found, effects, True, why)


def _held_for_good(*why: str) -> Expected:
    """Held as `possible_duplicate`: no evidence of one object ends that, only a person does (P5)."""
    held = frozenset({"held:possible_duplicate"})
    return Expected(held, held, (1, 1), True, why)


def _decided(reason: str, *why: str) -> Expected:
    """Held and paged; then, with a person's decision, committed once."""
    return Expected(frozenset({f"held:{reason}"}), frozenset({"committed"}), (1, 1), True, why)


def _special(number: str, name: str, kind: type[plays.Special], expected: Expected, **more: Any) -> Play:
    stop = more.pop("stop", None)
    stops = more.pop("stops", ("worker",) if stop is not None else ())
    return Play(
        name=f"{number}-{name}",
        params={"protocol": number, "fault": name, "late_arrival": more.get("late_arrival", "bounded")},
        expected=expected,
        striking=kind,
        planned_fault=kind.planned,
        stop=stop,
        stops=stops,
        workers=more.pop("workers", 2 if kind.signals else 1),
        **more,
    )


def _from_table(number: str, name: str, axes: Axes, expected: Expected | None = None, **more: Any) -> Play:
    play = table_play(axes)
    modes = {**play.modes, **more.pop("modes", {})}
    params = {**play.params, "protocol": number, "fault": name}
    changes: dict[str, Any] = {"name": f"{number}-{name}", "params": params, "twin": None, "modes": modes, **more}
    return replace(play, expected=expected or play.expected, **changes)


def _one_replica() -> dict[str, Any]:
    """Contract routes that are declared as what they are: all from one store."""
    routes = [
        {
            "name": name,
            "kind": name,
            "network": f"payments.{name}",
            "store": "payments.replica",
            "credential": f"reader/{name}",
            "lag_s": 0.5,
            "declares_total": name == "list",
            "claims_independence": False,
        }
        for name in ("by_id", "list", "search", "log")
    ]
    return {"contracts": {"payments": {"routes": routes}}}


def _slow_transit() -> dict[str, Any]:
    bound = {
        "kind": "bounded",
        "transit_s": plays.SlowTransit.TRANSIT_S,
        "enforced_by": "the sandbox's ingress, which drops what is not complete 20 s after it accepted the connection",
    }
    return {"contracts": {"payments": {"late_arrival": bound}}}


LOST = "drop_before_commit"
ALL_DOWN: dict[str, Any] = {
    "routes": dict.fromkeys(("by_id", "list", "search", "log"), "down"),
    "revoked": {"probe": "403"},
}
HELD = "held_released_late"

FROZEN_BEHIND_FENCE = _special(
    "protocol-01",
    "frozen-between-fence-and-write",
    plays.FrozenBehindFence,
    _committed("R4 a process frozen past a permit's life dies on thaw instead of sending"),
    stop="before_first_byte",
    # The sandbox's ingress would drop what comes late on an old connection, and so do the timer's work.
    modes={"request_read_timeout_s": 300.0},
)
RECONCILER_FROZEN = _special(
    "protocol-06",
    "reconciler-frozen-between-read-and-verdict",
    plays.ReconcilerFrozen,
    _committed("R6 every write about an attempt compares (epoch, attempt, version)"),
    stop="before_absent_verdict",
    stops=("watch",),
    env={"ACTONCE_WATCH_IDLE_S": "0.1", "ACTONCE_WATCH_EVERY_S": "0.1"},
    watch_past_proxies=True,
    # on a busy machine an attempt or two is lost before the freeze; the limit would then hide what the control does
    settings={"contracts": {"payments": {"attempts_max": 10}}},
)
HOLD_BEFORE_FENCE = _special(
    "protocol-09",
    "hold-before-fence",
    plays.HoldBeforeFence,
    _held(("look_alike",), (0, 0), "R8 a hold voids an unused permit; P8 no fence passes once it is recorded"),
    stop="before_fence",
    late_arrival="none",
    settings={"timing": PATIENT},
)
STARTED_AGAIN = _special(
    "case-c2",
    "terminated-and-started-again-in-flight",
    plays.StartedAgain,
    _committed("R5 whoever finds `dispatched` without its own nonce reconciles and never sends"),
    settings={"timing": PATIENT},  # the permit outlives the new run's start
)
SLOW_TRANSIT = _special(
    "trap-01",
    "slow-transit",
    plays.SlowTransit,
    _committed("R1 absent only after not_after + transit + processing + lag + 2 × skew"),
    modes={"request_read_timeout_s": plays.SlowTransit.INGRESS_S},
    settings=_slow_transit(),
)
SHORT_AND_DENIED = _from_table(
    "case-d9",
    "list-short-and-others-deny",
    Axes(),
    _held(("route_unavailable", "route_incomplete"), (1, 1), "§2.4 a list whose total differs is not read to its end"),
    modes={"routes": {"list": "short_by_one", "by_id": "denies", "search": "denies", "log": "down"}},
)
REDIRECT = _special(
    "odd-01",
    "redirected-after-commit",
    plays.OddAnswer,
    _committed("§2.2 no redirect in the HTTP client; §2.3 3xx is unknown"),
    modes={"answer": {"kind": "redirect", "when": "after_commit", "times": 1}},
)
ACCEPTED_202 = _special(
    "odd-02",
    "accepted-and-never-applied",
    plays.OddAnswer,
    _held(("late_commit_possible",), (0, 0), "§2.7 a 202 alone is never completion except under `handover`"),
    late_arrival="none",
    modes={"applies_late_s": 3600.0},
)

EARLY_DECISION = _special(
    "protocol-10",
    "retry-permitted-too-early",
    deciding.EarlyDecision,
    _held(
        ("look_alike",), (1, 1), "R8 permit_one_retry is refused before T; where T is infinite before reconcile-after"
    ),
    late_arrival="none",
    entry=True,
    settings={"timing": {"reconcile_after_s": 60.0}},
)

OPERATOR_RETRY = _special(
    "protocol-10",
    "operator-permits-one-retry",
    deciding.OperatorDecides,
    _decided("late_commit_possible", "§2.6 permit_one_retry: one more permit, same operation_id"),
    late_arrival="none",
    entry=True,
)

PERMIT_READY = _special(
    "protocol-08",
    "late-acknowledgement-with-a-permit-ready",
    late.WithAPermitReady,
    _decided("route_unavailable", "§2.3 a late acknowledgement bumps the version and kills unused permits"),
    stop="before_acknowledgement,before_next_permit",
    modes=ALL_DOWN,
    entry=True,
    env={"ACTONCE_DRILL_STOPS": "2"},
)
ATTEMPT_2_DISPATCHED = _special(
    "protocol-08",
    "late-acknowledgement-with-attempt-2-dispatched",
    late.WithAttemptTwoDispatched,
    replace(
        _held_for_good("R7 an acknowledgement that contradicts a later permit opens a hold", "P8 then no fence passes"),
        settled=frozenset({"held:route_unavailable"}),
    ),
    stop="before_acknowledgement,before_next_fence",
    modes=ALL_DOWN,
    entry=True,
    env={"ACTONCE_DRILL_STOPS": "2"},
    # the second permit must still be alive when its owner goes on: it is to be the hold that stops it
    settings={
        "timing": {
            "permit_lifetime_s": 12.0,
            "send_deadline_s": 12.0,
            "activity_timeout_s": 14.0,
            "reconcile_after_s": 15.0,
        }
    },
)
RETRY_ON_OLD_EVIDENCE = _special(
    "protocol-10",
    "retry-permitted-on-old-evidence",
    deciding.RetryOnOldEvidence,
    _decided("route_unavailable", "R9 a decision triggers a fresh read in the same action; evidence wins"),
    modes=ALL_DOWN,
    entry=True,
    env={"ACTONCE_WATCH_HELD_AGAIN_S": "600"},  # it is the decision's reading that is to see it first
)
RETRY_RACES_VERDICT = _special(
    "protocol-10",
    "retry-permitted-races-a-committed-verdict",
    deciding.RetryRacesVerdict,
    _decided("route_unavailable", "R9 a decision names epoch and version", "R6 every write compares them"),
    stop="before_decision",
    modes=ALL_DOWN,
    entry=True,
    workers=1,  # another one would take the decision up
    # the watcher reads what is held, often, and leaves the decision to the worker
    env={"ACTONCE_WATCH_HELD_AGAIN_S": "1", "ACTONCE_WATCH_IDLE_S": "600"},
)

PROTOCOL: list[Play] = [
    EARLY_DECISION,
    OPERATOR_RETRY,
    RETRY_ON_OLD_EVIDENCE,
    RETRY_RACES_VERDICT,
    _special(
        "protocol-10",
        "operator-marks-committed",
        deciding.OperatorConfirms,
        _decided("route_unavailable", "§2.6 mark_committed: with the destination's object id"),
        entry=True,
        env={"ACTONCE_WATCH_HELD_AGAIN_S": "600"},
        modes=ALL_DOWN,
    ),
    RECONCILER_FROZEN,
    FROZEN_BEHIND_FENCE,
    _special(
        "protocol-02",
        "killed-before-the-destination-accepts",
        plays.KilledBeforeAccept,
        _committed("trap 3: what was written before SIGKILL still arrives"),
        modes={"request_read_timeout_s": HELD_AT_TAP_S},
    ),
    *(
        _from_table("protocol-03", f"held-past-the-verdict-{late}", Axes(fault=HELD, twin=LOST, late_arrival=late))
        for late in ("bounded", "cancel_by_key", "deadline_at_commit", "none")
    ),
    _special(
        "protocol-04",
        "permit-commits-and-its-answer-is-lost",
        plays.PermitAnswerLost,
        _committed("R5 its own nonce and not_after still ahead: it may go on; anything else: reconcile"),
        stop="before_permit_commit",
    ),
    _special(
        "protocol-05",
        "successor-before-zombie",
        plays.ZombieBeforePermit,
        _committed("R5 a permit belongs to the execution whose nonce it carries"),
        stop="before_permit",
    ),
    _special(
        "protocol-05",
        "zombie-before-successor",
        plays.ZombieTakesPermitFirst,
        _committed("R5 a permit belongs to the execution whose nonce it carries"),
        stop="before_permit",
        env={"ACTONCE_DRILL_STOPS": "2"},
    ),
    _special(
        "protocol-07",
        "late-loss-after-attempt-2",
        plays.LateLoss,
        _committed("R6 a late `unknown` about attempt 1 changes nothing"),
        stop="before_loss",
    ),
    _special(
        "protocol-07",
        "late-loss-after-a-hold",
        plays.LateLoss,
        _held(("late_commit_possible",), (0, 0), "R6 a late `unknown` does not pull an operation out of its hold"),
        stop="before_loss",
        late_arrival="none",
    ),
    _special(
        "protocol-08",
        "late-acknowledgement-after-the-verdict",
        late.AfterTheVerdict,
        _committed("P6 a late acknowledgement is recorded"),
        stop="before_acknowledgement",
    ),
    _special(
        "protocol-08",
        "late-acknowledgement-under-a-hold",
        late.UnderAHold,
        _held(
            ("not_visible", "route_unavailable"),
            (1, 1),
            "§2.3 a late acknowledgement resolves a hold",
            "§2.7 read_back still needs a route",
        ),
        stop="before_acknowledgement",
        modes=ALL_DOWN,
    ),
    _special(
        "protocol-08",
        "late-acknowledgement-after-mark-absent",
        late.AfterMarkAbsent,
        _held_for_good("R7 an acknowledgement that contradicts a decision opens a hold `possible_duplicate`"),
        stop="before_acknowledgement",
        modes=ALL_DOWN,
        entry=True,
        env={"ACTONCE_WATCH_HELD_AGAIN_S": "600"},
    ),
    PERMIT_READY,
    ATTEMPT_2_DISPATCHED,
    _special(
        "protocol-08",
        "late-acknowledgement-with-the-same-key-sent-again",
        late.SameKeySentAgain,
        _committed("R3 a key registered on arrival may be sent again: what one answer says holds for both sends"),
        stop="before_acknowledgement,before_next_fence",
        modes=ALL_DOWN,
        env={"ACTONCE_DRILL_STOPS": "2"},
        late_arrival="key_on_arrival",
    ),
    HOLD_BEFORE_FENCE,
    _special(
        "protocol-11",
        "cancelled-with-a-zombie-before-its-permit",
        deciding.CancelledZombie,
        Expected(
            frozenset({"closed", "not_issued"}),
            frozenset({"closed", "not_issued"}),
            (0, 0),
            False,
            ("§2.5 cancelling through the entry voids an unused permit", "trap 9"),
        ),
        stop="before_permit",
        entry=True,
        workers=1,  # a successor would rightly send before anybody cancels
    ),
    _special(
        "protocol-11",
        "terminated-without-restart",
        plays.TerminatedForGood,
        _committed("R11 a watcher on the ledger, independent of Temporal"),
        env={"ACTONCE_WATCH_IDLE_S": "1"},
    ),
    STARTED_AGAIN,
    _from_table(
        "protocol-12",
        "destination-behind-by-the-skew-bound",
        Axes(fault=HELD, twin=LOST, late_arrival="deadline_at_commit"),
        modes={"clock_skew_s": -0.1},
    ),
    _special(
        "protocol-13",
        "key-in-progress",
        plays.KeyInProgress,
        _committed("R3 the same key again; what is in progress is no answer"),
        late_arrival="key_on_arrival",
    ),
    _from_table(
        "protocol-13",
        "key-just-expired",
        Axes(late_arrival="key_on_arrival", routes="all_down"),
        _held(
            ("retention_expired",),
            (1, 1),
            "R3 inside its retention minus a margin; case b3",
        ),
        modes={"key_retention_s": 2.0},
        settings={"key_retention_s": 2.0, "key_margin_s": 0.5},
    ),
    _from_table(
        "protocol-15",
        "all-routes-on-one-replica",
        Axes(twin=LOST),
        _held(("not_independent",), (0, 0), "§1 routes that share one count as one"),
        settings=_one_replica(),
    ),
    _from_table("protocol-15", "control-older-than-the-operation", Axes(routes="stale")),
    SLOW_TRANSIT,
    SHORT_AND_DENIED,
    REDIRECT,
    ACCEPTED_202,
]


@dataclass(frozen=True)
class Control:
    """One protection taken out, the cell that notices, and the finding that must name it."""

    name: str
    play: Callable[[], Play]
    finding: str = "duplicate op"


def _table(**axes: str) -> Callable[[], Play]:
    return lambda: table_play(Axes(**axes))


CONTROLS: list[Control] = [
    Control("writes_without_compare", lambda: RECONCILER_FROZEN),
    Control("fresh_key_per_attempt", _table(routes="all_down", late_arrival="key_on_arrival")),
    Control("intent_after_call", _table()),
    Control("blind_retry", _table()),
    Control("single_route_lookup", _table(routes="canonical_denies")),
    Control("completeness_off", lambda: SHORT_AND_DENIED),
    Control("freshness_off", _table(routes="stale")),
    Control("settle_rule_off", lambda: SLOW_TRANSIT),
    Control("visibility_off", _table(routes="masked")),
    Control("fence_off", lambda: HOLD_BEFORE_FENCE, "wrong effects op"),
    Control("transit_left_out", lambda: SLOW_TRANSIT),
    Control("kernel_timer_off", lambda: FROZEN_BEHIND_FENCE),
    Control("permit_without_nonce", lambda: STARTED_AGAIN),
    Control("hold_leaves_permit_usable", lambda: HOLD_BEFORE_FENCE, "wrong effects op"),
    Control("decision_before_bound", lambda: EARLY_DECISION),
    Control("acknowledgement_leaves_permit_usable", lambda: PERMIT_READY),
    Control("acknowledgement_contradicts_nothing", lambda: ATTEMPT_2_DISPATCHED, "wrong outcome op"),
    Control("decision_without_reading", lambda: RETRY_ON_OLD_EVIDENCE),
    Control("decision_over_a_verdict", lambda: RETRY_RACES_VERDICT),
    Control("ambiguous_as_absent", _table(routes="all_down")),
    Control("complete_on_202", lambda: ACCEPTED_202, "complete without evidence op"),
    Control("http_retries_on", _table()),
    Control("redirects_followed", lambda: REDIRECT),
]
