"""Judges a recorded folder: passed, failed or invalid, and why.

Contract: `judge` needs the folder and nothing else: no server, no clock, no code of the system under test. The same
folder gives the same verdict. It never raises for a bad folder: what cannot be read is `invalid`. `failed` (the system
did something wrong, in a record that can be trusted) outranks `invalid` (the drill did not show what it had to show);
a record that is not whole is always `invalid`, since nothing found in it can be trusted. Passed means that every check
was made and none found anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from actonce.evidence.case import Case, Finding, build
from actonce.evidence.checkers import CHECKERS, signature, twin_pairs
from actonce.evidence.compare import rates
from actonce.evidence.folder import Evidence, integrity, load
from actonce.evidence.lines import View
from actonce.evidence.record import VIEW_NAMES, Cell
from actonce.evidence.recovery import recovery
from actonce.evidence.strike import Strike, strikes
from actonce.evidence.verdict import (
    Balance,
    Check,
    ControlResult,
    Facts,
    FaultSummary,
    NotStruck,
    Struck,
    Twin,
    Verdict,
    ViewSummary,
)

Result = Literal["passed", "failed", "invalid"]
SHOWN_MAX = 5  # findings quoted in a check's detail; all of them are in the report


@dataclass(frozen=True)
class Judgement:
    """The verdict with what it rests on, for the report. `case` is None when the folder could not be read."""

    verdict: Verdict
    case: Case | None
    strikes: list[Strike]
    findings: list[Finding]


@dataclass(frozen=True)
class Outcome:
    """One check and its weight when it is not ok."""

    check: Check
    weight: Result = "passed"


def judge(folder: Path) -> Verdict:
    """The verdict on a recorded folder. Never raises for what is in the folder."""
    return examine(folder).verdict


def examine(folder: Path) -> Judgement:
    """The verdict with everything it rests on."""
    try:
        evidence = load(folder)
        problems = integrity(evidence)
        case = build(evidence)
        hits = strikes(case)
    except Exception as error:  # a folder that cannot be read, or a judge that breaks on it, proves nothing
        return Judgement(_unreadable(error), None, [], [])
    outcomes = [_whole(problems), _struck(hits, evidence)]
    findings: list[Finding] = []
    for name, checker in CHECKERS.items():
        try:
            found = checker(case)
        except Exception as error:  # a checker that crashes is never a pass
            detail = f"the checker crashed: {type(error).__name__}: {error}"
            outcomes.append(Outcome(Check(name=name, ok=False, detail=detail), "invalid"))
            continue
        findings += found
        outcomes.append(_checked(name, [f for f in found if counts(f, case)], case))
    controls = _controls(case, hits, findings)
    outcomes += [_caught(controls, evidence)]
    balance = _balance(case, findings)
    result = _result(problems, outcomes)
    verdict = Verdict(
        drill=evidence.drill.drill,
        result=result,
        sentence=_sentence(case, balance, hits, controls, result, outcomes),
        claim=evidence.drill.claim,
        seed=evidence.drill.seed,
        versions=evidence.drill.versions,
        fault=_faults(evidence, hits),
        twins=_twins(case),
        facts=_facts(case),
        balance=balance,
        views=_views(evidence),
        controls=controls,
        checks=[outcome.check for outcome in outcomes],
        comparison=rates(case, hits),
        recovery=recovery(case, hits, {f.operation_id for f in findings if f.name == "lost op"}),
        left_out=evidence.drill.left_out,
    )
    return Judgement(verdict, case, hits, findings)


def counts(finding: Finding, case: Case) -> bool:
    """Does a finding count against the drill? What a control or a comparison arm did wrong does not, it is what they
    are for; that something was not recorded counts in every arm."""
    cell = case.evidence.cells.get(finding.cell or "")
    return finding.weight == "invalid" or cell is None or cell.arm == "guarded"


def _result(problems: list[str], outcomes: list[Outcome]) -> Result:
    weights = {outcome.weight for outcome in outcomes}
    if problems:
        return "invalid"
    if "failed" in weights:
        return "failed"
    return "invalid" if "invalid" in weights else "passed"


def _whole(problems: list[str]) -> Outcome:
    name = "record is whole"
    if problems:
        return Outcome(Check(name=name, ok=False, detail=_some(problems)), "invalid")
    return Outcome(Check(name=name, ok=True, detail="no gap, no foreign row, totals as declared"))


def _struck(hits: list[Strike], evidence: Evidence) -> Outcome:
    least = evidence.drill.struck_share_min
    name = "every fault struck" if least == 1 else "enough faults struck"
    missed = [f"{hit.cell}: {hit.status}: {hit.why}" for hit in hits if hit.status != "struck"]
    mine = [hit for hit in hits if evidence.cells[hit.cell].arm == "guarded"]
    struck = sum(hit.status == "struck" for hit in mine)
    if not hits or (missed and (least == 1 or not mine or struck / len(mine) < least)):
        detail = _some(missed) if missed else "no fault at all"
        if least < 1:
            detail = f"{struck} of {len(mine)} guarded, at least {least:.0%} must: {detail}"
        return Outcome(Check(name=name, ok=False, detail=detail), "invalid")
    detail = f"{len(hits) - len(missed)} of {len(hits)} proven by destination, wire, process"
    return Outcome(Check(name=name, ok=True, detail=f"{detail}; not: {_some(missed)}" if missed else detail))


def _checked(name: str, found: list[Finding], case: Case) -> Outcome:
    guarded = case.guarded()
    if not guarded:
        detail = "no guarded cell was run, so there was nothing to look at"
        return Outcome(Check(name=name, ok=False, detail=detail), "invalid")
    if not found:
        return Outcome(Check(name=name, ok=True, detail=f"nothing found over {len(guarded)} guarded operations"))
    weight: Result = "failed" if any(f.weight == "failed" for f in found) else "invalid"
    return Outcome(Check(name=name, ok=False, detail=_some([str(f) for f in found])), weight)


def _controls(case: Case, hits: list[Strike], findings: list[Finding]) -> list[ControlResult]:
    results = []
    for cell in case.evidence.arm("control"):
        own = [str(f) for f in findings if f.cell == cell.cell and f.weight == "failed"]
        struck = all(hit.status == "struck" for hit in hits if hit.cell == cell.cell)
        expected = cell.expected_finding or ""
        caught = struck and any(text.startswith(expected) for text in own)
        results.append(
            ControlResult(
                name=cell.control or cell.arm,
                cell=cell.cell,
                expected_finding=expected,
                found=own[: SHOWN_MAX * 2],
                caught=caught,
            )
        )
    return results


def _caught(controls: list[ControlResult], evidence: Evidence) -> Outcome:
    name = "every control caught"
    problems = [
        f"control {c.name} not caught in {c.cell}: expected {c.expected_finding}, found {_some(c.found) or 'nothing'}"
        for c in controls
        if not c.caught
    ]
    ran = {control.name for control in controls}
    problems += [
        f"control {name} was promised and did not run" for name in evidence.drill.protections if name not in ran
    ]
    if not controls:
        problems.append("no control ran, so nothing shows that this drill can fail")
    if problems:
        return Outcome(Check(name=name, ok=False, detail=_some(problems)), "invalid")
    detail = f"{len(controls)} control cells, {len(ran)} protections removed, each caught by its named finding"
    return Outcome(Check(name=name, ok=True, detail=detail))


def _faults(evidence: Evidence, hits: list[Strike]) -> FaultSummary:
    kinds = Counter(_kind(cell) for cell in evidence.cells.values())
    return FaultSummary(
        spec={"cells": len(evidence.cells), "kinds": dict(sorted(kinds.items()))},
        struck=[
            Struck(
                operation_id=hit.operation_id,
                cell=hit.cell,
                pid=hit.pid,
                signal="+".join(hit.signals) or None,
                order=hit.order,
                proof={proof.kind: proof.why for proof in hit.proofs},
            )
            for hit in hits
            if hit.status == "struck"
        ],
        not_struck=[
            NotStruck(operation_id=hit.operation_id, cell=hit.cell, status=hit.status, why=hit.why)
            for hit in hits
            if hit.status != "struck"
        ],
    )


def _kind(cell: Cell) -> str:
    parts = [str(cell.params.get(name)) for name in ("fault", "process", "cut") if cell.params.get(name)]
    return " + ".join(part for part in parts if part != "none") or "unnamed"


def _twins(case: Case) -> list[Twin]:
    pairs = []
    for after, before in twin_pairs(case):
        if after.cell.arm != "guarded":
            continue
        seen = signature(after)
        pairs.append(
            Twin(
                after_commit=after.operation_id,
                before_commit=before.operation_id,
                same_records=seen is not None and seen == signature(before),
                caller_saw=list(seen or ()),
                outcomes=(after.outcome, before.outcome),
                effects=(len(after.effects), len(before.effects)),
            )
        )
    return pairs


def _facts(case: Case) -> list[Facts]:
    return [
        Facts(
            operation_id=story.operation_id,
            cell=story.cell.cell,
            issued=story.row.issued_at if story.row else None,
            committed=story.effects[0].at if story.effects else None,
            acknowledged=story.row.acknowledged_at if story.row else None,
            verdict=story.verdicts[-1].verdict if story.verdicts else (story.row.verdict if story.row else None),
            reason=story.row.reason if story.row else None,
            state=story.row.state if story.row else "not_issued",
            effects=len(story.effects),
        )
        for story in case.guarded()
    ]


def _balance(case: Case, findings: list[Finding]) -> Balance:
    guarded = case.guarded()
    mine = [f for f in findings if counts(f, case)]
    return Balance(
        tasks=len({task for cell in case.evidence.arm("guarded") for task in cell.task_ids}),
        operations=sum(not s.rightly_never_issued for s in guarded),
        effects=sum(len(s.effects) for s in guarded),
        duplicates=sum(max(0, len(s.effects) - 1) for s in guarded),
        lost=len({f.operation_id for f in mine if f.name == "lost op"}),
        ambiguous=sum(1 for s in guarded if s.held),
        unaccounted=sum(1 for f in mine if f.name.startswith("unaccounted")),
    )


def _views(evidence: Evidence) -> dict[str, ViewSummary]:
    guarded = {None, *(cell.cell for cell in evidence.arm("guarded"))}
    found = {}
    for name in VIEW_NAMES:
        own = [view for view in evidence.of(View) if view.name == name and view.cell in guarded]
        failed = [f"{a.name}: {a.detail}" for view in own for a in view.assertions if not a.ok]
        found[name] = ViewSummary(captured=len(own), assertions=sum(len(v.assertions) for v in own), failed=failed)
    return found


def _sentence(
    case: Case,
    balance: Balance,
    hits: list[Strike],
    controls: list[ControlResult],
    result: Result,
    outcomes: list[Outcome],
) -> str:
    """The one sentence: counts first; when it did not pass, the first reason after them."""
    told = sum(1 for s in case.guarded() if s.held and s.pages)
    own = [hit for hit in hits if case.evidence.cells[hit.cell].arm == "guarded"]
    struck = sum(hit.status == "struck" for hit in own)
    doubled = sum(max(0, len(s.effects) - 1) for s in case.own() if s.cell.arm != "guarded")
    sentence = (
        f"{_n(balance.operations, 'operation')}, {_n(balance.effects, 'effect')}, "
        f"{balance.duplicates} duplicate, {balance.lost} lost, {told} held and paged; "
        f"the fault struck {struck}" + ("" if struck == len(own) else f" of {len(own)}")
    )
    if controls:
        caught = sum(control.caught for control in controls)
        sentence += f"; controls produced {_n(doubled, 'duplicate')}, {caught} of {len(controls)} caught"
    if result == "passed":
        return sentence
    weight = "invalid" if result == "invalid" else "failed"
    reason = next(o.check for o in outcomes if o.weight == weight)
    return f"{sentence}. {result.capitalize()}: {reason.name}: {reason.detail}"


def _unreadable(error: Exception) -> Verdict:
    detail = f"{type(error).__name__}: {error}"
    return Verdict(
        drill="unknown",
        result="invalid",
        sentence=f"Invalid: the record cannot be judged: {error}",
        claim="",
        seed=0,
        versions={},
        fault=FaultSummary(spec={}, struck=[], not_struck=[]),
        twins=[],
        facts=[],
        balance=Balance(tasks=0, operations=0, effects=0, duplicates=0, lost=0, ambiguous=0, unaccounted=0),
        views={name: ViewSummary(captured=0, assertions=0, failed=[]) for name in VIEW_NAMES},
        controls=[],
        checks=[Check(name="record is readable", ok=False, detail=detail)],
    )


def _n(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _some(texts: list[str]) -> str:
    more = f" … and {len(texts) - SHOWN_MAX} more" if len(texts) > SHOWN_MAX else ""
    return "; ".join(texts[:SHOWN_MAX]) + more
