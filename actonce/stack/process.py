"""Processes by (pid, start time), never by pid alone.

Promises: a signal goes only to the very process that was recorded. A pid that has since been given to somebody
else, or a record of an earlier boot, is reported as `Foreign` and left alone. Does not promise that the process
reacts: wait with `wait_gone`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from actonce.stack.errors import StackError

T = TypeVar("T")

LAUNCHER = Path(__file__).with_name("launch.py")


class Foreign(StackError):
    """The recorded pid is alive but is not the recorded process: nothing was signalled."""


def boot_id() -> str:
    """An identity of the running kernel's boot: start times of two boots cannot be compared."""
    linux = Path("/proc/sys/kernel/random/boot_id")
    if linux.exists():
        return linux.read_text().strip()
    # No secrets and no shell: sysctl is part of macOS.
    return subprocess.run(
        ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True
    ).stdout.strip()


def start_time(pid: int) -> int | None:
    """Start of the process in the kernel's own unit (opaque: only to compare), or None when it is gone.

    A zombie counts as gone: it holds no socket, no file and runs no code.
    """
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The command name may contain spaces and parentheses: fields are counted from its last ")".
        fields = stat[stat.rindex(b")") + 2 :].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    import psutil

    try:
        proc = psutil.Process(pid)
        return None if proc.status() == psutil.STATUS_ZOMBIE else int(proc.create_time() * 1_000_000)
    except psutil.NoSuchProcess:
        return None


class Proc(BaseModel):
    """One process for ever: pid, start time and boot. Can be written to a file and trusted later."""

    model_config = ConfigDict(frozen=True)

    pid: int
    start_time: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> Proc:
        """Identity of a living process. Raises StackError when it is already gone."""
        started = start_time(pid)
        if started is None:
            raise StackError(f"Process {pid} is gone: it ended before it could be recorded. Read its log.")
        return cls(pid=pid, start_time=started, boot_id=boot_id())

    def alive(self) -> bool:
        """True only while this very process runs."""
        return self.boot_id == boot_id() and start_time(self.pid) == self.start_time


def signal_checked(proc: Proc, sig: int) -> bool:
    """Send `sig` to `proc` if it is still the recorded process. Returns False when it is gone.

    Raises Foreign when the pid now belongs to someone else. On Linux the pid is pinned by a pidfd before it is
    checked, so it cannot change owner between check and signal.
    """
    if proc.boot_id != boot_id():
        if start_time(proc.pid) is None:
            return False
        raise Foreign(
            f"Process {proc.pid} was recorded before this boot; the pid is someone else's now. Not signalled."
        )
    if not hasattr(os, "pidfd_open"):
        if not _is_recorded(proc):
            return False
        os.kill(proc.pid, sig)
        return True
    try:
        pidfd = os.pidfd_open(proc.pid)
    except ProcessLookupError:
        return False
    try:
        if not _is_recorded(proc):
            return False
        signal.pidfd_send_signal(pidfd, sig)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)


def _is_recorded(proc: Proc) -> bool:
    started = start_time(proc.pid)
    if started is None:
        return False
    if started != proc.start_time:
        raise Foreign(
            f"Process {proc.pid} started at {started}, the recorded one at {proc.start_time}: the pid belongs to "
            "someone else now. Not signalled; remove the stale record."
        )
    return True


async def eventually(
    check: Callable[[], Awaitable[T | None] | T | None],
    *,
    within_s: float,
    what: str,
    every_s: float = 0.02,
) -> T:
    """Poll `check` until it returns something true. Raises StackError naming `what` after `within_s` seconds."""
    deadline = time.monotonic() + within_s
    while True:
        found = check()
        value = await found if isinstance(found, Awaitable) else found
        if value:
            return value
        if time.monotonic() >= deadline:
            raise StackError(f"{what}: not so within {within_s:g} s.")
        await asyncio.sleep(every_s)


async def wait_gone(proc: Proc, within_s: float) -> bool:
    """True when the process has ended within the bound."""
    deadline = time.monotonic() + within_s
    while proc.alive():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.01)
    return True


class Child:
    """A process that we started: its identity, its log and its exit status."""

    def __init__(self, popen: subprocess.Popen[bytes], name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._popen = popen
        self.proc: Proc | None = None
        with contextlib.suppress(StackError):  # it may have ended already: `poll` then tells how
            self.proc = Proc.of(popen.pid)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def stdout(self) -> int | None:
        return None if self._popen.stdout is None else self._popen.stdout.fileno()

    def poll(self) -> int | None:
        """Exit status (negative: signal number) or None while it runs. Reaps."""
        return self._popen.poll()

    def send_signal(self, sig: int) -> bool:
        """Signal it if it still runs. An unreaped child keeps its pid, so there is nothing to confuse."""
        if self._popen.poll() is not None or self.proc is None:
            return False
        return signal_checked(self.proc, sig)

    async def wait(self, within_s: float) -> int | None:
        """Exit status, or None when it still runs after the bound."""
        deadline = time.monotonic() + within_s
        while (code := self._popen.poll()) is None:
            if time.monotonic() >= deadline:
                return None
            await asyncio.sleep(0.01)
        self.close()
        return code

    async def stop(self, sig: int = signal.SIGTERM, grace_s: float = 10.0) -> int:
        """Ask with `sig`, then SIGKILL after the grace. Returns the exit status."""
        self.send_signal(sig)
        code = await self.wait(grace_s)
        if code is None:
            self.send_signal(signal.SIGKILL)
            code = await self.wait(10.0)
        if code is None:
            raise StackError(f"{self.name} (pid {self.pid}) does not end, not even on SIGKILL. See {self.log}.")
        return code

    def close(self) -> None:
        if self._popen.stdout is not None:
            with contextlib.suppress(OSError):
                self._popen.stdout.close()

    def tail(self, lines: int = 15) -> str:
        """The end of its log, for error messages."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def spawn(
    name: str,
    command: list[str],
    *,
    log: Path,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    user: str | None = None,
    die_with_parent: int | None = signal.SIGKILL,
    pipe_stdout: bool = False,
    umask: int = -1,
) -> Child:
    """Start `command` in a session of its own, output to `log`.

    `die_with_parent`: on Linux the kernel sends this signal when the thread that called `spawn` ends (so call it
    from a thread that lives as long as the stack); None for processes that must outlive us. `user`: run as that
    account (only root may ask). `umask`: of the files that it makes; -1: as ours. A Ctrl-C in our terminal does not
    reach it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    prefix: list[str] = []
    if user is not None or (die_with_parent is not None and sys.platform == "linux"):
        # -S -I: no site, no environment: the launcher is stdlib only and replaces itself within 20 ms.
        prefix = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())]
        prefix += [str(int(die_with_parent or 0)), user or "-"]
    with log.open("ab") as sink:
        popen = subprocess.Popen(
            prefix + command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe_stdout else sink,
            stderr=sink,
            env=env,
            cwd=cwd,
            start_new_session=True,
            umask=umask,
        )
    return Child(popen, name, log)
