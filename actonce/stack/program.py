"""The project's own programs: which ones, and when each is ready.

A project names them in its pyproject.toml; without that table the stack runs `worker.py run`, if there is one:

    [tool.actonce.stack.programs]
    entry = ["-m", "actonce.entry"]
    worker = { command = ["worker.py", "run"], count = 2 }

Commands are arguments to our Python; `{folder}` in them is the stack's folder. A program is ready when it prints one
JSON line with `"event": "ready"` on standard output. Those with `first = true` start one after the other, before the
rest, which start together. A ready line may tell the programs that start later where it is: `"url"` (of `entry`),
`"world"` (path of the sandbox's addresses), or any `"settings": {"ACTONCE_…": "…"}`.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actonce.stack.errors import StackError
from actonce.stack.part import NotReady, Part
from actonce.stack.state import StateFile


@dataclass(frozen=True)
class ProgramSpec:
    """One line of the table."""

    name: str
    command: tuple[str, ...]
    count: int = 1
    # Only started when this file or folder exists in the project (a wheel has no sandbox destinations).
    needs: str | None = None
    # The programs after it wait until it is ready: they need what it tells.
    first: bool = False

    def instances(self) -> list[str]:
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(1, self.count + 1)]


def programs_of(project: Path) -> list[ProgramSpec]:
    """The programs that the project in this folder wants to run."""
    file = project / "pyproject.toml"
    table: dict[str, Any] = {}
    if file.exists():
        table = tomllib.loads(file.read_text()).get("tool", {}).get("actonce", {}).get("stack", {})
    entries = table.get("programs", {"worker": {"command": ["worker.py", "run"], "needs": "worker.py"}})
    specs = [_spec(file, name, entry) for name, entry in entries.items()]
    return [spec for spec in specs if spec.needs is None or (project / spec.needs).exists()]


def _spec(file: Path, name: str, entry: object) -> ProgramSpec:
    where = f"{file}: [tool.actonce.stack.programs] {name}"
    if isinstance(entry, list):
        entry = {"command": entry}
    if not isinstance(entry, dict) or not set(entry) <= {"command", "count", "needs", "first"}:
        raise StackError(f'{where}: write a list, or a table with "command" and perhaps "count", "needs", "first".')
    command, count = entry.get("command"), entry.get("count", 1)
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise StackError(f"{where}: command must be a non-empty list of strings.")
    if not isinstance(count, int) or count < 1:
        raise StackError(f"{where}: count must be at least 1.")
    return ProgramSpec(name, tuple(command), count, entry.get("needs"), bool(entry.get("first", False)))


class Program(Part):
    """A Python program of the project."""

    def __init__(
        self,
        name: str,
        folder: Path,
        state: StateFile,
        *,
        arguments: tuple[str, ...],
        project: Path,
        environment: Callable[[], dict[str, str]],
        die_with_us: bool = True,
    ) -> None:
        super().__init__(name, folder, state, die_with_us=die_with_us)
        self.ready_event: dict[str, Any] = {}
        self._arguments = arguments
        self._project = project
        self._environment = environment

    def command(self) -> list[str]:
        return [sys.executable, *(word.replace("{folder}", str(self.folder)) for word in self._arguments)]

    def cwd(self) -> Path:
        return self._project

    def env(self) -> dict[str, str]:
        return self._environment() | {"PYTHONUNBUFFERED": "1"}

    def told(self) -> dict[str, str]:
        """The settings that its ready line gives to the programs after it."""
        found = {str(k): str(v) for k, v in self.ready_event.get("settings", {}).items()}
        for key, setting in {"url": f"ACTONCE_{self.name.upper()}_URL", "world": "ACTONCE_WORLD"}.items():
            if key in self.ready_event:
                found[setting] = str(self.ready_event[key])
        return found

    async def check_ready(self) -> None:
        for line in self.log_since_start().splitlines():
            event = parse_event(line)
            if event is not None and event.get("event") == "ready":
                self.ready_event = event
                return
        raise NotReady('it has not printed {"event": "ready"} yet')


def parse_event(line: str) -> dict[str, Any] | None:
    """The JSON object on a line of output, or None."""
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None
