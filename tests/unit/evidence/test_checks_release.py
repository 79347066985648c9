"""The release of a backlog, judged on small records."""

from __future__ import annotations

from pathlib import Path

import pytest

from actonce.evidence.case import build
from actonce.evidence.checks_release import released_by_rate, released_in_order
from actonce.evidence.folder import load
from tests.unit.evidence.builders import Run, at, plan


def judged(
    folder: Path, *pairs: tuple[float, float | None], rate: float | None = None, types: tuple[str, ...] = ("b",)
) -> list[str]:
    """Findings about tasks accepted and released at these seconds, of these types in turn."""
    run = Run()
    plan(run, "x")
    for number, (accepted, released) in enumerate(pairs):
        times = {"accepted_at": at(accepted), "released_at": None if released is None else at(released)}
        rule = {"rate_per_s": rate, "changed_at": at(0)}
        about = {"task_id": f"a/b/{number}", "task_type": types[number % len(types)]}
        run.add("caller", "release", "x", 50, **about, **times, **rule)
    case = build(load(run.write(folder)))
    return [str(finding) for finding in (*released_in_order(case), *released_by_rate(case))]


def test_oldest_first_and_by_rate_is_fine(tmp_path: Path) -> None:
    assert judged(tmp_path / "run", *((n / 10, 5 + n / 2) for n in range(10)), rate=2) == []


def test_what_was_saved_up_in_a_second_may_go_at_once(tmp_path: Path) -> None:
    assert judged(tmp_path / "run", *((n / 10, 5.0) for n in range(5)), rate=5) == []


@pytest.mark.parametrize("rate", [1, 5])
def test_a_burst_is_found_wherever_it_is(tmp_path: Path, rate: float) -> None:
    slow = [(n / 100, 10.0 + n / rate) for n in range(5)]
    burst = [(1 + n / 100, 40.0) for n in range(20)]
    found = judged(tmp_path / "run", *slow, *burst, rate=rate)
    assert len(found) == 1 and found[0].startswith("released too fast=x")


def test_without_a_rate_nothing_is_too_fast(tmp_path: Path) -> None:
    assert judged(tmp_path / "run", *((n / 10, 5.0) for n in range(50))) == []


def test_younger_one_before_an_older_one_is_found(tmp_path: Path) -> None:
    found = judged(tmp_path / "run", (1, 9.0), (2, 8.0), (3, None))
    assert [f.partition(":")[0] for f in found] == ["released out of order task=a/b/1"]


def test_each_type_of_tasks_has_an_order_and_a_rate_of_its_own(tmp_path: Path) -> None:
    assert judged(tmp_path / "order", (1, 9.0), (2, 8.0), types=("b", "c")) == []
    four = [(1 + n / 10, 9.0) for n in range(8)]  # 4 at once at a rate of 3 a second is what may be saved up
    assert judged(tmp_path / "rate", *four, rate=3, types=("b", "c")) == []
    assert judged(tmp_path / "one", *four, rate=3) != []
