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
    """One dependency. `last_reading` is what it said when it was fresh; `blocks`, what waits while it is not up.

    `nothing_to_ask`: it is `unknown`, and there is nothing by which anybody could know: a destination without a route,
    a channel over which nothing was sent yet. It is shown as that, and is no reason to doubt the rest.
    """

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
    nothing_to_ask: bool = False


def believe(row: Mapping[str, Any], stale_after_s: float) -> Reading:
    """A row of `records.list_dependencies`. One with `lost` set comes from before the ledger fell silent."""
    values = {name: row.get(name) for name in Reading.__dataclass_fields__ if name != "nothing_to_ask"}
    # A loop that has a pause is told of once in each.
    pause_s = row["measures"].get("every_s", 0.0)
    stale = row.get("lost") or row["age_s"] > stale_after_s + pause_s
    values |= {"state": "stale", "last_reading": row["state"]} if stale else {"last_reading": None}
    unaskable = row["kind"] == "paging" or (row["kind"] == "destination" and row["measures"].get("routes") == 0)
    return Reading(**values, nothing_to_ask=values["state"] == "unknown" and unaskable)  # type: ignore[arg-type]


def worst(readings: Iterable[Reading]) -> Literal["up", "degraded", "down", "unknown"]:
    """One word for all that can be asked; `up` only when every one of them is known to be."""
    states = {r.state for r in readings if not r.nothing_to_ask}
    for state in ("down", "degraded"):
        if state in states:
            return state
    return "up" if states == {"up"} else "unknown"


def working(readings: Iterable[Reading], queue: str) -> Working:
    """Is anyone working on this task queue? `unknown` unless a fresh reading says so."""
    reading = next((r for r in readings if r.name == f"pollers:{queue}"), None)
    states: dict[str, Working] = {"up": "yes", "degraded": "yes", "down": "no"}
    return states.get(reading.state, "unknown") if reading else "unknown"
