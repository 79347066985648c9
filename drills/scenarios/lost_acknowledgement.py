"""`lost-acknowledgement`: the answer is lost after the effect, or the request before it, and both look the same.

The table of SPEC §4 as cells of one operation each; quick is a pairwise cover, the default a three-way cover, full is
every cell that can exist. Beside them run the negative controls and the arms without the guard.
"""

from __future__ import annotations

import itertools
from functools import partial

from drills.catalog import Job, Options, Plan
from drills.cells import Axes, left_out, uncompared
from drills.cover import cover, every_allowed
from drills.scenarios.comparison import ARMS, compared
from drills.scenarios.protocol_cells import CONTROLS, FROZEN_BEHIND_FENCE, OPERATOR_RETRY, PROTOCOL, Control
from drills.table import PlannedCell, Play, run_cell, table_play


class LostAcknowledgement:
    """See the module."""

    name = "lost-acknowledgement"
    claim = (
        "When the acknowledgement of a side effect is lost, or the request itself, and the caller cannot tell which, "
        "the effect happens exactly once, or not at all with a person paged; whatever is killed, frozen or cut "
        "meanwhile, and however the destination's read routes lie."
    )

    def plan(self, options: Options) -> Plan:
        """Guarded cells, then the controls."""
        numbers = itertools.count(1)
        same = compared(options.scope == "quick") if options.scope != "cut" else []
        table = list(dict.fromkeys([*cells(options), *same]))
        present = set(table)
        planned = [PlannedCell(play, next(numbers)) for play in protocol_cells(options)]
        planned += [
            PlannedCell(table_play(axes), next(numbers), has_twin=axes.comparable and axes.other_twin in present)
            for axes in table
        ]
        controls = chosen_controls(options)
        planned += [
            PlannedCell(c.play(), next(numbers), f"control:{c.name}", control=c.name, expected_finding=c.finding)
            for c in controls
        ]
        planned += [PlannedCell(table_play(axes), next(numbers), arm) for arm in ARMS for axes in same]
        return Plan(
            jobs=[Job(cell.name, partial(run_cell, plan=cell)) for cell in planned],
            left_out={**left_out(), **uncompared()},
            protections=[c.name for c in controls],
            pictured=OPERATOR_RETRY.name,
        )


def protocol_cells(options: Options) -> list[Play]:
    """The named cells; the tests run a few."""
    return PROTOCOL if options.scope != "cut" else [OPERATOR_RETRY, FROZEN_BEHIND_FENCE]


def chosen_controls(options: Options) -> list[Control]:
    """All of them; the tests run a few."""
    few = ("blind_retry", "freshness_off", "kernel_timer_off")
    return [c for c in CONTROLS if options.scope != "cut" or c.name in few]


def cells(options: Options) -> list[Axes]:
    """The guarded cells of the table in this scope."""
    match options.scope:
        case "full":
            return every_allowed()
        case "default":
            return cover(3, options.seed)
        case "quick":
            return cover(2, options.seed)
        case _:
            return small_cut()


def small_cut() -> list[Axes]:
    """What the tests run: each twin once plain and once killed, a late arrival, and routes that lie."""
    return [
        Axes(),
        Axes(twin="drop_before_commit"),
        Axes(process="SIGKILL", fault="silent", late_arrival="none"),
        Axes(process="SIGKILL", fault="silent", late_arrival="none", twin="drop_before_commit"),
        Axes(process="SIGSTOP", cut="temporal", late_arrival="deadline_at_commit"),
        Axes(fault="held_released_late", twin="drop_before_commit", late_arrival="cancel_by_key"),
        Axes(fault="gateway_503", routes="list_short_by_one", late_arrival="key_on_arrival"),
        Axes(fault="reset", routes="stale", cut="ledger"),
    ]
