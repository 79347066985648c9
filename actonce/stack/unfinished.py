"""The mark of a folder whose content is not whole: a restore is under way in it, or broke off.

Promises: while it is there nothing starts but PostgreSQL alone, which the restore itself needs; it says what to do.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from actonce.stack.errors import StackError

MARK = "restore-unfinished"


def mark_of(folder: Path) -> Path:
    return folder / MARK


def check_finished(folder: Path, parts: Collection[str]) -> None:
    """Raises StackError when something else than PostgreSQL alone is to start in an unfinished folder."""
    mark = mark_of(folder)
    if mark.exists() and set(parts) - {"postgres"}:
        raise StackError(mark.read_text())
