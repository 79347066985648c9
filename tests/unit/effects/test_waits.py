"""How long the guard may sleep between two readings without oversleeping what changes the answer."""

from __future__ import annotations

from typing import Any

import pytest

from actonce.contracts.messages import ReconcileResult
from actonce.effects.guard import _read_again_s, _try_again_s
from actonce.effects.reconcile import waits_s
from actonce.ledger.verdicts import Case
from tests.unit.effects.builders import UNTIL_S, at, contract, facts


def waits(now_s: float) -> tuple[float, float]:
    nobody: Any = None  # the waits depend on the attempts alone
    return waits_s(contract(), Case(nobody, facts(), (), ()), at(now_s))


@pytest.mark.parametrize(
    ("now_s", "pause_s", "longest_s"),
    [
        (0.0, 1.0, UNTIL_S),  # T itself is the first moment at which anything changes
        (5.0, 0.2, 0.2),
        (5.3, 0.4, 0.4),  # T plus the routes' lag, 5.7
        (5.8, 0.2, 0.2),  # reconcile-after, 6
        (20.0, 1.0, 1.0),  # past them all: readings stay close together until a person is paged
    ],
)
def test_a_pause_ends_at_the_next_milestone(now_s: float, pause_s: float, longest_s: float) -> None:
    assert waits(now_s) == pytest.approx((pause_s, longest_s))


def test_a_send_is_tried_again_however_often_it_was() -> None:
    """A workflow in which arithmetic overflows is stuck, and nobody is paged: the ledger was only quarantined."""
    pauses = [_try_again_s(tries) for tries in (1, 2, 7, 8, 1_100, 10**6)]
    assert pauses == [0.5, 1.0, 30.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize("bound_s", [60.0, 86_400.0, 30 * 86_400.0])
def test_readings_of_a_bound_of_days_fit_into_one_history(bound_s: float) -> None:
    """Temporal ends a workflow at 51 200 events; a reading and its pause are about eleven."""
    now_s, reads = 0.0, 0
    while now_s < bound_s - 0.05:
        left_s = bound_s - now_s
        read = ReconcileResult(operation_id="o", verdict="ambiguous", state="unknown", next="wait")
        waits = {"wait_s": min(1.0, left_s), "wait_max_s": left_s}
        pause_s = _read_again_s(read.model_copy(update=waits), reads)
        assert 0 < pause_s <= left_s
        now_s, reads = now_s + pause_s, reads + 1
    assert reads < 2_000
    assert _read_again_s(read.model_copy(update={"wait_s": 1.0, "wait_max_s": 60.0}), 10**6) == 30.0
