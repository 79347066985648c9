"""Checkers about tasks rather than operations: what became of them, and who was told. Pure, as all checkers."""

from __future__ import annotations

from actonce.evidence.case import Case, Finding
from actonce.evidence.lines import Page
from actonce.evidence.lines_caller import CallerHold, CallerTask


def tasks_as_expected(case: Case) -> list[Finding]:
    """Each planned task ends in a state that its cell expects. Without a state it is unaccounted, see there."""
    findings = []
    for cell in case.evidence.arm("guarded", "control"):
        ends = {task.task_id: task for task in case.evidence.of(CallerTask, cell.cell)}
        for planned in cell.tasks:
            end = ends.get(planned.task_id)
            if end is None:
                continue
            form = f"{end.state}:{end.reason}" if end.reason else end.state
            if form not in planned.states and end.state not in planned.states:
                detail = f"{form}, expected {' or '.join(planned.states)}"
                findings.append(Finding("wrong end task", planned.task_id, detail, cell.cell))
    return findings


def held_tasks_are_paged(case: Case) -> list[Finding]:
    """A task that was held without an operation to hold: a page about it went out."""
    findings = []
    for cell in case.evidence.arm("guarded", "control"):
        told = {page.task_id for page in case.evidence.of(Page, cell.cell)}
        for hold in case.evidence.of(CallerHold, cell.cell):
            if hold.operation_id is None and hold.task_id not in told:
                detail = f"held at {hold.step} for {hold.reason} since {hold.opened_at}, and no page went out"
                findings.append(Finding("held without page task", hold.task_id or "unknown", detail, cell.cell))
    return findings
