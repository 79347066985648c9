"""Deterministic covering arrays: few cells that still contain every combination of two (or three) axis values.

Promises: the same axes, strength, seed and constraint give the same rows on every machine; every combination of
`strength` values that occurs in some allowed row occurs in a returned row; no returned row is forbidden. Does not
promise the fewest rows possible (greedy, one row at a time).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple

from drills.cells import AXES, Axes, every_cell, impossible

Row = tuple[str, ...]
Combination = tuple[tuple[int, str], ...]
CANDIDATES_MAX = 2000  # tries per row of a pairwise cover; more gives hardly fewer rows


def combinations_of(row: Row, strength: int) -> list[Combination]:
    """Every combination of `strength` (axis number, value) pairs in a row."""
    return list(itertools.combinations(enumerate(row), strength))


def covering_array(
    axes: Mapping[str, Sequence[str]],
    strength: int,
    seed: int,
    allowed: Callable[[Row], bool],
    first: Sequence[Row] = (),
) -> list[Row]:
    """Rows that cover every combination which some allowed row contains; `first` among them, wanted for themselves."""
    rows = [row for row in itertools.product(*axes.values()) if allowed(row)]
    where: dict[Combination, list[int]] = {}
    for number, row in enumerate(rows):
        for combination in combinations_of(row, strength):
            where.setdefault(combination, []).append(number)
    chosen = list(first)
    open_ = set(where).difference(*(combinations_of(row, strength) for row in chosen))
    order = sorted(open_)
    chance = random.Random(seed)  # chooses among equals only: which rows are tried, never whether one is needed
    chance.shuffle(order)
    candidates = CANDIDATES_MAX if strength == 2 else CANDIDATES_MAX // 60  # of three there are far more combinations
    for wanted in order:
        if wanted not in open_:
            continue
        tries = chance.sample(where[wanted], min(candidates, len(where[wanted])))
        best = max(tries, key=lambda n: (sum(c in open_ for c in combinations_of(rows[n], strength)), -n))
        chosen.append(rows[best])
        open_.difference_update(combinations_of(rows[best], strength))
    return chosen


def cover(strength: int, seed: int) -> list[Axes]:
    """The cells of `lost-acknowledgement` that cover every allowed combination of `strength` axis values.

    Every fault is there with both twins in otherwise equal cells, so that they can be compared; so is every process
    fault, and every cut (where only a kill leaves something to compare, with a kill).
    """
    rows = covering_array(
        AXES, strength, seed, lambda row: impossible(Axes(*row)) is None, [astuple(axes) for axes in _twins(seed)]
    )
    return [Axes(*row) for row in rows]


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


def _twins(seed: int) -> list[Axes]:
    """One pair of comparable twins for each fault, and for each of `COMPARED`; as different as can be otherwise."""
    chance = random.Random(seed)
    comparable = [
        axes for axes in every_allowed() if axes.committed_first and axes.comparable and not impossible(axes.other_twin)
    ]
    found: list[Axes] = []
    plain = [(fault, "none", "none") for fault in AXES["fault"]]
    for fault, process, cut in [*plain, *((None, process, cut) for process, cut in COMPARED)]:
        pairs = [
            axes for axes in comparable if (axes.process, axes.cut) == (process, cut) and fault in (axes.fault, None)
        ]
        chance.shuffle(pairs)
        seen = {c for axes in found for c in combinations_of(astuple(axes), 2)}
        base = max(pairs, key=lambda axes: sum(c not in seen for c in combinations_of(astuple(axes), 2)))
        found += [base, base.other_twin]
    return found
