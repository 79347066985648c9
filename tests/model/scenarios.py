"""The worlds that are explored with every protection on (each promise must hold) and the assumptions taken out.

`SCENARIOS` are kinds of destination and of trouble. A `Dropped` is one of them with exactly one thing changed and
the promise that this must break.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from actonce.contracts.lifecycle import State
from tests.model.world import NEVER, PROMISES, Rules

ALL_BUT_P7 = frozenset(PROMISES) - {"P7"}
# Where nothing bounds a late arrival, an effect may come after the recount: nobody can promise P7 there.

_SKEWED = ((-1, 1, 0), (0, 0, 0), (1, -1, 0))
_ALL_CLOCKS = tuple((s, r, 0) for s in (-1, 0, 1) for r in (-1, 0, 1))
_SKEWED_DESTINATION = ((0, 1, -1), (0, 0, 0))
_LONG_AFTER = 5  # reconcile-after that is longer than anything really takes, where T is infinite

SCENARIOS: dict[str, Rules] = {
    "keys ignored, transit bounded": Rules(),
    "keys ignored, read back": Rules(completion="read_back"),
    "keys ignored, skewed clocks": Rules(skew=1, clocks=_SKEWED),
    "keys ignored, slow routes": Rules(lag=2, lag_real=2),
    "keys ignored, control object instead of a known lag": Rules(beacon="after", lag_real=3),
    "keys ignored, the destination may decline": Rules(refuses=True),
    "keys ignored, careless operator": Rules(operator="careless"),
    "keys ignored, careless operator, may decline": Rules(operator="careless", refuses=True),
    "keys ignored, careless operator, read back": Rules(operator="careless", completion="read_back"),
    "keys ignored, three permits": Rules(permits_max=3),
    "keys ignored, a gate may refuse": Rules(gate=True),
    "keys ignored, restore": Rules(restore=True),
    "keys ignored, restore, four permits, nobody decides": Rules(restore=True, permits_max=4, operator="away"),
    "keys ignored, restore, read back": Rules(restore=True, completion="read_back", permits_max=1),
    "keys ignored, our principal was rotated": Rules(rotated=True),
    "nothing bounds late arrivals": Rules(kind="none", transit_real=NEVER, watch=ALL_BUT_P7),
    "nothing enforced, late arrivals inside reconcile-after": Rules(kind="none", reconcile_after=_LONG_AFTER),
    "nothing enforced, restore": Rules(kind="none", reconcile_after=_LONG_AFTER, restore=True),
    "key registered on arrival": Rules(
        kind="key_honoured", keys="arrival", completion="read_back", reconcile_after=_LONG_AFTER
    ),
    "key registered at commit": Rules(keys="commit"),
    "cancel by key": Rules(kind="cancel_by_key", keys="commit", transit_real=NEVER, liars=2, watch=ALL_BUT_P7),
    "deadline at commit": Rules(kind="deadline_at_commit", transit_real=NEVER, skew=1, clocks=_SKEWED_DESTINATION),
    "deadline on arrival": Rules(kind="deadline_on_arrival", transit_real=NEVER, skew=1, clocks=_SKEWED_DESTINATION),
}

LARGER: dict[str, Rules] = {
    "keys ignored, all clock offsets, three permits": Rules(skew=1, clocks=_ALL_CLOCKS, permits_max=3),
    "keys ignored, careless operator, three permits": Rules(operator="careless", permits_max=3),
    "keys ignored, skewed clocks, restore": Rules(skew=1, clocks=_SKEWED, restore=True),
    "keys ignored, longer bounds": Rules(life=2, transit=2, transit_real=2, lag=2, lag_real=2),
    "keys ignored, restore, three permits": Rules(restore=True, permits_max=3),
    "deadline at commit, restore": Rules(kind="deadline_at_commit", transit_real=NEVER, restore=True),
    "cancel by key, restore": Rules(
        kind="cancel_by_key", keys="commit", transit_real=NEVER, watch=ALL_BUT_P7, restore=True
    ),
    "key registered on arrival, restore": Rules(
        kind="key_honoured", keys="arrival", reconcile_after=_LONG_AFTER, restore=True
    ),
    "nothing bounds late arrivals, three permits": Rules(
        kind="none", transit_real=NEVER, watch=ALL_BUT_P7, permits_max=3
    ),
}


@dataclass(frozen=True)
class Dropped:
    """One assumption or protection taken out, and the promise that breaks."""

    words: str
    scenario: str
    breaks: str
    change: dict[str, Any]

    @property
    def rules(self) -> Rules:
        return replace(SCENARIOS[self.scenario], watch=frozenset({self.breaks}), **self.change)


_BOUNDED = "keys ignored, transit bounded"
_THREE = "keys ignored, three permits"
_CARELESS = "keys ignored, careless operator"
_RESTORE = "keys ignored, restore"
_RESTORE_AWAY = "keys ignored, restore, four permits, nobody decides"
_ROTATED = "keys ignored, our principal was rotated"
_ARRIVAL = "key registered on arrival"

DROPPED: tuple[Dropped, ...] = (
    # What the world must keep to.
    Dropped("a request spends longer on the way than declared", _BOUNDED, "P2", {"transit_real": 2}),
    Dropped(
        "a request spends longer on the way than declared, and is then sent again", _BOUNDED, "P1", {"transit_real": 2}
    ),
    Dropped("nothing enforces the transit bound", _BOUNDED, "P2", {"transit_real": NEVER}),
    Dropped("the destination works longer on a request than declared", _BOUNDED, "P2", {"processing_real": 2}),
    Dropped("a route lags more than declared", _BOUNDED, "P2", {"lag_real": 2}),
    Dropped("clocks differ by more than declared", _BOUNDED, "P2", {"clocks": ((-1, 1, 0),)}),
    Dropped("both routes share a fault", _BOUNDED, "P2", {"liars": 2}),
    Dropped("someone else can write our own field", _BOUNDED, "P3", {"own_field": False}),
    Dropped("an accepted request (202) is taken for an applied one", _BOUNDED, "P3", {"accepted_is_ack": True}),
    Dropped(
        "the control object is older than the operation",
        "keys ignored, control object instead of a known lag",
        "P2",
        {"beacon": "old"},
    ),
    Dropped(
        "the destination checks the deadline on arrival only",
        "deadline at commit",
        "P2",
        {"kind_real": "deadline_on_arrival", "clocks": ((0, 0, 0),), "skew": 0},
    ),
    Dropped("the destination's clock is off by more than declared", "deadline at commit", "P2", {"skew": 0}),
    Dropped("the cancel is not atomic with a commit", "cancel by key", "P2", {"cancel_atomic": False}),
    Dropped("a key is forgotten sooner than declared", _ARRIVAL, "P1", {"retention_real": 1}),
    Dropped("a request may arrive after its key was forgotten", _ARRIVAL, "P1", {"transit_real": NEVER}),
    Dropped("the margin does not cover a permit's life and a request's way", _ARRIVAL, "P1", {"margin": 2}),
    Dropped(
        "the key is registered at commit, not on arrival",
        "key registered at commit",
        "P1",
        {"treat_key_as_arrival": True},
    ),
    # What our side must do.
    Dropped("ambiguous is treated as absent", "nothing bounds late arrivals", "P1", {"absent_when_unknown": True}),
    Dropped("no kernel timer: a process that froze after its fence sends on thaw", _BOUNDED, "P2", {"timer": False}),
    Dropped("no kernel timer, and the operation is then sent again", _BOUNDED, "P1", {"timer": False}),
    Dropped("no fence: a late riser sends", _BOUNDED, "P2", {"fence": False}),
    Dropped("no fence: a hold does not stop a send", _BOUNDED, "P8", {"fence": False}),
    Dropped("a hold leaves the permit usable", _BOUNDED, "P8", {"hold_voids": False}),
    Dropped("the permit carries no nonce", _BOUNDED, "P1", {"nonce": False}),
    Dropped("writes are not compare-and-set: a late `absent` lands on a later attempt", _BOUNDED, "P2", {"cas": False}),
    Dropped("writes are not compare-and-set: a late write frees a permit", _THREE, "P1", {"cas": False}),
    Dropped("writes are not compare-and-set: a late write ends a hold", _BOUNDED, "P5", {"cas": False}),
    Dropped(
        "a same-key resend checks the retention before, not in, its permit",
        _ARRIVAL,
        "P1",
        {"retention_at_permit": False},
    ),
    Dropped("a cancel closes what was only allowed to be sent again", _ARRIVAL, "P2", {"cancel_needs_absence": False}),
    Dropped(
        "a row in our own field by another author does not prevent `absent`",
        _ROTATED,
        "P2",
        {"own_field_blocks": False},
    ),
    Dropped("a decision is accepted before T", _BOUNDED, "P1", {"decision_waits": False}),
    Dropped(
        "an operator decides at T by routes that still lag", "keys ignored, slow routes", "P1", {"operator": "lagging"}
    ),
    Dropped(
        "a hold that no gate opened is resumed like one",
        "keys ignored, a gate may refuse",
        "P1",
        {"resume_gated_only": False},
    ),
    Dropped("a decision names no version", _THREE, "P1", {"decision_version": False}),
    Dropped("no watcher", _BOUNDED, "P4", {"watched": frozenset()}),
    Dropped(
        "the watcher overlooks operations that are ready again",
        _BOUNDED,
        "P4",
        {"watched": frozenset({State.DISPATCHED, State.UNKNOWN, State.ACKNOWLEDGED})},
    ),
    Dropped(
        "the watcher overlooks acknowledged operations that wait to be read back",
        "keys ignored, read back",
        "P4",
        {"watched": frozenset({State.READY, State.DISPATCHED, State.UNKNOWN})},
    ),
    Dropped("a late acknowledgement is dropped", _BOUNDED, "P6", {"late_ack": False}),
    Dropped("no recount", _CARELESS, "P7", {"recount": False}),
    Dropped(
        "a late arrival outlasts reconcile-after, where nothing enforces a bound",
        "nothing enforced, late arrivals inside reconcile-after",
        "P7",
        {"transit_real": NEVER},
    ),
    # The restore.
    Dropped("a restored operation is swept without waiting", _RESTORE, "P2", {"restore_extends": False}),
    Dropped(
        "a restored operation is swept without waiting, and sent again", _RESTORE, "P1", {"restore_extends": False}
    ),
    Dropped("a restored operation is not presumed sent", _RESTORE, "P1", {"restore_presumes_sent": False}),
    Dropped(
        "what could have been sent in the lost window is not held at a destination that cannot be swept",
        "nothing enforced, restore",
        "P1",
        {"restore_presumes_sent": False},
    ),
    Dropped("a restore does not open a new epoch", _RESTORE_AWAY, "P1", {"restore_epoch": False}),
    Dropped("holds are not journaled outside the backup", _RESTORE, "P5", {"restore_journal": False}),
)
