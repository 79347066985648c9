"""The composition root: the only file that wires everything.

    python worker.py run      a Temporal worker: workflows and activities
    python worker.py watch    the ledger watcher, the pager and the prober; needs no Temporal to do its duty
    python worker.py restore status | sweep [--without DESTINATION]…    after a restore: compare with the destinations
    python worker.py memory check | rebuild | adopt NAME REASON    what the memory's procedure tells a person to do

Run it from the repository root. Each prints one JSON line `{"event": "ready", ...}` once it works, and stops on
SIGTERM or SIGINT: activities get ACTONCE_SHUTDOWN_GRACE_S seconds; what is then still in flight stays *unknown* in
the ledger and is reconciled by the next worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path

import structlog
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError
from temporalio.worker import Worker

import activities
import workflows
from actonce.contracts.errors import LedgerUnavailable, RestoreRefused, StaleWrite
from actonce.contracts.memory import Unavailable
from actonce.credentials import Broker, load_broker
from actonce.destinations.base import Registry
from actonce.destinations.probe import route_probes
from actonce.destinations.sandbox import load_sandbox
from actonce.effects.guard import NUDGE
from actonce.effects.remembering import adopt_memory, check_memory
from actonce.effects.sweep import LEDGER_DEADLINE_S, sweep
from actonce.effects.system import System, compose
from actonce.effects.watcher import WatchSettings, watch_once
from actonce.health.evaluator import Evaluator
from actonce.health.exposition import own_metrics, serving
from actonce.health.metrics import Collector
from actonce.health.pagebox import LedgerPages
from actonce.health.prober import Probe, Prober, Reading, State
from actonce.health.problems import Problems
from actonce.health.rules import load_rules
from actonce.health.turns import Turns
from actonce.leaving import run_and_leave
from actonce.ledger import memory_use, quarantine
from actonce.ledger import pages as ledger_pages
from actonce.ledger import watch as watch_queries
from actonce.ledger.journal import notice_restore
from actonce.ledger.quarantine import told
from actonce.ledger.store import Ledger
from actonce.logs import configure
from actonce.memory import Memory, embedder_named
from actonce.memory.setting_up import rebuild_index
from actonce.paging import LedgerAlarm, Pager, PagingSettings, open_settings
from actonce.settings import WorkerSettings
from actonce.tracing import SpanQueue, interceptors
from actonce.trail import AuditKeeper
from actonce.version import __version__

log = structlog.get_logger("worker")
_CONNECT_AGAIN_S = 0.5
_NUDGE_AGAIN_S = 10.0
_ALARM_EVERY_S = 3.0
_SPANS_EVERY_S = 5.0


def registry_of(settings: WorkerSettings, broker: Broker | None = None) -> Registry:
    """The destinations of this deployment. Add yours here."""
    return Registry(load_sandbox(settings.world, broker) if settings.world else [])


def composed(settings: WorkerSettings) -> AbstractAsyncContextManager[System]:
    """Ledger (migrated, and the expected one), contracts, leases, owner."""
    broker = load_broker(settings.credentials) if settings.credentials else None
    return compose(
        settings.ledger_dsn.get_secret_value(),
        registry_of(settings, broker),
        broker=broker,
        deployment=settings.deployment,
        ledger_id=settings.ledger_id,
        pool_max=settings.ledger_pool_max,
        memory=memory_of(settings),
        journal=settings.journal,
    )


def memory_of(settings: WorkerSettings) -> Memory:
    """Where tasks remember. It is reached when it is first asked."""
    dsn = (settings.memory_dsn or settings.ledger_dsn).get_secret_value()
    embedder = embedder_named(settings.memory_embedder)
    return Memory(dsn, embedder, deadline_s=settings.memory_deadline_s, memory_id=settings.memory_id)


async def connect_once() -> Client:
    """Connect to Temporal, or raise RuntimeError."""
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "127.0.0.1:7233")
    return await Client.connect(**config, data_converter=pydantic_data_converter)


async def connect(stopping: asyncio.Event) -> Client:
    """Connect to Temporal, however long it takes to come up; gives up when told to stop."""
    while True:
        try:
            return await connect_once()
        except RuntimeError as error:
            if stopping.is_set():
                raise
            log.warning("Temporal does not answer", error=str(error)[:300])
            await asyncio.sleep(_CONNECT_AGAIN_S)


async def run(settings: WorkerSettings) -> None:
    """A Temporal worker until told to stop."""
    stopping = stop_event()
    async with composed(settings) as system, contextlib.AsyncExitStack() as cleanup:
        client = await connect(stopping)
        tracing, spans = interceptors(settings.traces_url, "actonce-worker") if settings.traces_url else ([], None)
        if spans is not None:
            telling = asyncio.create_task(
                forever("traces", _SPANS_EVERY_S, lambda: tell_spans(system.ledger, spans), stopping)
            )
            cleanup.callback(telling.cancel)
        worker = Worker(
            client,
            task_queue=settings.task_queue,
            build_id=settings.build_id or f"actonce-{__version__}",
            workflows=workflows.ALL,
            activities=activities.all_of(system),
            max_concurrent_activities=settings.activities_max,
            graceful_shutdown_timeout=timedelta(seconds=settings.shutdown_grace_s),
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=settings.sticky_timeout_s),
            interceptors=tracing,
        )
        async with worker:
            ready("worker", task_queue=settings.task_queue)
            await stopping.wait()


async def tell_spans(ledger: Ledger, spans: SpanQueue) -> None:
    """Show on the dependency page whether the spans of the worker that told last arrive."""
    await watch_queries.set_dependency(
        ledger,
        name="traces",
        kind="traces",
        state="degraded" if spans.dropped_since_told() else "up",
        how="counted what the trace collector took",
        detail=f"{socket.gethostname()} pid {os.getpid()}: {spans.words()}",
        blocks="nothing: a span is never the only record",
    )


async def watch(settings: WorkerSettings) -> None:
    """Watcher, pager, prober and alerts until told to stop, each in its own loop: one that fails stops no other."""
    stopping = stop_event()
    rules = load_rules(settings.rules)
    paging = PagingSettings()
    channels, warning_channels = open_settings(paging)
    alarm = LedgerAlarm(channels, paging)
    async with contextlib.AsyncExitStack() as cleanup:
        system = await compose_when_possible(settings, alarm, cleanup, stopping)
        limits = WatchSettings(
            idle_s=settings.watch_idle_s,
            held_again_s=settings.watch_held_again_s,
            orphaned_after_s=settings.watch_orphaned_after_s,
        )
        collector = Collector(system.ledger, stale_after_s=settings.stale_after_s)
        with serving(collector, settings.metrics_host, settings.metrics_port) as metrics_url:
            prober = Prober(
                system.ledger,
                [settings.task_queue],
                route_probes(system.registry),
                contracts=[destination.contract for destination in system.registry],
                others={
                    **credential_probes(system.registry),
                    "memory": memory_probe(system),
                    "metrics": lambda: own_metrics(metrics_url),
                },
            )
            pager = Pager(LedgerPages(system.ledger), paging, channels, warning_channels)
            duties: dict[str, tuple[float, Callable[[], Awaitable[object]]]] = {
                "watcher": (settings.watch_every_s, lambda: watch_once(system, limits)),
                "pager": (settings.watch_every_s, pager.deliver_once),
                "ledger alarm": (_ALARM_EVERY_S, Outage(system.ledger, alarm).look),
                "prober": (settings.probe_every_s, prober.probe_once),
                "nudger": (settings.watch_every_s, Nudger(system).nudge_once),
                "problems": (settings.probe_every_s, Problems(system.ledger, connect_once).look_once),
                "evaluator": (settings.evaluate_every_s, Evaluator(collector, rules).evaluate_once),
            }
            if settings.journal is not None:
                journal, dsn = settings.journal, system.ledger.dsn
                duties["journal"] = (settings.probe_every_s, lambda: notice_restore(dsn, journal))
            audit_duties = AuditKeeper(system.ledger).duties()  # how a sink fares is on the dependency page already
            turns = Turns(system.ledger)
            ready("watch", metrics_url=metrics_url)
            await asyncio.gather(
                *(
                    forever(name, every_s, turns.watched(name, every_s, act), stopping)
                    for name, (every_s, act) in duties.items()
                ),
                *(
                    forever(name, every_s or settings.watch_every_s, act, stopping)
                    for name, every_s, act in audit_duties
                ),
            )


def credential_probes(registry: Registry) -> dict[str, Probe]:
    """One for each leased credential."""
    found: dict[str, Probe] = {}
    for destination in registry:
        contract = destination.contract
        for use in contract.credentials:
            if not isinstance(destination.credentials, Broker):
                continue  # of a clone: it leases nothing for what is no sandbox
            what = "sending to" if use == contract.write_credential else "reading"
            found[f"credential:{use.name}"] = credential_probe(
                destination.credentials, use.name, f"{what} {contract.name}"
            )
    return found


def memory_probe(system: System) -> Probe:
    """Really recalls, in the memory that is ours."""

    async def probe() -> Reading:
        said = await check_memory(system)
        state: State = "down" if isinstance(said, Unavailable) else "up"
        detail = said.why if isinstance(said, Unavailable) else f"memory {said.memory_id}"
        how = "recalled the canary through its index, as a tenant of its own"
        return Reading("memory", "memory", state, how, detail, "tasks that need what is remembered: they are held")

    return probe


def credential_probe(broker: Broker, credential: str, blocks: str) -> Probe:
    """Really asks for a lease."""

    async def probe() -> Reading:
        health = await broker.health(credential)
        how = "asked the broker for a lease, which it renews at the lease manager"
        return Reading(f"credential:{credential}", "credential", health.state, how, health.detail, blocks)

    return probe


async def compose_when_possible(
    settings: WorkerSettings, alarm: LedgerAlarm, cleanup: contextlib.AsyncExitStack, stopping: asyncio.Event
) -> System:
    """As `composed`, however long the ledger is away: whoever has to call people about that must not need it."""
    while True:
        try:
            return await cleanup.enter_async_context(composed(settings))
        except LedgerUnavailable as error:
            if stopping.is_set():
                raise
            log.warning("the ledger is away", error=str(error)[:300])
            await alarm.away(str(error))
            await asyncio.sleep(_CONNECT_AGAIN_S)


class Outage:
    """Looks whether the ledger takes writes, and puts an outage that is over on record."""

    def __init__(self, ledger: Ledger, alarm: LedgerAlarm) -> None:
        self._ledger = ledger
        self._alarm = alarm

    async def look(self) -> None:
        """One turn."""
        await self._alarm.look(
            lambda: watch_queries.prove_writable(self._ledger),
            lambda since, why: ledger_pages.report_outage(self._ledger, since, why),
        )


class Nudger:
    """Tells workflows that the hold they wait on is closed, or that the memory is back.

    Best effort: they also look by themselves.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._client: Client | None = None

    async def nudge_once(self) -> None:
        """Signal every workflow that waits on a closed hold, or for the memory."""
        ledger = self._system.ledger
        waiting = await watch_queries.workflows_to_nudge(ledger, _NUDGE_AGAIN_S)
        for workflow_id in [*waiting, *await memory_use.workflows_to_nudge(ledger)]:
            self._client = self._client or await connect_once()
            try:
                await self._client.get_workflow_handle(workflow_id).signal(NUDGE)
            except RPCError as error:
                log.info("not nudged", workflow_id=workflow_id, error=str(error)[:200])


async def forever(name: str, every_s: float, act: Callable[[], Awaitable[object]], stopping: asyncio.Event) -> None:
    """Call `act` again and again; an error is logged and the next turn tries again."""
    while not stopping.is_set():
        try:
            await act()
        except LedgerUnavailable as error:
            log.warning("the ledger is away", loop=name, error=str(error))
        except Exception:
            log.exception("a turn failed", loop=name)
        try:
            await asyncio.wait_for(stopping.wait(), every_s)
        except TimeoutError:
            continue


async def memory_command(settings: WorkerSettings, arguments: list[str]) -> int:
    """What the procedure `memory_unavailable` tells a person to do. Prints one JSON line; 0: the memory is healthy."""
    async with composed(settings) as system:
        assert system.memory is not None
        match arguments:
            case ["check"]:
                pass
            case ["rebuild"]:
                await asyncio.to_thread(rebuild_index, system.memory.dsn)
            case ["adopt", name, reason]:
                await adopt_memory(system, name, reason)
            case _:
                raise SystemExit("usage: worker.py memory check | rebuild | adopt NAME REASON")
        said = await check_memory(system)
        print(said.model_dump_json(), flush=True)
        return 1 if isinstance(said, Unavailable) else 0


async def restore_command(settings: WorkerSettings, arguments: list[str]) -> int:
    """What the procedure `ledger_restored` tells a person to do. Prints JSON; 1: the sweep cannot be done now."""
    match arguments:
        case ["status"]:
            without = None
        case ["sweep", *options] if options[::2] == ["--without"] * (len(options) // 2) and len(options) % 2 == 0:
            without = options[1::2]
        case _:
            raise SystemExit("usage: worker.py restore status | sweep [--without DESTINATION]…")
    async with composed(settings) as system:
        failed = None
        if without is not None:
            system.ledger.deadline_s = LEDGER_DEADLINE_S
            try:
                await sweep(system, without=without, tell=lambda words: print(words, file=sys.stderr, flush=True))
            except (RestoreRefused, StaleWrite) as error:
                failed = str(error)
        print(json.dumps(told(await quarantine.standing(system.ledger)), indent=2), flush=True)
        if failed is not None:
            print(f"worker.py: {failed}", file=sys.stderr, flush=True)
        return 0 if failed is None else 1


def stop_event() -> asyncio.Event:
    """Set by SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def ready(role: str, **facts: object) -> None:
    """Tell whoever started us, in one line, that we work."""
    print(json.dumps({"event": "ready", "role": role, "pid": os.getpid(), **facts}), flush=True)


def check_ours() -> None:
    """`workflows` and `activities` must be this checkout's: the names are common."""
    here = Path(__file__).resolve().parent
    for module in (workflows, activities):
        found = Path(str(module.__file__)).resolve()
        if found.parent.parent != here:
            raise SystemExit(
                f"{module.__name__} comes from {found}, not from {here}; start worker.py in its own folder"
            )


def main(arguments: list[str]) -> None:
    """Entry point; also called by programs that change one part before they start it."""
    check_ours()
    configure()
    commands = {"memory": memory_command, "restore": restore_command}
    if arguments and arguments[0] in commands:
        raise SystemExit(asyncio.run(commands[arguments[0]](WorkerSettings(), arguments[1:])))
    programs = {"run": run, "watch": watch}
    if len(arguments) != 1 or arguments[0] not in programs:
        raise SystemExit(
            f"usage: worker.py {{{'|'.join(programs)}}} | {' | '.join(f'{name} COMMAND' for name in commands)}"
        )
    asyncio.run(programs[arguments[0]](WorkerSettings()))


if __name__ == "__main__":
    run_and_leave(lambda: main(sys.argv[1:]))
