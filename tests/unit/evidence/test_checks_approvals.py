"""What became of approvals through an outage, judged on small records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actonce.evidence.case import build
from actonce.evidence.checks_approvals import LATE_S, approvals_kept, effects_approved
from actonce.evidence.folder import load
from actonce.evidence.lines import Observation
from actonce.evidence.observations import carries
from tests.unit.evidence.builders import Run, at, plan

ENDS = 60


def shown(run: Run, phase: str, **change: Any) -> None:
    line = {"approval_id": "ap1_a", "operation_id": "op1_x", "digest": "a1:a", "state": "pending"}
    run.add("view", "approval_shown", "x", 10, phase=phase, **{**line, "expires_at": at(ENDS), **change})


def kept(folder: Path, run: Run) -> list[str]:
    return [str(f).partition(":")[0] for f in approvals_kept(build(load(run.write(folder))))]


def outage() -> Run:
    run = Run()
    plan(run, "x")
    shown(run, "before")
    return run


def test_the_same_approval_before_and_after_is_fine(tmp_path: Path) -> None:
    run = outage()
    shown(run, "during", state="expired")
    shown(run, "after", state="expired", expires_at=at(ENDS).replace("+00:00", "Z"))
    assert kept(tmp_path / "run", run) == []


def test_an_approval_that_nobody_is_shown_any_more_is_lost(tmp_path: Path) -> None:
    assert kept(tmp_path / "run", outage()) == ["approval lost op=op1_x"]


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"approval_id": "ap1_b"}, "approval doubled op=op1_x"),
        ({"expires_at": at(ENDS + 1)}, "approval re-armed op=op1_x"),
        ({"digest": "a1:b"}, "approval changed op=op1_x"),
    ],
)
def test_another_id_time_or_content_afterwards_is_found(tmp_path: Path, change: dict[str, Any], finding: str) -> None:
    run = outage()
    shown(run, "after", **change)
    assert kept(tmp_path / "run", run) == [finding]


def test_asked_anew_by_a_person_is_no_double(tmp_path: Path) -> None:
    run = outage()
    run.add("drill", "decision", "x", 20, operation_id="op1_x", action="renew", by="on call")
    shown(run, "after")
    shown(run, "after", approval_id="ap1_b", expires_at=at(ENDS + 100))
    assert kept(tmp_path / "run", run) == []


@pytest.mark.parametrize(
    ("effect_at", "approval", "caught"),
    [
        (20.0, {"decided_at": at(15), "consumed_at": at(19)}, False),
        (20.0, None, False),  # nobody is asked about it
        (20.0, {"decided_at": None, "consumed_at": None}, True),
        (20.0, {"decided_at": at(15), "consumed_at": None}, True),
        (20.0, {"decided_at": at(25), "consumed_at": at(26)}, True),
        (ENDS + LATE_S + 1, {"decided_at": at(15), "consumed_at": at(19)}, True),
    ],
    ids=["in time", "not asked", "undecided", "not consumed", "decided later", "after its time"],
)
def test_effect_needs_an_approval_that_was_in_force(
    tmp_path: Path, effect_at: float, approval: dict[str, Any] | None, caught: bool
) -> None:
    run = Run()
    plan(run, "x")
    effect = {"object_id": "re_1", "request_id": "r1", "operation_id": "op1_x", "state": "succeeded"}
    run.journal("effect", "x", effect_at, **effect)
    if approval is not None:
        line = {"approval_id": "ap1_a", "operation_id": "op1_x", "digest": "a1:a", "state": "consumed"}
        run.add("caller", "approval", "x", 90, **line, expires_at=at(ENDS), **approval)
    found = effects_approved(build(load(run.write(tmp_path / "run"))))
    assert [str(f).partition(":")[0] for f in found] == (["effect without approval op=op1_x"] if caught else [])


def test_effect_that_people_had_to_be_asked_about_and_were_not_is_found(tmp_path: Path) -> None:
    run = Run()
    cell = plan(run, "x")
    cell["operations"][0]["approval"] = True
    run.journal("effect", "x", 20.0, object_id="re_1", request_id="r1", operation_id="op1_x", state="succeeded")
    found = effects_approved(build(load(run.write(tmp_path / "run"))))
    assert [str(f).partition(":")[0] for f in found] == ["effect without approval op=op1_x"]


def observed(name: str, facts: dict[str, Any]) -> bool:
    line = {"order": 1, "mono_ns": 1, "at": at(1), "source": "witness", "cell": "x", "kind": "observation"}
    return carries(Observation.model_validate({**line, "name": name, "target": "temporal", "facts": facts}))[0]


DOWN = {"pid": 7, "alive": False, "refused": "Connection refused", "waiting": ["op1_x"]}
AGAIN = {"pid_before": 7, "pid_after": 8, "inode_before": 5, "inode_after": 5, "took_a_workflow": True}


@pytest.mark.parametrize("change", [{"alive": True}, {"refused": None}, {"waiting": []}])
def test_a_server_that_lives_or_for_which_nobody_waited_was_not_struck(change: dict[str, Any]) -> None:
    assert observed("scheduler_down_while_waiting", DOWN)
    assert not observed("scheduler_down_while_waiting", DOWN | change)


@pytest.mark.parametrize(
    "change",
    [{"pid_after": 7}, {"inode_after": 6}, {"inode_before": None, "inode_after": None}, {"took_a_workflow": False}],
)
def test_another_file_or_the_same_process_is_no_restart(change: dict[str, Any]) -> None:
    assert observed("same_file_again", AGAIN)
    assert not observed("same_file_again", AGAIN | change)
