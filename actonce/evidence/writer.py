"""Writes an evidence folder while a drill runs.

Contract: append-only; every line is validated, numbered and flushed before the call returns, so what was
recorded before a crash of the drill can be read after it. A folder that already holds a record is
refused: evidence of two runs never mixes. A folder that was never closed has no `end` line and can only
be judged invalid; only a run that was made to be interrupted goes on in it (`resume`). Thread-safe. It
records; it judges nothing. Not promised: durability against power loss (no fsync), ordering by time
(`order` is the order of writing; `mono_ns` says when something happened).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from actonce.evidence.line import Line
from actonce.evidence.lines import parse_line
from actonce.evidence.record import (
    CELLS_FILE,
    DRILL_FILE,
    HISTORIES_DIR,
    RECORD_FILE,
    Cell,
    Drill,
    EvidenceError,
    history_name,
    to_json,
)


def utc_now() -> str:
    """Now, as every `at` of a record is written."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


class EvidenceWriter:
    """The one writer of one folder. Use as a context manager, or call `close()` when the drill ended
    normally."""

    def __init__(self, folder: Path, drill: Drill, *, resume: bool = False) -> None:
        self.folder = folder
        self._drill = drill
        self._lock = threading.Lock()
        self._order = 0
        self._cells: set[str] = set()
        self._histories = 0
        self._closed = False
        (folder / HISTORIES_DIR).mkdir(parents=True, exist_ok=True)
        if resume:
            self._find_what_is_there()
        mode = "a" if resume else "x"
        try:
            self._record = (folder / RECORD_FILE).open(mode, encoding="utf-8")
            self._cell_file = (folder / CELLS_FILE).open(mode, encoding="utf-8")
        except FileExistsError as error:
            raise EvidenceError(f"{folder} already holds a record; give the run a folder of its own") from error
        self._write_drill()

    @classmethod
    def resume(cls, folder: Path) -> Self:
        """Go on in the record of a run whose process ended before the run did. A line that was torn is dropped.

        Raises EvidenceError when there is none, or when it has an end.
        """
        try:
            drill = Drill.model_validate_json((folder / DRILL_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise EvidenceError(f"{folder} holds no record to go on with") from error
        if drill.finished_at is not None:
            raise EvidenceError(f"{folder}: this run ended at {drill.finished_at}; there is nothing to go on with")
        return cls(folder, drill, resume=True)

    @property
    def cells(self) -> frozenset[str]:
        """Names of the cells that are recorded."""
        return frozenset(self._cells)

    def _find_what_is_there(self) -> None:
        """Count lines and cells without holding them; cut off what was written only in part."""
        for file in (RECORD_FILE, CELLS_FILE):
            _drop_torn_line(self.folder / file)
        with (self.folder / RECORD_FILE).open("rb") as record:
            self._order = sum(1 for _ in record)
        with (self.folder / CELLS_FILE).open("rb") as cells:
            self._cells = {str(json.loads(line)["cell"]) for line in cells}
        self._histories = len(list((self.folder / HISTORIES_DIR).glob("*.json")))

    def cell(self, cell: Cell | Mapping[str, Any]) -> Cell:
        """Record a cell, once; before or after its lines (operation ids may only be known afterwards)."""
        cell = cell if isinstance(cell, Cell) else Cell.model_validate(cell)
        with self._lock:
            if cell.cell in self._cells:
                raise EvidenceError(f"cell {cell.cell} is already recorded; cells are written once")
            self._cells.add(cell.cell)
            self._cell_file.write(to_json(cell) + "\n")
            self._cell_file.flush()
        return cell

    def append(
        self,
        source: str,
        kind: str,
        cell: str | None,
        *,
        mono_ns: int | None = None,
        at: str | None = None,
        **fields: Any,
    ) -> Line:
        """Record one event. Give `mono_ns` and `at` of the event where it happened elsewhere; both
        default to now. EvidenceError when the kind is unknown or a field is missing; then nothing is
        written and no number used."""
        with self._lock:
            if self._closed:
                raise EvidenceError(f"{self.folder} is closed; {source}.{kind} came too late")
            return self._append({"source": source, "kind": kind, "cell": cell} | fields, mono_ns, at)

    def extend(self, events: Iterable[Mapping[str, Any]]) -> int:
        """Record events that carry source, kind, cell, mono_ns and at, sorted by mono_ns (a stable sort:
        a journal's own order survives equal times). All are checked first: either all are written or
        none. Their number."""
        ordered = sorted(events, key=lambda event: int(event["mono_ns"]))
        for offset, event in enumerate(ordered, 1):
            parse_line({**event, "order": offset})
        with self._lock:
            for event in ordered:
                self._append(dict(event), None, None)
        return len(ordered)

    def history(self, workflow_id: str, history_json: str, run_id: str | None = None) -> Path:
        """Store one exported Temporal history (`WorkflowHistory.to_json()`). Give `run_id` when a workflow id had
        several runs: each keeps its own file."""
        if not isinstance(json.loads(history_json).get("events"), list):
            raise EvidenceError(f"history of {workflow_id} has no events; use WorkflowHistory.to_json()")
        path = self.folder / HISTORIES_DIR / history_name(workflow_id, run_id)
        with self._lock:
            self._histories += not path.exists()
            path.write_text(history_json, encoding="utf-8")
        return path

    def close(self, finished_at: str | None = None) -> None:
        """The drill ended normally: write the totals and the end time. Without this the folder is judged
        invalid."""
        with self._lock:
            if self._closed:
                return
            totals = {"lines": self._order + 1, "cells": len(self._cells), "histories": self._histories}
            self._append({"source": "drill", "kind": "end", "cell": None} | totals, None, None)
            self._closed = True
            self._drill = self._drill.model_copy(update={"finished_at": finished_at or utc_now()})
            self._write_drill()
            self._record.close()
            self._cell_file.close()

    def abandon(self) -> None:
        """Close the files without the end line: the run broke off."""
        with self._lock:
            self._closed = True
            self._record.close()
            self._cell_file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _append(self, data: dict[str, Any], mono_ns: int | None, at: str | None) -> Line:
        data.setdefault("mono_ns", time.monotonic_ns() if mono_ns is None else mono_ns)
        data.setdefault("at", at or utc_now())
        line = parse_line({"order": self._order + 1} | data)
        self._record.write(to_json(line) + "\n")
        self._record.flush()
        self._order += 1
        return line

    def _write_drill(self) -> None:
        path = self.folder / DRILL_FILE
        draft = path.with_suffix(".json.new")
        draft.write_text(json.dumps(self._drill.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")
        os.replace(draft, path)


def _drop_torn_line(path: Path) -> None:
    """Truncate a file to its last complete line."""
    with path.open("rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - 65536)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                end = begin + found + 1
                break
            end = begin
        if end < size:
            file.truncate(end)
