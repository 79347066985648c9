"""Reads an evidence folder back, and says what is wrong with it as a record.

Contract: `load` either returns everything that was recorded or raises EvidenceError; it never returns a part.
`integrity` then lists every way in which a readable record is not a whole one: a gap, a journal shorter than it
declares, a foreign row. An empty list means that the record can be judged, not that the drill passed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import EllipsisType
from typing import Any, Never, TypeVar

from pydantic import BaseModel, ValidationError

from actonce.evidence.line import Line
from actonce.evidence.lines import End, parse_line
from actonce.evidence.lines_caller import CallerTask
from actonce.evidence.lines_destination import Challenge, DestinationLine, Effect, JournalEnd, OfRequest, Request
from actonce.evidence.record import (
    CELLS_FILE,
    DRILL_FILE,
    FORMAT,
    HISTORIES_DIR,
    RECORD_FILE,
    Cell,
    Drill,
    EvidenceError,
    first_error,
    workflow_of,
)

L = TypeVar("L", bound=Line)
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class History:
    """One exported workflow run."""

    workflow_id: str
    file: str
    events: list[dict[str, Any]]


@dataclass(frozen=True)
class Evidence:
    """Everything recorded, indexed. `lines` keep the order of writing; `of` answers by the monotonic clock."""

    folder: Path
    drill: Drill
    cells: dict[str, Cell]
    lines: list[Line]
    histories: list[History]
    _index: dict[tuple[type[Line], str | EllipsisType | None], list[Line]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for line in sorted(self.lines, key=lambda line: (line.mono_ns, line.order)):
            self._index.setdefault((type(line), ...), []).append(line)
            self._index.setdefault((type(line), line.cell), []).append(line)

    def of(self, kind: type[L], cell: str | EllipsisType | None = ...) -> list[L]:
        """All lines of exactly this kind, of one cell if given, by time."""
        return [line for line in self._index.get((kind, cell), []) if isinstance(line, kind)]

    @cached_property
    def by_cell(self) -> dict[str | None, list[Line]]:
        """All lines by their cell, in the order of writing."""
        found: dict[str | None, list[Line]] = defaultdict(list)
        for line in self.lines:
            found[line.cell].append(line)
        return found

    @cached_property
    def _of_request(self) -> dict[tuple[str, str], list[OfRequest]]:
        found: dict[tuple[str, str], list[OfRequest]] = defaultdict(list)
        for line in sorted(self.lines, key=lambda line: (line.mono_ns, line.order)):
            if isinstance(line, OfRequest):
                found[line.journal, line.request_id].append(line)
        return found

    def of_request(self, request: Request, *kinds: type[OfRequest]) -> list[OfRequest]:
        """What became of a request: its lines of these kinds, by kind and then by time."""
        mine = self._of_request.get((request.journal, request.request_id), [])
        return [line for kind in kinds for line in mine if type(line) is kind]

    def arm(self, *arms: str) -> list[Cell]:
        """The cells of these arms; `control` stands for every control."""
        return [cell for cell in self.cells.values() if cell.arm in arms or cell.arm.partition(":")[0] in arms]


def load(folder: Path) -> Evidence:
    """The recorded folder. EvidenceError names the file, the line and what is wrong."""
    drill = _model(Drill, _json(_text(folder / DRILL_FILE), DRILL_FILE), DRILL_FILE)
    if drill.format != FORMAT:
        raise EvidenceError(f"{DRILL_FILE}: format {drill.format}, this judge reads {FORMAT}")
    cells: dict[str, Cell] = {}
    for where, data in _json_lines(folder / CELLS_FILE):
        cell = _model(Cell, data, where)
        if cell.cell in cells:
            raise EvidenceError(f"{where}: cell {cell.cell} is recorded twice")
        cells[cell.cell] = cell
    lines = [parse_line(data) for _, data in _json_lines(folder / RECORD_FILE)]
    return Evidence(folder, drill, cells, lines, _histories(folder / HISTORIES_DIR))


def integrity(evidence: Evidence) -> list[str]:
    """Every reason why this record is not a whole one."""
    return [
        *_sequence_problems(evidence),
        *_journal_problems(evidence),
        *_cell_problems(evidence),
        *_request_problems(evidence),
        *_history_problems(evidence),
    ]


def _sequence_problems(evidence: Evidence) -> Iterator[str]:
    if not evidence.lines:
        yield "the record is empty: nothing was observed, so nothing can be judged"
    for expected, line in enumerate(evidence.lines, 1):
        if line.order != expected:
            yield f"record.jsonl: order {line.order} where {expected} is due: a line is missing or foreign"
            break
    if evidence.drill.finished_at is None:
        yield "drill.json: finished_at is null: the run broke off"
    ends = evidence.of(End)
    if len(ends) != 1 or evidence.lines[-1] is not ends[0]:
        yield "record.jsonl does not finish with its one end line: it was cut short or written after its end"
        return
    found = (len(evidence.lines), len(evidence.cells), len(evidence.histories))
    if found != (ends[0].lines, ends[0].cells, ends[0].histories):
        declared = f"{ends[0].lines} lines, {ends[0].cells} cells, {ends[0].histories} histories"
        yield f"the end line declares {declared}; the folder has {found[0]}, {found[1]}, {found[2]}"


def _journal_problems(evidence: Evidence) -> Iterator[str]:
    rows: dict[str, list[DestinationLine]] = defaultdict(list)
    destinations: dict[str, str] = {}
    for line in evidence.lines:
        if isinstance(line, DestinationLine):
            rows[line.journal].append(line)
            destinations[line.destination] = line.journal
    declared: dict[str, int] = {line.journal: line.lines for line in evidence.of(JournalEnd)}
    for journal in sorted(rows.keys() | declared.keys()):
        numbers = sorted(line.seq for line in rows[journal])
        if journal not in declared:
            yield f"journal {journal}: no journal_end, so nobody knows how many lines it should have"
        elif declared[journal] != len(numbers):
            yield f"journal {journal}: declares {declared[journal]} lines, {len(numbers)} were received"
        if numbers != list(range(1, len(numbers) + 1)):
            gap = next(due for due, seq in enumerate([*numbers, 0], 1) if due != seq)
            yield f"journal {journal}: seq {gap} is missing or doubled"
    used = {operation.destination for cell in evidence.cells.values() for operation in cell.operations}
    challenged = {line.destination for line in evidence.of(Challenge)} | {
        line.journal for line in evidence.of(Challenge)
    }
    for destination in sorted(used):
        if destination not in challenged and destinations.get(destination) not in challenged:
            yield f"destination {destination}: no challenge on record, so it is not shown to be a controlled target"
    if len(runs := {line.run_id for line in evidence.of(Challenge)}) > 1:
        yield f"challenges of {len(runs)} different runs: {sorted(runs)}"


def _cell_problems(evidence: Evidence) -> Iterator[str]:
    if not evidence.cells:
        yield "cells.jsonl is empty: no cell ran"
    seen = {line.cell for line in evidence.lines}
    for stranger in sorted(name for name in seen if name is not None and name not in evidence.cells):
        yield f"foreign row: lines for cell {stranger}, which is not in cells.jsonl"
    owners: dict[tuple[str, str], str] = {}
    for cell in evidence.cells.values():
        if cell.cell not in seen:
            yield f"cell {cell.cell} has no line in the record"
        if cell.twin_of is not None and cell.twin_of not in evidence.cells:
            yield f"cell {cell.cell}: its twin {cell.twin_of} is not in the record"
        for operation in cell.operations:
            identity = (operation.destination, operation.operation_id)
            if identity in owners:
                yield f"operation {identity[1]} at {identity[0]} is planned by {owners[identity]} and {cell.cell}"
            owners[identity] = cell.cell


def _request_problems(evidence: Evidence) -> Iterator[str]:
    sends = {(line.journal, line.request_id) for line in evidence.of(Request) if line.role == "effect"}
    for effect in evidence.of(Effect):
        if (effect.journal, effect.request_id) not in sends:
            yield f"effect {effect.object_id}: its request {effect.request_id} is not on record as a send"
    ids = [(line.journal, line.request_id) for line in evidence.of(Request)]
    if len(ids) != len(set(ids)):
        yield "a request_id is on record twice in one journal"
    objects = [(line.journal, line.destination, line.account, line.object_id) for line in evidence.of(Effect)]
    if len(objects) != len(set(objects)):
        yield "an effect's object_id is on record twice in one journal: two effects cannot be told apart"


def _history_problems(evidence: Evidence) -> Iterator[str]:
    exported = {history.workflow_id for history in evidence.histories}
    for cell in evidence.arm("guarded", "control"):
        for task_id in cell.task_ids:
            if task_id not in exported and task_id not in cell.purged:
                yield f"cell {cell.cell}: no history of task {task_id}"
    tasks = [(line.cell, line.task_id) for line in evidence.of(CallerTask)]
    if len(tasks) != len(set(tasks)):
        yield "a task is exported twice in one cell"


def _histories(folder: Path) -> list[History]:
    if not folder.is_dir():
        raise EvidenceError(f"{folder.name}/ is missing")
    histories = []
    for path in sorted(folder.glob("*.json")):
        data = _json(_text(path), path.name)
        if not isinstance(data, dict) or not isinstance(data.get("events"), list):
            raise EvidenceError(f"histories/{path.name}: no events")
        histories.append(History(workflow_of(path.name), path.name, data["events"]))
    return histories


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise EvidenceError(f"{path.name} is missing") from error
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError(f"{path.name} cannot be read: {error}") from error


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    text = _text(path)
    if text and not text.endswith("\n"):
        raise EvidenceError(f"{path.name}: the last line is cut off")
    for number, line in enumerate(text.split("\n")[:-1], 1):
        where = f"{path.name}:{number}"
        data = _json(line, where)
        if not isinstance(data, dict):
            raise EvidenceError(f"{where}: not an object")
        yield where, data


def _json(text: str, where: str) -> Any:
    def refuse(constant: str) -> Never:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except ValueError as error:
        raise EvidenceError(f"{where}: unreadable: {error}") from error


def _model(model: type[M], data: Any, where: str) -> M:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise EvidenceError(f"{where}: {first_error(error)}") from error
