"""The cover really covers, and what it leaves out cannot exist."""

from __future__ import annotations

import pytest

from drills.cells import AXES, Axes, every_cell, impossible, left_out
from drills.cover import combinations_of, cover, covering_array, every_allowed


def row(axes: Axes) -> tuple[str, ...]:
    return tuple(getattr(axes, name) for name in AXES)


@pytest.mark.parametrize("strength", [2, 3])
def test_every_allowed_combination_is_covered(strength: int) -> None:
    # Counted independently of the builder: from all allowed cells, not from its own bookkeeping.
    wanted = {c for axes in every_allowed() for c in combinations_of(row(axes), strength)}
    found = {c for axes in cover(strength, seed=1) for c in combinations_of(row(axes), strength)}
    assert found == wanted


@pytest.mark.parametrize("seed", range(5))
def test_no_forbidden_cell_is_in_it_and_none_is_there_twice(seed: int) -> None:
    cells = cover(2, seed)
    assert not [axes for axes in cells if impossible(axes)]
    assert len(set(cells)) == len(cells)


def test_it_is_the_same_for_the_same_seed_and_small() -> None:
    assert cover(2, 7) == cover(2, 7)
    assert cover(2, 7) != cover(2, 8)
    assert len(cover(2, 7)) < 130


def test_every_fault_is_compared_with_its_twin_and_one_pair_is_killed() -> None:
    for seed in range(3):
        cells = set(cover(2, seed))
        pairs = {(a.fault, a.process) for a in cells if a.comparable and a.other_twin in cells}
        assert pairs >= {(fault, "none") for fault in AXES["fault"]} | {("closed", "SIGKILL")}


def test_a_combination_that_only_forbidden_rows_have_is_not_demanded() -> None:
    rows = covering_array({"a": "xy", "b": "xy"}, 2, 0, lambda r: r != ("x", "y"))
    assert sorted(rows) == [("x", "x"), ("y", "x"), ("y", "y")]


def test_what_is_left_out_is_listed_with_its_reason() -> None:
    counted = sum(int(name.rpartition("(")[2].split()[0]) for name in left_out())
    assert counted + len(every_allowed()) == sum(1 for _ in every_cell())
    assert len(left_out()) < 10
    assert all(reason for reason in left_out().values())


def test_an_unknown_axis_value_is_refused() -> None:
    with pytest.raises(ValueError, match="is not one of"):
        Axes(fault="gremlins")
