"""`stack.json`: what runs in a folder, by (pid, start time, boot), and what must stay the same over restarts.

Promises: written whole or not at all, readable only by its owner (it holds the ledger's password). One writer at a
time: whoever holds the folder's lock.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from types import TracebackType

from pydantic import BaseModel, Field, ValidationError

from actonce.stack.errors import StackError
from actonce.stack.process import Proc


class PartState(BaseModel):
    """One process: who it is while it runs, and its ports and names for the next start."""

    proc: Proc | None = None
    stop_signal: int = 15
    ports: dict[str, int] = Field(default_factory=dict)
    values: dict[str, str] = Field(default_factory=dict)


class StackState(BaseModel):
    schema_version: int = 1
    run_id: str = Field(default_factory=lambda: secrets.token_hex(6))
    deployment: str | None = None  # of a restored ledger; None: what the environment says
    supervisor: Proc | None = None
    ready: bool = False
    parts: dict[str, PartState] = Field(default_factory=dict)


class StateFile:
    """Reads and writes one folder's state."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "stack.json"
        self.state = self._read()

    def _read(self) -> StackState:
        if not self.path.exists():
            return StackState()
        try:
            return StackState.model_validate_json(self.path.read_bytes())
        except ValidationError as error:
            raise StackError(
                f"{self.path} cannot be read ({error.error_count()} errors). Move it away after you have ended the "
                "processes that it names; then start again."
            ) from error

    def part(self, name: str) -> PartState:
        return self.state.parts.setdefault(name, PartState())

    def save(self) -> None:
        temporary = self.path.with_name(f".stack.json.{os.getpid()}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.write(self.state.model_dump_json(indent=1))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(self.path)


class FolderLock:
    """Held by the one supervisor of a folder; the kernel releases it when that process dies."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self._file: int | None = None

    def acquire(self) -> bool:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._file = fd
        return True

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> FolderLock:
        if not self.acquire():
            raise StackError(f"{self.path.parent} is in use by another supervisor. Stop it with `actonce down` first.")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
