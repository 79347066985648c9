"""What a witness says is judged by its facts; and what becomes of tasks, on small records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actonce.evidence.case import build
from actonce.evidence.checks_tasks import held_tasks_are_paged, tasks_as_expected
from actonce.evidence.folder import load
from actonce.evidence.strike import PROOFS, scene
from tests.unit.evidence.builders import Run, plan

QUIET = {"connected": True, "bytes_down": 0, "ended": None, "waited_s": 2.0}
GOOD: dict[str, dict[str, Any]] = {
    "silent": QUIET,
    "refused": {"connected": False, "error": "ConnectionRefusedError"},
    "write_failed": {"errno": 28, "path": "/x"},
    "accepted_while_nobody_worked": {"alive": [], "accepted": 3},
    "credential_turned_away": {"status": 401},
    "broken_off": QUIET | {"ended": "closed"},
    "slow": {"bytes_down": 1, "waited_s": 1.6},
    "login_refused": {"error": 'FATAL:  password authentication failed for user "x"'},
    "stands_in_query": {"waiting": ["SELECT key FROM actonce_memory.item"]},
    "index_gone": {"index": None, "rows": 2},
    "rows_gone": {"index": "valid", "rows": 0, "rows_before": 2},
    "no_lease_in_force": {"had": 2, "in_force": 0, "denied": 1},
    "turned_away_everywhere": {"routes": {"list": 2, "log": 1}},
    "came_back_narrower": {"ended": ["l-1"], "in_force": 0, "needed": "p:write", "gives": ["p:look"]},
    "store_refuses": {"sqlstate": "25006", "error": "cannot execute INSERT in a read-only transaction"},
    "renewed_in_use": {"jealous": True, "renewed": 2, "accepted": 5},
}
BAD: list[tuple[str, dict[str, Any]]] = [
    ("silent", QUIET | {"connected": False}),
    ("silent", QUIET | {"bytes_down": 1}),
    ("silent", QUIET | {"ended": "closed"}),
    ("silent", QUIET | {"waited_s": 0.2}),
    ("silent", {}),
    ("refused", {"connected": True, "error": None}),
    ("refused", {"connected": False}),
    ("write_failed", {"errno": None, "path": "/x"}),
    ("write_failed", {"errno": 13, "path": "/x"}),
    ("accepted_while_nobody_worked", {"alive": [7], "accepted": 3}),
    ("accepted_while_nobody_worked", {"alive": [], "accepted": 0}),
    ("accepted_while_nobody_worked", {"accepted": 3}),
    ("credential_turned_away", {"status": 200}),
    ("no_lease_in_force", {"had": 2, "in_force": 1, "denied": 1}),
    ("no_lease_in_force", {"had": 0, "in_force": 0, "denied": 1}),
    ("no_lease_in_force", {"had": 2, "in_force": 0, "denied": 0}),
    ("turned_away_everywhere", {"routes": {"list": 2, "log": 0}}),
    ("turned_away_everywhere", {"routes": {}}),
    ("came_back_narrower", {"ended": [], "in_force": 0, "needed": "p:write", "gives": ["p:look"]}),
    ("came_back_narrower", {"ended": ["l-1"], "in_force": 1, "needed": "p:write", "gives": ["p:look"]}),
    ("came_back_narrower", {"ended": ["l-1"], "in_force": 0, "needed": "p:write", "gives": ["p:write"]}),
    ("came_back_narrower", {"ended": ["l-1"], "in_force": 0, "needed": "p:write", "gives": []}),
    ("store_refuses", {"sqlstate": None, "error": None}),
    ("store_refuses", {"sqlstate": "08006", "error": "connection failure"}),
    ("renewed_in_use", {"jealous": False, "renewed": 2, "accepted": 5}),
    ("renewed_in_use", {"jealous": True, "renewed": 1, "accepted": 5}),
    ("renewed_in_use", {"jealous": True, "renewed": 2, "accepted": 1}),
    ("silent", QUIET | {"waited_s": "long"}),
    ("broken_off", QUIET),
    ("broken_off", QUIET | {"ended": "closed", "bytes_down": 1}),
    ("slow", {"bytes_down": 1, "waited_s": 0.01}),
    ("slow", {"bytes_down": 0, "waited_s": 2.0}),
    ("login_refused", {"error": "connection refused"}),
    ("login_refused", {"error": None}),
    ("stands_in_query", {"waiting": ["SELECT 1"]}),
    ("index_gone", {"index": "valid", "rows": 2}),
    ("index_gone", {"index": None, "rows": 0}),
    ("rows_gone", {"index": None, "rows": 0, "rows_before": 2}),
    ("rows_gone", {"index": "valid", "rows": 2, "rows_before": 2}),
    ("rows_gone", {"index": "valid", "rows_before": 2}),
    ("never heard of", {"ok": True}),
]


def observed(folder: Path, name: str, *facts: dict[str, Any]) -> bool | None:
    run = Run()
    plan(run, "x")["fault"] |= {"proof": ["observed"], "observations": [name]}
    run.add("drill", "note", "x", 1, text="begun")
    for one in facts:
        run.add("witness", "observation", "x", 2, name=name, target="t", facts=one)
    case = build(load(run.write(folder)))
    return PROOFS["observed"](scene(case.evidence, case.stories["x", "op1_x"])).proven


@pytest.mark.parametrize("name", GOOD)
def test_facts_that_carry_a_claim_prove_it(tmp_path: Path, name: str) -> None:
    assert observed(tmp_path / "run", name, GOOD[name]) is True


@pytest.mark.parametrize(("name", "facts"), BAD)
def test_facts_that_do_not_carry_it_refute_it_also_beside_good_ones(
    tmp_path: Path, name: str, facts: dict[str, Any]
) -> None:
    assert observed(tmp_path / "run", name, facts) is False
    assert observed(tmp_path / "beside", name, *filter(None, (GOOD.get(name), facts or {"x": 1}))) is False


def test_without_a_witness_nothing_is_proven(tmp_path: Path) -> None:
    assert observed(tmp_path / "run", "silent") is None


def tasks(folder: Path, state: str, reason: str | None, *, page: str | None, hold: bool) -> list[str]:
    run = Run()
    cell = plan(run, "x")
    cell |= {"task_ids": ["a/b/c"], "tasks": [{"task_id": "a/b/c", "states": ["complete", "held:memory_unavailable"]}]}
    run.add("caller", "task", "x", 2, task_id="a/b/c", state=state, reason=reason)
    if hold:
        about = {"operation_id": None, "task_id": "a/b/c", "step": "recall", "reason": "memory_unavailable"}
        run.add("caller", "hold", "x", 2, opened_at="2026-01-01T12:00:00+00:00", resolved_at=None, **about)
    if page:
        run.add("page", "page", "x", 2, incident="i", reason="memory_unavailable", channel="c", task_id=page)
    case = build(load(run.write(folder)))
    return [str(finding) for finding in (*tasks_as_expected(case), *held_tasks_are_paged(case))]


@pytest.mark.parametrize(
    ("state", "reason", "page", "hold", "finding"),
    [
        ("complete", None, None, False, None),
        ("held", "memory_unavailable", "a/b/c", True, None),
        ("held", "memory_unavailable", None, True, "held without page task=a/b/c"),
        ("held", "memory_unavailable", "a/b/other", True, "held without page task=a/b/c"),
        ("held", "approval_expired", None, False, "wrong end task=a/b/c: held:approval_expired"),
        ("running", None, None, False, "wrong end task=a/b/c: running"),
    ],
)
def test_a_task_ends_as_expected_and_is_never_held_in_silence(
    tmp_path: Path, state: str, reason: str | None, page: str | None, hold: bool, finding: str | None
) -> None:
    found = tasks(tmp_path / "run", state, reason, page=page, hold=hold)
    assert len(found) == (finding is not None)
    assert finding is None or found[0].startswith(finding)
