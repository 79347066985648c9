"""`final` and `worker-stopped`: a production-shaped task whose worker is stopped right after its request has left."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

from drills import refunding
from drills.catalog import Job, Options, Plan
from drills.plays import Special
from drills.reference import Expected
from drills.refunding import RefundCell
from drills.strike import HELD_AT_TAP_S
from drills.table import Play, run_cell

SETTINGS = {"destinations": ["payments", "tickets", "mail"]}


def _play(
    name: str, kind: type[Special], twin: str = "commit_then_drop", other: str | None = None, **more: Any
) -> Play:
    done = frozenset({"committed"})
    why = (
        "§2.4 exactly one match",
        "§2.5 absent: one new permit, same operation_id",
        "§2.7 complete with evidence only",
    )
    return Play(
        name=name,
        params={"fault": "worker stopped", "twin": twin, "process": kind.signals[0], "late_arrival": "bounded"},
        expected=Expected(done, done, (1, 1), False, why),
        striking=kind,
        planned_fault=kind.planned,
        modes={"request_read_timeout_s": HELD_AT_TAP_S},
        settings=SETTINGS,
        entry=True,
        twin=other,
        **more,
    )


FINAL = [
    _play("killed-on-the-way", refunding.KilledOnTheWay, other="killed-and-lost"),
    _play("killed-and-lost", refunding.KilledAndLost, "drop_before_commit", "killed-on-the-way"),
]
STOPPED = [
    _play("killed-after-commit", refunding.WorkersStopped, other="killed-before-arrival"),
    _play("killed-before-arrival", refunding.KilledAndLost, "drop_before_commit", "killed-after-commit"),
    _play("killed-before-first-heartbeat", refunding.KilledOnTheWay),
    _play("asked-to-stop-grace-0", refunding.AskedToStop, env={"ACTONCE_SHUTDOWN_GRACE_S": "0"}),
    _play("asked-to-stop-grace-5", refunding.AskedToStop, env={"ACTONCE_SHUTDOWN_GRACE_S": "5"}),
]


class _Stopped:
    """What the two drills share."""

    name = ""
    claim = ""
    plays: tuple[Play, ...] = ()

    def plan(self, options: Options) -> Plan:
        """Every cell, then the controls."""
        numbers = itertools.count(1)
        cells = [RefundCell(play, next(numbers), has_twin=play.twin is not None) for play in self.plays]
        controls = [replace(control, number=next(numbers)) for control in self.controls()]
        jobs = [Job(cell.name, partial(run_cell, plan=cell)) for cell in (*cells, *controls)]
        protections = [control.control for control in controls if control.control is not None]
        return Plan(jobs=jobs, protections=protections, pictured=cells[0].name)

    def controls(self) -> list[RefundCell]:
        """Each with the finding that must catch it."""
        return [_control(self.plays[0], "resend_without_lookup", "duplicate op")]


def _control(play: Play, name: str, finding: str, **more: Any) -> RefundCell:
    return RefundCell(play, 0, f"control:{name}", name, finding, **more)


class Final(_Stopped):
    """See the module."""

    name = "final"
    claim = (
        "One production-shaped task whose worker is killed right after the tool request leaves: the unresolved action "
        "is shown, nothing is duplicated, the destination is reconciled, and the task resumes through recorded state."
    )
    plays = tuple(FINAL)

    def controls(self) -> list[RefundCell]:
        """Also one of the console, in the cell whose request is lost: when people look nothing has happened."""
        lie = _control(
            self.plays[1], "console_takes_sent_for_committed", "console false operation", broken=("console",)
        )
        return [*super().controls(), lie]


class WorkerStopped(_Stopped):
    """See the module."""

    name = "worker-stopped"
    claim = (
        "A worker stopped after the request leaves and before the response is stored, by SIGKILL or asked by SIGTERM, "
        "leaves an unknown operation and never a failed or a repeated one; the next worker reconciles it."
    )
    plays = tuple(STOPPED)
