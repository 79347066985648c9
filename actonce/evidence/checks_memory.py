"""Checkers about what tasks remember: a false "nothing", and a false "it works". Pure, as all checkers."""

from __future__ import annotations

from actonce.evidence.case import Case, Finding, moment
from actonce.evidence.lines import Observation, View
from actonce.evidence.lines_caller import CallerMemory

MEMORY_CLAIMS = frozenset({"silent", "broken_off", "slow", "login_refused", "index_gone", "rows_gone"})


def false_empty(case: Case) -> list[Finding]:
    """`empty`, asked for after something had been remembered. Cells that remember ask about one and the same thing,
    except in tasks that `params.strangers` names: those ask about something else, and `empty` is true there."""
    findings = []
    for cell in case.evidence.arm("guarded", "control"):
        told = case.evidence.of(CallerMemory, cell.cell)
        strangers = set(cell.params.get("strangers", []))
        kept = [line for line in told if line.status == "remembered" and line.task_id not in strangers]
        for line in told:
            if line.status != "empty" or line.task_id in strangers:
                continue
            known = [k for k in kept if k.task_id != line.task_id and moment(k.told_at) < moment(line.begun_at)]
            if known:
                detail = f"told `empty` at {line.step}; {known[0].task_id} had it remembered at {known[0].told_at}"
                findings.append(Finding("false empty task", line.task_id, detail, cell.cell))
    return findings


def false_up(case: Case) -> list[Finding]:
    """A dependency page that says `up` of the memory, from a reading made while a witness saw it broken."""
    findings = []
    for cell in case.evidence.arm("guarded", "control"):
        seen = [o for o in case.evidence.of(Observation, cell.cell) if o.name in MEMORY_CLAIMS]
        if len(seen) < 2:
            continue  # two observations of one fault bound the time in which it was certainly there
        since, until = moment(seen[0].at), moment(seen[-1].at)
        for view in case.evidence.of(View, cell.cell):
            for reading in _readings(view):
                at = str(reading.get("checked_at") or "")
                if reading.get("state") == "up" and at and since < moment(at) < until:
                    detail = f"up at {at}: {reading.get('how')}; broken from {seen[0].at} to {seen[-1].at}"
                    findings.append(Finding("false up memory", cell.cell, detail, cell.cell))
    return findings


def _readings(view: View) -> list[dict[str, object]]:
    body = view.body if isinstance(view.body, dict) else {}
    found = body.get("dependencies", []) if view.name == "dependencies" else []
    return [one for one in found if isinstance(one, dict) and one.get("name") == "memory"]
