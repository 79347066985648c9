"""What became of what each kind of fault struck, and how long after its strike an operation was settled.

Contract: counts guarded operations that the fault was planned for and those that it is proven to have struck. A time is
from the strike's own line to the ledger's move to a final state. What is still held or open has no recovery time: it is
counted beside them, never left out silently. Percentiles are by nearest rank: a value that was measured.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import ceil

from actonce.evidence.case import Case, Story, moment
from actonce.evidence.strike import Strike
from actonce.evidence.verdict import Recovery


@dataclass
class _Kind:
    """One kind of fault, while it is counted."""

    planned: int = 0
    struck: list[Story] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def recovery(case: Case, struck: list[Strike], lost: set[str | None]) -> list[Recovery]:
    """One row per kind of fault that struck anything or was planned to, those with the most times first.

    `lost`: the operations that the checkers found lost.
    """
    kinds: dict[str, _Kind] = defaultdict(_Kind)
    at = {line.order: line.at for line in case.evidence.lines}
    for hit in struck:
        story = case.stories[hit.cell, hit.operation_id]
        if story.cell.arm != "guarded":
            continue
        kind = kinds[str(story.cell.fault.spec.get("fault", "unnamed"))]
        kind.planned += 1
        if hit.status != "struck":
            continue
        kind.struck.append(story)
        if hit.order is not None and story.row is not None and story.row.completed_at is not None:
            kind.seconds.append(max(0.0, moment(story.row.completed_at) - moment(at[hit.order])))
    rows = [_row(name, kind, lost) for name, kind in kinds.items()]
    return sorted(rows, key=lambda row: (-row.n, row.kind))


def _row(name: str, kind: _Kind, lost: set[str | None]) -> Recovery:
    seconds = sorted(kind.seconds)
    return Recovery(
        kind=name,
        planned=kind.planned,
        struck=len(kind.struck),
        duplicates=sum(len(story.effects) > 1 for story in kind.struck),
        lost=sum(story.operation_id in lost for story in kind.struck),
        held=sum(story.held for story in kind.struck),
        n=len(seconds),
        unsettled=len(kind.struck) - len(seconds),
        median_s=percentile(seconds, 0.5),
        p95_s=percentile(seconds, 0.95),
        longest_s=percentile(seconds, 1.0),
    )


def percentile(ordered: list[float], share: float) -> float | None:
    """Nearest rank in a sorted list; None of nothing."""
    return round(ordered[max(0, ceil(share * len(ordered)) - 1)], 3) if ordered else None
