"""Readings of dependencies as they may be believed now: an old one is `stale`, never what it once said.

The prober writes them (actonce/health/prober.py); the entry, the console and the client show them by these rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

EVALUATOR = "watch:evaluator"  # whose reading says whether the alert rules are looked at
ReadingState = Literal["up", "degraded", "down", "stale", "unknown"]
Working = Literal["yes", "no", "unknown"]


@dataclass(frozen=True)
class Reading:
    """One dependency. `last_reading` is what it said when it was fresh; `blocks`, what waits while it is not up."""

    name: str
    kind: str
    state: ReadingState
    last_reading: str | None
    since: datetime | None
    checked_at: datetime | None
    age_s: float | None
    how: str
    detail: str | None
    blocks: str | None


def believe(row: Mapping[str, Any], stale_after_s: float) -> Reading:
    """A row of `records.list_dependencies`. One with `lost` set comes from before the ledger fell silent."""
    values = {name: row.get(name) for name in Reading.__dataclass_fields__}
    # A loop that has a pause is told of once in each.
    pause_s = row["measures"].get("every_s", 0.0)
    stale = row.get("lost") or row["age_s"] > stale_after_s + pause_s
    values |= {"state": "stale", "last_reading": row["state"]} if stale else {"last_reading": None}
    return Reading(**values)  # type: ignore[arg-type]


def worst(readings: Iterable[Reading]) -> Literal["up", "degraded", "down", "unknown"]:
    """One word for all of them; `up` only when every one is known to be."""
    # A pager that had nothing to send yet is not known to work, and is no reason to doubt the rest.
    states = {r.state for r in readings if (r.kind, r.state) != ("paging", "unknown")}
    for state in ("down", "degraded"):
        if state in states:
            return state
    return "up" if states == {"up"} else "unknown"


def working(readings: Iterable[Reading], queue: str) -> Working:
    """Is anyone working on this task queue? `unknown` unless a fresh reading says so."""
    reading = next((r for r in readings if r.name == f"pollers:{queue}"), None)
    states: dict[str, Working] = {"up": "yes", "degraded": "yes", "down": "no"}
    return states.get(reading.state, "unknown") if reading else "unknown"
