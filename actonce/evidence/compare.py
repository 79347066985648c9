"""Rates per arm, with N and an interval: what each protection is worth.

Contract: counts only operations that the fault struck; the guarded arm is counted on the cells that the comparison arms
ran (on all, where none is the same), so that all arms answer for the same faults. Wilson score interval at 95 %,
which stays inside 0 to 1 and does not collapse to a point at 0 or n of n.
"""

from __future__ import annotations

import json
from math import sqrt

from actonce.evidence.case import Case, Story, is_own
from actonce.evidence.strike import Strike
from actonce.evidence.verdict import ArmRates, Rate

Z_95 = 1.959963984540054  # two-sided 95 % of the normal distribution
ORDER = ("plain_default", "plain_strict", "key_only", "key_lookup", "guarded")
COMPARED = ("fault", "twin", "process", "cut", "routes", "late_arrival")


def wilson(k: int, n: int) -> Rate:
    """k of n and its 95 % interval; n = 0 is all that can be: 0 to 1."""
    if n == 0:
        return Rate(k=0, n=0, rate=0.0, low=0.0, high=1.0)
    p, z2 = k / n, Z_95**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 * sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    low = 0.0 if k == 0 else max(0.0, middle - half)
    high = 1.0 if k == n else min(1.0, middle + half)
    return Rate(k=k, n=n, rate=round(p, 4), low=round(low, 4), high=round(high, 4))


def is_stuck(story: Story) -> bool:
    """Nobody's next step: an own operation neither settled nor held with a page; in the other arms, a task that ended
    in anything but `complete` although the effect exists, or that did not end."""
    if is_own(story.cell):
        return not (story.settled or (story.held and bool(story.pages)))
    if story.task is None or story.task.state not in {"complete", "failed", "cancelled"}:
        return True
    return story.task.state != "complete" and bool(story.effects)


def rates(case: Case, struck: list[Strike]) -> list[ArmRates]:
    """One row per arm: the plain ones first, guarded after them, controls last by name."""
    hit = {(s.cell, s.operation_id) for s in struck if s.status == "struck"}
    arms: dict[str, list[Story]] = {}
    for key, story in case.stories.items():
        if key in hit:
            arms.setdefault(story.cell.arm, []).append(story)
    subset = {_conditions(s) for arm, stories in arms.items() if arm in ORDER[:-1] for s in stories}
    if subset:
        same = [s for s in arms.get("guarded", []) if _conditions(s) in subset]
        arms["guarded"] = same or arms.get("guarded", [])
    names = [arm for arm in ORDER if arm in arms] + sorted(arm for arm in arms if arm not in ORDER)
    return [_row(arm, arms[arm]) for arm in names]


def _conditions(story: Story) -> str:
    return json.dumps([story.cell.params.get(name) for name in COMPARED], default=str)


def _row(arm: str, stories: list[Story]) -> ArmRates:
    n = len(stories)
    return ArmRates(
        arm=arm,
        n=n,
        duplicate=wilson(sum(len(s.effects) > 1 for s in stories), n),
        lost=wilson(sum(not s.effects and not _excused(s) for s in stories), n),
        stuck=wilson(sum(is_stuck(s) for s in stories), n),
        held=wilson(sum(s.held for s in stories), n),
    )


def _excused(story: Story) -> bool:
    """No effect, and the caller knows: refused, closed as not done, or held for a person."""
    return story.row is not None and story.row.state in {"refused", "closed", "held"}
