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

from actonce.contracts.errors import LedgerError
from actonce.ledger import records, watch
from actonce.ledger.store import Ledger

log = structlog.get_logger("actonce.health")

State = Literal["up", "degraded", "down", "unknown"]
RouteProbe = Callable[[], Awaitable[str]]
"""Reads one page of a route; returns what it saw in words, raises when it saw nothing usable."""
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


Probe = Callable[[], Awaitable[Reading]]


@dataclass(frozen=True)
class ProbeSettings:
    """All in seconds."""

    deadline_s: float = 4.0  # one probe
    polled_within_s: float = 75.0  # an idle worker asks again about every 60 s, when its long poll ends
    waiting_s: float = 3.0  # a task that waits longer while nobody asks for work shows that nobody is there
    routes_every_s: float = 15.0  # reads at destinations cost somebody something


async def connect_by_environment() -> Client:
    """A client from TEMPORAL_* settings, which connects at its first call."""
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "127.0.0.1:7233")
    return await Client.connect(**config, lazy=True)


@dataclass
class Prober:
    """One per watching process. `probe_once` is one turn. `routes`: `destination.route` → a probe; `others`: whatever
    else this deployment needs, each with its own reading."""

    ledger: Ledger
    task_queues: Sequence[str]
    routes: Mapping[str, RouteProbe] = field(default_factory=dict)
    connect: Connect = connect_by_environment
    settings: ProbeSettings = ProbeSettings()
    others: Mapping[str, Probe] = field(default_factory=dict)
    _client: Client | None = None
    _routes_at: float = float("-inf")

    async def probe_once(self) -> list[Reading]:
        """Reach everything, write it down, return it. Raises LedgerUnavailable when it cannot be written."""
        probes = [self._temporal(), *(self._pollers(queue) for queue in self.task_queues)]
        probes += [self._other(name, probe) for name, probe in self.others.items()]
        if time.monotonic() - self._routes_at >= self.settings.routes_every_s:
            self._routes_at = time.monotonic()
            probes += [self._route(name, probe) for name, probe in self.routes.items()]
        readings = list(await asyncio.gather(*probes))
        for reading in readings:
            await self._write(reading)
        readings.append(await self._ledger())
        return readings

    async def _write(self, r: Reading) -> None:
        await watch.set_dependency(
            self.ledger, name=r.name, kind=r.kind, state=r.state, how=r.how, detail=r.detail, blocks=r.blocks
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
        how = "read one page of this route"
        blocks = "reconciling unknown outcomes at this destination"
        try:
            async with asyncio.timeout(self.settings.deadline_s):
                return Reading(f"route:{name}", "route", "up", how, await probe(), blocks)
        except TimeoutError:
            detail = f"no answer within {self.settings.deadline_s:g} s"
        except Exception as error:  # as above
            detail = f"{type(error).__name__}: {error}"
        return Reading(f"route:{name}", "route", "down", how, detail, blocks)

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
