"""One part of the stack: start, ready, kill, start again with the same ports and files.

Ready means that the part did its work once, not that a port is open. A part that loses its port between choosing and
binding takes another; once it has been ready it keeps its ports, and a later start fails rather than move, since
others hold its address.
"""

from __future__ import annotations

import asyncio
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from actonce.stack.errors import StackError
from actonce.stack.ports import answers, free_ports, is_free, listening
from actonce.stack.process import Child, spawn
from actonce.stack.state import PartState, StateFile

STARTS_MAX = 5  # a lost port is rare; five losses in a row are another fault


class NotReady(Exception):
    """Internal: try the readiness check again."""


class Part(ABC):
    """A supervised process. Not started twice; `stop` and `kill` return only when it is gone."""

    ready_within_s: float = 30.0
    stop_signal: int = signal.SIGTERM
    stop_grace_s: float = 10.0
    user: str | None = None
    umask: int = -1  # of the files that it makes; -1: as ours

    def __init__(self, name: str, folder: Path, state: StateFile, *, die_with_us: bool = True) -> None:
        self.name = name
        self.folder = folder
        self.log = folder / "logs" / f"{name}.log"
        self.die_with_us = die_with_us
        self._state = state
        self._child: Child | None = None
        self._settled = False

    @property
    def recorded(self) -> PartState:
        return self._state.part(self.name)

    @property
    def ports(self) -> dict[str, int]:
        return self.recorded.ports

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def child(self) -> Child | None:
        return self._child

    def _running(self) -> Child:
        if self._child is None:
            raise StackError(f"{self.name} has not been started: call start() first.")
        return self._child

    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    # What a concrete part says about itself.

    port_names: Sequence[str] = ()

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments, once ports are chosen."""

    @abstractmethod
    async def check_ready(self) -> None:
        """Do the part's work once. Raise NotReady to be asked again."""

    async def prepare(self) -> None:
        """Before each start: files, folders."""

    async def after_ready(self) -> None:
        """Once per start, after the first successful check."""

    def env(self) -> dict[str, str] | None:
        return None

    def cwd(self) -> Path | None:
        return self.folder

    # Life.

    async def start(self) -> None:
        """Start and wait until ready. Raises StackError with the end of the log when it does not come up."""
        if self.alive():
            raise StackError(f"{self.name} already runs as pid {self.pid}: stop it first.")
        for attempt in range(STARTS_MAX):
            await asyncio.sleep(0.2 * attempt)  # back off
            self._choose_ports()
            await self.prepare()
            self._launch()
            if await self._wait_ready():
                self._settled = True
                self._state.save()
                await self.after_ready()
                return
        raise StackError(
            f"{self.name} did not come up in {STARTS_MAX} tries (port lost or files in use). See {self.log}."
        )

    def _choose_ports(self) -> None:
        ports = self.recorded.ports
        if set(ports) == set(self.port_names) and all(is_free(p) for p in ports.values()):
            return
        if self._settled:
            raise StackError(
                f"{self.name} cannot start again on its ports {ports}: someone else listens there now. Find out who "
                "(ss -ltnp); a stack that is started anew takes other ports."
            )
        ports.clear()
        ports.update(zip(self.port_names, free_ports(len(self.port_names)), strict=True))

    def _launch(self) -> None:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._child = spawn(
            self.name,
            self.command(),
            log=self.log,
            env=self.env(),
            cwd=self.cwd(),
            user=self.user,
            umask=self.umask,
            die_with_parent=self.death_signal() if self.die_with_us else None,
        )
        self.recorded.proc = self._child.proc
        self.recorded.stop_signal = int(self.stop_signal)
        self._state.save()

    def death_signal(self) -> int:
        return int(signal.SIGKILL)

    def log_since_start(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def worth_another_try(self) -> bool:
        """After an early end, or a port that somebody else holds."""
        return not self._settled and not all(is_free(port) for port in self.ports.values())

    def _foreign_port(self) -> int | None:
        """A port of ours on which somebody else listens. Some servers (Toxiproxy) live on without their port."""
        pid = self._running().pid
        return next((port for port in self.ports.values() if answers(port) and port not in listening(pid)), None)

    async def _wait_ready(self) -> bool:
        """True when ready, False when another try is worth it; otherwise raises with the end of the log."""
        child = self._running()
        deadline = time.monotonic() + self.ready_within_s
        last = "no answer yet"
        while time.monotonic() < deadline:
            code = child.poll()
            if code is not None:
                self._forget()
                if self.worth_another_try():
                    return False
                raise StackError(
                    f"{self.name} ended with status {code} before it was ready. Log {self.log} ends:\n{child.tail()}"
                )
            if (port := self._foreign_port()) is not None:
                await self.kill()
                if self.worth_another_try():
                    return False
                raise StackError(f"{self.name} lost its port {port} to someone else. Find out who (ss -ltnp).")
            try:
                await self.check_ready()
            except NotReady as why:
                last = str(why) or last
                await asyncio.sleep(0.02)
                continue
            # Somebody else may have answered: only a living process that holds all its ports counts.
            if child.poll() is None and listening(child.pid) >= set(self.ports.values()):
                return True
        await self.kill()
        raise StackError(
            f"{self.name} was not ready within {self.ready_within_s:g} s ({last}). Log {self.log} ends:\n{child.tail()}"
        )

    async def stop(self, *, at_once: bool = False) -> int | None:
        """Clean shutdown; SIGKILL after the grace. Returns the exit status, None when it did not run.

        `at_once`: by the signal that the kernel would send it if we died.
        """
        if self._child is None:
            return None
        code = await self._child.stop(self.death_signal() if at_once else self.stop_signal, self.stop_grace_s)
        self._forget()
        return code

    async def kill(self, sig: int = signal.SIGKILL) -> int:
        """Send `sig` and wait until it is gone. Returns the exit status (negative: signal number)."""
        child = self._running()
        child.send_signal(sig)
        code = await child.wait(self.stop_grace_s + 10)
        if code is None:
            raise StackError(f"{self.name} (pid {child.pid}) did not end on signal {int(sig)}. See {self.log}.")
        self._forget()
        return code

    def send_signal(self, sig: int) -> bool:
        """Only signal (SIGSTOP, SIGCONT, …), without waiting. False when it is gone already."""
        return self._running().send_signal(sig)

    def _forget(self) -> None:
        if self._child is not None:
            self._child.close()
        self._child = None
        self.recorded.proc = None
        self._state.save()
