"""`python -m drills`: run the failure drills on the embedded stack, judge their evidence again, look at a run later.

Exit codes: 0 passed, 1 failed, 3 invalid (the drill showed nothing), 2 usage; over several drills failed outranks
invalid outranks passed. KEEP=1 (or --keep) leaves Temporal and its UI up until Enter or Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from actonce.evidence import EvidenceError, Verdict, verify
from actonce.evidence.record import DRILL_FILE
from actonce.evidence.result import HASHES_FILE, VERDICT_FILE
from actonce.evidence.signing import sign as sign_folder
from actonce.evidence.signing import witness_of
from actonce.leaving import run_and_leave
from actonce.stack import Stack, StackError
from actonce.testing.challenge import NotControlled
from actonce.testing.faults import FaultError
from actonce.testing.waiting import NeverHappened
from drills.catalog import CODES, SIDE_BY_SIDE, Options, catalog, run_drill, worst
from drills.running import shared_parts
from drills.soak.state import POINTER, SoakState
from drills.summary import summary

RUN_FILE = "run.json"  # of a run's folder: the drills that it was to hold, so that none can be missing unnoticed
app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
screen = Console(stderr=True)  # progress for people; standard output is for results


@app.command("list")
def list_drills(as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """Show the drills and what each claims."""
    found = catalog()
    if as_json:
        print(json.dumps([{"name": s.name, "claim": s.claim} for s in found.values()], indent=1))
        return
    table = Table("drill", "claim")
    for scenario in found.values():
        table.add_row(scenario.name, scenario.claim)
    Console().print(table)


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Drills to run; see `list`.")] = None,
    every: Annotated[bool, typer.Option("--all", help="The whole catalogue.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A pairwise cover instead of a three-way one.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Every cell (hours); also FULL=1.")] = False,
    cut: Annotated[bool, typer.Option("--cut", help="The few cells that the tests run.")] = False,
    seed: Annotated[int, typer.Option(help="Chooses among equal covers.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for the evidence; must not exist yet.")] = None,
    side_by_side: Annotated[int, typer.Option(min=1, max=64, help="Cells at once.")] = SIDE_BY_SIDE,
    only: Annotated[str | None, typer.Option(help="Only cells whose name contains this (for a look).")] = None,
    minutes: Annotated[float | None, typer.Option(min=0.1, help="How long a soak's schedule plays.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the soak that was stopped, by its run's folder.", exists=True)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Verdicts on standard output.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack up at the end; also KEEP=1.")] = False,
) -> None:
    """Run drills and judge them. Ends in a table, the path of each report, and links into the Temporal UI."""
    known = catalog()
    if resume is not None:
        names, out = ["soak"], resume
    wanted = list(known) if every else list(dict.fromkeys(names or []))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = f"no drill is called {', '.join(unknown)}" if unknown else "name a drill, or --all"
        raise typer.BadParameter(f"{what}; there are: {', '.join(known)}")
    full = full or os.environ.get("FULL") == "1"
    scope = "cut" if cut else "full" if full else "quick" if quick else "default"
    options = Options(seed=seed, scope=scope, side_by_side=side_by_side, only=only, minutes=minutes)
    out = out or Path("runs") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    if out.exists() and resume is None:
        raise typer.BadParameter(f"{out} exists; evidence of two runs never mixes")
    private = Path(tempfile.mkdtemp(prefix="actonce-drill-")) if resume is None else None
    if private is None:
        options, private = _to_resume(options, out.resolve())
    else:
        options = replace(options, private=private)
    keep = keep or os.environ.get("KEEP") == "1"
    try:
        verdicts = asyncio.run(_run(wanted, options, out.resolve(), private, keep))
    except (StackError, FaultError, NeverHappened, NotControlled) as error:
        screen.print(f"[bold red]invalid[/]: the run could not be set up: {error}")
        raise typer.Exit(CODES["invalid"]) from error
    if as_json:
        print(json.dumps({name: v.model_dump(mode="json") for name, v in verdicts.items()}, indent=1))
    raise typer.Exit(worst(CODES[verdict.result] for verdict in verdicts.values()))


def _to_resume(options: Options, out: Path) -> tuple[Options, Path]:
    """The options of a soak that goes on, and the private folder in which its deployment is."""
    try:
        state, private = SoakState.find(out / "soak")
    except FileNotFoundError as error:
        raise typer.BadParameter(f"{out} holds no soak that was stopped before its end: {error.filename}") from error
    return replace(options, seed=state.seed, resume=state, private=private), private


async def _run(names: list[str], options: Options, out: Path, private: Path, keep: bool) -> dict[str, Verdict]:
    begun = time.monotonic()
    if options.resume is None:
        out.mkdir(parents=True)
        (out / RUN_FILE).write_text(json.dumps({"drills": names}) + "\n", encoding="utf-8")

    def say(text: str) -> None:
        screen.print(f"[dim]{time.monotonic() - begun:6.1f} s[/] {text}", highlight=False)

    verdicts: dict[str, Verdict] = {}
    try:
        async with shared_parts(private / "stack", say) as shared:
            for name in names:
                scenario = catalog()[name]
                say(f"[bold]{name}[/]")
                with _bar() as bar:
                    task = bar.add_task(name, total=None)

                    def progress(ended: str, done: int, total: int) -> None:
                        bar.update(task, completed=done, total=total, description=ended or name)  # noqa: B023

                    verdicts[name] = await run_drill(shared, scenario, options, out / name, say, progress)
                _tell(name, verdicts[name], out / name)
            _summary(verdicts, out, time.monotonic() - begun)
            if keep:
                await _keep(shared.stack)
    finally:
        (out / "logs").mkdir(exist_ok=True)
        for log in (private / "stack").rglob("*.log"):
            shutil.copy(log, out / "logs" / "-".join(log.relative_to(private / "stack").parts))
        if (out / "soak" / POINTER).exists():
            screen.print(f"the soak was stopped; go on with: python -m drills run --resume {out}", soft_wrap=True)
        else:
            shutil.rmtree(private, ignore_errors=True)
    return verdicts


def _bar() -> Progress:
    columns = (
        TextColumn("  "),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    return Progress(*columns, console=screen, transient=True)


def _tell(name: str, verdict: Verdict, folder: Path) -> None:
    colour = {"passed": "green", "failed": "red", "invalid": "yellow"}[verdict.result]
    screen.print(f"  [bold {colour}]{verdict.result}[/] {verdict.sentence}", highlight=False)
    for check in verdict.checks:
        if not check.ok:
            screen.print(f"    [{colour}]✗[/] {check.name}: {check.detail}", highlight=False)
    screen.print(f"    report: {folder / 'report.html'}", highlight=False, soft_wrap=True)


def _summary(verdicts: dict[str, Verdict], out: Path, took_s: float) -> None:
    table = Table("drill", "result", "operations", "effects", "duplicate", "lost", "held", "report")
    for name, verdict in verdicts.items():
        balance = verdict.balance
        table.add_row(
            name,
            verdict.result,
            str(balance.operations),
            str(balance.effects),
            str(balance.duplicates),
            str(balance.lost),
            str(balance.ambiguous),
            str(out / name / "report.html"),
        )
    screen.print(table)
    screen.print(
        f"{took_s:.0f} s; look at the workflows in the Temporal UI: python -m drills open {out}", soft_wrap=True
    )


async def _keep(stack: Stack) -> None:
    screen.print(f"the stack stays up: Temporal UI {stack.temporal_ui_url} (Enter or Ctrl-C ends it)")
    await asyncio.to_thread(sys.stdin.readline)


@app.command("verify")
def verify_folder(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="A drill's evidence folder, or a run's.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Judge a recorded folder again with the checkers of today, from the folder alone."""
    folders = drill_folders(folder)
    if not folders:
        raise typer.BadParameter(f"{folder} holds neither drill.json nor {RUN_FILE}: it is not an evidence folder")
    found = {str(path): verify(path) for path in folders}
    for path, (verdict, code) in found.items():
        found[path] = (verdict.model_copy(update={"witness": witness_of(Path(path))}), code)
    for path, (verdict, _) in found.items():
        if not as_json:
            _tell(path, verdict, Path(path))
            screen.print(f"    {verdict.witness}", highlight=False, soft_wrap=True, markup=False)
    if as_json:
        print(json.dumps({path: v.model_dump(mode="json") for path, (v, _) in found.items()}, indent=1))
    raise typer.Exit(worst(code for _, code in found.values()))


@app.command("sign")
def sign(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="A drill's evidence folder, or a run's.")
    ],
    name: Annotated[str, typer.Option(help="Who you are.")],
    saw: Annotated[str, typer.Option(help="What you saw, and what you looked at.")],
) -> None:
    """Say by name what you saw of a run: beside the folder, with its hash. It proves no identity; it names you."""
    try:
        signature = sign_folder(folder, name, saw)
    except EvidenceError as error:
        screen.print(f"[bold red]not signed[/]: {error}", highlight=False, soft_wrap=True)
        raise typer.Exit(CODES["invalid"]) from error
    results = ", ".join(f"{drill} {result}" for drill, result in signature.results.items())
    screen.print(str(signature), highlight=False, soft_wrap=True, markup=False)
    screen.print(f"folder {signature.sha256}: {results}", highlight=False, soft_wrap=True, markup=False)


@app.command("summary")
def summarise(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="A drill's evidence folder, or a run's.")
    ],
) -> None:
    """Print a judged run as Markdown, from its verdict.json: what struck, failure rates, recovery times, controls."""
    for path in drill_folders(folder):
        verdict = Verdict.model_validate_json((path / VERDICT_FILE).read_text(encoding="utf-8"))
        print(f"## {verdict.drill}\n\n{summary(verdict)}")


def drill_folders(folder: Path) -> list[Path]:
    """The evidence folders that belong here, also those that are gone or have lost their drill.json."""
    if not (folder / RUN_FILE).exists():
        return [folder] if (folder / DRILL_FILE).exists() or (folder / HASHES_FILE).exists() else []
    try:
        names = {str(name) for name in json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))["drills"]}
    except (ValueError, KeyError, TypeError) as error:
        raise typer.BadParameter(f"{folder / RUN_FILE} cannot be read: {error}") from error
    names |= {path.parent.name for path in folder.glob(f"*/{DRILL_FILE}")}
    return [folder / name for name in sorted(names)]


@app.command("open")
def open_folder(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="A drill's evidence folder, or a run's.")
    ],
) -> None:
    """Show a recorded run's workflows in the Temporal UI: a dev server on a copy of its file, until Ctrl-C."""
    databases = sorted(folder.glob("temporal.db")) or sorted(folder.glob("*/temporal.db"))
    if not databases:
        raise typer.BadParameter(f"{folder} holds no temporal.db: it is not the evidence of a finished run")
    asyncio.run(_open(databases[-1]))


async def _open(database: Path) -> None:
    private = Path(tempfile.mkdtemp(prefix="actonce-open-"))
    try:
        (private / "stack").mkdir()
        source, target = sqlite3.connect(f"file:{database}?mode=ro", uri=True), private / "stack" / "temporal.db"
        with closing(source), closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
        async with Stack.open(private / "stack", {"temporal"}) as stack:
            url = f"{stack.temporal_ui_url}/namespaces/default/workflows"
            print(url, flush=True)
            screen.print("Ctrl-C ends it; the evidence folder is not touched")
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        screen.print("ended")
    finally:
        shutil.rmtree(private, ignore_errors=True)


if __name__ == "__main__":
    run_and_leave(app)
