"""Command line `actonce`: bring the embedded stack up and down, and say what a machine lacks.

Exit status: 0 done, 1 it did not work (the message says what to do), 2 wrong usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from actonce import cli_archive, cli_authority, cli_backup, cli_people, cli_secrets
from actonce.leaving import run_and_leave
from actonce.stack import Stack, StackError, eventually, signal_checked, wait_gone
from actonce.stack.doctor import examine
from actonce.stack.program import Program
from actonce.stack.settings import SETTINGS_FILE
from actonce.stack.state import FolderLock, StateFile
from actonce.stack.supervisor import end_orphans
from actonce.version import __version__

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Agent tasks that act once, and can prove it.")
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

DEFAULT_FOLDER = Path(".actonce")
# Stopping takes each part's grace in turn; longer means that the supervisor hangs.
DOWN_WITHIN_S = 120.0
UP_WITHIN_S = 1200.0  # a first start may build Toxiproxy

Folder = Annotated[Path, typer.Option("--folder", "-f", help="Private folder of this stack: data, logs, state.")]


def _fail(error: Exception) -> typer.Exit:
    err.print(f"[red]actonce:[/red] {escape(str(error))}", soft_wrap=True)
    return typer.Exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it.")] = False,
) -> None:
    del version


@app.command()
def up(
    folder: Folder = DEFAULT_FOLDER,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when it is ready; end with `down`.")] = False,
) -> None:
    """Start the stack, or resume the one in this folder. Ctrl-C ends it."""
    try:
        if detach:
            _up_detached(folder)
        else:
            asyncio.run(_up(folder))
    except StackError as error:
        raise _fail(error) from error


async def _up(folder: Path) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end.set)
    began = time.monotonic()
    stack = Stack(folder, say=lambda text: out.print(f"[dim]{time.monotonic() - began:5.1f} s[/dim]  {escape(text)}"))
    starting = asyncio.create_task(stack.up())
    stopping = asyncio.create_task(end.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()  # `up` stops on its way out what it has started
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        out.print("stopped before it was ready")
        return
    stopping_needed = True
    try:
        await starting
        _show(stack, time.monotonic() - began)
        await _watch(stack, stopping)
    except StackError:
        stopping_needed = stack.parts != {}
        raise
    finally:
        stopping.cancel()
        if stopping_needed:
            out.print("stopping …")
            await stack.stop()
            out.print("stopped; nothing is left running")


async def _watch(stack: Stack, end: asyncio.Task[bool]) -> None:
    """Until told to end. A part that dies is reported once, not restarted."""
    reported: set[str] = set()
    while not end.done():
        for name, part in stack.parts.items():
            code = part.child.poll() if part.child is not None else None
            if code is not None and name not in reported:
                reported.add(name)
                err.print(f"[red]{name} ended with status {code}.[/red] Log: {part.log}", soft_wrap=True)
        await asyncio.wait([end], timeout=0.5)


def _show(stack: Stack, took_s: float) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("part", "pid", "where"):
        table.add_column(column, overflow="fold")
    where = {
        "postgres": f"{stack.folder}/stack.json has the DSN",
        "entry": stack.entry_url,
        "console": stack.console_url,
    }
    where |= {"temporal": f"{stack.temporal_address}  UI {stack.temporal_ui_url}", "toxiproxy": stack.toxiproxy_url}
    for name, part in stack.parts.items():
        table.add_row(name, str(part.pid), where.get(name, " ".join(part.command()[1:]) if _is_program(part) else ""))
    out.print(table)
    first = stack.folder / "admin.password"
    if first.exists():
        out.print(f"people sign in at the console; name and password of the first one: {first}", soft_wrap=True)
    out.print(f"ready in {took_s:.1f} s; for a shell: eval \"$(actonce env -f '{stack.folder}')\"", soft_wrap=True)


def _is_program(part: object) -> bool:
    return isinstance(part, Program)


def _up_detached(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "logs" / "supervisor.log"
    log.parent.mkdir(exist_ok=True, mode=0o700)
    with log.open("ab") as sink:
        began = log.stat().st_size
        popen = subprocess.Popen(
            [sys.executable, "-m", "actonce.cli", "up", "--folder", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

    def log_since() -> str:
        return log.read_bytes()[began:].decode(errors="replace").strip()

    def outcome() -> str | None:
        if popen.poll() is not None:
            return "ended"
        # Its last words before it waits; the state file is ready a moment earlier.
        return "ready" if "ready in" in log_since() else None

    how = asyncio.run(eventually(outcome, within_s=UP_WITHIN_S, what=f"stack in {folder} ready (log {log})"))
    said = log_since()
    if how == "ended":
        raise StackError(f"the stack did not start; {log} ends:\n{said}")
    out.print(said, markup=False, soft_wrap=True)  # wrapped already, and a command that is wrapped cannot be copied
    out.print(f"running detached as pid {popen.pid}; end it with: actonce down --folder {folder}", soft_wrap=True)


@app.command()
def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """End the stack in this folder, also what a killed supervisor left behind. Data stays."""
    if not (folder / "stack.json").exists():
        raise _fail(StackError(f"There is no stack in {folder.resolve()}: nothing to end."))
    try:
        asyncio.run(_down(folder))
    except StackError as error:
        raise _fail(error) from error


async def _down(folder: Path) -> None:
    supervisor = StateFile(folder).state.supervisor
    if supervisor is not None and supervisor.alive():
        out.print(f"asking the supervisor (pid {supervisor.pid}) to stop …")
        signal_checked(supervisor, signal.SIGTERM)
        if not await wait_gone(supervisor, DOWN_WITHIN_S):
            raise StackError(f"The supervisor (pid {supervisor.pid}) does not stop. kill -9 it, then `down` again.")
    with FolderLock(folder):
        ended = await end_orphans(StateFile(folder), out.print)
    out.print(f"nothing is left running{f' ({ended} orphans ended)' if ended else ''}")


@app.command()
def env(folder: Folder = DEFAULT_FOLDER) -> None:
    """Print the settings of the running stack as shell exports (they hold the ledger's password)."""
    import shlex

    file = folder / SETTINGS_FILE
    if not StateFile(folder).state.ready or not file.exists():
        raise _fail(StackError(f"No stack is running in {folder.resolve()}: start one with `actonce up`."))
    import json

    for name, value in json.loads(file.read_text()).items():
        print(f"export {name}={shlex.quote(value)}")


@app.command()
def doctor() -> None:
    """Say which parts are here, in which version, and how to get what is missing."""
    findings = asyncio.run(examine(Path.cwd()))
    table = Table(box=None, pad_edge=False)
    for column in ("", "part", "what is here"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = "[green]ok[/green]" if finding.ok else ("[red]missing[/red]" if finding.needed else "[yellow]-[/yellow]")
        table.add_row(mark, finding.part, escape(finding.text))
    out.print(table)
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(1)


app.command("archive")(cli_archive.archive)
app.command("backup")(cli_backup.backup)
app.add_typer(cli_backup.indexes_app, name="indexes")
app.add_typer(cli_secrets.app, name="secrets")
app.add_typer(cli_authority.app, name="authority")
app.add_typer(cli_people.people_app, name="people")
app.add_typer(cli_people.tokens_app, name="tokens")

audit_app = typer.Typer(no_args_is_help=True, help="The audit trail.")
app.add_typer(audit_app, name="audit")


@audit_app.command("verify")
def audit_verify(
    dsn: Annotated[str, typer.Option(envvar="ACTONCE_LEDGER_DSN", help="The ledger.", show_default=False)],
    sink: Annotated[Path | None, typer.Option(help="Folder to which events were shipped.")] = None,
    sink_from: Annotated[int, typer.Option(min=1, help="First event that is still in the folder.")] = 1,
    anchor: Annotated[str | None, typer.Option(help="SEQ:HASH that an earlier run printed.")] = None,
) -> None:
    """Prove that the audit trail is whole. Exit status: 0 whole, 1 findings, 3 it could not be read."""
    from actonce.contracts.audit import End
    from actonce.trail import Unreadable, verify

    try:
        seq, _, digest = anchor.partition(":") if anchor else ("", "", "")
        noted = End(int(seq), digest) if anchor else None
    except ValueError as error:
        raise typer.BadParameter("write SEQ:HASH", param_hint="--anchor") from error
    try:
        report = asyncio.run(verify(dsn, sink, folder_from=sink_from, anchor=noted))
    except Unreadable as error:
        err.print(f"[red]not verified:[/red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(3) from error
    for finding in report.findings:
        out.print(f"[red]{escape(str(finding))}[/red]", soft_wrap=True)
    where = f", {report.shipped} in {sink}" if sink else ""
    out.print(f"{report.sealed} events sealed, {report.unsealed} not sealed yet{where}", soft_wrap=True)
    for last, first in report.restored:
        words = (
            f"{last + 1} to {first - 1} were skipped by a restore; what was given those numbers is not in this ledger"
        )
        out.print(words, soft_wrap=True)
    out.print(f"end {report.end.seq}:{report.end.hash}", soft_wrap=True)
    out.print("whole" if report.whole else f"[red]{len(report.findings)} findings[/red]")
    if not report.whole:
        raise typer.Exit(1)


def main() -> None:
    """The console script."""
    run_and_leave(app)


if __name__ == "__main__":
    main()
