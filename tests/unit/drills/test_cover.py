"""The cover really covers, and what it leaves out cannot exist."""

from __future__ import annotations

import pytest

from drills.cells import AXES, Axes, every_cell, impossible, left_out, twin_race, uncompared
from drills.cover import COMPARED, combinations_of, cover, covering_array, every_allowed


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


@pytest.mark.parametrize("seed", range(3))
def test_every_fault_process_and_cut_is_compared_with_its_twin(seed: int) -> None:
    cells = set(cover(2, seed))
    pairs = {a for a in cells if a.comparable and a.other_twin in cells}
    plain = {a.fault for a in pairs if (a.process, a.cut) == ("none", "none")}
    assert plain == set(AXES["fault"])
    assert {(a.process, a.cut) for a in pairs} >= set(COMPARED)
    assert {a.process for a in pairs} == set(AXES["process"]) and {a.cut for a in pairs} == set(AXES["cut"])


def test_a_race_of_a_twin_is_a_race_of_the_other() -> None:
    pairs = [axes for axes in every_allowed() if not impossible(axes.other_twin)]
    assert all(twin_race(axes) == twin_race(axes.other_twin) for axes in pairs)


@pytest.mark.parametrize(
    ("cell", "race"),
    [
        ("closed commit_then_drop none none healthy bounded", None),
        ("closed commit_then_drop SIGKILL all healthy bounded", None),
        ("closed commit_then_drop SIGTERM none healthy bounded", None),
        ("reset commit_then_drop none temporal healthy bounded", None),
        ("silent commit_then_drop none destination healthy bounded", None),
        ("silent commit_then_drop SIGSTOP none all_down bounded", None),
        ("closed commit_then_drop none ledger healthy bounded", "the ledger that is cut"),
        ("silent commit_then_drop SIGTERM all all_down bounded", "the ledger that is cut"),
        ("closed commit_then_drop SIGSTOP none all_down bounded", "at once"),
        ("closed commit_then_drop none destination healthy bounded", "deadline may come first"),
        ("silent commit_then_drop none temporal healthy bounded", "read it back"),
        ("silent commit_then_drop SIGSTOP none healthy bounded", "read it back"),
        ("silent commit_then_drop SIGSTOP none all_down key_on_arrival", "send it again"),
    ],
)
def test_twins_are_compared_where_the_record_is_not_left_to_chance(cell: str, race: str | None) -> None:
    found = twin_race(Axes(*cell.split()))
    assert found is None if race is None else race in str(found)


def test_every_pair_is_compared_or_listed_with_its_reason() -> None:
    pairs = [a for a in every_allowed() if a.committed_first and not impossible(a.other_twin)]
    listed = sum(int(name.rpartition("(")[2].split()[0]) for name in uncompared())
    assert listed == sum(not a.comparable for a in pairs) and 0 < listed < len(pairs)
    assert all(uncompared().values()) and len(uncompared()) < 10


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
