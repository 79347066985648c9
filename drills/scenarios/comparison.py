"""The same faults without the guard: plain Temporal (default and strict), a key, a key and a lookup.

Chosen so that every arm's own idea is tried where it helps and where it does not: destinations that keep keys and that
keep none, answers lost, workers killed and frozen, a lookup that is stale.
"""

from __future__ import annotations

from drills.cells import Axes

ARMS = ("plain_default", "plain_strict", "key_only", "key_lookup")

SUBSET: list[Axes] = [
    Axes(late_arrival="none"),
    Axes(late_arrival="key_on_arrival"),
    Axes(late_arrival="none", twin="drop_before_commit"),
    Axes(late_arrival="none", fault="gateway_503"),
    Axes(late_arrival="none", fault="reset", routes="stale"),
    Axes(late_arrival="bounded", fault="silent", process="SIGKILL"),
    Axes(late_arrival="bounded", fault="silent", process="SIGKILL", twin="drop_before_commit"),
    Axes(late_arrival="bounded", fault="closed", process="SIGKILL", routes="stale"),
    Axes(late_arrival="deadline_at_commit", fault="closed", process="SIGSTOP"),
    Axes(late_arrival="bounded", fault="closed", cut="temporal"),
]


def compared(quick: bool) -> list[Axes]:
    """The cells that every arm runs, the guarded one too."""
    return SUBSET[:7] if quick else SUBSET
