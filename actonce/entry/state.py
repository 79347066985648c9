"""What the routes of one entry process share, and what it may believe of the deployment's parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from starlette.requests import Request

from actonce.contracts.errors import LedgerUnavailable
from actonce.entry.settings import EntrySettings
from actonce.entry.starter import Starter
from actonce.entry.views import Dependencies, Dependency, Working
from actonce.ledger import records, release, tasks
from actonce.ledger.release import Control
from actonce.ledger.store import Ledger
from actonce.ledger.tasks import Task


@dataclass
class Entry:
    """What the routes of one process share."""

    settings: EntrySettings
    ledger: Ledger
    starter: Starter
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
        found = own + [self._believe(row) for row in rows]
        return Dependencies(state=_worst(found), at=now, dependencies=found)

    async def nudge(self, task_id: str) -> bool:
        """Tell a task's workflow to look at the ledger. Best effort, after the row: the watcher does it again."""
        if self.starter.away is not None:
            return False
        try:
            task = await tasks.get(self.ledger, task_id)
        except LedgerUnavailable:
            return False
        return await self.starter.nudge(task.workflow_id if task else task_id)

    def _believe(self, row: dict[str, Any]) -> Dependency:
        values = {name: row[name] for name in Dependency.model_fields if name in row}
        # A loop that has a pause is told of once in each.
        pause_s = row["measures"].get("every_s", 0.0)
        stale = row.get("lost") or row["age_s"] > self.settings.stale_after_s + pause_s
        if stale:
            values |= {"state": "stale", "last_reading": row["state"]}
        return Dependency(**values)

    async def working(self, task_type: str) -> Working:
        """Is anyone working on the task queue of this type? `unknown` unless a fresh reading says so."""
        if task_type not in self.settings.task_types:
            return "unknown"
        name = f"pollers:{self.settings.queue_of(task_type)}"
        try:
            rows = await records.list_dependencies(self.ledger)
        except LedgerUnavailable:
            return "unknown"
        reading = next((self._believe(row) for row in rows if row["name"] == name), None)
        states: dict[str, Working] = {"up": "yes", "degraded": "yes", "down": "no"}
        return states.get(reading.state, "unknown") if reading else "unknown"

    async def release_of(self, task: Task) -> Control | None:
        """What a task in the backlog waits for; None when its type or the ledger is not there to say."""
        if task.task_type not in self.settings.task_types:
            return None
        try:
            return await release.control(self.ledger, task.task_type, self.settings.queue_of(task.task_type))
        except LedgerUnavailable:
            return None


def _ledger_down(now: datetime, why: str) -> Dependency:
    return Dependency(
        name="ledger",
        kind="ledger",
        state="down",
        since=None,
        checked_at=now,
        age_s=0.0,
        how="the entry service asked it for these readings",
        detail=why,
        blocks="accepting tasks, decisions, every send",
    )


def _worst(found: list[Dependency]) -> Any:
    # A pager that had nothing to send yet is not known to work, and is no reason to doubt the rest.
    states = {d.state for d in found if (d.kind, d.state) != ("paging", "unknown")}
    for state in ("down", "degraded"):
        if state in states:
            return state
    return "up" if states == {"up"} else "unknown"


def entry_of(request: Request) -> Entry:
    """FastAPI dependency: what this process shares."""
    return cast(Entry, request.app.state.entry)
