"""What the routes of one entry process share, and what it may believe of the deployment's parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from starlette.requests import Request

from actonce.contracts.errors import LedgerUnavailable
from actonce.entry.access import Access
from actonce.entry.settings import EntrySettings
from actonce.entry.starter import Starter
from actonce.entry.views import Dependencies, Dependency
from actonce.ledger import readings, records, release, tasks
from actonce.ledger.readings import Reading, Working
from actonce.ledger.release import Control
from actonce.ledger.store import Ledger
from actonce.ledger.tasks import Task


@dataclass
class Entry:
    """What the routes of one process share."""

    settings: EntrySettings
    ledger: Ledger
    starter: Starter
    access: Access
    namespace: str = "default"
    known: list[dict[str, Any]] = field(default_factory=list)  # the last readings of dependencies we could get

    async def dependencies(self) -> Dependencies:
        """The prober's readings as they may be believed now, and our own experience of the ledger."""
        now = datetime.now(UTC)
        try:
            rows = await records.list_dependencies(self.ledger)
            self.known = rows
            own = []
        except LedgerUnavailable as error:
            rows = [{**row, "age_s": (now - row["checked_at"]).total_seconds(), "lost": True} for row in self.known]
            rows = [row for row in rows if row["name"] != "ledger"]
            own = [_ledger_down(now, str(error))]
        found = own + [readings.believe(row, self.settings.stale_after_s) for row in rows]
        return Dependencies(
            state=readings.worst(found), at=now, dependencies=[Dependency(**vars(reading)) for reading in found]
        )

    async def nudge(self, task_id: str) -> bool:
        """Tell a task's workflow to look at the ledger. Best effort, after the row: the watcher does it again."""
        if self.starter.away is not None:
            return False
        try:
            task = await tasks.get(self.ledger, task_id)
        except LedgerUnavailable:
            return False
        return await self.starter.nudge(task.workflow_id if task else task_id)

    async def working(self, task_type: str) -> Working:
        """Is anyone working on the task queue of this type? `unknown` unless a fresh reading says so."""
        if task_type not in self.settings.task_types:
            return "unknown"
        try:
            rows = await records.list_dependencies(self.ledger)
        except LedgerUnavailable:
            return "unknown"
        found = [readings.believe(row, self.settings.stale_after_s) for row in rows]
        return readings.working(found, self.settings.queue_of(task_type))

    async def release_of(self, task: Task) -> Control | None:
        """What a task in the backlog waits for; None when its type or the ledger is not there to say."""
        if task.task_type not in self.settings.task_types:
            return None
        try:
            return await release.control(self.ledger, task.task_type, self.settings.queue_of(task.task_type))
        except LedgerUnavailable:
            return None


def _ledger_down(now: datetime, why: str) -> Reading:
    return Reading(
        name="ledger",
        kind="ledger",
        state="down",
        last_reading=None,
        since=None,
        checked_at=now,
        age_s=0.0,
        how="the entry service asked it for these readings",
        detail=why,
        blocks="accepting tasks, decisions, every send",
    )


def entry_of(request: Request) -> Entry:
    """FastAPI dependency: what this process shares."""
    return cast(Entry, request.app.state.entry)
