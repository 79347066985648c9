"""What every case needs: one lab for the session, one bench per case, and cases that run side by side.

A `Lab` is the real parts: PostgreSQL, Temporal, the sandbox destinations as a process, a zygote that forks the
project's programs. A `Bench` is one case's own corner: a ledger database, an account at every destination, a task
queue, processes. Nothing here stands in for a part of the system.

Cases mostly wait for bounds to pass. `side_by_side` starts all collected ones together, at most `AT_ONCE_MAX` at a
time, and each test awaits its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from temporalio.client import Client, WorkflowHandle

from actonce.contracts.identity import OperationKey, derive_operation_id
from actonce.contracts.messages import OperationRequest, TaskInput
from actonce.credentials import Broker, BrokerSettings, VaultProvider, VaultSettings
from actonce.destinations.base import Destination, Registry
from actonce.destinations.sandbox import SandboxSettings, build_sandbox
from actonce.effects.perform import perform
from actonce.effects.reconcile import settle_step
from actonce.effects.system import System, register_contracts, this_process
from actonce.ledger.authorising import uses_of
from actonce.ledger.leases import Leases
from actonce.ledger.store import Ledger
from actonce.stack import Stack, spawn
from actonce.testing.parts import Parts, open_parts
from actonce.testing.processes import Process
from actonce.testing.waiting import eventually
from drills.rig import PURPOSES
from drills.running import PRELOADED
from drills.world.client import World
from drills.world.leases import default_token
from tests.integration.cases.wire import PgProxy

ROOT = Path(__file__).resolve().parents[3]
AT_ONCE_MAX = 6  # two cores: more cases at once than this make each other late instead of sharing their waits
AT_ONCE_SHARED = 4  # beside another process with tests
REFUND = {"payment_id": "pay_1", "amount_minor": 1250, "currency": "EUR", "reason": "damaged"}

# Seconds. Short waits with room for a busy two-core machine: a permit lives ten times a slow transaction.
QUICK = {
    "connect_timeout_s": 1.0,
    "write_timeout_s": 1.0,
    "permit_lifetime_s": 2.5,
    "send_deadline_s": 2.5,
    "activity_timeout_s": 3.5,
    "reconcile_after_s": 4.0,
    "read_deadline_s": 1.5,
    "read_again_s": 0.2,
    "page_grace_s": 1.0,
}


@dataclass
class Lab:
    """Shared by all cases of a session."""

    parts: Parts
    world: World
    folder: Path
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def temporal(self) -> Client:
        return self.parts.temporal

    @contextlib.asynccontextmanager
    async def bench(self, *, modes: Mapping[str, Any] | None = None, **settings: Any) -> AsyncIterator[Bench]:
        """A fresh corner. `modes` order the world's payments; `settings` are of SandboxSettings (`timing` merges)."""
        number = next(self._numbers)
        async with contextlib.AsyncExitStack() as cleanup:
            bench = Bench(self, number, settings, cleanup)
            await bench.ledger_database(bench.database)
            late_arrival = settings.get("late_arrival", "bounded")
            await self.world.configure(bench.account, late_arrival=late_arrival, **(modes or {}))
            yield bench


@contextlib.asynccontextmanager
async def open_lab(stack: Stack, folder: Path) -> AsyncIterator[Lab]:
    """Build a lab on running servers; nothing of it is left running."""
    async with contextlib.AsyncExitStack() as cleanup:
        command = [sys.executable, "-m", "drills.world", "--folder", str(folder / "world")]
        process = spawn("world", command, log=folder / "world.log", env=dict(os.environ), cwd=ROOT)
        cleanup.push_async_callback(process.stop)
        started = folder / "world" / "world.json"
        await eventually(started.exists, within_s=60, what=f"the world ready (log: {folder / 'world.log'})")
        world = await cleanup.enter_async_context(World(json.loads(started.read_text())))
        parts = await cleanup.enter_async_context(open_parts(stack, ROOT, folder, PRELOADED))
        yield Lab(parts, world, folder)


class Bench:
    """One case's own ledger, accounts, task queue and processes."""

    def __init__(self, lab: Lab, number: int, settings: dict[str, Any], cleanup: contextlib.AsyncExitStack) -> None:
        self.lab = lab
        self.world = lab.world
        self.account = f"case{number}"
        self.database = f"case_{number}_{secrets.token_hex(4)}"  # several labs may share a server
        self.dsn = lab.parts.dsn(self.database)
        self.queue = f"case-{number}"
        self.folder = lab.folder / self.account
        self.folder.mkdir()
        self._cleanup = cleanup
        self._processes = 0
        timing = QUICK | settings.pop("timing", {})
        listeners = lab.world.listeners | settings.pop("listeners", {})
        contracts = {"mail": {"clock_skew_s": 0.1}} | settings.pop("contracts", {})
        self.settings = SandboxSettings.model_validate(
            {
                "listeners": listeners,
                "account": self.account,
                "completion": "receipt",
                "timing": timing,
                "contracts": contracts,
                **settings,
            }
        )

    # in this process ---------------------------------------------------------------------------------------------

    async def ledger_database(self, name: str) -> str:
        """Make one more empty, migrated ledger; return its DSN."""
        return await self.lab.parts.make_ledger(name)

    async def system(
        self,
        *,
        dsn: str | None = None,
        change: Callable[[Destination], Destination] | None = None,
        deadline_s: float = 4.0,
        broker: Broker | None = None,
        **settings: Any,
    ) -> System:
        """The effects of one more process, in this one. `change` may rebuild a destination before it is registered."""
        own = self.settings.model_copy(update=settings)
        destinations = [change(d) if change else d for d in build_sandbox(own, credentials=broker)]
        ledger = await self._cleanup.enter_async_context(Ledger(dsn or self.dsn, deadline_s=deadline_s))
        await self._stamp(dsn or self.dsn, destinations)
        system = System(ledger, Registry(destinations), this_process())
        self._cleanup.push_async_callback(system.drain, 0.0)
        if broker is not None:
            await register_contracts(ledger, system.registry)
            await broker.open(Leases(ledger, uses_of(d.contract for d in destinations), f"{self.account}:{id(broker)}"))
            self._cleanup.push_async_callback(broker.close)
        return system

    def lease_everything(self, destination: str = "payments") -> None:
        """From here on the destination's contract leases the credentials of its write path and of every route."""
        uses = [
            {"name": f"{self.account}/{purpose}", "scope": f"{destination}:{'write' if purpose == 'write' else 'read'}"}
            for purpose in PURPOSES
        ]
        contracts = {**self.settings.contracts}
        contracts[destination] = {**contracts.get(destination, {}), "credentials": uses}
        self.settings = self.settings.model_copy(update={"contracts": contracts})

    def broker(self, tick_s: float = 0.3, **more: Any) -> Broker:
        """The leases of one more process, from the world's lease manager."""
        paths = {
            f"{self.account}/{purpose}": {
                "path": f"{self.account}/creds/{purpose}",
                "secret_field": "token",
                "principal": f"agent-{self.account}",
                "scope_field": "scope",
            }
            for purpose in PURPOSES
        }
        vault = {"address": self.world.listeners["leases"], "token": default_token(self.account), "credentials": paths}
        provider = VaultProvider(VaultSettings.model_validate(vault))
        return Broker(provider, BrokerSettings(tick_s=tick_s, **more))

    @staticmethod
    async def _stamp(dsn: str, destinations: Sequence[Destination]) -> None:
        """What `register_contracts` writes. Cases vary a contract's timing without raising its version, which a
        deployment may not."""
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:
            for one in (destination.contract for destination in destinations):
                await link.execute(
                    "INSERT INTO actonce.contract (name, digest, version, body) VALUES (%s, %s, %s, %s)"
                    " ON CONFLICT DO NOTHING",
                    (one.name, one.digest, one.version, Jsonb(one.model_dump(mode="json"))),
                )

    async def pg_proxy(self) -> PgProxy:
        """A proxy of our own in front of the ledger, which knows a COMMIT when it sees one."""
        parts = urlsplit(self.dsn)
        assert parts.hostname is not None and parts.port is not None
        return await self._cleanup.enter_async_context(PgProxy(self.dsn))

    def request(self, name: str = "1", **change: Any) -> OperationRequest:
        """An operation of this bench: same `name`, same operation."""
        values: dict[str, Any] = {
            "tenant": "default",
            "task_id": f"default/single/{self.account}-{name}",
            "step": "only",
            "destination": "payments",
            "action": "refund",
            "payload": {**REFUND, "payment_id": f"pay_{self.account}_{name}"},
        }
        return OperationRequest.model_validate(values | change)

    # the world's own word ----------------------------------------------------------------------------------------

    async def configure(self, destination: str = "payments", **modes: Any) -> None:
        await self.world.configure(self.account, destination, **modes)

    def lines(self, kind: str, operation_id: str | None = None, destination: str = "payments") -> list[dict[str, Any]]:
        """This account's journal lines of one kind."""
        return [
            line
            for line in self.world.journal()
            if line["kind"] == kind
            and line.get("account") == self.account
            and line.get("destination") == destination
            and operation_id in (None, line.get("operation_id"))
        ]

    def requests(self, operation_id: str | None = None, destination: str = "payments") -> list[dict[str, Any]]:
        """Writes that arrived whole."""
        return [r for r in self.lines("request", operation_id, destination) if r["role"] == "effect"]

    def effects(self, operation_id: str | None = None, destination: str = "payments") -> list[dict[str, Any]]:
        return self.lines("effect", operation_id, destination)

    # the ledger's rows -------------------------------------------------------------------------------------------

    async def rows(self, table: str, operation_id: str | None = None, dsn: str | None = None) -> list[dict[str, Any]]:
        query = sql.SQL("SELECT * FROM actonce.{}").format(sql.Identifier(table))
        async with await psycopg.AsyncConnection.connect(dsn or self.dsn, row_factory=dict_row) as link:
            rows = await (await link.execute(query)).fetchall()
        if table == "audit":  # a table has no order, and sealing moves its rows
            rows.sort(key=lambda row: row["audit_id"])
        return [r for r in rows if operation_id in (None, r.get("operation_id"))]

    async def operation(self, operation_id: str | None = None, dsn: str | None = None) -> dict[str, Any]:
        (row,) = await self.rows("operation", operation_id, dsn)
        return row

    async def until_state(self, *states: str, operation_id: str | None = None, within_s: float = 40) -> dict[str, Any]:
        """Wait until the one operation is in one of these states."""

        async def check() -> dict[str, Any] | None:
            rows = await self.rows("operation", operation_id)
            return rows[0] if len(rows) == 1 and rows[0]["state"] in states else None

        what = f"operation of {self.account} {' or '.join(states)}"
        return await eventually(check, within_s=within_s, what=what, every_s=0.1)

    async def until_decidable(self, operation_id: str | None = None) -> None:
        """Wait until the ledger's clock says that a person may decide."""

        async def check() -> bool:
            query = (
                "SELECT bool_and(clock_timestamp() > decide_at)"
                " FROM actonce.operation WHERE %(id)s::text IS NULL OR operation_id = %(id)s"
            )
            async with await psycopg.AsyncConnection.connect(self.dsn) as link:
                row = await (await link.execute(query, {"id": operation_id})).fetchone()
            return bool(row and row[0])

        await eventually(check, within_s=30, what=f"T of {self.account} passed", every_s=0.1)

    # processes ---------------------------------------------------------------------------------------------------

    def environment(self, **more: str) -> dict[str, str]:
        world = self.folder / "world.json"
        world.write_text(self.settings.model_dump_json(), encoding="utf-8")
        return {
            **self.lab.parts.env,
            "ACTONCE_LEDGER_DSN": self.dsn,
            "ACTONCE_TASK_QUEUE": self.queue,
            "ACTONCE_WORLD": str(world),
            "ACTONCE_WATCH_EVERY_S": "0.3",
            "ACTONCE_WATCH_IDLE_S": "3",
            "ACTONCE_WATCH_HELD_AGAIN_S": "2",
            **more,
        }

    async def start(self, program: str, *args: str, role: str | None = None, **env: str) -> Process:
        """Start one program of the project and wait until it says that it is ready."""
        self._processes += 1
        name = f"{role or program.removeprefix('-m ')}-{self._processes}".replace("/", "_")
        process = await Process.start(
            self.lab.parts.zygote,
            name,
            program,
            args,
            env=self.environment(**env),
            log=self.folder / f"{name}.log",
            on_event=lambda _kind, _fields: None,
            cwd=ROOT,
        )
        self._cleanup.push_async_callback(process.kill)
        await process.until_ready()
        return process

    async def worker(self, program: str = "worker.py", **env: str) -> Process:
        return await self.start(program, "run", role="worker", **env)

    async def watch(self, **env: str) -> Process:
        return await self.start("worker.py", "watch", role="watch", **env)

    async def entry(self, **env: str) -> str:
        """Start the entry service; return its URL."""
        process = await self.start("-m actonce.entry", role="entry", ACTONCE_ENTRY_PORT="0", **env)
        return str(process.ready["url"])

    def caller(self, url: str) -> httpx.AsyncClient:
        """Whoever asks an entry of this bench, with a token."""
        return httpx.AsyncClient(base_url=url, headers=self.lab.parts.shown, timeout=30, trust_env=False)

    # tasks -------------------------------------------------------------------------------------------------------

    def task(self, name: str = "1", task_type: str = "single", payload: dict[str, Any] | None = None) -> TaskInput:
        key = f"{self.account}-{name}"
        given = payload or {
            "destination": "payments",
            "action": "refund",
            "payload": {**REFUND, "payment_id": f"pay_{self.account}_{name}"},
        }
        return TaskInput(
            tenant="default",
            task_id=f"default/{task_type}/{key}",
            task_type=task_type,
            task_key=key,
            payload=given,
        )

    async def start_task(self, task: TaskInput, **options: Any) -> WorkflowHandle[Any, Any]:
        """Start the workflow of a task as the entry does."""
        return await self.lab.temporal.start_workflow(
            f"{task.task_type}.v1", task, id=task.task_id, task_queue=self.queue, result_type=dict, **options
        )


def operation_id_of(task: TaskInput | OperationRequest, step: str = "only", iteration: int = 0) -> str:
    return derive_operation_id(task.tenant, task.task_id, step, iteration)


def key_of(request: OperationRequest) -> OperationKey:
    operation_id = derive_operation_id(request.tenant, request.task_id, request.step, request.iteration)
    return OperationKey(request.tenant, request.destination, request.action, operation_id)


async def activities_of(handle: WorkflowHandle[Any, Any]) -> list[str]:
    """The activity types of a run, in the order in which they were scheduled, without the prefix and version."""
    history = await handle.fetch_history()
    scheduled = [
        e.activity_task_scheduled_event_attributes.activity_type.name
        for e in history.events
        if e.HasField("activity_task_scheduled_event_attributes")
    ]
    return [name.removeprefix("actonce.").removesuffix(".v1") for name in scheduled]


async def lost(system: System, request: OperationRequest) -> None:
    """Issue it, and have its answer lost. On a machine that is busy enough, a send is sometimes provably not made."""
    while (result := await perform(system, request)).status == "ready":
        assert result.how == "not_sent", result
    assert (result.status, result.how) == ("unknown", "unknown"), result


async def settle(system: System, request: OperationRequest, within_s: float = 30.0) -> Any:
    """Do what the guard does after an issue with an unknown end, until nothing is left to wait for."""
    deadline = time.monotonic() + within_s
    while True:
        seen = await settle_step(system, key_of(request))
        if seen.next not in ("wait", "beacon", "probe", "cancel_key"):
            return seen
        assert time.monotonic() < deadline, f"still {seen.next} after {within_s} s: {seen.words}"
        await asyncio.sleep(seen.wait_s)


def body_of(rows: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(rows, default=str)


# side by side ----------------------------------------------------------------------------------------------------

Numbers = dict[str, float]
CaseFn = Callable[..., Awaitable[Numbers | None]]
"""A case may return what it measured: it becomes a property of the test in the JUnit file, and is not judged."""


class Runner:
    """Runs collected cases together."""

    def __init__(self, lab: Lab, items: Sequence[pytest.Item]) -> None:
        gate = asyncio.Semaphore(AT_ONCE_SHARED if "PYTEST_XDIST_WORKER" in os.environ else AT_ONCE_MAX)
        self._tasks: dict[str, asyncio.Task[Numbers | None]] = {}
        for item in items:  # of all processes: the cases are one's alone, see tests/sharing.py
            fn: CaseFn | None = getattr(getattr(item, "function", None), "case_function", None)
            if fn is not None:
                params = dict(item.callspec.params) if hasattr(item, "callspec") else {}
                self._tasks[item.nodeid] = asyncio.ensure_future(self._one(gate, fn, lab, params))

    @staticmethod
    async def _one(gate: asyncio.Semaphore, fn: CaseFn, lab: Lab, params: dict[str, Any]) -> Numbers | None:
        async with gate, asyncio.timeout(90):
            return await fn(lab, **params)

    async def result(self, nodeid: str) -> Numbers | None:
        return await self._tasks[nodeid]

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def side_by_side(fn: CaseFn) -> CaseFn:
    """Make a case `async def test_x(lab, **params)` one that runs with the others while they wait."""

    @functools.wraps(fn)
    async def wrapper(runner: Runner, request: pytest.FixtureRequest, **_params: Any) -> None:
        measured = await runner.result(request.node.nodeid)
        request.node.user_properties.extend((measured or {}).items())

    parameters = [p for name, p in inspect.signature(fn).parameters.items() if name != "lab"]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    fixtures = [inspect.Parameter(name, kind) for name in ("runner", "request")]
    wrapper.__signature__ = inspect.Signature([*fixtures, *parameters])  # type: ignore[attr-defined]
    wrapper.case_function = fn  # type: ignore[attr-defined]
    # Not by SIGALRM: the freeze timer needs that signal's default action, and refuses to send without it.
    bounded = pytest.mark.timeout(240, method="thread")
    return bounded(pytest.mark.asyncio(loop_scope="session")(wrapper))
