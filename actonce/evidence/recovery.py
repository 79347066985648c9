"""How long after its strike an operation was settled, by kind of fault: median and 95th percentile, with N.

Contract: counts guarded operations that the fault is proven to have struck and that ended in a final state, from the
strike's own line to the ledger's move to that state. What is still held or open has no recovery time: it is counted
beside them, never left out silently. Percentiles are by nearest rank: a value that was measured.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil

from actonce.evidence.case import Case, moment
from actonce.evidence.strike import Strike
from actonce.evidence.verdict import Recovery


def recovery(case: Case, struck: list[Strike]) -> list[Recovery]:
    """One row per kind of fault, the most frequent first."""
    times: dict[str, list[float]] = defaultdict(list)
    unsettled: dict[str, int] = defaultdict(int)
    at = {line.order: line.at for line in case.evidence.lines}
    for hit in struck:
        story = case.stories[hit.cell, hit.operation_id]
        if hit.status != "struck" or hit.order is None or story.cell.arm != "guarded":
            continue
        kind = str(story.cell.fault.spec.get("fault", "unnamed"))
        if story.row is None or story.row.completed_at is None:
            unsettled[kind] += 1
        else:
            times[kind].append(max(0.0, moment(story.row.completed_at) - moment(at[hit.order])))
    rows = [_row(kind, sorted(times[kind]), unsettled[kind]) for kind in {*times, *unsettled}]
    return sorted(rows, key=lambda row: (-row.n, row.kind))


def _row(kind: str, seconds: list[float], unsettled: int) -> Recovery:
    return Recovery(
        kind=kind,
        n=len(seconds),
        unsettled=unsettled,
        median_s=percentile(seconds, 0.5),
        p95_s=percentile(seconds, 0.95),
        longest_s=percentile(seconds, 1.0),
    )


def percentile(ordered: list[float], share: float) -> float | None:
    """Nearest rank in a sorted list; None of nothing."""
    return round(ordered[max(0, ceil(share * len(ordered)) - 1)], 3) if ordered else None
