"""A schedule that cannot know what it meets: which share must strike, and how long recovery took."""

from __future__ import annotations

from pathlib import Path

import pytest

from actonce.evidence import judge
from actonce.evidence.recovery import percentile
from tests.unit.evidence.builders import Run, good_run, send


def missed_one() -> Run:
    """Of the three guarded cells one was not struck: its toxic was never there."""
    run = good_run()
    run.drop("toxic_added", "held")
    return run


def test_a_fault_that_did_not_strike_makes_an_ordinary_drill_invalid(tmp_path: Path) -> None:
    assert judge(missed_one().write(tmp_path)).result == "invalid"


def test_a_soak_in_which_enough_struck_passes_and_lists_what_did_not(tmp_path: Path) -> None:
    run = missed_one()
    run.drill["struck_share_min"] = 0.6
    verdict = judge(run.write(tmp_path))
    assert verdict.result == "passed", verdict.sentence
    (check,) = [c for c in verdict.checks if c.name == "enough faults struck"]
    assert "held" in check.detail
    assert [missed.cell for missed in verdict.fault.not_struck] == ["held"]
    assert next(arm for arm in verdict.comparison if arm.arm == "guarded").held.k == 0  # it does not count


def test_a_soak_in_which_too_few_struck_is_invalid(tmp_path: Path) -> None:
    run = missed_one()
    run.drill["struck_share_min"] = 0.7
    verdict = judge(run.write(tmp_path))
    assert verdict.result == "invalid" and "2 of 3 guarded, at least 70% must" in verdict.sentence


def test_a_control_that_was_not_struck_is_not_caught_whatever_the_share(tmp_path: Path) -> None:
    run = good_run()
    run.drill["struck_share_min"] = 0.5
    run.drop("toxic_added", "blind")
    assert judge(run.write(tmp_path)).result == "invalid"


def test_recovery_is_from_the_strike_to_the_final_state_and_counts_what_has_none(tmp_path: Path) -> None:
    run = good_run()
    for cell in run.cells:
        cell["fault"]["spec"] = {"fault": "lost answer"}
    (row,) = judge(run.write(tmp_path)).recovery
    assert (row.kind, row.n, row.unsettled) == ("lost answer", 2, 1)
    assert (row.planned, row.struck, row.duplicates, row.lost, row.held) == (3, 3, 0, 0, 1)
    # `after`: struck with the exit at 1.1, final at 9; `before`: seen on its way at 11, final at 19
    assert (row.median_s, row.p95_s, row.longest_s) == (7.9, 8.0, 8.0)


@pytest.mark.parametrize(
    ("seconds", "share", "wanted"), [([], 0.5, None), ([3.0], 0.95, 3.0), ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0)]
)
def test_percentiles_are_values_that_were_measured(seconds: list[float], share: float, wanted: float | None) -> None:
    assert percentile(seconds, share) == wanted


def test_what_did_not_strike_is_counted_as_planned_and_a_duplicate_by_its_kind(tmp_path: Path) -> None:
    run = good_run()
    for cell in run.cells:
        cell["fault"]["spec"] = {"fault": cell["cell"]}
    send(run, "after", 9, 2)
    run.drop("toxic_added", "before")
    kinds = {row.kind: row for row in judge(run.write(tmp_path)).recovery}
    assert kinds["after"].duplicates == 1 and kinds["after"].struck == 1
    assert (kinds["before"].planned, kinds["before"].struck, kinds["before"].n) == (1, 0, 0)
