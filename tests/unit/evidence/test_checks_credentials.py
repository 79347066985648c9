"""What leases, authority and secrets leave on record, on small records: each checker is shown what it must find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actonce.evidence.case import Case, Finding, build
from actonce.evidence.checks_credentials import (
    SEARCHED,
    killed_leases,
    leaked_secrets,
    sent_under_dead_lease,
    unauthorised_effects,
)
from actonce.evidence.folder import load
from tests.unit.evidence.builders import Run, caller, plan, send

LEASE = {"account": "acct-1", "purpose": "write", "lease_id": "acct-1/creds/write/1"}


def good() -> Run:
    """One effect under a lease, allowed by policy 1, and a search that found nothing."""
    run = Run()
    plan(run, "x")["params"]["leased"] = True
    run.add("drill", "authority", "x", 1, allowed=True, policy_version=1)
    run.journal("lease", "x", 2, event="issued", **LEASE)
    send(run, "x", 3)
    caller(run, "x", 12)
    facts: dict[str, Any] = {"places": ["worker-1.log"], "bytes": 10, "hits": []}
    run.add("witness", "observation", "x", 20, name=SEARCHED, target="x", facts=facts)
    return run


def found(folder: Path, run: Run, checker: Callable[[Case], list[Finding]]) -> list[tuple[str, str]]:
    return [(f.name, f.weight) for f in checker(build(load(run.write(folder))))]


@pytest.mark.parametrize("checker", [killed_leases, leaked_secrets, sent_under_dead_lease, unauthorised_effects])
def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path, checker: Any) -> None:
    assert found(tmp_path / "run", good(), checker) == []


def test_an_effect_while_the_policy_forbids_it(tmp_path: Path) -> None:
    run = good()
    run.add("drill", "authority", "x", 2.5, allowed=False, policy_version=2)
    assert found(tmp_path / "run", run, unauthorised_effects) == [("unauthorised effect op", "failed")]


def test_an_effect_after_the_right_was_given_back_is_allowed(tmp_path: Path) -> None:
    run = good()
    run.add("drill", "authority", "x", 2.5, allowed=False, policy_version=2)
    run.add("drill", "authority", "x", 2.8, allowed=True, policy_version=3)
    assert found(tmp_path / "run", run, unauthorised_effects) == []


def test_an_effect_without_any_policy(tmp_path: Path) -> None:
    run = good()
    run.drop("authority")
    assert found(tmp_path / "run", run, unauthorised_effects) == [("unauthorised effect op", "failed")]


@pytest.mark.parametrize(
    ("why", "is_found"),
    [
        ("credential write: lease acct-1/creds/write/1 expired", True),
        ("credential write: lease acct-1/creds/write/1 revoked out of band", False),  # nobody can know that yet
        ("declined", False),
    ],
)
def test_a_write_that_is_refused_because_its_lease_had_run_out(tmp_path: Path, why: str, is_found: bool) -> None:
    run = good()
    send(run, "x", 5, 2, effect=False)
    run.journal("refused", "x", 5.1, request_id="req_x_2", why=why)
    expected = [("sent under dead lease op", "failed")] if is_found else []
    assert found(tmp_path / "run", run, sent_under_dead_lease) == expected


def test_a_good_lease_that_its_holder_killed(tmp_path: Path) -> None:
    run = good()
    run.journal("lease", "x", 4, event="ended", why="used twice at once", **LEASE)
    assert found(tmp_path / "run", run, killed_leases) == [("good lease killed", "failed")]


def test_a_lease_that_ended_otherwise_was_not_killed_by_us(tmp_path: Path) -> None:
    run = good()
    run.journal("lease", "x", 4, event="ended", why="revoked out of band", **LEASE)
    assert found(tmp_path / "run", run, killed_leases) == []


def test_a_secret_that_was_found_names_the_place(tmp_path: Path) -> None:
    run = good()
    run.find("observation")["facts"]["hits"] = ["worker-1.log", "ledger actonce.attempt"]
    findings = leaked_secrets(build(load(run.write(tmp_path / "run"))))
    assert [f.detail for f in findings] == [
        "a marked secret is in worker-1.log",
        "a marked secret is in ledger actonce.attempt",
    ]


@pytest.mark.parametrize("spoil", ["no search", "nothing read", "no secret given"])
def test_a_search_that_could_find_nothing_is_no_proof(tmp_path: Path, spoil: str) -> None:
    run = good()
    if spoil == "no search":
        run.drop("observation")
    elif spoil == "nothing read":
        run.find("observation")["facts"]["bytes"] = 0
    else:
        run.drop("lease")
    assert found(tmp_path / "run", run, leaked_secrets) == [("leaked secret", "invalid")]


def test_a_cell_that_leases_nothing_is_not_looked_at(tmp_path: Path) -> None:
    run = good()
    run.cell("x")["params"]["leased"] = False
    run.drop("authority")
    run.drop("observation")
    for number, checker in enumerate((unauthorised_effects, leaked_secrets)):
        assert found(tmp_path / f"run{number}", run, checker) == []


def for_the_whole_run(run: Run) -> Run:
    """As a soak records it: policy, leases and search are of the run and of no cell."""
    for event in run.events:
        if event["kind"] in ("authority", "lease", "observation"):
            event["cell"] = None
    return run


@pytest.mark.parametrize("checker", [killed_leases, leaked_secrets, sent_under_dead_lease, unauthorised_effects])
def test_lines_without_a_cell_speak_for_the_whole_run(tmp_path: Path, checker: Any) -> None:
    assert found(tmp_path / "run", for_the_whole_run(good()), checker) == []


def test_what_is_wrong_for_the_whole_run_is_found_once(tmp_path: Path) -> None:
    run = for_the_whole_run(good())
    plan(run, "y")["params"]["leased"] = True
    send(run, "y", 3)
    caller(run, "y", 12)
    run.find("observation", None)["facts"]["hits"] = ["worker-1.log"]
    run.journal("lease", None, 2.5, event="ended", why="used twice at once", **LEASE)
    run.add("drill", "authority", None, 2.5, allowed=False, policy_version=2)
    assert found(tmp_path / "run", run, leaked_secrets) == [("leaked secret", "failed")]
    assert found(tmp_path / "again", run, killed_leases) == [("good lease killed", "failed")]
    assert found(tmp_path / "third", run, unauthorised_effects) == [("unauthorised effect op", "failed")] * 2
