"""Checkers about the release of a backlog: oldest first, and no faster than somebody decided. Pure, as all checkers."""

from __future__ import annotations

from actonce.evidence.case import Case, Finding, moment
from actonce.evidence.lines_caller import CallerRelease

SLACK = 1  # the moment of the release is stamped when its statement begins


def released_in_order(case: Case) -> list[Finding]:
    """No task is let go before one of its type that was accepted earlier: each type has a release of its own."""
    findings = []
    for cell in case.evidence.arm("guarded", "control"):
        lines = [line for line in case.evidence.of(CallerRelease, cell.cell) if line.released_at is not None]
        lines.sort(key=lambda line: moment(line.accepted_at))
        latest: dict[str, float] = {}
        for line in lines:
            at = moment(line.released_at or "")
            if at < latest.get(line.task_type, float("-inf")):
                detail = f"accepted at {line.accepted_at}, let go at {line.released_at}, before an older one"
                findings.append(Finding("released out of order task", line.task_id, detail, cell.cell))
            latest[line.task_type] = max(latest.get(line.task_type, at), at)
    return findings


def released_by_rate(case: Case) -> list[Finding]:
    """In no span of time were more let go than the rate allows; one second's worth may have been saved up."""
    findings = []
    for cell in case.evidence.arm("guarded", "control"):
        by_rate: dict[tuple[str, float], list[float]] = {}
        for line in case.evidence.of(CallerRelease, cell.cell):
            if line.rate_per_s is not None and line.released_at is not None:
                by_rate.setdefault((line.task_type, line.rate_per_s), []).append(moment(line.released_at))
        for (_, rate), times in by_rate.items():
            fast = _too_fast(sorted(times), rate)
            if fast is not None:
                detail = f"{fast[0]} let go within {fast[1]:.2f} s at a rate of {rate:g} a second"
                findings.append(Finding("released too fast", cell.cell, detail, cell.cell))
    return findings


def _too_fast(times: list[float], rate: float) -> tuple[int, float] | None:
    """The first span in which more happened than was earned: how many, and its length in seconds."""
    saved = max(rate, 1.0) + SLACK
    # Each release costs one; the account never holds more than what may be saved up.
    account, before = saved, times[0] if times else 0.0
    first, count = before, 0
    for at in times:
        account = min(saved, account + (at - before) * rate)
        if account >= saved:
            first, count = at, 0
        account, before, count = account - 1, at, count + 1
        if account < 0:
            return count, at - first
    return None
