"""The audit trail judged from small records: lost, changed, late and unannounced things are found by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actonce.evidence.case import build
from actonce.evidence.checks_audit import COUNTED, CopyCount, audit_copy_is_whole, effects_are_audited
from actonce.evidence.folder import load
from tests.unit.evidence.builders import Run, at, caller, plan, send

KINDS = [("operation.intent", "ready"), ("operation.permit", "dispatched"), ("operation.ack_complete", "committed")]


def sealed(count: int) -> list[dict[str, Any]]:
    """Events as a log destination holds them, built here by hand."""
    events: list[dict[str, Any]] = []
    for seq in range(1, count + 1):
        event = {"seq": seq, "previous_hash": events[-1]["hash"] if events else "0", "kind": KINDS[seq - 1][0]}
        event["hash"] = hashlib.sha256(canonical(event).encode()).hexdigest()
        events.append(event)
    return events


def canonical(event: dict[str, Any]) -> str:
    return json.dumps(event, sort_keys=True, separators=(",", ":"))


def record(audit: str = "copy", effect_s: float = 2.5) -> Run:
    """One operation: intent at 1 s, permit at 2 s, effect, outcome at 3 s; and its copy."""
    run = Run()
    planned = plan(run, "x")
    planned["params"] = {**planned["params"], "audit": audit}
    send(run, "x", effect_s - 0.01)
    for number, ((kind, state), event) in enumerate(zip(KINDS, sealed(3), strict=True), 1):
        run.add(
            "caller",
            "audit_event",
            "x",
            number,
            event=kind,
            state=state,
            event_seq=number,
            hash=event["hash"],
            written_at=at(number),
            operation_id="op1_x",
        )
        run.add("witness", "audit_copy", "x", 5 + number, destination="folder", text=canonical(event))
    return run


def found(run: Run, folder: Path) -> list[str]:
    case = build(load(run.write(folder)))
    return [f"{f.name}={f.subject}" for check in (effects_are_audited, audit_copy_is_whole) for f in check(case)]


def texts(run: Run) -> list[dict[str, Any]]:
    return [event for event in run.events if event["kind"] == "audit_copy"]


def test_whole_trail_has_no_finding_and_a_duplicate_line_is_none(tmp_path: Path) -> None:
    run = record()
    run.add("witness", "audit_copy", "x", 9, destination="folder", text=texts(run)[1]["text"])
    assert found(run, tmp_path / "run") == []


def test_effect_before_its_permit_event_is_unaudited(tmp_path: Path) -> None:
    assert found(record(effect_s=1.5), tmp_path / "run") == ["unaudited effect op=op1_x"]


def test_effect_with_an_event_of_its_outcome_alone_is_unaudited(tmp_path: Path) -> None:
    run = record("events")
    run.drop("audit_event", "x", event="operation.permit")
    assert found(run, tmp_path / "run") == ["unaudited effect op=op1_x"]


def test_second_effect_needs_a_second_permit_event(tmp_path: Path) -> None:
    run = record()
    send(run, "x", 2.8, 2)
    assert found(run, tmp_path / "run") == ["unaudited effect op=op1_x"]


@pytest.mark.parametrize(("state", "expected"), [("committed", []), ("closed", ["unaudited outcome op=op1_x"])])
def test_ended_operation_whose_last_event_says_otherwise_is_unaudited(
    tmp_path: Path, state: str, expected: list[str]
) -> None:
    run = record("events")
    caller(run, "x", 6, state=state)
    assert found(run, tmp_path / "run") == expected


def lose(number: int) -> Callable[[Run], None]:
    return lambda run: run.events.remove(texts(run)[number])


def change(number: int, text: str) -> Callable[[Run], None]:
    return lambda run: texts(run)[number].update(text=text)


def rewrite(run: Run) -> None:
    """A changed event with a hash that fits it, and nothing that names it."""
    event = {**sealed(2)[1], "kind": "operation.nothing"}
    del event["hash"]
    event["hash"] = hashlib.sha256(canonical(event).encode()).hexdigest()
    texts(run)[1].update(text=canonical(event))


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lose(1), ["lost audit event=2"]),
        (lose(2), ["lost audit event=3"]),
        (change(0, "hello"), ["audit chain broken=hello", "lost audit event=1"]),
        (change(2, canonical(sealed(3)[2]).replace("ack", "nak")), ["audit chain broken={", "lost audit event=3"]),
        (rewrite, ["audit chain broken=2", "audit chain broken=3"]),
        (
            lambda run: run.events.remove(run.find("audit_event", "x", event_seq=3)),
            ["foreign audit event=3"],
        ),
        (lambda run: [run.events.remove(one) for one in texts(run)], ["audit="]),
    ],
)
def test_what_is_lost_changed_or_made_up_in_a_copy_is_named(
    tmp_path: Path, spoil: Callable[[Run], Any], expected: list[str]
) -> None:
    run = record()
    spoil(run)
    names = found(run, tmp_path / "run")
    assert len(names) == len(expected)
    assert all(name.startswith(wanted) for name, wanted in zip(names, expected, strict=True)), names


def test_cell_without_events_is_invalid_and_other_drills_need_none(tmp_path: Path) -> None:
    run = record("events")
    for event in [e for e in run.events if e["kind"] == "audit_event"]:
        run.events.remove(event)
    case = build(load(run.write(tmp_path / "run")))
    assert [(f.name, f.weight) for f in effects_are_audited(case)] == [("audit", "invalid")]
    assert found(record("no"), tmp_path / "other") == []


def counted(lines: list[str], sealed_events: int = 3) -> Run:
    """The same record as a long run leaves it: no line of the copy, but what a witness counted of it."""
    run = record("counted")
    run.drop("audit_copy")
    count = CopyCount("folder")
    count.read(lines)
    facts = json.loads(json.dumps(count.facts({event["seq"]: event["hash"] for event in sealed(sealed_events)})))
    run.add("witness", "observation", None, 9, name=COUNTED, target="folder", facts=facts)
    return run


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([canonical(event) for event in sealed(3)], []),
        ([canonical(event) for event in [*sealed(3), sealed(1)[0]]], []),  # one came twice
        ([canonical(event) for event in sealed(2)], ["lost audit event=3"]),
        ([canonical(sealed(3)[0]), "hello", *map(canonical, sealed(3)[1:])], ["audit chain broken=hello"]),
        ([], ["audit=", "lost audit event=1"]),
    ],
)
def test_a_copy_that_was_counted_is_judged_as_one_whose_lines_are_kept(
    tmp_path: Path, lines: list[str], expected: list[str]
) -> None:
    assert found(counted(lines), tmp_path / "run") == expected


def test_a_copy_that_nobody_counted_is_invalid_and_effects_are_looked_at_all_the_same(tmp_path: Path) -> None:
    run = counted([canonical(event) for event in sealed(3)])
    run.drop("observation")
    run.drop("audit_event", "x", event="operation.permit")
    assert found(run, tmp_path / "run") == ["unaudited effect op=op1_x", "audit="]


def test_problems_that_are_counted_and_not_named_are_found(tmp_path: Path) -> None:
    run = counted([canonical(event) for event in sealed(3)])
    run.find("observation", None)["facts"]["problem_count"] = 2
    assert found(run, tmp_path / "run") == ["audit chain broken="]
