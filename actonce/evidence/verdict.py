"""verdict.json as a model; its JSON schema is generated from here and shipped as verdict.schema.json.

Contract: exactly the published fields, nothing optional that a reader relies on. Exit codes: 0 passed, 1 failed,
3 invalid (2 is left for usage errors).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from actonce.evidence.record import LeftOut, Strict

SCHEMA_FILE = Path(__file__).with_name("verdict.schema.json")
MACHINE_ONLY = "machine-witnessed only"  # nobody signed the folder
EXIT_CODES = {"passed": 0, "failed": 1, "invalid": 3}


class Struck(Strict):
    """One target that the fault struck, with the record line that completes its proof."""

    operation_id: str
    cell: str
    pid: int | None
    signal: str | None
    order: int | None
    proof: dict[str, str]


class NotStruck(Strict):
    """One target that it did not strike, or for which that is not shown."""

    operation_id: str
    cell: str
    status: str
    why: str


class FaultSummary(Strict):
    """Which faults the drill used, and what became of each."""

    spec: dict[str, Any]
    struck: list[Struck]
    not_struck: list[NotStruck]


class Twin(Strict):
    """A pair that looked the same to the caller, and what recovery made of each."""

    after_commit: str
    before_commit: str
    same_records: bool
    caller_saw: list[str | None]
    outcomes: tuple[str, str]
    effects: tuple[int, int]


class Facts(Strict):
    """The three facts of one operation of a guarded cell, and its last verdict. `committed` is the destination's word:
    when its journal has the effect; `issued` and `acknowledged` are the ledger's."""

    operation_id: str
    cell: str
    issued: str | None
    committed: str | None
    acknowledged: str | None
    verdict: str | None
    reason: str | None
    state: str
    effects: int


class Balance(Strict):
    """Guarded cells: everything counted, from the destination's journal."""

    tasks: int
    operations: int
    effects: int
    duplicates: int
    lost: int
    ambiguous: int
    unaccounted: int


class ViewSummary(Strict):
    """One of the five views: captured how often, what was asserted, what of it failed."""

    captured: int
    assertions: int
    failed: list[str]


class ControlResult(Strict):
    """One control cell: was it caught by the finding it names, on a fault that struck?"""

    name: str
    cell: str
    expected_finding: str
    found: list[str]
    caught: bool


class Check(Strict):
    """One check. `detail` says what was looked at, or what was found."""

    name: str
    ok: bool
    detail: str


class Rate(Strict):
    """k of n with its Wilson 95 % interval."""

    k: int
    n: int
    rate: float
    low: float
    high: float


class ArmRates(Strict):
    """How one arm fared on the operations that the fault struck."""

    arm: str
    n: int
    duplicate: Rate
    lost: Rate
    stuck: Rate
    held: Rate


class Recovery(Strict):
    """What became of the guarded operations that one kind of fault was meant for: how many it was planned for and
    struck; of those that it struck, how many were doubled, lost, or are still held; from strike to settled, in seconds.
    `unsettled` have no time."""

    kind: str
    planned: int
    struck: int
    duplicates: int
    lost: int
    held: int
    n: int
    unsettled: int
    median_s: float | None
    p95_s: float | None
    longest_s: float | None


class Verdict(Strict):
    """verdict.json."""

    drill: str
    result: Literal["passed", "failed", "invalid"]
    sentence: str
    claim: str
    seed: int
    versions: dict[str, str]
    fault: FaultSummary
    twins: list[Twin]
    facts: list[Facts]
    balance: Balance
    views: dict[str, ViewSummary]
    controls: list[ControlResult]
    checks: list[Check] = Field(min_length=1)
    comparison: list[ArmRates] = Field(default_factory=list)
    recovery: list[Recovery] = Field(default_factory=list)
    left_out: list[LeftOut] = Field(default_factory=list)
    witness: str = MACHINE_ONLY  # who signed the folder; nobody can have when verdict.json is written

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.result]

    def text(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """The published schema, from the model."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "actonce drill verdict",
        **{key: value for key, value in Verdict.model_json_schema(mode="serialization").items() if key != "title"},
    }


if __name__ == "__main__":  # python -m actonce.evidence.verdict: write the schema that is shipped
    SCHEMA_FILE.write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")
