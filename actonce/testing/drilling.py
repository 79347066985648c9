"""One test of somebody's own workflow as a drill: their programs as processes, a controlled destination, one fault.

    trip = drill.task("trip", "t1", payload, steps=["seat", "payment"])
    async with drill.kill_after_commit(trip, "payment"):
        await drill.start(trip)

Contract: everything that happens goes to a record (`actonce.evidence`), and the record alone is judged: the fault must
be proven to have struck the named operation, each planned operation must have had the effects that are expected of it,
and the ledger must say the same. The system is met as processes and through sockets; tasks are started through the
entry service. Nothing here sleeps to wait for an event. Pages go to a sink and are recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from actonce.contracts.identity import derive_operation_id
from actonce.evidence import Cell as CellLine
from actonce.evidence import Drill as DrillRecord
from actonce.evidence import (
    EvidenceWriter,
    Expected,
    Fault,
    Judged,
    PlannedOperation,
    PlannedTask,
    journal_events,
    judge_single,
)
from actonce.evidence.record import Proof
from actonce.evidence.writer import utc_now
from actonce.testing import strikes
from actonce.testing.destination import Held, LatchDestination
from actonce.testing.export import export_ledger, export_task
from actonce.testing.faults import Proxied, WireFault
from actonce.testing.latches import LatchPoint
from actonce.testing.parts import Parts, address
from actonce.testing.processes import Process
from actonce.testing.selftest import SelfTest
from actonce.testing.settling import quiet, tasks_ended
from actonce.testing.sink import Paged, Sink
from actonce.testing.site import Invalid, Site
from actonce.testing.tap import Tap
from actonce.testing.waiting import NeverHappened
from actonce.version import __version__

TENANT = "drill"
ONCE = Expected(outcomes=["committed"], effects=(1, 1))
ENTRY_S = 15.0  # the entry's own deadline is 4 s
# Of a contract, for drills: a permit lives ten times a slow transaction, and nobody waits long. Seconds.
SHORT_TIMES = {
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


@dataclass(frozen=True)
class DrillPlan:
    """What is drilled: the project's programs, its workflows, and the destinations that stand in for the real ones.

    A program is a file and its arguments, or `-m module` and its arguments; it is ready when it prints a JSON line with
    `"event": "ready"`, and finds its settings in the environment: ACTONCE_LEDGER_DSN, ACTONCE_TASK_QUEUE,
    TEMPORAL_ADDRESS, ACTONCE_PAGE_URLS, `env`, and for each destination `shop` SHOP_WRITE_URL, SHOP_LIST_URL and
    SHOP_BY_KEY_URL (with `/v1/acme` at the end).
    """

    project: Path
    workflows: Mapping[str, str]  # task type → workflow name
    destinations: Sequence[str]
    worker: Sequence[str] = ("worker.py", "run")
    workers: int = 2  # one is killed, another must be there
    watch: Sequence[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    honours_keys: bool = False  # of the destinations
    settle_s: float = 60.0  # until every task has ended or is held, after the body
    keep: Path | None = None  # each test's evidence is copied there, under its name; what is there stays


@dataclass(frozen=True)
class Arm:
    """The system whole, or with one protection taken out and the finding that must name it."""

    control: str | None = None
    finding: str | None = None

    def __str__(self) -> str:
        return "guarded" if self.control is None else f"without:{self.control}"


@dataclass(frozen=True)
class DrilledTask:
    """One planned task."""

    task_type: str
    key: str
    payload: dict[str, Any]
    operations: tuple[PlannedOperation, ...]
    ends: tuple[str, ...]

    @property
    def task_id(self) -> str:
        return f"{TENANT}/{self.task_type}/{self.key}"

    def operation(self, step: str) -> PlannedOperation:
        """The operation of a step. Raises KeyError."""
        return {operation.step: operation for operation in self.operations}[step]


class Drill(Site):
    """Use the fixture `drill` (actonce.testing.plugin)."""

    def __init__(
        self,
        parts: Parts,
        plan: DrillPlan,
        arm: Arm,
        run_id: str,
        number: int,
        *,
        name: str,
        folder: Path,
        proven: Sequence[SelfTest] = (),
    ) -> None:
        self.test = name
        self.evidence = folder / "evidence"
        writer = EvidenceWriter(self.evidence, _record(name, plan))
        super().__init__(parts, str(arm), run_id, number, folder=folder / "processes", writer=writer)
        self.plan = plan
        self.arm = arm
        self.run_id = run_id
        self.destinations: dict[str, LatchDestination] = {}
        self.sink = Sink(on_page=self._on_page)
        self.tasks: list[DrilledTask] = []
        self.entry_url = ""
        self._fault: Fault | None = None
        for test in proven:
            writer.append("drill", "self_test", None, name=test.name, ok=test.ok, observed=test.observed)
        self._things = contextlib.AsyncExitStack()

    # its life ------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Ledger, destinations, proxies, processes. Raises ProcessError when a program does not get ready."""
        await self.make_ground()
        await self._things.enter_async_context(self.sink)
        env = self.ground_environment()
        for name in self.plan.destinations:
            env |= await self._add_destination(name)
        types = json.dumps(dict(self.plan.workflows))
        oncall = self.sink.url("oncall")
        env |= {
            "ACTONCE_PAGE_URLS": oncall,
            "ACTONCE_PAGE_WARNING_URLS": oncall,
            "ACTONCE_ENTRY_PORT": "0",
            "ACTONCE_TASK_TYPES": types,
        }
        env |= self.plan.env
        started = [await self._start(f"worker-{n + 1}", self.plan.worker, env) for n in range(self.plan.workers)]
        if self.plan.watch is not None:
            started.append(await self._start("watch", self.plan.watch, env))
        entry = await self.spawn("entry", "-m actonce.entry", (), env)
        await asyncio.gather(*(process.until_ready() for process in (*started, entry)))
        self.entry_url = str(entry.ready["url"])

    async def _start(self, role: str, command: Sequence[str], env: Mapping[str, str]) -> Process:
        program, *arguments = command
        if self.arm.control is not None:
            arguments = [self.arm.control, program, *arguments]
            program = "-m actonce.testing.controls"
        return await self.spawn(role, program, arguments, env)

    async def _add_destination(self, name: str) -> dict[str, str]:
        destination = LatchDestination(name, self.evidence, self.run_id, honours_keys=self.plan.honours_keys)
        self.destinations[name] = await self._things.enter_async_context(destination)
        env = {}
        for route, url in destination.urls.items():
            proxy = await self.add_proxy(f"{name}.{route}", *address(url))
            host, port = proxy.host, proxy.port
            if route == "write":
                tap = await self.add_tap(f"{name}.{route}")
                host, port = tap.host, tap.port
            env[f"{name}_{route}_url".upper()] = f"http://{host}:{port}/v1/{destination.account}"
        return env

    async def finish(self) -> Judged:
        """Export, end every process, complete the record, and judge it. Raises EvidenceError."""
        await export_ledger(self.ledger, self.writer, self.name, set())
        for task in self.tasks:
            await export_task(self.parts.temporal, self.ledger, self.writer, self.name, task.task_id)
        await self.close()
        for name, destination in self.destinations.items():
            lines = _lines(destination.journal.path)
            self.writer.extend(journal_events(lines, name, lambda _: self.name))
            self.writer.append("destination", "journal_end", None, journal=name, lines=destination.journal.lines)
        self.writer.cell(self._line())
        self.writer.close()
        return await asyncio.to_thread(judge_single, self.evidence)

    async def close(self) -> None:
        await super().close()
        await self._things.aclose()

    def _line(self) -> CellLine:
        planned = [operation for task in self.tasks for operation in task.operations]
        if self._fault is None or not planned:
            raise Invalid(f"{self.name}: no fault was put to any operation; a drill without one shows nothing")
        return CellLine(
            cell=self.name,
            params={},
            arm="guarded" if self.arm.control is None else f"control:{self.arm.control.replace(':', '.')}",
            control=self.arm.control,
            expected_finding=self.arm.finding,
            expected=ONCE,
            operations=planned,
            tasks=[PlannedTask(task_id=task.task_id, states=list(task.ends)) for task in self.tasks],
            task_ids=[task.task_id for task in self.tasks],
            fault=self._fault,
        )

    # tasks ---------------------------------------------------------------------------------------------------------

    def task(
        self,
        task_type: str,
        name: str,
        payload: dict[str, Any],
        *,
        steps: Sequence[str] | Mapping[str, tuple[str, str]],
        ends: Sequence[str] = ("complete",),
        expected: Mapping[str, Expected] | None = None,
    ) -> DrilledTask:
        """Plan a task, before it is started. `name` is unique in this test.

        `steps` are its operations: names (destination: the plan's only one; action: the step's name), or step →
        (destination, action). `expected` is for steps that are not to be committed with one effect.
        """
        key = f"{self.run_id}-{self.number}-{name}"
        task_id = f"{TENANT}/{task_type}/{key}"
        where = steps if isinstance(steps, Mapping) else {step: (self.plan.destinations[0], step) for step in steps}
        operations = tuple(
            PlannedOperation(
                operation_id=derive_operation_id(TENANT, task_id, step, 0),
                tenant=TENANT,
                destination=destination,
                action=action,
                task_id=task_id,
                step=step,
                expected=(expected or {}).get(step),
            )
            for step, (destination, action) in where.items()
        )
        planned = DrilledTask(task_type, key, payload, operations, tuple(ends))
        self.tasks.append(planned)
        return planned

    async def start(self, task: DrilledTask) -> None:
        """Start it through the entry service, as anyone would. Raises Invalid when it is not accepted."""
        async with httpx.AsyncClient(base_url=self.entry_url, timeout=ENTRY_S, trust_env=False) as http:
            headers = {"Idempotency-Key": task.key, "Actonce-Tenant": TENANT, **self.parts.shown}
            answer = await http.post(f"/v1/tasks/{task.task_type}", json=task.payload, headers=headers)
        if answer.status_code not in (200, 202):
            raise Invalid(f"{task.task_id} was not accepted: {answer.status_code} {answer.text[:300]}")

    async def settle(self) -> None:
        """Every task at its end or held, then quiet. What did not happen is on record, for the judge."""
        ends = {task.task_id: {*task.ends, "held", "failed"} for task in self.tasks}
        await tasks_ended(self, ends, within_s=self.plan.settle_s)
        await quiet(self, {o.operation_id for task in self.tasks for o in task.operations})

    # faults --------------------------------------------------------------------------------------------------------

    def latch(self, point: LatchPoint, task: DrilledTask, step: str) -> Held:
        """A latch for one operation, at its destination."""
        operation = task.operation(step)
        return self.destinations[operation.destination].latch(point, operation.operation_id)

    def tap(self, task: DrilledTask, step: str) -> Tap:
        """The tap on the path by which an operation is sent."""
        return self.taps[f"{task.operation(step).destination}.write"]

    def sender(self, task: DrilledTask, step: str) -> Process:
        """The process that sent an operation last, by the kernel's own table. Raises Invalid."""
        return self.owner_of(strikes.last_sent(self.tap(task, step), task.operation(step).operation_id))

    def struck(
        self, task: DrilledTask, step: str, proof: Sequence[Proof], self_test: str | None = None, **more: Any
    ) -> None:
        """Say which operation the fault is to strike and which proofs must be on record (`actonce.evidence.Fault`)."""
        if self._fault is not None:
            raise Invalid(f"{self.name}: one fault for each test, so that what follows is its doing")
        operation = task.operation(step)
        self._fault = Fault(
            spec={"step": step, "proof": list(proof)},
            targets=[operation.operation_id],
            proof=list(proof),
            proxies=[self.proxies[f"{operation.destination}.write"].name],
            self_test=self_test,
            **more,
        )

    @contextlib.asynccontextmanager
    async def kill_after_commit(
        self, task: DrilledTask, step: str, number: signal.Signals = signal.SIGKILL
    ) -> AsyncIterator[None]:
        """The worker that sent it is killed when the destination has committed and has not yet answered."""
        self.struck(task, step, strikes.KILLED, signals=[number.name])
        held = self.latch("committed", task, step)
        yield
        operation_id = task.operation(step).operation_id
        await strikes.kill_sender(self, self.tap(task, step), operation_id, held, number)

    @contextlib.asynccontextmanager
    async def lose_answer(self, task: DrilledTask, step: str, how: WireFault = WireFault.CLOSED) -> AsyncIterator[None]:
        """The destination commits, and its answer is lost on the way."""
        self.struck(task, step, strikes.LOST_ANSWER, f"{how}_downstream")
        held = self.latch("committed", task, step)
        yield
        operation_id = task.operation(step).operation_id
        await strikes.lose_answer(self.tap(task, step), self._way(task, step), operation_id, held, how)

    @contextlib.asynccontextmanager
    async def lose_request(
        self, task: DrilledTask, step: str, how: WireFault = WireFault.CLOSED
    ) -> AsyncIterator[None]:
        """The request leaves the worker, complete, and never arrives."""
        self.struck(task, step, strikes.LOST_REQUEST, f"{how}_upstream")
        operation_id = task.operation(step).operation_id
        gate = strikes.gate_for(self.tap(task, step), operation_id)
        yield
        await strikes.lose_request(self.tap(task, step), self._way(task, step), operation_id, gate, how)

    def _way(self, task: DrilledTask, step: str) -> Proxied:
        return self.proxies[f"{task.operation(step).destination}.write"]

    def _on_page(self, page: Paged) -> None:
        self.writer.append("page", "page", self.name, mono_ns=page.mono_ns, at=page.at, **page.about())


def _record(name: str, plan: DrillPlan) -> DrillRecord:
    return DrillRecord(
        drill=name,
        claim="each operation has the effects that are expected of it, and the ledger says the same",
        seed=0,
        started_at=utc_now(),
        commit="unknown",
        versions={"actonce": __version__, "python": platform.python_version(), "platform": platform.platform()},
        config={"worker": list(plan.worker), "workers": plan.workers},
        quick=True,
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


__all__ = [
    "ONCE",
    "SHORT_TIMES",
    "Arm",
    "Drill",
    "DrillPlan",
    "DrilledTask",
    "Expected",
    "Invalid",
    "Judged",
    "NeverHappened",
]
