"""What each cell of `lost-acknowledgement` must give, derived from SPEC §2 and PROTOCOL alone.

Contract: pure; knows the axes of the cell and the sentences of the specification, never the code or its behaviour.
Where the specification leaves a choice, every permitted ending is in `outcomes`, and nothing else is. `why` names
the sentences. The operation of such a cell completes by `read_back` (SPEC §2.7: the default for irreversible effects
where a route exists) and the destination ignores the natural key, so nothing but the protocol stands between the
operation and a duplicate.

The drill that uses it: the fault strikes attempt 1 only; a process fault and a cut last a few seconds and are over
before reconcile-after; the routes stay as the cell says until the operation is settled or held, and are then healed;
a held request or answer is released after that; nobody decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from drills.cells import Axes

# What the routes show of a row that exists.
ONE_SHOWS = frozenset({"healthy", "list_short_by_one", "short_without_total", "canonical_denies", "all_but_one_down"})
# A complete list against its declared total, and a second independent route, all fresh.
CAN_PROVE_ABSENCE = frozenset({"healthy", "canonical_denies"})

WHY_HELD = {
    "list_short_by_one": ("route_incomplete", "not_fresh", "not_visible"),
    "short_without_total": ("route_incomplete", "not_fresh", "not_visible"),
    "stale": ("not_fresh", "not_visible"),  # a beacon proves both at once: without it neither is proven
    "masked": ("not_visible", "not_fresh", "route_unavailable"),
    "all_but_one_down": ("route_unavailable", "route_incomplete"),
    "all_down": ("route_unavailable",),
}

S_COMMITTED = "§2.4 committed: exactly one match … A denial by another route never contradicts a match"
S_NO_ROUTE_SHOWS = "§2.4 ambiguous: everything else, with a reason … Page at the bound"
S_ABSENT = "§2.4 absent: two independent routes, one a list whose declared total equals the rows received, fresh"
S_NEW_PERMIT = "§2.5 absent: one new permit, same operation_id"
S_CANCEL = "PROTOCOL P2: an atomic cancel-by-key: nothing timed; routes may be blind; the cancelled key is spent"
S_RESEND = (
    "§2.5 a destination that registers keys on arrival may be sent to again under the same key, on `ambiguous` too"
)
S_NO_BOUND = "R1/R2 a bound that nothing enforces counts as infinite: never `absent` but late_commit_possible"
S_LATE_REFUSED = "R2 what the destination enforces keeps the late request from taking effect"
S_READ_BACK = "§2.7 read_back: at least one route, not the acknowledgement itself, shows it"
S_PROBE = "§1 route: … a reference probe (a harmless act that only succeeds on an existing object)"
S_EVIDENCE = "P5 a hold is left only by evidence or a recorded decision"


@dataclass(frozen=True)
class Expected:
    """Permitted endings. `settled`: before the routes are healed. `final`: after healing and the quiet period.

    Forms are `state` or `state:reason`. `effects` is [least, most] at the destination at the end.
    """

    settled: frozenset[str]
    final: frozenset[str]
    effects: tuple[int, int]
    pages: bool | None  # None: exactly when it is held
    why: tuple[str, ...]


def expected(axes: Axes) -> Expected:
    """The permitted endings of one cell. Process and cut change none of them: that is the claim."""
    if axes.committed_first:
        return _after_commit(axes)
    return _before_commit(axes)


def _committed(effects: tuple[int, int], *why: str) -> Expected:
    done = frozenset({"committed"})
    return Expected(done, done, effects, False, why)


def _either(held: Expected, *why: str) -> Expected:
    """Held as before, or done."""
    done = frozenset({"committed"})
    return Expected(held.settled | done, held.final | done, held.effects, None, (*held.why, *why))


def _held(reasons: tuple[str, ...], effects: tuple[int, int], *why: str) -> Expected:
    """Held and paged. An effect that exists may be found once the routes are healed; no decision is made."""
    held = frozenset(f"held:{reason}" for reason in reasons)
    found = frozenset({"committed"}) if effects[1] else frozenset()
    return Expected(held, held | found, effects, True, (*why, S_EVIDENCE))


def _after_commit(axes: Axes) -> Expected:
    """Interrupted after the commit: the effect exists once, whatever happens; no second send may follow."""
    if axes.routes in ONE_SHOWS:
        return _committed((1, 1), S_COMMITTED)
    # Blind. A resend under a key registered on arrival, or the refusal of a cancel, is an answer that names the
    # object; it is no read-back, so the operation still waits for a route and is held at the bound.
    held = _held(_blind_reasons(axes), (1, 1), S_NO_ROUTE_SHOWS, S_READ_BACK)
    return _either(held, S_PROBE) if _probe_can_tell(axes) else held


def _before_commit(axes: Axes) -> Expected:
    """Interrupted before the commit: nothing happened (yet)."""
    late = axes.late_arrival
    if late == "cancel_by_key":
        return _sent_again(axes, S_CANCEL)
    if late == "key_on_arrival":
        return _sent_again(axes, S_RESEND)
    if late in ("none", "key_at_commit"):
        # Released late, the request takes effect once: nothing else was sent, and nothing stops it.
        effects = (1, 1) if axes.arrives_late else (0, 0)
        return _held(("late_commit_possible", *WHY_HELD.get(axes.routes, ())), effects, S_NO_BOUND)
    if axes.routes in CAN_PROVE_ABSENCE:
        return _committed((1, 1), S_ABSENT, S_NEW_PERMIT, S_LATE_REFUSED)
    # Not provably absent: held, nothing sent again; and a late arrival is refused by what the contract names.
    return _held(WHY_HELD[axes.routes], (0, 0), S_NO_ROUTE_SHOWS, S_LATE_REFUSED)


def _sent_again(axes: Axes, why: str) -> Expected:
    """The destination's own guarantee allows a second request; it takes effect exactly once."""
    if axes.routes in ONE_SHOWS:
        return _committed((1, 1), why, S_READ_BACK)
    # It *may* be sent again while the routes are blind; completion still needs a route.
    least = 1 if axes.arrives_late and axes.late_arrival == "key_on_arrival" else 0
    held = _held(_blind_reasons(axes), (least, 1), why, S_READ_BACK)
    return _either(held, S_PROBE) if _probe_can_tell(axes) else held


def _probe_can_tell(axes: Axes) -> bool:
    """An answer under the key, or to the cancel, names the object; the reference probe then shows that it exists, in
    the living store, however stale the listings are. It is down, or without scope, where the routes are."""
    return axes.routes == "stale" and axes.late_arrival in ("key_on_arrival", "cancel_by_key")


def _blind_reasons(axes: Axes) -> tuple[str, ...]:
    if axes.late_arrival in ("none", "key_at_commit"):
        return ("late_commit_possible", *WHY_HELD[axes.routes])
    if axes.late_arrival in ("key_on_arrival", "cancel_by_key"):
        # Acknowledged under the key and no route shows it; or not (yet) acknowledged, and nothing bounds the first.
        return (*WHY_HELD[axes.routes], "not_visible", "late_commit_possible")
    return WHY_HELD[axes.routes]
