"""`actonce backup` and `actonce indexes`.

Exit status as `actonce`: 0 done, 1 it did not work or something is missing (the message says what to do), 2 usage.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from actonce.backup.indexes import Finding, Report

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
indexes_app = typer.Typer(no_args_is_help=True, help="Keys, triggers and indexes of ledger and memory.")
Folder = Annotated[Path, typer.Option("--folder", "-f", help="Private folder of the stack.")]
Dsn = Annotated[
    str | None,
    typer.Option(
        envvar="ACTONCE_LEDGER_DSN", help="The ledger; by default that of the stack in --folder.", show_default=False
    ),
]


def say(text: str) -> None:
    out.print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What cannot be done is said in a sentence."""
    import psycopg

    from actonce.backup import BackupError
    from actonce.contracts.errors import ActonceError
    from actonce.stack import StackError

    try:
        yield
    except (ActonceError, BackupError, StackError, psycopg.Error, OSError) as error:
        err.print(f"[red]actonce:[/red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from error


def backup(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
    folder: Folder = Path(".actonce"),
    # Not from the environment: that may be another stack's, and the history of one with the ledger of another is none.
    dsn: Annotated[str | None, typer.Option(help="The ledger, if it is not the stack's.", show_default=False)] = None,
) -> None:
    """Back up ledger, memory, Temporal's history and audit files of a running stack, with their boundaries."""
    from actonce.backup.making import make_backup, source_of

    with _told():
        manifest = asyncio.run(make_backup(source_of(folder, dsn), target.resolve(), say))
    out.print(f"backup complete: {manifest}", soft_wrap=True)


def _tell_findings(findings: list[Finding]) -> None:
    for finding in findings:
        out.print(f"[red]{escape(str(finding))}[/red]", soft_wrap=True)


@indexes_app.command("check")
def check_indexes(folder: Folder = Path(".actonce"), dsn: Dsn = None) -> None:
    """Is everything there that the migrations declare, and does it answer? Exit status: 0 yes, 1 no."""
    from actonce.backup import indexes
    from actonce.backup.making import source_of

    with _told():
        report = indexes.check(source_of(folder, dsn).dsn)
    _tell_report(report)


@indexes_app.command("rebuild")
def rebuild_indexes(folder: Folder = Path(".actonce"), dsn: Dsn = None) -> None:
    """Make what is missing and build anew what does not answer. May be killed and run again; what is good stays."""
    from actonce.backup import indexes
    from actonce.backup.making import source_of

    with _told():
        report = indexes.rebuild(source_of(folder, dsn).dsn, say)
    _tell_report(report)


def _tell_report(report: Report) -> None:
    _tell_findings(report.findings)
    out.print(f"{report.looked_at} declared, {report.answered} indexes answered")
    if report.findings:
        out.print(f"[red]{len(report.findings)} findings[/red]")
        raise typer.Exit(1)
    out.print("whole")
