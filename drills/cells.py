"""The table of `lost-acknowledgement`: its axes, and which of its cells cannot exist.

Contract: `AXES` is the table of SPEC §4 for this drill; a cell that is left out is left out by `impossible` alone and
carries its reason into the evidence folder. What a cell must give is not decided here but in `reference`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields, replace

FAULTS = (
    "closed",
    "truncated",
    "reset",
    "silent",
    "gateway_502",
    "gateway_503",
    "gateway_504",
    "held_released_late",
)
TWINS = ("commit_then_drop", "drop_before_commit")
PROCESSES = ("none", "SIGKILL", "SIGTERM", "SIGSTOP")  # SIGSTOP: past not_after, then SIGCONT (the late riser)
CUTS = ("none", "temporal", "destination", "ledger", "all")
ROUTES = (
    "healthy",
    "list_short_by_one",
    "short_without_total",
    "canonical_denies",
    "stale",
    "masked",
    "all_but_one_down",
    "all_down",
)
UNTOLD = ("stale", "masked", "all_down")  # no route shows what exists, so nobody reads it back before they are healed
LATE_ARRIVALS = (
    "key_on_arrival",
    "key_at_commit",
    "cancel_by_key",
    "deadline_at_commit",
    "deadline_on_arrival",
    "bounded",
    "none",
)

AXES: dict[str, tuple[str, ...]] = {
    "fault": FAULTS,
    "twin": TWINS,
    "process": PROCESSES,
    "cut": CUTS,
    "routes": ROUTES,
    "late_arrival": LATE_ARRIVALS,
}


@dataclass(frozen=True, order=True)
class Axes:
    """One cell of the table."""

    fault: str = "closed"
    twin: str = "commit_then_drop"
    process: str = "none"
    cut: str = "none"
    routes: str = "healthy"
    late_arrival: str = "bounded"

    def __post_init__(self) -> None:
        for axis in fields(self):
            value = getattr(self, axis.name)
            if value not in AXES[axis.name]:
                raise ValueError(f"{axis.name} {value!r} is not one of {', '.join(AXES[axis.name])}")

    @property
    def name(self) -> str:
        """Stable, readable, usable as a file name."""
        return ".".join(astuple(self))

    @property
    def other_twin(self) -> Axes:
        """The same cell interrupted on the other side of the commit."""
        return replace(self, twin=TWINS[1 - TWINS.index(self.twin)])

    @property
    def comparable(self) -> bool:
        """Are the caller's records of the two twins the same for certain?"""
        return twin_race(self) is None

    @property
    def silent(self) -> bool:
        """Does the caller hear nothing at all until its own deadline?"""
        return self.fault in ("silent", "held_released_late")

    @property
    def committed_first(self) -> bool:
        """The effect happened before the caller lost its answer."""
        return self.twin == "commit_then_drop"

    @property
    def arrives_late(self) -> bool:
        """The request itself is held on the way and released after the verdict."""
        return self.fault == "held_released_late" and not self.committed_first


def impossible(axes: Axes) -> str | None:
    """Why this cell cannot exist, or None."""
    if axes.fault == "held_released_late":
        if axes.committed_first and axes.process in ("SIGKILL", "SIGTERM"):
            return f"after {axes.process} nobody is left to whom the held answer could be released late: it is `silent`"
        if axes.cut in ("destination", "all"):
            return "the cut closes the connection that holds the bytes: nothing is left to release, it is `closed`"
    return None


def twin_race(axes: Axes) -> str | None:
    """Why the caller's record of the struck attempt is left to chance, so that a cell and its twin may differ by luck;
    None where both must leave the same. It is the same for both of a pair."""
    if axes.process == "SIGKILL":
        return None  # nobody is left to record anything: the permit, and no word about it
    if axes.cut in ("ledger", "all"):
        return "the loss is recorded in the ledger that is cut: when it is back, or never; which of them is chance"
    if axes.process == "SIGSTOP" and not axes.silent:
        return "thawed past its deadline, the caller finds its timer and the end of its connection at once"
    if axes.cut == "destination" and not axes.silent:
        return (
            "while seven paths are cut one by one the request is held in flight: the caller's deadline may come first"
        )
    others_are_quicker = axes.silent and (axes.process != "none" or axes.cut == "temporal")
    if others_are_quicker and axes.routes not in UNTOLD:
        return "another worker is given the operation before the caller records its loss, and may read it back by then"
    if others_are_quicker and axes.late_arrival in ("key_on_arrival", "cancel_by_key"):
        return "another worker is given the operation before the caller records its loss, and may send it again by then"
    return None


def uncompared() -> dict[str, str]:
    """Every pair of twins whose records are not compared, with the reason; pairs of one reason are one line."""
    found: dict[str, int] = {}
    for axes in every_cell():
        reason = twin_race(axes)
        if reason and axes.committed_first and not (impossible(axes) or impossible(axes.other_twin)):
            found[reason] = found.get(reason, 0) + 1
    return {
        f"twins not compared ({count} pairs): {number}": reason
        for number, (reason, count) in enumerate(found.items(), 1)
    }


def every_cell() -> Iterator[Axes]:
    """Every combination, in a stable order, also those that cannot exist."""
    for values in itertools.product(*AXES.values()):
        yield Axes(*values)


def left_out() -> dict[str, str]:
    """Every cell that cannot exist, with its reason; cells that differ in nothing the reason is about are one line."""
    found: dict[tuple[str, str, str, str, str], int] = {}
    for axes in every_cell():
        reason = impossible(axes)
        if reason:
            by_cut = axes.cut in ("destination", "all") and "cut" in reason
            key = (axes.fault, axes.twin, "any" if by_cut else axes.process, axes.cut if by_cut else "any", reason)
            found[key] = found.get(key, 0) + 1
    return {
        f"{fault}.{twin}.{process}.{cut}.*.* ({count} cells)": reason
        for (fault, twin, process, cut, reason), count in found.items()
    }
