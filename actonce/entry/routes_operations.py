"""Routes about operations and pages: show every record, decide, list pages, acknowledge."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from actonce.contracts.lifecycle import State
from actonce.contracts.people import Scope
from actonce.entry.access import Who, guarded_router, needs
from actonce.entry.door import press_of
from actonce.entry.lists import Cursor, Limit, link_next, listed
from actonce.entry.problems import documented, problem
from actonce.entry.state import Entry, entry_of
from actonce.entry.views import (
    AcknowledgeBody,
    AcknowledgedView,
    DecisionBody,
    DecisionView,
    OperationRecordsView,
    OperationView,
    PageView,
    SecondBody,
    operation_view,
    record_view,
)
from actonce.ledger import decisions, listing, records, seconding, watch
from actonce.ledger.decisions import Decision
from actonce.ledger.store import Operation
from actonce.ledger.words import cli

router = guarded_router("/v1", "operations")
Shared = Annotated[Entry, Depends(entry_of)]


@router.get(
    "/operations",
    summary="List operations, newest first",
    response_model=list[OperationView],
    responses=listed(422, 503),
    openapi_extra=needs(Scope.READ),
)
async def list_operations(
    entry: Shared,
    request: Request,
    response: Response,
    state: Annotated[State | None, Query(description="only this state, e.g. `held`")] = None,
    natural_key: str | None = None,
    destination: str | None = None,
    reason: str | None = None,
    tenant: str | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> list[OperationView]:
    """Where each stands and its three facts. The whole record: GET /v1/operations/{operation_id}."""
    found = await listing.operations(
        entry.ledger,
        state=state,
        natural_key=natural_key,
        destination=destination,
        reason=reason,
        tenant=tenant,
        cursor=cursor,
        limit=limit,
    )
    link_next(request, response, found.next)
    return [operation_view(operation) for operation in found]


@router.get(
    "/operations/{operation_id}",
    summary="Everything the ledger knows of an operation",
    response_model=OperationRecordsView,
    responses=documented(404, 503),
    openapi_extra=needs(Scope.READ),
)
async def show(
    operation_id: str,
    entry: Shared,
    tenant: str | None = None,
    destination: str | None = None,
    action: str | None = None,
) -> OperationRecordsView:
    """Intent, attempts, acknowledgements, every route's readings, holds, decisions, and what may be decided now."""
    found = await records.operation_records(
        entry.ledger, operation_id, tenant=tenant, destination=destination, action=action
    )
    if not found:
        raise _no_operation(operation_id)
    return OperationRecordsView(operation_id=operation_id, records=[record_view(r) for r in found])


_PRESS: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "Which press of the button this is. The same key again is the decision that it made.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
        }
    ]
}


@router.post(
    "/operations/{operation_id}/decisions",
    summary="Record an operator's decision about a held operation",
    status_code=201,
    response_model=DecisionView,
    openapi_extra=needs(Scope.DECIDE, **_PRESS),
    responses={
        200: {
            "description": "This press made its decision before (`Idempotent-Replayed: true`).",
            "model": DecisionView,
            "headers": {"Idempotent-Replayed": {"schema": {"type": "string"}}},
        },
        **documented(400, 404, 409, 422, 503),
    },
)
async def decide(
    operation_id: str, body: DecisionBody, request: Request, response: Response, entry: Shared, who: Who
) -> DecisionView:
    """The decision is in the ledger when this answers; it is consumed after one more reading of the destination.

    Refused (409, `code`): `not_held`, `stale` (epoch or version changed: read it again), `too_early` (see
    `may_commit_until`), `object_id_missing`, `decided` (by `decided_by`). A refusal is on record too.
    """
    who.speaks_as(body.name)
    waits = body.action in entry.settings.second_person
    if waits:
        who.is_somebody(f"{body.action} needs a second person here, and two names of one token may be one person")
    operation = await _the_one(entry, operation_id, body)
    press = press_of(request)
    decision = await decisions.record(entry.ledger, operation.key, body, press=press, second_person=waits)
    if decision.again:
        response.status_code = 200
        response.headers["Idempotent-Replayed"] = "true"
    return await _told(entry, operation, decision)


@router.post(
    "/operations/{operation_id}/decisions/{decision_id}/second",
    summary="Confirm or decline somebody else's decision that waits for it",
    response_model=DecisionView,
    openapi_extra=needs(Scope.DECIDE),
    responses=documented(404, 409, 422, 503),
)
async def second(
    operation_id: str,
    decision_id: Annotated[int, Path(ge=1, le=2**63 - 1)],
    body: SecondBody,
    entry: Shared,
    who: Who,
) -> DecisionView:
    """From now on it takes effect as any decision does, or it has ended. The same word again changes nothing.

    Refused (409, `code`): `unknown_decision`, `no_second_needed`, `same_person`, `decided` (by `decided_by`), `stale`.
    """
    who.speaks_as(body.name)
    who.is_somebody("A second person's word is asked for")
    operation = await _the_one(entry, operation_id, body)
    decision = await seconding.second(
        entry.ledger, operation.key, decision_id, agrees=body.agrees, name=body.name, why=body.why
    )
    return await _told(entry, operation, decision)


async def _told(entry: Entry, operation: Operation, decision: Decision) -> DecisionView:
    """The row first, the workflow second; and not before the row may take effect."""
    told = False if decision.waits else await entry.nudge(operation.task_id)
    operation_id, number = operation.operation_id, str(decision.decision_id)
    confirm = cli("second", operation_id, "--decision", number, "--confirm", "--name", "SOMEBODY_ELSE", "--why", "WHY")
    return DecisionView(
        decision_id=decision.decision_id,
        operation_id=operation_id,
        decision=decision.decision,
        name=decision.name,
        expires_at=decision.expires_at,
        residual_risk=decision.residual_risk,
        waits_for_second_person=decision.waits,
        workflow_told=told,
        what_to_do=[*([confirm] if decision.waits else []), cli("show", operation_id)],
    )


async def _the_one(entry: Entry, operation_id: str, body: DecisionBody | SecondBody) -> Operation:
    found = await watch.find_operation(entry.ledger, operation_id)
    if not found:
        raise _no_operation(operation_id)
    named = (body.tenant, body.destination, body.operation_action)
    fitting = [
        o
        for o in found
        if all(n is None or n == v for n, v in zip(named, (o.tenant, o.destination, o.action), strict=True))
    ]
    if len(fitting) != 1:
        raise problem(
            422,
            "operation-not-named",
            "Which operation is meant is not clear",
            f"{operation_id} has {len(found)} records: name tenant, destination and operation_action of one of them.",
            records=[{"tenant": o.tenant, "destination": o.destination, "operation_action": o.action} for o in found],
        )
    return fitting[0]


@router.get(
    "/pages",
    summary="List pages, newest first",
    response_model=list[PageView],
    responses=listed(422, 503),
    openapi_extra=needs(Scope.READ),
)
async def pages(
    entry: Shared,
    request: Request,
    response: Response,
    all: Annotated[bool, Query(description="also closed ones")] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> list[PageView]:
    """What people were, or are about to be, paged for."""
    rows = await listing.pages(entry.ledger, open_only=not all, cursor=cursor, limit=limit)
    link_next(request, response, rows.next)
    return [PageView(**{name: row[name] for name in PageView.model_fields}) for row in rows]


@router.post(
    "/pages/{page_id}/acknowledge",
    summary="Say that somebody has seen a page",
    response_model=AcknowledgedView,
    responses=documented(404, 422, 503),
    openapi_extra=needs(Scope.DECIDE),
)
async def acknowledge(page_id: int, body: AcknowledgeBody, entry: Shared, who: Who) -> AcknowledgedView:
    """Repetitions stop. The incident stays open until evidence or a decision closes it. The first one stands."""
    who.speaks_as(body.name)
    seen = await watch.acknowledge_page(entry.ledger, page_id, body.name)
    if seen is None:
        raise problem(404, "unknown-page", "There is no such page", f"Page {page_id} is not in this ledger.")
    return AcknowledgedView(name=body.name, **seen)


def _no_operation(operation_id: str) -> Exception:
    return problem(
        404,
        "unknown-operation",
        "There is no such operation",
        f"{operation_id} is not in this ledger: nothing was sent for it from here. Check the id.",
    )
