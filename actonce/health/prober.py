"""Reaches each part a deployment needs and writes what it found to the ledger.

Promises: a reading says `up` only after the part really answered, within a deadline; one part that hangs delays no
other reading; what could not be asked is `unknown`, never `up`. Performs no effect at any destination: it only reads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal

import structlog
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
)
from temporalio.client import Client
from temporalio.envconfig import ClientConfig

from actonce.contracts.contract import Contract
from actonce.contracts.errors import LedgerError
from actonce.contracts.verdict import Reading as RouteReading
from actonce.ledger import records, watch
from actonce.ledger.store import Ledger

log = structlog.get_logger("actonce.health")

State = Literal["up", "degraded", "down", "unknown"]
RouteProbe = Callable[[], Awaitable[RouteReading]]
"""Reads a route; raises when it saw nothing usable. `complete` counts only where it was read to its end (`read`)."""
Connect = Callable[[], Awaitable[Client]]

_KINDS = {
    "workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
}


@dataclass(frozen=True)
class Reading:
    """What one probe found."""

    name: str
    kind: str
    state: State
    how: str
    detail: str = ""
    blocks: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)  # for metrics


Probe = Callable[[], Awaitable[Reading]]


@dataclass(frozen=True)
class ProbeSettings:
    """All in seconds."""

    deadline_s: float = 4.0  # one probe
    polled_within_s: float = 75.0  # an idle worker asks again about every 60 s, when its long poll ends
    waiting_s: float = 3.0  # a task that waits longer while nobody asks for work shows that nobody is there
    routes_every_s: float = 15.0  # reads at destinations cost somebody something
    forget_after_s: float = 86_400.0  # a reading that nobody renews is about something that was taken away


async def connect_by_environment() -> Client:
    """A client from TEMPORAL_* settings, which connects at its first call."""
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "127.0.0.1:7233")
    return await Client.connect(**config, lazy=True)


@dataclass
class Prober:
    """One per watching process. `probe_once` is one turn.

    `routes`: `destination.route` → a probe; `contracts`: of the destinations they belong to; `others`: whatever else
    this deployment needs, each with its own reading.
    """

    ledger: Ledger
    task_queues: Sequence[str]
    routes: Mapping[str, RouteProbe] = field(default_factory=dict)
    connect: Connect = connect_by_environment
    settings: ProbeSettings = ProbeSettings()
    others: Mapping[str, Probe] = field(default_factory=dict)
    contracts: Sequence[Contract] = ()
    _client: Client | None = None
    _routes_at: float = float("-inf")

    async def probe_once(self) -> list[Reading]:
        """Reach everything, write it down, return it. Raises LedgerUnavailable when it cannot be written."""
        probes = [self._temporal(), *(self._pollers(queue) for queue in self.task_queues)]
        probes += [self._other(name, probe) for name, probe in self.others.items()]
        with_routes = time.monotonic() - self._routes_at >= self.settings.routes_every_s
        if with_routes:
            self._routes_at = time.monotonic()
            probes += [self._route(name, probe) for name, probe in self.routes.items()]
        readings = list(await asyncio.gather(*probes))
        if with_routes:
            readings += await self._destinations({r.name: r for r in readings})
            await watch.forget_dependencies(self.ledger, self.settings.forget_after_s)
        for reading in readings:
            await self._write(reading)
        readings.append(await self._ledger())
        return readings

    async def _write(self, r: Reading) -> None:
        await watch.set_dependency(
            self.ledger,
            name=r.name,
            kind=r.kind,
            state=r.state,
            how=r.how,
            detail=r.detail,
            blocks=r.blocks,
            measures=r.measures,
        )

    async def _ledger(self) -> Reading:
        """Write, also where that needs new space, and read back.

        A ledger that takes nothing cannot be told of here; the entry service and the alarm notice it by themselves.
        """
        began = time.monotonic()
        how = "wrote this reading and read it back; wrote something that needs new space"
        reading = Reading("ledger", "ledger", "up", how, blocks="everything")
        try:
            await watch.prove_writable(self.ledger)
        except LedgerError as error:
            reading = replace(reading, state="down", detail=str(error))
        await self._write(reading)
        rows = [r for r in await records.list_dependencies(self.ledger) if r["name"] == "ledger"]
        took_s = time.monotonic() - began
        if not rows or rows[0]["age_s"] > took_s + 1.0:
            raise LedgerError("the ledger took a reading and does not show it; is a pooler sending reads to a replica?")
        return reading

    async def _temporal(self) -> Reading:
        async def ask(client: Client) -> tuple[State, str]:
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=client.namespace), timeout=self._timeout
            )
            return "up", f"namespace {client.namespace}"

        how = "described the namespace through the frontend"
        state, detail = await self._ask(ask)
        return Reading("temporal", "temporal", state, how, detail, "starting and continuing tasks")

    async def _pollers(self, queue: str) -> Reading:
        how = "asked Temporal who asks for work on this task queue"
        blocks = "tasks of this queue: they stay queued"

        async def ask(client: Client) -> tuple[State, str]:
            found = {kind: await self._describe(client, queue, number) for kind, number in _KINDS.items()}
            verdicts = {kind: _someone_works(answer, self.settings) for kind, answer in found.items()}
            bad = [f"{kind}: {words}" for kind, (works, words) in verdicts.items() if not works]
            return ("down", "; ".join(bad)) if bad else ("up", verdicts["workflow"][1])

        state, detail = await self._ask(ask)
        if state == "down" and detail.startswith(_UNREACHED):
            state = "unknown"
        return Reading(f"pollers:{queue}", "pollers", state, how, detail, blocks)

    async def _describe(self, client: Client, queue: str, kind: TaskQueueType.ValueType) -> DescribeTaskQueueResponse:
        return await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=client.namespace,
                task_queue=TaskQueue(name=queue),
                task_queue_type=kind,
                report_stats=True,
            ),
            timeout=self._timeout,
        )

    async def _ask(self, ask: Callable[[Client], Awaitable[tuple[State, str]]]) -> tuple[State, str]:
        try:
            async with asyncio.timeout(self.settings.deadline_s):
                self._client = self._client or await self.connect()
                return await ask(self._client)
        except TimeoutError:
            return "down", f"{_UNREACHED}: no answer within {self.settings.deadline_s:g} s"
        except Exception as error:  # a probe's business is to report, whatever the client library raises
            return "down", f"{_UNREACHED}: {error}"

    async def _route(self, name: str, probe: RouteProbe) -> Reading:
        how = "read this route"
        blocks = "reconciling unknown outcomes at this destination"
        try:
            async with asyncio.timeout(self.settings.deadline_s):
                read = await probe()
        except TimeoutError:
            detail = f"no answer within {self.settings.deadline_s:g} s"
        except Exception as error:  # as above
            detail = f"{type(error).__name__}: {error}"
        else:
            return self._read(name, read, how, blocks)
        return Reading(f"route:{name}", "route", "down", how, detail, blocks)

    def _read(self, name: str, read: RouteReading, how: str, blocks: str) -> Reading:
        """What a route served, against what its contract declares: rows and total, lag and bound."""
        total = "" if read.declared_total is None else f" of {read.declared_total} declared"
        words = [f"{read.rows_received} rows{total} on {read.pages} pages" + _ENDS.get(read.status, "")]
        measures: dict[str, float] = {}
        if read.status == "read":
            measures["complete"] = float(read.complete)
            words += [] if read.complete else ["incomplete"]
        if read.as_of is not None:
            lag_s, allowed_s = (read.finished_at - read.as_of).total_seconds(), self._lag_allowed_s(name)
            measures |= {"lag_s": max(0.0, lag_s), "lag_excess_s": max(0.0, lag_s - allowed_s)}
            words.append(f"as of {max(0.0, lag_s):.1f} s ago, {allowed_s:.1f} s are allowed")
        bad = not measures.get("complete", 1.0) or measures.get("lag_excess_s", 0.0) > 0
        state: State = "degraded" if bad else "up"
        return Reading(f"route:{name}", "route", state, how, "; ".join(words), blocks, measures)

    def _lag_allowed_s(self, name: str) -> float:
        """As declared; the two clocks may differ by the skew in either direction."""
        for contract in self.contracts:
            for route in contract.routes:
                if f"{contract.name}.{route.name}" == name:
                    return route.lag_s + 2 * contract.clock_skew_s
        return float("inf")

    async def _destinations(self, found: Mapping[str, Reading]) -> list[Reading]:
        """Each destination by its routes, and by what is open there. Nothing is written to it for this."""
        open_ = await records.open_operations(self.ledger) if self.contracts else {}
        readings = []
        for contract in self.contracts:
            routes = [found.get(f"route:{contract.name}.{route.name}") for route in contract.routes]
            states = [route.state if route else "unknown" for route in routes]
            answer = sum(state in ("up", "degraded") for state in states)
            words = [
                f"{answer} of {len(states)} routes answer"
                if states
                else "it has no route: nobody can see whether it is there"
            ]
            words += [f"{n} operations {state}" for state, n in sorted(open_.get(contract.name, {}).items())]
            readings.append(
                Reading(
                    f"destination:{contract.name}",
                    "destination",
                    _together(states),
                    "read its routes; sends are not tried",
                    "; ".join(words),
                    f"{', '.join(sorted(contract.actions))} at {contract.name}",
                    {"routes": float(len(states))},
                )
            )
        return readings

    async def _other(self, name: str, probe: Probe) -> Reading:
        try:
            async with asyncio.timeout(self.settings.deadline_s):
                return await probe()
        except TimeoutError:
            detail = f"no answer within {self.settings.deadline_s:g} s"
        except Exception as error:  # as above
            detail = f"{type(error).__name__}: {error}"
        return Reading(name, name.partition(":")[0], "unknown", "asked it", detail)

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self.settings.deadline_s)


_UNREACHED = "Temporal does not answer"
_ENDS = {"sampled": ", and more that were not read", "looping": ", which repeat themselves"}


def _together(states: Sequence[State]) -> State:
    """A destination is as well as its routes; `unknown` is never `up`."""
    if not states or "unknown" in states:
        return "unknown"
    if len(set(states)) > 1:
        return "degraded"
    return states[0]


def _someone_works(answer: DescribeTaskQueueResponse, settings: ProbeSettings) -> tuple[bool, str]:
    """Does anyone take work here? Temporal forgets a dead poller only after minutes; a waiting task tells sooner."""
    now = time.time()
    ages = [now - p.last_access_time.seconds - p.last_access_time.nanos / 1e9 for p in answer.pollers]
    if not ages or min(ages) > settings.polled_within_s:
        return False, "nobody asks for work" + (f"; the last one did {min(ages):.0f} s ago" if ages else "")
    waiting = answer.stats.approximate_backlog_count
    waiting_s = answer.stats.approximate_backlog_age.ToNanoseconds() / 1e9
    if waiting and waiting_s > settings.waiting_s and min(ages) >= waiting_s:
        return False, f"{waiting} waiting, the oldest for {waiting_s:.0f} s, and nobody has asked for work since"
    words = f"{len(ages)} pollers, the last asked for work {min(ages):.0f} s ago"
    return True, words + (f"; {waiting} waiting" if waiting else "")


async def probe_once(
    ledger: Ledger,
    task_queues: Sequence[str],
    routes: Mapping[str, RouteProbe] | None = None,
    *,
    connect: Connect = connect_by_environment,
    settings: ProbeSettings | None = None,
) -> list[Reading]:
    """One turn of a fresh prober."""
    return await Prober(ledger, task_queues, routes or {}, connect, settings or ProbeSettings()).probe_once()
