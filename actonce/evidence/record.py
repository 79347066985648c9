"""The evidence folder: drill.json and cells.jsonl as models.

Contract: these models, with `lines` for record.jsonl, are the format (prose: docs/reference/evidence.md).
They know nothing about the system under test and import none of its code. Unknown fields are refused: a
typo must not become a silently ignored fact. Nothing here decides anything; `checkers` and `judge` do.
"""

from __future__ import annotations

import json
from typing import Any, Literal
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

FORMAT = "actonce-evidence/1"
DRILL_FILE, CELLS_FILE, RECORD_FILE, HISTORIES_DIR = "drill.json", "cells.jsonl", "record.jsonl", "histories"

Source = Literal["destination", "wire", "process", "witness", "page", "drill", "caller", "view"]
Proof = Literal[
    "request_arrived",
    "request_sent",
    "request_not_arrived",
    "request_held",
    "effect_committed",
    "effect_not_committed",
    "effect_late",
    "answer_not_delivered",
    "answer_replaced",
    "signal_delivered",
    "process_exited",
    "process_frozen",
    "cut_active",
    "observed",
]
VIEW_NAMES = ("user", "state", "alerts", "dependencies", "operator")
# Final states of an operation. Anything else at the end of a drill is unfinished business, so "stuck".
SETTLED_STATES = frozenset({"committed", "refused", "closed"})


class EvidenceError(ValueError):
    """The folder cannot be judged: something is missing, unreadable, out of sequence or of unknown kind."""


class Strict(BaseModel):
    """A model whose fields are all known: a typo in a field name is an error, not a silently ignored
    fact."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class LeftOut(Strict):
    """One cell that was not run, and why."""

    cell: str
    reason: str = Field(min_length=1)


class Drill(Strict):
    """drill.json: what ran. `finished_at` stays null when the run was cut short, which makes it invalid."""

    format: str = FORMAT
    drill: str = Field(min_length=1)
    claim: str = Field(min_length=1)
    seed: int
    started_at: str
    finished_at: str | None = None
    commit: str
    versions: dict[str, str]
    config: dict[str, Any] = {}
    quick: bool
    protections: list[str] = []  # names of the controls this drill promises to run
    left_out: list[LeftOut] = []
    # Share of the guarded faults that must be proven to have struck. Below 1 only where a schedule cannot know what it
    # meets (a soak): what did not strike is listed, and does not count.
    struck_share_min: float = Field(default=1.0, gt=0, le=1)
    # Cells that stand for the drill: what people saw there, at the hold and after it, is in the folder as pictures, or
    # the record says why it is not.
    pictured: list[str] = []


class Expected(Strict):
    """What the reference function derived for each operation of a cell before it ran.

    outcomes: allowed final forms, `state` or `state:reason` (`committed`, `held`,
    `held:late_commit_possible`). effects: [least, most] effects per operation at the destination. pages:
    must a page go out? null = either.
    """

    outcomes: list[str] = Field(min_length=1)
    effects: tuple[int, int]
    pages: bool | None = None


class PlannedOperation(Strict):
    """One operation that a cell drives. `subject` is the business fact the drill chose (unique per
    operation in the run, e.g. the payment id): effects of arms that carry no operation_id are matched by
    it. `approval`: people must have approved it before it has an effect."""

    operation_id: str = Field(min_length=1)
    tenant: str = ""
    destination: str = Field(min_length=1)
    action: str = Field(min_length=1)
    task_id: str
    step: str = ""
    subject: str | None = None
    amount_minor: int | None = None
    approval: bool = False
    expected: Expected | None = None


class PlannedTask(Strict):
    """One task whose own end is expected: `state` or `state:reason`, any of them."""

    task_id: str = Field(min_length=1)
    states: list[str] = Field(min_length=1)


class Fault(Strict):
    """What was done to the cell, and which proofs must be on record before it counts as struck.

    targets: operation_ids that must be struck. proof: every kind must hold for every target. proxies:
    Toxiproxy proxies on the write's way. cut_proxies: proxies that `cut_active` must find cut. signals:
    in the order sent. observations: names of witness lines that `observed` must find proven.
    """

    spec: dict[str, Any]
    targets: list[str] = Field(min_length=1)
    proof: list[Proof] = Field(min_length=1)
    proxies: list[str] = []
    cut_proxies: list[str] = []
    observations: list[str] = []
    signals: list[str] = []
    frozen_min_s: float = 0.0
    anchor: Literal["in_flight", "before_send"] = "in_flight"  # when the signal must have struck
    self_test: str | None = None  # name of the wire self-test that must be on record as ok (case i1)

    @model_validator(mode="after")
    def _proofs_have_what_they_need(self) -> Fault:
        if "cut_active" in self.proof and not self.cut_proxies:
            raise ValueError("proof cut_active needs cut_proxies: nothing names what was cut")
        if ("observed" in self.proof) != bool(self.observations):
            raise ValueError("proof observed and observations need each other: nothing names what was seen")
        if {"signal_delivered", "process_frozen", "process_exited"} & set(self.proof) and not self.signals:
            raise ValueError("proofs about a process need signals: nothing names what was sent")
        return self


class Cell(Strict):
    """cells.jsonl: one line per cell that was started. Arms: guarded, control:NAME, plain_default,
    plain_strict, key_only, key_lookup. A control names the finding that must catch it."""

    cell: str = Field(min_length=1)
    params: dict[str, Any]
    arm: str = Field(pattern=r"^(guarded|plain_default|plain_strict|key_only|key_lookup|control:[\w.-]+)$")
    control: str | None = None
    expected_finding: str | None = None
    expected: Expected
    operations: list[PlannedOperation] = Field(min_length=1)
    tasks: list[PlannedTask] = []  # what becomes of the tasks themselves, where that is part of the claim
    task_ids: list[str] = []  # workflow ids: each needs a caller `task` line and a history
    purged: list[str] = []  # task_ids whose history was deleted on purpose
    twin_of: str | None = None
    fault: Fault

    @model_validator(mode="after")
    def _control_is_complete(self) -> Cell:
        if self.arm.startswith("control:") and not (self.control and self.expected_finding):
            raise ValueError(f"cell {self.cell}: a control needs its name and its expected_finding")
        if not self.arm.startswith("control:") and (self.control or self.expected_finding):
            raise ValueError(f"cell {self.cell}: arm {self.arm} is no control but names one")
        known = {operation.operation_id for operation in self.operations}
        if len(known) != len(self.operations):
            raise ValueError(f"cell {self.cell}: an operation_id is planned twice")
        if strangers := {task.task_id for task in self.tasks} - set(self.task_ids):
            raise ValueError(f"cell {self.cell}: tasks {sorted(strangers)} are expected and not among its task_ids")
        if strangers := set(self.fault.targets) - known:
            raise ValueError(f"cell {self.cell}: fault targets {sorted(strangers)} are not among its operations")
        return self

    def expected_of(self, operation: PlannedOperation) -> Expected:
        """The operation's own expectation where it has one, else the cell's."""
        return operation.expected or self.expected


def first_error(error: ValidationError) -> str:
    """The first problem of a validation error in one line."""
    problem = error.errors(include_url=False)[0]
    return f"field {'.'.join(str(part) for part in problem['loc']) or '(whole)'}: {problem['msg']}"


def to_json(model: BaseModel) -> str:
    """One compact line of JSON. Unlike model_dump_json it refuses NaN, which JSON does not have."""
    return json.dumps(model.model_dump(mode="json"), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def history_name(workflow_id: str, run_id: str | None = None) -> str:
    """File name of a history. `~` separates the run id, so it is quoted inside the ids."""
    parts = [quote(part, safe="").replace("~", "%7E") for part in (workflow_id, run_id) if part]
    return "~".join(parts) + ".json"


def workflow_of(history_file_name: str) -> str:
    """The workflow id a history's file name stands for."""
    return unquote(history_file_name.removesuffix(".json").partition("~")[0])
