"""Route about alerts: what the rules find wrong with the deployment now."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import BaseModel, Field

from actonce.contracts.people import Scope
from actonce.contracts.reasons import policy
from actonce.entry.access import guarded_router, needs
from actonce.entry.problems import documented
from actonce.entry.state import Entry, entry_of
from actonce.ledger import alerts as ledger_alerts
from actonce.ledger.readings import EVALUATOR
from actonce.ledger.words import cli

router = guarded_router("/v1/alerts", "alerts")
Shared = Annotated[Entry, Depends(entry_of)]


class Alert(BaseModel):
    """One rule for one set of labels. `pending`: seen, and not yet for as long as the rule wants."""

    name: str
    state: Literal["firing", "pending", "resolved"]
    severity: str
    reason: str
    summary: str
    description: str
    labels: dict[str, str]
    value: float = Field(description="at the last evaluation in which it was seen")
    since: datetime = Field(description="seen without a break since then")
    fired_at: datetime | None
    resolved_at: datetime | None
    firings: int = Field(description="how often it has fired so far")
    incident: str = Field(description="also that of its page")
    owner: str
    procedure: str
    over_when: str


class Alerts(BaseModel):
    """Alerts, and whether they may be believed. Without a fresh evaluation an empty list says nothing."""

    evaluated: Literal["current", "stale", "failing", "never"]
    evaluated_at: datetime | None
    age_s: float | None
    detail: str | None = Field(description="of the evaluator")
    alerts: list[Alert]
    what_to_do: list[str]


@router.get(
    "",
    summary="What the alert rules find now",
    response_model=Alerts,
    responses=documented(422, 503),
    openapi_extra=needs(Scope.READ),
)
async def alerts(entry: Shared, all: Annotated[bool, Query(description="also what is over")] = False) -> Alerts:
    """Firing ones first. The evaluator is part of `worker.py watch`; `evaluated` says whether it still works."""
    rows = await ledger_alerts.listing(entry.ledger, resolved=all)
    reading = next((d for d in (await entry.dependencies()).dependencies if d.name == EVALUATOR), None)
    evaluated = {"up": "current", "down": "failing", "stale": "stale"}[reading.state] if reading else "never"
    return Alerts(
        evaluated=evaluated,
        evaluated_at=reading.checked_at if reading else None,
        age_s=reading.age_s if reading else None,
        detail=reading.detail if reading else "no watching process has ever evaluated the rules: worker.py watch",
        alerts=[_view(row) for row in rows],
        what_to_do=[] if evaluated == "current" else [cli("dependencies"), "read docs/operations/watcher_stalled.md"],
    )


def _view(row: dict[str, Any]) -> Alert:
    values = {name: row[name] for name in Alert.model_fields if name in row}
    known = policy(row["reason"])
    return Alert(**values, owner=known.owner, procedure=known.procedure, over_when=known.resumes_when)
