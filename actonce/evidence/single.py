"""Judges a folder that holds one cell: a test of somebody's own workflow, or its negative control.

Contract: the same record, the same proofs and the same checkers as a whole drill, but for those that speak of a whole
drill (`WHOLE_DRILL`). Whether the cell passed or was caught is for the caller to ask: a record that is not whole, or a
fault that is not proven to have struck, answers no to both. A checker that crashes raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from actonce.evidence.case import Finding, build
from actonce.evidence.checkers import CHECKERS
from actonce.evidence.folder import integrity, load
from actonce.evidence.strike import strikes

# Nobody asks a test of one workflow for the console, an operator, or a probe after it.
WHOLE_DRILL = frozenset({"early resume refused", "five views", "pictures as taken", "probe after healing"})


@dataclass(frozen=True)
class Judged:
    """What one cell's record shows."""

    problems: list[str]  # why the record is not a whole one
    missed: list[str]  # faults that are not proven to have struck
    findings: list[Finding]
    operations: int
    effects: int

    @property
    def valid(self) -> bool:
        return not self.problems and not self.missed

    @property
    def passed(self) -> bool:
        """A whole record, a fault that struck, and nothing found."""
        return self.valid and not self.findings

    def caught(self, finding: str) -> bool:
        """A whole record, a fault that struck, and a finding of this name against the system itself."""
        return self.valid and any(f.weight == "failed" and str(f).startswith(finding) for f in self.findings)

    def __str__(self) -> str:
        found = [*self.problems, *(f"did not strike: {why}" for why in self.missed), *map(str, self.findings)]
        counted = f"{self.operations} operations planned, {self.effects} effects at the destinations"
        return "\n".join([f"{counted}; {'nothing found' if not found else 'found:'}", *(f"  {one}" for one in found)])


def judge_single(folder: Path) -> Judged:
    """Judge the one cell in the folder. Raises EvidenceError when it cannot be read."""
    evidence = load(folder)
    case = build(evidence)
    hits = strikes(case)
    missed = [f"{hit.operation_id}: {hit.status}: {hit.why}" for hit in hits if hit.status != "struck"]
    if not hits:
        missed.append("the cell names no operation that its fault should strike")
    findings = [f for name, check in CHECKERS.items() if name not in WHOLE_DRILL for f in check(case)]
    effects = sum(len(story.effects) for story in case.stories.values()) + len(case.stray_effects)
    return Judged(integrity(evidence), missed, findings, len(case.stories), effects)
