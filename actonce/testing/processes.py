"""Processes of a drill: started from a zygote, signalled by recorded identity, everything on record.

Promises: a signal goes only to the very process that was started (pid and start time); `started`, `signalled`,
`state` and `exited` reach the record in the order in which they happened, `signalled` only after the kernel took the
signal. A process that is gone is never reported as signalled: a kill that hits nobody makes a drill invalid (case i3).
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from actonce.stack.errors import StackError
from actonce.stack.zygote import Zygote, ZygoteChild
from actonce.testing.waiting import eventually

READY_WITHIN_S = 60.0  # 20 programs may start at once on two cores; one alone takes about a second
EXIT_WITHIN_S = 20.0  # the longest grace of a worker that is asked to stop, twice
STOPPED_WITHIN_S = 5.0

OnEvent = Callable[[str, dict[str, Any]], None]


class ProcessError(RuntimeError):
    """A process did not start, was not there to be signalled, or did not end."""


class Process:
    """One program of the system under test."""

    def __init__(self, child: ZygoteChild, role: str, log: Path, on_event: OnEvent) -> None:
        self.role = role
        self.log = log
        self.ready: dict[str, Any] = {}
        self._child = child
        self._on_event = on_event
        self._exit_recorded = False
        self._event("started", {})

    @classmethod
    async def start(
        cls,
        zygote: Zygote,
        role: str,
        program: str,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        on_event: OnEvent,
        cwd: Path | None = None,
    ) -> Process:
        """Fork and run; returns at once. Use `until_ready`."""
        try:
            child = await zygote.spawn(program, args, env=env, log=log, cwd=cwd)
        except StackError as error:
            raise ProcessError(f"{role} could not be started: {error}") from error
        return cls(child, role, log, on_event)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    async def until_ready(self) -> None:
        """Wait for its JSON line with event "ready"."""

        def check() -> bool:
            if not self.alive:
                raise ProcessError(
                    f"{self.role} (pid {self.pid}) ended before it was ready. Its log ends:\n{self.tail()}"
                )
            self.ready = _event_of(self.log, "ready") or {}
            return bool(self.ready)

        await eventually(check, within_s=READY_WITHIN_S, what=f"{self.role} (pid {self.pid}) ready", every_s=0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send it, and record it. Raises ProcessError when the process is gone."""
        if not self._child.send_signal(number):
            raise ProcessError(f"{self.role} (pid {self.pid}) is gone: {number.name} hit nobody")
        self._event("signalled", {"signal": number.name})

    async def stop(self) -> None:
        """SIGSTOP, and record the kernel's word that it stands still."""
        self.signal(signal.SIGSTOP)
        await eventually(lambda: state_of(self.pid) == "T", within_s=STOPPED_WITHIN_S, what=f"pid {self.pid} stopped")
        self._event("state", {"state": "T"})

    async def ended(self, within_s: float = EXIT_WITHIN_S) -> int:
        """Wait for its end and record it."""
        status = await self._child.wait(within_s)
        if status is None:
            raise ProcessError(
                f"{self.role} (pid {self.pid}) still runs after {within_s:g} s. Its log ends:\n{self.tail()}"
            )
        self.record_exit()
        return status

    def record_exit(self) -> None:
        """Record the end, once, if it has ended."""
        status = self._child.poll()
        if status is not None and not self._exit_recorded:
            self._exit_recorded = True
            name = signal.Signals(-status).name if status < 0 else None
            self._event("exited", {"returncode": status, "signal": name})

    async def kill(self) -> None:
        """End it for good, whatever state it is in; for clean-up, recorded like any other signal."""
        if self.alive:
            self.signal(signal.SIGKILL)
        await self.ended()

    def tail(self, lines: int = 12) -> str:
        """The end of its log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _event(self, kind: str, fields: dict[str, Any]) -> None:
        proc = self._child.proc
        self._on_event(kind, {"pid": proc.pid, "start_time": proc.start_time, "role": self.role, **fields})


def state_of(pid: int) -> str | None:
    """The kernel's state letter of a process, None when it is gone."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return stat[stat.rindex(b")") + 2 :].split()[0].decode()
    import psutil

    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return None
    return "T" if status == psutil.STATUS_STOPPED else str(status)


def _event_of(log: Path, name: str) -> dict[str, Any] | None:
    if not log.exists():
        return None
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{") and line.endswith("}"):
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(event, dict) and event.get("event") == name:
                return event
    return None
