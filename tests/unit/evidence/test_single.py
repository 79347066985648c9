"""A folder of one cell: passed, caught, or neither, by the same checkers as a whole drill."""

from __future__ import annotations

from pathlib import Path

from actonce.evidence import judge_single
from actonce.evidence.checkers import CHECKERS
from actonce.evidence.single import WHOLE_DRILL
from tests.unit.evidence.builders import Run, caller, history, issue, plan, reconcile, send, toxic, verdict


def one(**changes: object) -> Run:
    """An answer lost after the commit, adopted: one cell, no views, no probe."""
    run = Run()
    run.journal("challenge", None, 0.5, run_id="run-1")
    plan(run, "after", **{"params": {}, **changes})
    toxic(run, "after", 1.005, 3)
    send(run, "after", 1)
    verdict(run, "after", 3, "committed")
    caller(run, "after", 10, verdict="committed")
    run.histories["t/refund/after"] = history(issue("after", 1), reconcile("after", 3, "committed"))
    run.add("drill", "quiet", "after", 11, seconds=1.0, still_open=[])
    return run


def test_a_whole_record_in_which_nothing_is_found_passes(tmp_path: Path) -> None:
    judged = judge_single(one().write(tmp_path))
    assert judged.passed, str(judged)
    assert (judged.operations, judged.effects) == (1, 1)
    assert not judged.caught("duplicate op")


def test_what_is_left_out_are_checks_that_exist() -> None:
    assert CHECKERS.keys() > WHOLE_DRILL


def test_a_duplicate_does_not_pass_and_catches_the_control_that_names_it(tmp_path: Path) -> None:
    run = one(arm="control:blind", control="blind", expected_finding="duplicate op")
    send(run, "after", 4, 2)
    judged = judge_single(run.write(tmp_path))
    assert not judged.passed
    assert judged.caught("duplicate op") and not judged.caught("lost op")
    assert "duplicate op=op1_after" in str(judged)


def test_a_control_on_whom_the_fault_did_not_strike_is_not_caught(tmp_path: Path) -> None:
    run = one(arm="control:blind", control="blind", expected_finding="duplicate op")
    send(run, "after", 4, 2)
    run.drop("toxic_added")
    judged = judge_single(run.write(tmp_path))
    assert not judged.valid and not judged.caught("duplicate op")
    assert "did not strike" in str(judged)


def test_a_record_that_is_not_whole_neither_passes_nor_catches(tmp_path: Path) -> None:
    run = one(arm="control:blind", control="blind", expected_finding="duplicate op")
    send(run, "after", 4, 2)
    run.declared["world"] = 99
    judged = judge_single(run.write(tmp_path))
    assert judged.problems and not judged.passed and not judged.caught("duplicate op")
