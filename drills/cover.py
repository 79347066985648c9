"""Deterministic covering arrays: few cells that still contain every combination of two (or three) axis values.

Promises: the same axes, strength, seed and constraint give the same rows on every machine; every combination of
`strength` values that occurs in some allowed row occurs in a returned row; no returned row is forbidden. Does not
promise the fewest rows possible (greedy, one row at a time).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from drills.cells import AXES, Axes, every_cell, impossible

Row = tuple[str, ...]
Combination = tuple[tuple[int, str], ...]
CANDIDATES = 30  # tries per row; more gives slightly fewer rows and takes longer


def combinations_of(row: Row, strength: int) -> list[Combination]:
    """Every combination of `strength` (axis number, value) pairs in a row."""
    return list(itertools.combinations(enumerate(row), strength))


def covering_array(
    axes: Mapping[str, Sequence[str]], strength: int, seed: int, allowed: Callable[[Row], bool]
) -> list[Row]:
    """Rows that cover every combination which some allowed row contains."""
    rows = [row for row in itertools.product(*axes.values()) if allowed(row)]
    where: dict[Combination, list[int]] = {}
    for number, row in enumerate(rows):
        for combination in combinations_of(row, strength):
            where.setdefault(combination, []).append(number)
    open_ = set(where)
    order = sorted(open_)
    chance = random.Random(seed)  # chooses among equals only: which rows are tried, never whether one is needed
    chance.shuffle(order)
    chosen: list[Row] = []
    for first in order:
        if first not in open_:
            continue
        tries = chance.sample(where[first], min(CANDIDATES, len(where[first])))
        best = max(tries, key=lambda n: (sum(c in open_ for c in combinations_of(rows[n], strength)), -n))
        chosen.append(rows[best])
        open_.difference_update(combinations_of(rows[best], strength))
    return chosen


def cover(strength: int, seed: int) -> list[Axes]:
    """The cells of `lost-acknowledgement` that cover every allowed combination of `strength` axis values.

    Every fault is there with both twins in otherwise equal cells, so that they can be compared; so is every process
    fault, and every cut (where only a kill leaves something to compare, with a kill).
    """
    rows = covering_array(AXES, strength, seed, lambda row: impossible(Axes(*row)) is None)
    cells = [Axes(*row) for row in rows]
    return cells + _missing_twins(cells)


def every_allowed() -> list[Axes]:
    """All cells that can exist."""
    return [axes for axes in every_cell() if impossible(axes) is None]


# (process, cut) of the pairs that are compared beside one of each fault.
COMPARED = (
    ("SIGKILL", "none"),
    ("SIGTERM", "none"),
    ("SIGSTOP", "none"),
    ("none", "temporal"),
    ("none", "destination"),
    ("SIGKILL", "ledger"),
    ("SIGKILL", "all"),
)


def _missing_twins(cells: Sequence[Axes]) -> list[Axes]:
    """What is not in `cells` of one pair of comparable twins for each fault, process fault and cut."""
    added: list[Axes] = []
    bases = [replace(next(c for c in cells if c.fault == fault), process="none", cut="none") for fault in AXES["fault"]]
    bases += [_comparable(cells, process, cut) for process, cut in COMPARED]
    for base in bases:
        added += [axes for axes in (base, base.other_twin) if axes not in {*cells, *added}]
    return added


def _comparable(cells: Sequence[Axes], process: str, cut: str) -> Axes:
    """One of `cells` with this process fault and cut that has a comparable twin; a made one where there is none."""
    found = (c for c in cells if (c.process, c.cut) == (process, cut) and c.comparable and not impossible(c.other_twin))
    return next(found, Axes(fault="silent", process=process, cut=cut, routes="all_down"))
