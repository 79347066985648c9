"""The way from the ledger to Temporal: start, signal, cancel, describe. Every call is bounded and may fail.

Promises: a task in the ledger reaches Temporal by its own id as soon as Temporal answers, and never twice at a time:
a start attaches to a running workflow, starts again only where the last run ended without success, and never after
success; a task whose workflow is gone is held and paged. Does not decide anything: what may be sent is the ledger's
business (permits).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from actonce.contracts.errors import LedgerError, LedgerUnavailable
from actonce.contracts.messages import TaskInput, TaskReport
from actonce.entry.settings import EntrySettings
from actonce.ledger import records, release, tasks, watch
from actonce.ledger.store import Ledger
from actonce.ledger.tasks import Task
from actonce.ledger.words import lost_words

log = structlog.get_logger("actonce.entry")
NUDGE = "actonce.nudge"
REFUSED_AGAIN_S = 30.0
STARTS_A_TURN_MAX = 1000  # refused ones are among them and must not fill it
STARTS_AT_ONCE_MAX = 8  # after an outage the backlog must not become a burst
LOOKS_A_TURN_MAX = 8  # tasks whose workflow is looked for in one turn; the next turn goes on behind them

# Temporal is not there, as opposed to: Temporal says no.
_AWAY = {RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}

Connect = Callable[[], Awaitable[Client]]


@dataclass(frozen=True)
class Run:
    """What Temporal says of a task's workflow, or why it says nothing."""

    status: str | None = None  # RUNNING, COMPLETED, FAILED, CANCELED, TERMINATED, CONTINUED_AS_NEW, TIMED_OUT
    run_id: str | None = None
    why_not: str | None = None  # "unreachable", "not_found"

    @property
    def gone(self) -> str | None:
        """How the workflow ended, of a task that has no outcome; None while it runs or nobody can tell."""
        if self.why_not == "not_found":
            return "is not known to Temporal any more"
        return f"ended as {self.status} without an outcome" if self.status in _ENDED else None


_ENDED = {"COMPLETED", "FAILED", "TERMINATED", "TIMED_OUT", "CANCELED"}


async def connect_by_environment() -> Client:
    """A client from TEMPORAL_* settings. It connects at its first call, and again after every outage."""
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "localhost:7233")
    return await Client.connect(**config, lazy=True, data_converter=pydantic_data_converter)


# A workflow task that a frozen worker took is given to another after this; our workflows decide in milliseconds.
WORKFLOW_TASK_TIMEOUT = timedelta(seconds=5)


def _namespace_is_missing(error: RPCError) -> bool:
    """A server that does not know the namespace (yet) says nothing about the workflows in it."""
    details = error.grpc_status.details
    return any(detail.Is(NamespaceNotFoundFailure.DESCRIPTOR) for detail in details)


def _reuse_of(task: Task) -> WorkflowIDReusePolicy:
    """A run that was terminated or failed may be started again: the operations keep their ids.

    After a restore one that ended well may be, too: the ledger lost what came of it, and finds it again.
    """
    if task.restored_in is not None and task.outcome is None:
        return WorkflowIDReusePolicy.ALLOW_DUPLICATE
    return WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY


class Starter:
    """One per entry process."""

    def __init__(self, ledger: Ledger, settings: EntrySettings, connect: Connect = connect_by_environment) -> None:
        self.ledger = ledger
        self.settings = settings
        self.away: str | None = None  # why Temporal cannot be used, by the last attempt
        self.refusals: dict[str, str] = {}  # task id → why Temporal will not have it
        self._connect = connect
        self._client: Client | None = None
        self._cancelled: set[str] = set()
        self._refused_until: dict[str, float] = {}
        self._looked_until = ""  # task id
        self._missing: set[str] = set()  # task ids whose workflow was gone when it was last looked for

    async def let_go(self, task: Task) -> None:
        """Right after a task was accepted: start what may go now, usually this one. The loop does what fails here."""
        if self.away is not None or task.cancel_requested:
            return
        try:
            queue = self.settings.queue_of(task.task_type)
            due = [task] if task.released_at else await release.turn(self.ledger, task.task_type, queue, limit=1)
        except LedgerUnavailable as error:
            log.warning("not_released_yet", task_id=task.task_id, error=str(error))
            return
        for one in due:
            await self.start(one)

    def trouble(self, task: Task) -> str | None:
        """Why Temporal does not have it, as far as this process knows."""
        if task.task_type not in self.settings.task_types:
            return self._unknown(task)
        return self.refusals.get(task.task_id) or self.away

    @staticmethod
    def _unknown(task: Task) -> str:
        return f"task type {task.task_type} is not among this entry's ACTONCE_TASK_TYPES"

    async def start(self, task: Task) -> bool:
        """Start or attach. True when Temporal has the task, False when it must be tried again (see `away`)."""
        if task.task_type not in self.settings.task_types:
            self._refuse(task, self._unknown(task))
            return False
        was_missing = task.state == "held" or task.task_id in self._missing
        self._missing.discard(task.task_id)  # whoever looks for it at this moment saw the run before
        try:
            await self._bounded(self._start(task))
        except WorkflowAlreadyStartedError:
            pass  # it ran to success: its outcome is, or is about to be, in the ledger
        except RPCError as error:
            if error.status not in _AWAY:
                self._refuse(task, f"Temporal refuses to start it: {error.message}")
            return False
        except TimeoutError:
            return False
        self.refusals.pop(task.task_id, None)
        if was_missing:
            await watch.release_found_task(self.ledger, task.task_id)
        if not task.recorded:
            try:
                await tasks.mark_recorded(self.ledger, task.task_id)
            except LedgerUnavailable as error:  # the loop attaches to it once more, which changes nothing
                log.warning("start_not_recorded", task_id=task.task_id, error=str(error))
        return True

    def _refuse(self, task: Task, why: str) -> None:
        """Somebody has to change something first; trying every second would only fill the log."""
        self.refusals[task.task_id] = why
        self._refused_until[task.task_id] = time.monotonic() + REFUSED_AGAIN_S
        log.error("start_refused", task_id=task.task_id, why=why)

    async def _start(self, task: Task) -> None:
        client = await self._temporal()
        await client.start_workflow(
            self.settings.task_types[task.task_type].workflow,
            TaskInput(
                tenant=task.tenant,
                task_id=task.task_id,
                task_type=task.task_type,
                task_key=task.task_key,
                payload=task.payload,
            ),
            id=task.workflow_id,
            task_queue=self.settings.queue_of(task.task_type),
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=_reuse_of(task),
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            static_summary=f"{task.task_type} {task.task_key}",
            rpc_timeout=self._rpc_timeout,
        )

    async def nudge(self, workflow_id: str) -> bool:
        """Tell a waiting workflow to look at the ledger. Best effort: the ledger watcher does it again."""
        return await self._try(workflow_id, "nudge", lambda h: h.signal(NUDGE, rpc_timeout=self._rpc_timeout)) is None

    async def cancel(self, workflow_id: str) -> bool:
        """Ask Temporal to cancel. Best effort: the loop goes on asking until the task has an outcome."""
        why_not = await self._try(workflow_id, "cancel", lambda h: h.cancel(rpc_timeout=self._rpc_timeout))
        if why_not is None:
            self._cancelled.add(workflow_id)
        return why_not is None

    async def describe(self, workflow_id: str) -> Run:
        """What Temporal shows for a task. Never raises."""
        found: list[Any] = []

        async def ask(handle: Any) -> None:
            found.append(await handle.describe(rpc_timeout=self._rpc_timeout))

        why_not = await self._try(workflow_id, "describe", ask)
        if why_not is not None or found[0].status is None:
            return Run(why_not=why_not or "unreachable")
        return Run(status=found[0].status.name, run_id=found[0].run_id)

    async def run(self, stopping: asyncio.Event) -> None:
        """Until told to stop: start what was accepted and not started, deliver cancellations, miss what is gone.

        It ends between two turns: cancelling a transaction in the middle leaves its connection waiting for an answer.
        """
        while not stopping.is_set():
            try:
                await self.start_accepted()
                await self.deliver_cancels()
                await self.look_for_workflows()
            except LedgerError as error:
                log.warning("start_loop_waits", error=str(error))
            except Exception:  # whatever one task does to this loop, the others must still be started
                log.exception("start_loop_turn_failed")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self.settings.start_again_s)

    async def start_accepted(self) -> int:
        """Release what may go and start what Temporal may not have, oldest first. Returns how many it has now."""
        await self._release(limit=1 if self.away is not None else STARTS_A_TURN_MAX)
        now = time.monotonic()
        waiting = [
            task
            for task in await tasks.unrecorded(self.ledger, limit=STARTS_A_TURN_MAX)
            if not task.cancel_requested and now >= self._refused_until.get(task.task_id, 0.0)
        ]
        done = 0
        if waiting and self.away is not None:  # one attempt tells whether it is back
            first, *waiting = waiting
            if not await self.start(first) and self.away is not None:
                return 0
            done = 1
        for at in range(0, len(waiting), STARTS_AT_ONCE_MAX):
            started = await asyncio.gather(*(self.start(t) for t in waiting[at : at + STARTS_AT_ONCE_MAX]))
            done += sum(started)
            if self.away is not None:
                break
        return done

    async def _release(self, *, limit: int) -> None:
        """One turn for each type that has a backlog. While Temporal is away one task at most is let go, to try it."""
        for task_type in await release.waiting_types(self.ledger):
            if task_type in self.settings.task_types:
                await release.turn(self.ledger, task_type, self.settings.queue_of(task_type), limit=limit)

    async def deliver_cancels(self) -> None:
        """Hand every requested cancellation to Temporal; give a task that never ran its outcome."""
        for task in await records.cancels_to_deliver(self.ledger):
            if task.workflow_id in self._cancelled:
                continue
            why_not = await self._try(task.workflow_id, "cancel", lambda h: h.cancel(rpc_timeout=self._rpc_timeout))
            if why_not is None:
                self._cancelled.add(task.workflow_id)
            elif why_not == "not_found":
                await self._end_without_workflow(task)

    async def look_for_workflows(self) -> int:
        """Hold and page open tasks whose workflow is gone. Returns how many were missed now.

        Goes round all open tasks, a few in each turn: terminated or purged behind our back is told by nobody. It must
        be gone twice: the first time it may just be started again.
        """
        most = LOOKS_A_TURN_MAX if self.away is None else 1  # one tells whether it is back
        batch = await watch.open_tasks(self.ledger, self._looked_until, most)
        self._looked_until = batch[-1].task_id if len(batch) == most else ""
        runs = await asyncio.gather(*(self.describe(task.workflow_id) for task in batch))
        missed = [await self._missed(task, run) for task, run in zip(batch, runs, strict=True)]
        return sum(missed)

    async def _missed(self, task: Task, run: Run) -> bool:
        """Act on one look at an open task. True when its workflow is gone and that is news."""
        gone = run.gone
        if gone is None:
            if run.status is not None:
                self._missing.discard(task.task_id)
                if task.state == "held":
                    await watch.release_found_task(self.ledger, task.task_id)
            return False
        if task.cancel_requested:
            await self._end_without_workflow(task)
            return False
        if task.task_id not in self._missing:
            self._missing.add(task.task_id)
            return False
        news = await watch.hold_lost_task(self.ledger, task.task_id, lost_words(gone))
        if news:
            log.warning("workflow_gone", task_id=task.task_id, how=gone)
        return news

    async def _end_without_workflow(self, task: Task) -> None:
        """Nobody is left to report. Only with every operation final: the ledger watcher settles or holds the others."""
        operations = await watch.operations_of_task(self.ledger, task.task_id)
        if all(operation.final for operation in operations):
            sent = [o for o in operations if o.issued_at is not None]
            words = f"{len(sent)} operations had been sent, see each" if sent else "nothing was sent"
            await tasks.report(
                self.ledger, TaskReport(task_id=task.task_id, state="cancelled", summary=f"cancelled; {words}")
            )

    async def _try(self, workflow_id: str, what: str, call: Callable[[Any], Awaitable[None]]) -> str | None:
        """Make one bounded call on a workflow. Returns None, or why not: `unreachable` or `not_found`."""

        async def go() -> None:
            client = await self._temporal()
            await call(client.get_workflow_handle(workflow_id))

        try:
            await self._bounded(go())
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and not _namespace_is_missing(error):
                return "not_found"
            log.warning("temporal_call_failed", call=what, workflow_id=workflow_id, error=error.message)
            return "unreachable"
        except TimeoutError:
            return "unreachable"
        return None

    async def _bounded(self, call: Awaitable[None]) -> None:
        """Run one call within the deadline and remember whether Temporal is there."""
        try:
            async with asyncio.timeout(self.settings.start_deadline_s):
                await call
        except TimeoutError:
            self._is_away(f"no answer within {self.settings.start_deadline_s:g} s")
            raise
        except RPCError as error:
            if error.status in _AWAY:
                self._is_away(f"{error.status.name.lower()}: {error.message}")
            else:
                self.away = None
            raise
        except RuntimeError as error:  # the SDK raises it while it cannot connect
            self._is_away(str(error))
            raise TimeoutError(str(error)) from error
        except WorkflowAlreadyStartedError:
            self.away = None
            raise
        self.away = None

    def _is_away(self, why: str) -> None:
        if self.away is None:
            log.warning("temporal_away", why=why, next="tasks are accepted and start when it is back")
        self.away = why

    async def _temporal(self) -> Client:
        if self._client is None:
            self._client = await self._connect()
        return self._client

    @property
    def _rpc_timeout(self) -> timedelta:
        return timedelta(seconds=self.settings.start_deadline_s)
