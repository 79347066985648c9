"""Routes for looking around, as the console does: the first look, a search, a task's story, the audit trail."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from actonce.contracts.people import Scope
from actonce.entry.access import guarded_router, needs
from actonce.entry.lists import Cursor, Limit, link_next, listed
from actonce.entry.problems import documented, problem
from actonce.entry.state import Entry, entry_of
from actonce.entry.views import OperationView, TaskSummary, operation_view, summary_view
from actonce.ledger import audit_chain, browse, listing, readings, tasks
from actonce.ledger import story as ledger_story

router = guarded_router("/v1", "looking around")
Shared = Annotated[Entry, Depends(entry_of)]


class Count(BaseModel):
    """How many there are, and for how long the oldest of them."""

    n: int
    oldest_s: float = 0.0


class Overview(BaseModel):
    """Everything that is open, counted, with the age in seconds of the oldest; what has ended, counted."""

    at: datetime
    deployment: str
    restore_epoch: int
    quarantined: bool
    dependencies: Literal["up", "degraded", "down", "unknown"]
    not_up: list[str] = Field(description="dependencies that are not known to be up, and could be asked")
    nothing_to_ask: list[str] = Field(
        description="those of which nobody can know, such as a destination without a route"
    )
    working: dict[str, readings.Working] = Field(description="task queue → is anyone asking for work there")
    tasks: dict[str, int] = Field(
        description="by state; what is `complete` has evidence of a destination, else it is counted as `attested` "
        "(a person's word) or `unproven`"
    )
    oldest_s: dict[str, float] = Field(description="state of what is open → age of the oldest in it")
    backlog: dict[str, Count] = Field(description="by task type")
    holds: dict[str, Count] = Field(description="by reason")
    unresolved: dict[str, dict[str, Count]] = Field(description="destination → state of its operations")
    overdue: int = Field(description="operations past the time by which they should have been settled or held")
    open_pages: dict[str, int] = Field(description="by severity")
    firing_alerts: dict[str, int] = Field(description="by severity")
    audit_unsealed: Count
    audit_to_ship: dict[str, Count] = Field(description="by sink")
    audit_gaps: int


class Word(BaseModel):
    """What is looked for. It travels in a body: it may be a customer."""

    word: str = Field(min_length=1, max_length=500)


class Found(BaseModel):
    """One thing that has this name. `how` tells by what it was found."""

    how: str
    task: TaskSummary | None = None
    operation: OperationView | None = None
    approval_id: str | None = None


class StoryEntry(BaseModel):
    """One thing that happened to a task."""

    at: datetime
    what: str
    words: str
    who: str | None
    operation_id: str | None
    approval_id: str | None
    page_id: int | None


class AuditEvent(BaseModel):
    """One required event. `whole`: its hash is that of its content; null while it has no place in the chain yet."""

    audit_id: int
    seq: int | None
    at: datetime
    kind: str
    tenant: str | None
    task_id: str | None
    operation_id: str | None
    body: dict[str, Any]
    hash: str | None
    previous_hash: str | None
    whole: bool | None


@router.get(
    "/overview",
    summary="What is open, and how long",
    response_model=Overview,
    responses=documented(503),
    openapi_extra=needs(Scope.READ),
)
async def overview(entry: Shared) -> Overview:
    """The first look: is anything unresolved, what waits for people, is anyone working."""
    heading = await browse.heading(entry.ledger, entry.settings.stale_after_s)
    o = await browse.overview(entry.ledger)
    believed = [readings.believe(row, entry.settings.stale_after_s) for row in o.readings]
    unresolved: dict[str, dict[str, Count]] = {}
    for row in o.unresolved:
        unresolved.setdefault(row["destination"], {})[row["state"]] = _count(row)
    return Overview(
        at=heading.now,
        deployment=heading.deployment,
        restore_epoch=heading.restore_epoch,
        quarantined=heading.quarantined,
        dependencies=readings.worst(believed),
        not_up=[r.name for r in believed if r.state != "up" and not r.nothing_to_ask],
        nothing_to_ask=[r.name for r in believed if r.nothing_to_ask],
        working={
            r.name.partition(":")[2]: readings.working(believed, r.name.partition(":")[2])
            for r in believed
            if r.kind == "pollers"
        },
        tasks=o.tasks,
        oldest_s=o.oldest_s,
        backlog={row["task_type"]: _count(row) for row in o.backlog},
        holds={row["reason"]: _count(row) for row in o.holds},
        unresolved=unresolved,
        overdue=o.overdue,
        open_pages={row["severity"]: row["n"] for row in o.pages},
        firing_alerts={row["severity"]: row["n"] for row in o.alerts},
        audit_unsealed=_count(o.unsealed),
        audit_to_ship={row["sink"]: _count(row) for row in o.sinks},
        audit_gaps=o.audit_gaps,
    )


def _count(row: dict[str, Any]) -> Count:
    return Count(n=row["n"], oldest_s=row["oldest_s"])


@router.post(
    "/search",
    summary="What a name means",
    response_model=list[Found],
    responses=documented(422, 503),
    openapi_extra=needs(Scope.READ),
)
async def search(body: Word, entry: Shared) -> list[Found]:
    """Whole names: task id or key, operation_id, approval id, the destination's object id, natural effect key, or a
    customer (the field `customer` of a task's payload). Changes nothing; the name is in no address and no log.
    """
    return [
        Found(
            how=one.how,
            task=summary_view(one.task) if one.task else None,
            operation=operation_view(one.operation) if one.operation else None,
            approval_id=one.approval_id,
        )
        for one in await browse.search(entry.ledger, body.word)
    ]


@router.get(
    "/story/{task_id:path}",
    summary="What happened to a task, in order",
    response_model=list[StoryEntry],
    responses=documented(404, 503),
    openapi_extra=needs(Scope.READ),
)
async def story(task_id: str, entry: Shared) -> list[StoryEntry]:
    """From its request to its outcome, from every table that knows of it."""
    if await tasks.get(entry.ledger, task_id) is None:
        raise problem(404, "unknown-task", "There is no such task", f"Task {task_id} is not in this ledger.")
    entries = await ledger_story.story(entry.ledger, task_id)
    return [StoryEntry(**{name: getattr(one, name) for name in StoryEntry.model_fields}) for one in entries]


@router.get(
    "/audit",
    summary="List audit events, newest first",
    response_model=list[AuditEvent],
    responses=listed(422, 503),
    openapi_extra=needs(Scope.READ),
)
async def audit(
    request: Request,
    response: Response,
    entry: Shared,
    kind: Annotated[str | None, Query(description="with a dot at its end: all kinds that begin so")] = None,
    task_id: Annotated[str | None, Query(description="of this task and its operations")] = None,
    operation_id: str | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> list[AuditEvent]:
    """Each sealed event is hashed again (`whole`). Whether the chain has gaps is for `actonce audit verify` to say."""
    found = await listing.audit(
        entry.ledger, kind=kind, task_id=task_id, operation_id=operation_id, cursor=cursor, limit=limit
    )
    link_next(request, response, found.next)
    names = [name for name in AuditEvent.model_fields if name != "whole"]
    return [AuditEvent(**{name: row[name] for name in names}, whole=audit_chain.check(row)) for row in found]
