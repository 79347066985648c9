"""`Stack`: the parts of a deployment in one private folder, started, found again, stopped.

Promises: one supervisor per folder (a lock); orphans of a dead one are ended before anything starts, by recorded
identity and never by name; `stop` leaves nothing running. Parts that are set to live elsewhere are checked and used.
Does not restart what dies: a drill, or a person, must see that it died.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Self

from actonce.stack import binaries, elsewhere
from actonce.stack.errors import StackError
from actonce.stack.part import Part
from actonce.stack.ports import HOST, free_ports, is_free
from actonce.stack.postgres import Postgres
from actonce.stack.process import Foreign, Proc, signal_checked, wait_gone
from actonce.stack.program import Program, ProgramSpec, programs_of
from actonce.stack.settings import FOLDER_VARIABLE, SETTINGS_FILE, StackSettings
from actonce.stack.state import FolderLock, StateFile
from actonce.stack.temporal import NAMESPACE, Temporal
from actonce.stack.toxiproxy import Toxiproxy
from actonce.stack.unfinished import check_finished

SERVERS = ("postgres", "temporal", "toxiproxy")
ALL_PARTS = frozenset((*SERVERS, "project"))
ORPHAN_GRACE_S = 15.0
ENTRY, CONSOLE = "actonce.entry", "actonce.console"  # modules, as programs name them

Say = Callable[[str], None]


def _quiet(text: str) -> None:
    del text


class Stack:
    """Use `async with Stack.open(folder, parts=…)`, or `await Stack.start(…)` and `await stack.stop()`.

    `parts`: any of "postgres", "temporal", "toxiproxy", "project" (the programs of `project`, see program.py).
    `env`: added to the environment of the programs. Start it on the main thread, or on one that outlives it: on
    Linux the kernel ends the parts when the thread that started them ends.
    """

    def __init__(
        self,
        folder: Path,
        parts: Collection[str] = ALL_PARTS,
        *,
        env: Mapping[str, str] | None = None,
        project: Path | None = None,
        programs: list[ProgramSpec] | None = None,
        say: Say = _quiet,
        settings: StackSettings | None = None,
    ) -> None:
        unknown = set(parts) - ALL_PARTS
        if unknown:
            raise StackError(f"No such part: {', '.join(sorted(unknown))}. Parts: {', '.join(sorted(ALL_PARTS))}.")
        self.folder = folder.resolve()
        self.project = (project or Path.cwd()).resolve()
        self._wanted = frozenset(parts)
        self._extra_env = dict(env or {})
        self._say = say
        self._settings = settings or StackSettings.load()
        self._programs = programs
        self._parts: dict[str, Part] = {}
        self._told: dict[str, str] = {}
        self._console_token: str | None = None
        _make_private(self.folder)
        self._lock = FolderLock(self.folder)
        self._state: StateFile | None = None

    # Life.

    @classmethod
    async def start(
        cls,
        folder: Path,
        parts: Collection[str] = ALL_PARTS,
        *,
        env: Mapping[str, str] | None = None,
        project: Path | None = None,
        programs: list[ProgramSpec] | None = None,
        say: Say = _quiet,
    ) -> Self:
        stack = cls(folder, parts, env=env, project=project, programs=programs, say=say)
        await stack.up()
        return stack

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        folder: Path,
        parts: Collection[str] = ALL_PARTS,
        *,
        env: Mapping[str, str] | None = None,
        project: Path | None = None,
        programs: list[ProgramSpec] | None = None,
        say: Say = _quiet,
        end_at_once: bool = False,
    ) -> AsyncIterator[Self]:
        """A running stack. `end_at_once`: as `stop(at_once=True)`, for folders that are thrown away."""
        stack = await cls.start(folder, parts, env=env, project=project, programs=programs, say=say)
        try:
            yield stack
        finally:
            await stack.stop(at_once=end_at_once)

    async def up(self) -> None:
        """Start every wanted part in order; on any failure everything started is stopped again."""
        if not self._lock.acquire():
            raise StackError(f"{self.folder} is in use by another supervisor: `actonce down --folder {self.folder}`.")
        try:
            check_finished(self.folder, self._wanted)
            self._state = StateFile(self.folder)
            await end_orphans(self._state, self._say)
            self.state.state.supervisor = Proc.of(os.getpid())
            self.state.save()
            for name in SERVERS:
                if name in self._wanted:
                    await self._start_server(name)
            if "project" in self._wanted:
                await self._start_programs()
            self._write_settings()
            self.state.state.ready = True
            self.state.save()
        except BaseException:
            await self.stop()
            raise

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop in reverse order, programs before servers. Safe to call twice.

        `at_once`: without the tidying that takes time, such as PostgreSQL's last checkpoint. What was committed is
        there again after the next start, which recovers it.
        """
        if self._state is None:
            self._lock.release()
            return
        failures = []
        for part in reversed(self._parts.values()):
            try:
                await part.stop(at_once=at_once)
            except StackError as error:  # go on: one stubborn part must not leave the others running
                failures.append(str(error))
        self._parts.clear()
        self.state.state.supervisor = None
        self.state.state.ready = False
        self.state.save()
        self._state = None
        self._lock.release()
        if failures:
            raise StackError("\n".join(failures))

    async def __aenter__(self) -> Self:
        if self._state is None:
            await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start_server(self, name: str) -> None:
        if elsewhere.is_elsewhere(name, self._settings):
            self._say(f"using {await elsewhere.check(name, self._settings)}")
            return
        if name == "toxiproxy":
            binaries.toxiproxy(self._say)  # may build, and then says so
        kinds: dict[str, type[Part]] = {"postgres": Postgres, "temporal": Temporal, "toxiproxy": Toxiproxy}
        part = kinds[name](name, self.folder, self.state, die_with_us=_can_die_with_us())
        self._say(f"starting {name} …")
        self._parts[name] = part
        await part.start()

    async def _start_programs(self) -> None:
        specs = self._programs if self._programs is not None else programs_of(self.project)
        if any(ENTRY in spec.command for spec in specs):
            await self._provision()
        for spec in (spec for spec in specs if spec.first):
            for name in spec.instances():
                await self._start_program(name, spec)
        rest = [(name, spec) for spec in specs if not spec.first for name in spec.instances()]
        try:
            async with asyncio.TaskGroup() as group:
                for name, spec in rest:
                    group.create_task(self._start_program(name, spec))
        except* StackError as failures:
            raise StackError("\n".join(str(error) for error in failures.exceptions)) from failures

    async def _provision(self) -> None:
        """Tokens and a first person, as files of the folder: in a process of its own, for the stack knows no ledger."""
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "actonce.cli_people", "provision", str(self.folder)),
            env=self.env(),
            cwd=self.project,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, why = await child.communicate()
        if child.returncode != 0:
            raise StackError(f"Nobody could be let in: {why.decode(errors='replace').strip()[-1000:]}")
        made = json.loads(said)["made"]
        if made:
            self._say(f"made {', '.join(made)} in {self.folder}")
        self._console_token = (self.folder / "console.token").read_text().strip()

    async def _start_program(self, name: str, spec: ProgramSpec) -> None:
        part = Program(
            name,
            self.folder,
            self.state,
            arguments=spec.command,
            project=self.project,
            environment=partial(self._env_of, spec),
            die_with_us=_can_die_with_us(),
        )
        self._say(f"starting {name} …")
        self._parts[name] = part
        await part.start()
        self._told |= {k: v for k, v in part.told().items() if k not in self._settings.environment}

    # What is where.

    @property
    def state(self) -> StateFile:
        if self._state is None:
            raise StackError(f"The stack in {self.folder} is not running: start it first.")
        return self._state

    def part(self, name: str) -> Part:
        """A running part, to kill and start again: "temporal", "postgres", "toxiproxy", "entry", "worker-1", …"""
        found = self._parts.get(name)
        if found is None:
            raise StackError(
                f"{name} is not a part that this stack started (it has: {', '.join(self._parts) or 'none'}). A part "
                "that was set to live elsewhere cannot be killed from here."
            )
        return found

    @property
    def parts(self) -> dict[str, Part]:
        return dict(self._parts)

    @property
    def run_id(self) -> str:
        return self._settings.run_id or self.state.state.run_id

    @property
    def task_queue(self) -> str:
        return self._settings.task_queue or f"actonce-{self.run_id}"

    @property
    def postgres(self) -> Postgres:
        part = self.part("postgres")
        assert isinstance(part, Postgres)
        return part

    @property
    def temporal(self) -> Temporal:
        part = self.part("temporal")
        assert isinstance(part, Temporal)
        return part

    @property
    def ledger_dsn(self) -> str:
        return self._settings.ledger_dsn or self.postgres.dsn

    @property
    def temporal_address(self) -> str:
        if self._settings.temporal_elsewhere:
            return str(self._settings.temporal_config().get("target_host"))
        return self.temporal.address

    @property
    def temporal_ui_url(self) -> str | None:
        if self._settings.temporal_elsewhere:
            return self._settings.temporal_ui_url
        return self.temporal.ui_url

    @property
    def toxiproxy_url(self) -> str:
        if self._settings.toxiproxy_url:
            return self._settings.toxiproxy_url
        part = self.part("toxiproxy")
        assert isinstance(part, Toxiproxy)
        return part.url

    @property
    def entry_url(self) -> str:
        """Where the entry service is, or will be: chosen once per folder, so that callers keep their address."""
        return self._url_of("entry")

    @property
    def console_url(self) -> str:
        """Where the console is, or will be: chosen once per folder, so that open pages come back after a restart."""
        return self._url_of("console")

    def _url_of(self, program: str) -> str:
        values = self.state.part(program).values
        if "url" in values:
            port = int(values["url"].rsplit(":", 1)[1].strip("/"))
            if program in self._parts or is_free(port):
                return values["url"]
        values["url"] = f"http://{HOST}:{free_ports(1)[0]}"
        self.state.save()
        return values["url"]

    def settings(self) -> dict[str, str]:
        """What a program, a client or a shell needs to know of this stack (holds the ledger's password)."""
        found = {
            "ACTONCE_RUN_ID": self.run_id,
            "ACTONCE_TASK_QUEUE": self.task_queue,
            "ACTONCE_ENTRY_URL": self.entry_url,
            "ACTONCE_CONSOLE_URL": self.console_url,
            FOLDER_VARIABLE: str(self.folder),
        }
        if self.state.state.deployment is not None:
            found["ACTONCE_DEPLOYMENT"] = self.state.state.deployment
        if "postgres" in self._wanted:
            found["ACTONCE_LEDGER_DSN"] = self.ledger_dsn
            if "ACTONCE_AUDIT_SINKS" not in self._settings.environment:
                found["ACTONCE_AUDIT_SINKS"] = (self.folder / "audit").as_uri()
        if "toxiproxy" in self._wanted:
            found["ACTONCE_TOXIPROXY_URL"] = self.toxiproxy_url
        if "temporal" in self._wanted:
            if not self._settings.temporal_elsewhere:
                found["TEMPORAL_ADDRESS"] = self.temporal_address
                found["TEMPORAL_NAMESPACE"] = NAMESPACE
                # Otherwise a profile in the person's home could add TLS or a key meant for another server.
                found["TEMPORAL_CONFIG_FILE"] = os.devnull
            if self.temporal_ui_url:
                found["ACTONCE_TEMPORAL_UI_URL"] = self.temporal_ui_url
        return found | self._told | self._extra_env

    def env(self) -> dict[str, str]:
        """The whole environment of a program that belongs to this stack."""
        settings = self.settings()
        ours = "temporal" in self._wanted and not self._settings.temporal_elsewhere
        return {
            k: v for k, v in self._settings.environment.items() if not (ours and k.startswith("TEMPORAL_"))
        } | settings

    def _env_of(self, spec: ProgramSpec) -> dict[str, str]:
        """With the token that speaks for people, where the program is the console and no other."""
        ours = self._console_token is not None and CONSOLE in spec.command
        return self.env() | ({"ACTONCE_CONSOLE_TOKEN": str(self._console_token)} if ours else {})

    def _write_settings(self) -> None:
        file = self.folder / SETTINGS_FILE
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
            json.dump(self.settings(), sink, indent=1)


@contextlib.asynccontextmanager
async def postgres(folder: Path) -> AsyncIterator[str]:
    """PostgreSQL alone; yields its DSN."""
    async with Stack.open(folder, {"postgres"}) as stack:
        yield stack.ledger_dsn


async def end_orphans(state: StateFile, say: Say = _quiet) -> int:
    """End what a dead supervisor left running in this folder. Returns how many were ended."""
    ended = 0
    for name, part in reversed(state.state.parts.items()):
        if part.proc is None:
            continue
        try:
            ended += await _end(name, part.proc, part.stop_signal, say)
        except Foreign as error:
            say(f"{name}: {error}")
        part.proc = None
        state.save()
    return ended


async def _end(name: str, proc: Proc, stop_signal: int, say: Say) -> int:
    # A stopped process acts on nothing but SIGKILL and SIGCONT.
    if not signal_checked(proc, stop_signal):
        return 0
    signal_checked(proc, signal.SIGCONT)
    say(f"ending {name} (pid {proc.pid}), left by an earlier supervisor …")
    if not await wait_gone(proc, ORPHAN_GRACE_S):
        signal_checked(proc, signal.SIGKILL)
        if not await wait_gone(proc, ORPHAN_GRACE_S):
            raise StackError(f"{name} (pid {proc.pid}) does not end, not even on SIGKILL. End it, then try again.")
    return 1


def _can_die_with_us() -> bool:
    """The kernel's parent-death signal follows the *thread*: only the main one is sure to outlive the stack."""
    return sys.platform == "linux" and threading.current_thread() is threading.main_thread()


def _make_private(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # Nobody else may look inside. Root's PostgreSQL account must pass through it, without listing.
    folder.chmod(0o711 if os.geteuid() == 0 else 0o700)
    (folder / "logs").mkdir(exist_ok=True, mode=0o700)
