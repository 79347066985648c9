"""Puts together, per planned operation, what each source says about it.

Contract: pure. Every effect and every send of the record is given to exactly one planned operation, to a probe, or is
listed as unaccounted; none is dropped. Matching follows the destination's journal: by (destination, operation_id), else
by (destination, subject), where the subject is the business fact that the drill chose. So arms that send no
operation_id, or a fresh one each time, are counted all the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Literal

from actonce.evidence.folder import Evidence
from actonce.evidence.lines import Page, ProbeOperation
from actonce.evidence.lines_caller import (
    CallerAttempt,
    CallerHold,
    CallerOperation,
    CallerReading,
    CallerTask,
    CallerVerdict,
)
from actonce.evidence.lines_destination import Effect, Request
from actonce.evidence.record import SETTLED_STATES, Cell, EvidenceError, Expected, PlannedOperation

Key = tuple[str, str]  # cell, operation_id


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `name` is fixed (docs/reference/evidence.md); `subject` is what it is about."""

    name: str
    subject: str
    detail: str
    cell: str | None = None
    operation_id: str | None = None
    weight: Literal["failed", "invalid"] = "failed"

    def __str__(self) -> str:
        about = f"{self.name}={self.subject}" if self.subject else self.name
        return f"{about}: {self.detail}" + (f" (cell {self.cell})" if self.cell else "")


@dataclass(eq=False)
class Story:
    """One planned operation with everything recorded about it, each list by time."""

    cell: Cell
    plan: PlannedOperation
    requests: list[Request] = field(default_factory=list)  # sends only
    effects: list[Effect] = field(default_factory=list)
    row: CallerOperation | None = None
    attempts: list[CallerAttempt] = field(default_factory=list)
    verdicts: list[CallerVerdict] = field(default_factory=list)
    readings: list[CallerReading] = field(default_factory=list)
    holds: list[CallerHold] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)
    task: CallerTask | None = None
    before: list[Story] = field(default_factory=list)  # the earlier steps of its task

    @property
    def operation_id(self) -> str:
        return self.plan.operation_id

    @property
    def expected(self) -> Expected:
        return self.cell.expected_of(self.plan)

    @property
    def permits(self) -> list[CallerAttempt]:
        """Attempts whose permit was really taken."""
        return [attempt for attempt in self.attempts if attempt.issued_at is not None]

    @property
    def held(self) -> bool:
        return self.row is not None and self.row.state == "held"

    @property
    def settled(self) -> bool:
        return self.row is not None and self.row.state in SETTLED_STATES

    @property
    def rightly_never_issued(self) -> bool:
        """It has left no trace, and need not: so it was expected, or an earlier step of its task is held."""
        if self.row is not None or self.requests or self.effects:
            return False
        return "not_issued" in self.expected.outcomes or any(story.held for story in self.before)

    @property
    def outcome(self) -> str:
        """`state:reason`, `state`, or `not_issued` without a ledger row."""
        if self.row is None:
            return "not_issued"
        return f"{self.row.state}:{self.row.reason}" if self.row.reason else self.row.state

    def finding(self, name: str, detail: str, weight: Literal["failed", "invalid"] = "failed") -> Finding:
        return Finding(name, self.operation_id, detail, self.cell.cell, self.operation_id, weight)


@dataclass(frozen=True)
class Case:
    """The evidence, sorted by operation, and what could not be sorted."""

    evidence: Evidence
    stories: dict[Key, Story]
    stray_effects: list[Effect]
    stray_requests: list[Request]
    stray_rows: list[CallerOperation]
    probe_effects: list[Effect]

    @cached_property
    def _by_cell(self) -> dict[str, list[Story]]:
        found: dict[str, list[Story]] = defaultdict(list)
        for story in self.stories.values():
            found[story.cell.cell].append(story)
        return found

    @cached_property
    def operation_of_step(self) -> dict[tuple[str, str, int, str], str]:
        """The planned operation of (task_id, step, iteration 0, destination)."""
        found: dict[tuple[str, str, int, str], str] = {}
        for story in self.stories.values():
            plan = story.plan
            found.setdefault((plan.task_id, plan.step, 0, plan.destination), plan.operation_id)
        return found

    def of_cell(self, cell: str) -> list[Story]:
        return list(self._by_cell.get(cell, []))

    def guarded(self) -> list[Story]:
        return [story for story in self.stories.values() if story.cell.arm == "guarded"]

    def own(self) -> list[Story]:
        """Stories of arms that run the system itself, whole or with one protection removed."""
        return [story for story in self.stories.values() if is_own(story.cell)]


def is_own(cell: Cell) -> bool:
    """Does this arm run the system under test (guarded or a control), so that it has a ledger?"""
    return cell.arm == "guarded" or cell.arm.startswith("control:")


def moment(at: str) -> float:
    """An ISO time as seconds. EvidenceError when it is none: times are compared, so they must be readable."""
    try:
        parsed = datetime.fromisoformat(at)
    except ValueError as error:
        raise EvidenceError(f"time {at!r} is not ISO-8601") from error
    if parsed.tzinfo is None:
        raise EvidenceError(f"time {at!r} has no offset; write UTC")
    return parsed.timestamp()


def build(evidence: Evidence) -> Case:
    """Sort the record by operation."""
    stories: dict[Key, Story] = {}
    by_id: dict[tuple[str, str], Story] = {}
    by_subject: dict[tuple[str, str], Story] = {}
    for cell in evidence.cells.values():
        of_task: dict[str, list[Story]] = defaultdict(list)
        for plan in cell.operations:
            story = Story(cell, plan, before=list(of_task[plan.task_id]))
            of_task[plan.task_id].append(story)
            stories[cell.cell, plan.operation_id] = story
            by_id[plan.destination, plan.operation_id] = story
            if plan.subject:
                if (plan.destination, plan.subject) in by_subject:
                    raise EvidenceError(f"subject {plan.subject} at {plan.destination} is planned twice")
                by_subject[plan.destination, plan.subject] = story
    case = Case(evidence, stories, [], [], [], [])
    _give_out_journal(case, by_id, by_subject)
    _give_out_caller(case)
    return case


def _owner(
    line: Effect | Request,
    by_id: dict[tuple[str, str], Story],
    by_subject: dict[tuple[str, str], Story],
) -> Story | None:
    named = by_id.get((line.destination, line.operation_id)) if line.operation_id else None
    if named is not None:
        return named
    for subject in (line.subject, line.account):
        if subject and (line.destination, subject) in by_subject:
            return by_subject[line.destination, subject]
    return None


def _give_out_journal(
    case: Case, by_id: dict[tuple[str, str], Story], by_subject: dict[tuple[str, str], Story]
) -> None:
    probes = {probe.operation_id for probe in case.evidence.of(ProbeOperation)}
    owners: dict[tuple[str, str], Story] = {}
    for request in case.evidence.of(Request):
        if request.role != "effect" or (request.operation_id in probes):
            continue
        owner = _owner(request, by_id, by_subject)
        if owner is None:
            case.stray_requests.append(request)
        else:
            owners[request.journal, request.request_id] = owner
            owner.requests.append(request)
    for effect in case.evidence.of(Effect):
        if effect.operation_id in probes:
            case.probe_effects.append(effect)
        elif owner := _owner(effect, by_id, by_subject) or owners.get((effect.journal, effect.request_id)):
            owner.effects.append(effect)
        else:
            case.stray_effects.append(effect)


def _give_out_caller(case: Case) -> None:
    evidence = case.evidence
    probes = {probe.operation_id for probe in evidence.of(ProbeOperation)}
    tasks: dict[Key, CallerTask] = {(task.cell or "", task.task_id): task for task in evidence.of(CallerTask)}
    for row in evidence.of(CallerOperation):
        story = case.stories.get((row.cell or "", row.operation_id))
        if story is None:
            if row.operation_id not in probes:
                case.stray_rows.append(row)
        elif story.row is not None:
            raise EvidenceError(f"cell {row.cell}: operation {row.operation_id} is exported twice")
        else:
            story.row = row
    pages: dict[str, list[Page]] = defaultdict(list)
    for page in evidence.of(Page):
        pages[page.operation_id or ""].append(page)
    for (cell, operation_id), story in case.stories.items():
        story.attempts = [x for x in evidence.of(CallerAttempt, cell) if x.operation_id == operation_id]
        story.verdicts = [x for x in evidence.of(CallerVerdict, cell) if x.operation_id == operation_id]
        story.readings = [x for x in evidence.of(CallerReading, cell) if x.operation_id == operation_id]
        story.holds = [x for x in evidence.of(CallerHold, cell) if x.operation_id == operation_id]
        story.attempts.sort(key=lambda attempt: (attempt.epoch, attempt.attempt))
        story.pages = [page for page in pages[operation_id] if page.cell in (cell, None)]
        story.task = tasks.get((cell, story.plan.task_id))
