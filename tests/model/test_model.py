"""The explicit-state model of one operation: every promise holds, and none holds for nothing.

The default run visits about 300 thousand states with every protection on and about 1.1 million while it looks for
counterexamples. `MODEL=full` adds the larger worlds (about 1.2 million states more).
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from actonce.contracts import bounds as library_bounds
from actonce.contracts.lifecycle import TRANSITIONS, Event, State, next_state
from tests.model import bounds
from tests.model.explore import explore
from tests.model.scenarios import DROPPED, LARGER, SCENARIOS, Dropped
from tests.model.traces import PATH, render
from tests.model.world import NEVER, PROMISES

FULL = os.environ.get("MODEL") == "full"
WORLDS = {**SCENARIOS, **(LARGER if FULL else {})}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", WORLDS)
def test_every_promise_holds_in_every_state(name: str) -> None:
    result = explore(WORLDS[name])
    assert not result.promise, f"{result.promise} breaks:\n" + "\n".join(result.trace)
    # The exploration met work that was done, work that was not, and work that was held.
    assert {"committed with 1", "held with 0", "held with 1", "closed with 0"} <= result.reached or (
        WORLDS[name].operator == "away" and {"committed with 1", "held with 1"} <= result.reached
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("dropped", DROPPED, ids=lambda d: f"{d.breaks}: {d.words}")
def test_without_the_assumption_the_promise_breaks(dropped: Dropped) -> None:
    kept = SCENARIOS[dropped.scenario]
    assert dropped.breaks in kept.watch, "the kept scenario must check the promise that the dropped one breaks"
    assert not explore(kept).promise
    result = explore(dropped.rules)
    assert result.promise == dropped.breaks
    assert result.trace


def test_every_promise_can_break() -> None:
    """A promise that no dropped assumption breaks would be one that the model cannot see."""
    assert {d.breaks for d in DROPPED} == set(PROMISES)


def test_the_model_follows_every_line_of_the_transition_table() -> None:
    """A transition that is never taken here is one that the ledger may take unexamined."""
    used = {pair for rules in SCENARIOS.values() for pair in explore(rules).used}
    # Only with a contract whose completion changed between two acknowledgements; a scenario has one contract.
    of_two_contracts = {(State.ACKNOWLEDGED, Event.ACK_COMPLETE)}
    assert used == set(TRANSITIONS) - of_two_contracts


def test_a_key_kept_for_ever_makes_a_false_absent_harmless() -> None:
    rules = replace(
        SCENARIOS["key registered on arrival"], retention_real=NEVER, transit_real=NEVER, absent_when_unknown=True
    )
    assert not explore(replace(rules, watch=frozenset({"P1"}))).promise
    assert explore(replace(rules, watch=frozenset({"P2"}))).promise == "P2"


def test_a_wait_with_one_skew_instead_of_two_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROTOCOL trap 4: a slow sender and a fast reader are apart by twice the bound."""
    rules = replace(SCENARIOS["keys ignored, skewed clocks"], watch=frozenset({"P2"}))
    right = library_bounds.late_bound_s
    caches = (bounds.may_commit_until, bounds.last_bound)

    def short(contract: object) -> float | None:
        seconds = right(contract)  # type: ignore[arg-type]
        return None if seconds is None else seconds - rules.skew

    try:
        monkeypatch.setattr(library_bounds, "late_bound_s", short)
        for cache in caches:
            cache.cache_clear()
        assert explore.__wrapped__(rules).promise == "P2"
    finally:
        for cache in caches:
            cache.cache_clear()


def test_a_contradicting_acknowledgement_opens_a_hold_in_every_state() -> None:
    for state in State:
        assert next_state(state, Event.ACK_CONTRADICTS) is State.HELD


@pytest.mark.timeout(900)
def test_traces_are_current() -> None:
    assert PATH.read_text(encoding="utf-8") == render(), "run `python -m tests.model.traces` and read what changed"
