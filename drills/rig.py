"""One run's shared parts, and one cell's own: proxies, ledger, worker processes.

Contract: cells of a run share Temporal, PostgreSQL's server, Toxiproxy, the world and the page sink, and nothing else.
Each has an account at the world, a task queue, a ledger database (cloned from one migrated template), a proxy in front
of every part that its processes speak to, two workers and a watcher, and a channel of the page sink. Everything that
happens to them goes to the record. `Cell.close` leaves no process and no proxy behind, also after a failure.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from temporalio.client import Client

from actonce.evidence import EvidenceWriter
from actonce.stack import Stack
from actonce.testing.parts import Parts, address, through
from actonce.testing.processes import Process
from actonce.testing.sink import Sink
from actonce.testing.site import Site
from actonce.testing.tap import Tap
from drills.console.place import ConsolePlace
from drills.console.screens import Screens
from drills.tail import JournalTail
from drills.world.client import World

ROOT = Path(__file__).resolve().parent.parent
PURPOSES = ("write", "beacon", "cancel", "probe", "by_id", "list", "search", "log")
STARTING_MAX = max(2, os.cpu_count() or 1)  # cells whose programs start at once: many would starve those that run
PAGE_GRACE_S = 8.0  # the sandbox's 3 s are for a quiet machine; a beacon and two readings must fit in
READS = ("by_id", "list", "search", "log")


@dataclass
class Run:
    """What all cells of a run share."""

    run_id: str
    folder: Path
    parts: Parts
    world: World
    tail: JournalTail
    writer: EvidenceWriter
    sink: Sink
    env: dict[str, str]
    screens: Screens
    pictured: str | None = None  # the cell of which pictures are taken, and whose people use a browser
    cells: dict[str, str] = field(default_factory=dict)  # account -> cell
    channels: dict[str, str] = field(default_factory=dict)  # channel of the page sink -> cell
    places: dict[str, str] = field(default_factory=dict)  # operation or task -> cell, where cells share an account
    starting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STARTING_MAX))

    def place(self, operation_id: str | None, task_id: str | None) -> str | None:
        """The cell of an operation or task, where that is known by name."""
        return self.places.get(operation_id or "") or self.places.get(task_id or "")

    @property
    def stack(self) -> Stack:
        return self.parts.stack

    @property
    def temporal(self) -> Client:
        return self.parts.temporal


@dataclass
class CellSpec:
    """What a cell is made of."""

    name: str
    number: int
    arm: str = "guarded"
    late_arrival: str = "bounded"
    servers: tuple[str, ...] = ("payments",)
    worker: tuple[str, ...] = ("worker.py", "run")
    workers: int = 2
    watch: tuple[str, ...] | None = ("worker.py", "watch")
    entry: tuple[str, ...] | None = None
    console: tuple[str, ...] = ("-m actonce.console",)  # started when somebody first looks; needs an entry
    modes: dict[str, Any] = field(default_factory=dict)  # of the world's payments account
    settings: dict[str, Any] = field(default_factory=dict)  # more of the sandbox's JSON file
    env: dict[str, str] = field(default_factory=dict)
    stop: str | None = None  # points of drills.controls.stops; only for the roles in `stops`
    stops: tuple[str, ...] = ()
    watch_past_proxies: bool = False
    own_temporal: bool = False  # a server that nobody else uses, and that the cell may kill
    own_memory: bool = False  # a memory in a database and with a role of its own, behind a proxy of its own
    # What the cell has beside the parts that all have: entered before its programs start, left last; gives settings for
    # them.
    attach: Callable[[Cell], AbstractAsyncContextManager[dict[str, str]]] | None = None

    @property
    def account(self) -> str:
        return f"acct-{self.number}"


class Cell(Site):
    """One cell while it runs. Use `async with Cell(run, spec)`."""

    def __init__(self, run: Run, spec: CellSpec) -> None:
        folder = run.folder / "cells" / str(spec.number)
        super().__init__(run.parts, spec.name, run.run_id, spec.number, folder=folder, writer=run.writer)
        self.run = run
        self.spec = spec
        self.account = spec.account
        self.channel = f"page-{spec.number}"
        self.workers: list[Process] = []
        self.others: dict[str, Process] = {}
        self.console = ConsolePlace(self)
        self.extras: dict[str, Any] = {}  # what `attach` brought
        self._attached = AsyncExitStack()
        self._env: dict[str, str] = {}
        self.memory_dsn: str | None = None  # straight to the server

    async def __aenter__(self) -> Cell:
        self.run.cells[self.account] = self.name
        self.run.channels[self.channel] = self.name
        try:
            await self._make()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As every site, then what was attached, a Temporal of its own among it."""
        try:
            try:
                await self.console.close()
            finally:
                await super().close()
        finally:
            await self._attached.aclose()

    async def _make(self) -> None:
        if self.spec.own_temporal:
            folder = self.run.folder / f"temporal-{self.number}"
            self.parts = await self._attached.enter_async_context(self.parts.with_own_temporal(folder))
        await self.run.world.configure(self.account, "payments", late_arrival=self.spec.late_arrival, **self.spec.modes)
        await self.make_ground()
        more = await self._attached.enter_async_context(self.spec.attach(self)) if self.spec.attach else {}
        if self.spec.own_memory:
            self.memory_dsn = await self._make_memory()
        await self._make_paths()
        self._env = {**self._environment(), **more}
        async with self.run.starting:
            await self._start_programs()
        if self.pictured:
            await self.console.be_there()

    async def _start_programs(self) -> None:
        for number in range(self.spec.workers):
            self.workers.append(await self.start_program(f"worker-{number + 1}", *self.spec.worker))
        if self.spec.watch:
            self.others["watch"] = await self.start_program("watch", *self.spec.watch)
        if self.spec.entry:
            self.others["entry"] = await self.start_program("entry", *self.spec.entry)
        await asyncio.gather(*(p.until_ready() for p in (*self.workers, *self.others.values())))

    async def add_workers(self) -> None:
        """Workers again, as many as there were, beside whatever is left of the old ones."""
        first = len(self.workers) + 1
        fresh = [
            await self.start_program(f"worker-{number}", *self.spec.worker)
            for number in range(first, first + self.spec.workers)
        ]
        self.workers += fresh
        await asyncio.gather(*(process.until_ready() for process in fresh))

    async def start_program(self, role: str, program: str, *args: str, **more: str) -> Process:
        """One more process of this cell; not yet ready. `more`: settings that only it has."""
        kind = role.partition("-")[0]
        env = {**self._env, **more}
        if self.spec.stop is not None and kind in self.spec.stops:
            env["ACTONCE_DRILL_STOP"] = self.spec.stop
        if kind == "watch" and self.spec.watch_past_proxies:
            env["ACTONCE_WORLD"] = str(self._world_file("world-direct.json", self.run.world.listeners))
        return await self.spawn(role, program, args, env)

    @property
    def pictured(self) -> bool:
        """Are pictures taken of this cell?"""
        return self.run.pictured == self.name

    @property
    def temporal_ui_url(self) -> str:
        """Where people see this cell's histories."""
        return str((self.parts.temporal_of_its_own or self.parts.stack).temporal_ui_url)

    @property
    def write(self) -> Tap:
        """The tap on the path by which effects are written."""
        return self.taps["payments.write"]

    @property
    def env(self) -> dict[str, str]:
        """The environment of this cell's processes."""
        return dict(self._env)

    async def use_clean_write_path(self) -> None:
        """New connections to the write listener go past the faulted proxy; what is held in it stays there."""
        clean = await self.add_proxy("payments.write.clean", *address(self.run.world.listeners["payments.write"]))
        self.write.retarget(clean.host, clean.port, clean.name)

    async def heal_routes(self) -> None:
        """The destination's routes and answers are as they should be, from now on."""
        healthy = dict.fromkeys(READS, "healthy")
        await self.run.world.configure(
            self.account, "payments", routes=healthy, applies_late_s=None, answer=None, revoked={}
        )

    async def _make_memory(self) -> str:
        """A database of a role of its own, empty but for pgvector: its password can change, and nobody else notices."""
        name = f"{self.database}_memory"
        role, password = sql.Identifier(name), secrets.token_hex(8)
        async with await psycopg.AsyncConnection.connect(self.run.stack.ledger_dsn, autocommit=True) as link:
            await link.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(password)))
            await link.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(role, role))
        async with await psycopg.AsyncConnection.connect(self.parts.dsn(name), autocommit=True) as link:
            await link.execute("CREATE EXTENSION vector")  # not for a role like this one to do
        parts = urlsplit(self.run.stack.ledger_dsn)
        netloc = f"{name}:{password}@{parts.hostname}:{parts.port}"
        return urlunsplit(parts._replace(netloc=netloc, path=f"/{name}"))

    async def _make_paths(self) -> None:
        if self.memory_dsn is not None:
            await self.add_proxy("memory", *address(self.memory_dsn))
        for server in self.spec.servers:
            for purpose in PURPOSES:
                name = f"{server}.{purpose}"
                if name not in self.run.world.listeners:
                    continue
                await self.add_proxy(name, *address(self.run.world.listeners[name]))
                if purpose == "write":
                    await self.add_tap(name)

    def _environment(self) -> dict[str, str]:
        listeners = dict(self.run.world.listeners)
        for name, proxy in self.proxies.items():
            if name in listeners:
                listeners[name] = f"http://{proxy.host}:{proxy.port}"
        for name, tap in self.taps.items():
            listeners[name] = f"http://{tap.host}:{tap.port}"
        world = self._world_file("world.json", listeners)
        memory = {}
        if self.memory_dsn is not None:
            memory["ACTONCE_MEMORY_DSN"] = through(self.memory_dsn, self.proxies["memory"])
        return {
            **self.ground_environment(),
            **memory,
            "ACTONCE_WORLD": str(world),
            "ACTONCE_RUN_ID": self.run.run_id,
            "ACTONCE_ENTRY_PORT": "0",
            # nobody looks at a page, or at alerts, that no entry serves
            "ACTONCE_PROBE_EVERY_S": "3" if self.spec.entry else "600",
            "ACTONCE_EVALUATE_EVERY_S": "1" if self.spec.entry else "600",
            "ACTONCE_DRILL_STOP_FILE": str(self.folder / "stopped"),
            "ACTONCE_PAGE_URLS": self.run.sink.url(self.channel),
            "ACTONCE_PAGE_WARNING_URLS": self.run.sink.url(self.channel),
            **self.spec.env,
        }

    def _world_file(self, name: str, listeners: dict[str, str]) -> Path:
        """The sandbox's addresses and contract, as one process of this cell is to see them."""
        path = self.folder / name
        settings = {
            "listeners": listeners,
            "account": self.account,
            "late_arrival": self.spec.late_arrival,
            "destinations": list(self.spec.settings.get("destinations", ["payments"])),
            **self.spec.settings,
            "timing": {"page_grace_s": PAGE_GRACE_S, **self.spec.settings.get("timing", {})},
        }
        path.write_text(json.dumps(settings, indent=1), encoding="utf-8")
        return path
