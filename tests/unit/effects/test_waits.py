"""How long the guard may sleep between two readings without oversleeping what changes the answer."""

from __future__ import annotations

from typing import Any

import pytest

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
