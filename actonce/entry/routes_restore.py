"""Routes about a restore: how it stands, tasks released from its quarantine by group, and its end."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from actonce.contracts.people import Scope
from actonce.entry.access import Who, guarded_router, needs
from actonce.entry.door import press_of
from actonce.entry.problems import documented
from actonce.entry.state import Entry, entry_of
from actonce.entry.views import Said
from actonce.ledger import quarantine
from actonce.ledger.quarantine import Group
from actonce.ledger.restoring import Restore

router = guarded_router("/v1/restore", "restore")
Shared = Annotated[Entry, Depends(entry_of)]


class _View(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class RestoreView(_View):
    """One restore: its epoch, the lost interval, and how far people have brought it."""

    epoch: int
    kind: str = Field(description="restored, clone, or noticed: nobody told of it")
    at: datetime = Field(description="the lost interval ends here")
    boundary_at: datetime = Field(description="and began here: the ledger's time of the backup")
    journal_complete: bool
    bounds_until: datetime = Field(description="the sweep may begin then")
    operations: int = Field(description="that were not final at the boundary")
    tasks: int = Field(description="that were not at an end at the boundary")
    swept_at: datetime | None
    released_at: datetime | None
    released_by: str | None
    closed_at: datetime | None
    closed_by: str | None
    close_reason: str | None
    close_risk: str | None = Field(description="what was not known when it was closed")


class TotalsView(_View):
    """One destination, counted by operation. Ledger side = matched + ledger_only + conflict; destination side = matched
    + destination_only + conflict."""

    destination: str
    matched: int
    ledger_only: int
    ledger_only_committed: int = Field(description="of them: with evidence of an effect, which no list shows now")
    destination_only: int
    adopted: int = Field(description="of them; the others cannot be proven to be ours")
    conflict: int
    ledger_side: int
    destination_side: int
    balances: bool


class SweepView(_View):
    """The newest run of the sweep."""

    run: int
    since: datetime
    began_at: datetime
    done_at: datetime | None
    totals: list[TotalsView]
    not_swept: dict[str, str] = Field(description="destination → why nothing was listed there")


class ReleasedView(_View):
    """A person's act that let a group of tasks go."""

    release_id: int
    epoch: int
    what: str
    name: str
    reason: str
    at: datetime
    tasks: int


class GoneView(_View):
    """A task that was permitted to send in the lost interval, by the journal, and that this ledger does not know."""

    task_id: str
    tenant: str
    operations: int
    shown: int = Field(description="of them that a destination shows")


class QuarantineView(_View):
    """How the last restore of this ledger stands; `restore` is null where there never was one."""

    epoch: int = Field(description="the ledger's; name it as `expected_epoch`")
    quarantined: bool = Field(description="nothing at all is sent")
    restore: RestoreView | None
    sweep: SweepView | None
    waiting: dict[str, int] | None = Field(description="group → tasks that wait for their release")
    unsettled: int = Field(description="operations that may have been sent, neither established nor held yet")
    listed: list[str] = Field(description="destinations that would have shown everything that was sent")
    not_listed: list[str]
    releases: list[ReleasedView]
    gone: list[GoneView]
    why_not: str | None = Field(description="why nothing can be released now")


class RestoreReleaseBody(Said):
    """Release one group of tasks."""

    group: Group
    expected_epoch: int
    name: str = Field(min_length=1)
    reason: str = Field(min_length=1)


class RestoreCloseBody(Said):
    """End the restore."""

    expected_epoch: int
    name: str = Field(min_length=1)
    reason: str = Field(min_length=1)


_PRESS: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "Which press of the button this is. The same key again is the release that it made.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
        }
    ]
}


@router.get(
    "",
    summary="How the last restore stands",
    response_model=QuarantineView,
    responses=documented(503),
    openapi_extra=needs(Scope.READ),
)
async def standing(entry: Shared) -> quarantine.Standing:
    """What is quarantined, what the sweep found, what waits for a person."""
    return await quarantine.standing(entry.ledger)


@router.post(
    "/release",
    summary="Release a group of tasks from quarantine",
    response_model=ReleasedView,
    responses=documented(400, 409, 422, 503),
    openapi_extra=needs(Scope.DECIDE, **_PRESS),
)
async def release(
    body: RestoreReleaseBody, request: Request, response: Response, entry: Shared, who: Who
) -> quarantine.Release:
    """Recorded with who and why before it has an effect. Refused before the sweep is done, and for another epoch."""
    who.speaks_as(body.name)
    made = await quarantine.release(
        entry.ledger,
        body.group,
        expected_epoch=body.expected_epoch,
        name=body.name,
        reason=body.reason,
        press=press_of(request),
    )
    if made.again:
        response.headers["Idempotent-Replayed"] = "true"
    return made


@router.post(
    "/close",
    summary="Close the restore",
    response_model=RestoreView,
    responses=documented(409, 422, 503),
    openapi_extra=needs(Scope.DECIDE),
)
async def close(body: RestoreCloseBody, entry: Shared, who: Who) -> Restore:
    """From here on a first send needs no reading before it; what was not known then is recorded as `close_risk`."""
    who.speaks_as(body.name)
    return await quarantine.close(entry.ledger, expected_epoch=body.expected_epoch, name=body.name, reason=body.reason)
