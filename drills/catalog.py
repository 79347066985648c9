"""The drills there are, and how one of them is run: plan, drive side by side, record, judge.

A scenario plans its jobs (a cell each) and says what it claims; everything else is the same for all. Exit codes are
SPEC §4's: 0 passed, 1 failed, 3 invalid, and over several drills failed outranks invalid outranks passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from actonce.evidence import Verdict, write_verdict
from actonce.testing.parts import Parts
from drills.rig import Run
from drills.running import Identity, Say, drill_record, open_run
from drills.soak.state import SoakState

CODES = {"passed": 0, "failed": 1, "invalid": 3}
# Cells mostly wait (reconcile-after is 6 s): many more than there are cores run side by side. Each brings three
# processes; beyond this their own start-up made permits expire on two cores.
SIDE_BY_SIDE = 12


@dataclass(frozen=True)
class Options:
    """How much of a drill is run."""

    seed: int = 1
    scope: str = "quick"  # "cut" (what the tests run), "quick", "default" (three-way), "full" (every cell)
    side_by_side: int = SIDE_BY_SIDE
    minutes: float | None = None  # of a soak's schedule; None: its own default
    resume: SoakState | None = None  # go on with this soak
    private: Path | None = None  # the folder that outlives the process, for what can be resumed
    out: Path | None = None  # the evidence folder of this drill
    only: str | None = None  # cells whose name contains one of these (comma separated): never more than a look


@dataclass(frozen=True)
class Job:
    """One cell to drive."""

    name: str
    drive: Callable[[Run], Awaitable[None]]


@dataclass(frozen=True)
class Plan:
    """Everything a drill is going to do."""

    jobs: list[Job]
    left_out: dict[str, str] = field(default_factory=dict)
    protections: list[str] = field(default_factory=list)
    side_by_side_max: int = 64  # cells with more processes, and more connections, than the table's
    struck_share_min: float = 1.0  # see actonce.evidence.Drill
    state: SoakState | None = None  # of a run that can be resumed
    pictured: str | None = None  # the cell that stands for the drill: pictured, and its people use a browser


class Scenario(Protocol):
    """A drill."""

    name: str
    claim: str

    def plan(self, options: Options) -> Plan: ...


Progress = Callable[[str, int, int], None]  # what ended, how many have, of how many


async def run_drill(
    shared: Parts, scenario: Scenario, options: Options, out: Path, say: Say, progress: Progress
) -> Verdict:
    """Run one drill and judge it. Raises only for what makes the whole run impossible."""
    plan = scenario.plan(replace(options, out=out))
    jobs = [job for job in plan.jobs if options.only is None or any(o in job.name for o in options.only.split(","))]
    side_by_side = min(options.side_by_side, plan.side_by_side_max)
    record = drill_record(
        scenario.name,
        scenario.claim,
        seed=options.seed,
        quick=options.scope in ("cut", "quick"),
        stack=shared.stack,
        left_out=plan.left_out,
        protections=plan.protections,
        config={"scope": options.scope, "cells": len(jobs), "side_by_side": side_by_side},
        struck_share_min=plan.struck_share_min,
        pictured=plan.pictured,
    )
    identity = Identity(plan.state.run_id, plan.state.secret) if plan.state is not None else None
    async with open_run(shared, out, record if options.resume is None else None, say, identity, plan.pictured) as run:
        await drive_all(run, jobs, side_by_side, progress)
    say("judging …")
    return await asyncio.to_thread(write_verdict, out)


async def drive_all(run: Run, jobs: list[Job], side_by_side: int, progress: Progress) -> None:
    """All jobs, at most `side_by_side` at once, in the order planned."""
    places = asyncio.Semaphore(side_by_side)
    ended = 0

    async def one(job: Job) -> None:
        nonlocal ended
        async with places:
            await job.drive(run)
        ended += 1
        progress(job.name, ended, len(jobs))

    progress("", 0, len(jobs))
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(one(job))


def worst(codes: Iterable[int]) -> int:
    """Of several drills: failed outranks invalid outranks passed."""
    found = set(codes)
    return next((code for code in (1, 3) if code in found), 0)


def catalog() -> dict[str, Scenario]:
    """Every drill by name."""
    from drills.scenarios.audit_full import AuditFull
    from drills.scenarios.consumer_stopped import ConsumerStoppedDrill
    from drills.scenarios.credential_expired import CredentialExpired
    from drills.scenarios.lost_acknowledgement import LostAcknowledgement
    from drills.scenarios.memory_unreachable import MemoryUnreachable
    from drills.scenarios.scheduler_restart import SchedulerRestartDrill
    from drills.scenarios.soak import Soak
    from drills.scenarios.stopped import Final, WorkerStopped

    scenarios: list[Scenario] = [
        Final(),
        WorkerStopped(),
        LostAcknowledgement(),
        ConsumerStoppedDrill(),
        CredentialExpired(),
        SchedulerRestartDrill(),
        MemoryUnreachable(),
        AuditFull(),
        Soak(),
    ]
    return {scenario.name: scenario for scenario in scenarios}
