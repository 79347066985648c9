"""A false "nothing is remembered" and a false "it works" are findings, on small hand-written records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actonce.evidence.case import build
from actonce.evidence.checks_memory import false_empty, false_up
from actonce.evidence.folder import load
from tests.unit.evidence.builders import Run, at, plan


def told(run: Run, task: str, status: str, begun: float, ended: float, asked: str = "recall") -> None:
    facts = {"task_id": task, "step": asked, "asked": asked, "status": status}
    run.add("caller", "memory", "x", 9, **facts, begun_at=at(begun), told_at=at(ended))


def empties(folder: Path, *lines: tuple[Any, ...], strangers: tuple[str, ...] = ()) -> list[str]:
    run = Run()
    plan(run, "x")["params"] = {"strangers": list(strangers)}
    for line in lines:
        told(run, *line)
    return [str(finding) for finding in false_empty(build(load(run.write(folder))))]


KEPT = ("a", "remembered", 1, 2, "remember")


def test_empty_after_something_was_remembered_is_found(tmp_path: Path) -> None:
    (finding,) = empties(tmp_path / "run", KEPT, ("b", "empty", 3, 4))
    assert finding.startswith("false empty task=b")


@pytest.mark.parametrize(
    "line", [("b", "found", 3, 4), ("b", "unavailable", 3, 4), ("b", "empty", 1.5, 4), ("a", "empty", 3, 4)]
)
def test_what_could_not_know_it_or_did_not_say_empty_is_none(tmp_path: Path, line: tuple[Any, ...]) -> None:
    assert empties(tmp_path / "run", KEPT, line) == []


def test_who_asks_about_something_else_may_be_told_empty(tmp_path: Path) -> None:
    assert empties(tmp_path / "run", KEPT, ("c", "empty", 3, 4), strangers=("c",)) == []


def ups(folder: Path, state: str, checked: float, seen: tuple[float, ...] = (2, 6)) -> list[str]:
    run = Run()
    plan(run, "x")
    for second in seen:
        run.add("witness", "observation", "x", second, name="silent", target="memory", facts={})
    reading = {"name": "memory", "state": state, "checked_at": at(checked), "how": "connected"}
    body = {"dependencies": [{"name": "ledger", "state": "up", "checked_at": at(checked)}, reading]}
    asserted = [{"name": "a", "ok": True, "detail": ""}]
    run.add("view", "view", "x", 7, name="dependencies", body=body, assertions=asserted)
    return [str(finding) for finding in false_up(build(load(run.write(folder))))]


def test_up_read_between_two_looks_at_the_broken_memory_is_found(tmp_path: Path) -> None:
    (finding,) = ups(tmp_path / "run", "up", 4)
    assert finding.startswith("false up memory=x")


@pytest.mark.parametrize(
    ("state", "checked", "seen"), [("down", 4, (2, 6)), ("up", 1, (2, 6)), ("up", 7, (2, 6)), ("up", 4, (2,))]
)
def test_down_or_read_at_another_time_or_seen_once_is_none(
    tmp_path: Path, state: str, checked: float, seen: tuple[float, ...]
) -> None:
    assert ups(tmp_path / "run", state, checked, seen) == []
