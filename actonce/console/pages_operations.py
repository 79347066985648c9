"""Operations: the list, one with its three facts and every reading, and everything on record about it as JSON."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.encoders import jsonable_encoder
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse

from actonce.console import acts_operations, facts
from actonce.console.pages_tasks import ROWS, Cursor, Filter, chosen, more, ui_link
from actonce.console.rendering import page
from actonce.console.state import console_of
from actonce.console.timeline import timeline
from actonce.contracts.lifecycle import State
from actonce.contracts.reasons import POLICIES, policy
from actonce.ledger import browse, listing, records
from actonce.ledger.pages import may_commit_words
from actonce.ledger.records import OperationRecord

router = APIRouter()


@router.get("/operations")
async def operations(
    request: Request,
    state: Filter = None,
    reason: Filter = None,
    destination: Filter = None,
    natural_key: Filter = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Newest first."""
    wanted = {
        "state": chosen(state),
        "reason": chosen(reason),
        "destination": chosen(destination),
        "natural_key": chosen(natural_key),
    }
    console = console_of(request)
    found = await listing.operations(console.ledger, **wanted, cursor=cursor, limit=ROWS)
    return await page(
        request,
        "operations.html",
        operations=found,
        wanted=wanted,
        states=[s.value for s in State],
        reasons=[r.value for r, row in POLICIES.items() if row.actions],
        destinations=await browse.destinations(console.ledger),
        first=cursor is None,
        next=more("/operations", found.next, **wanted),
    )


@router.get("/operations/{operation_id}")
async def operation(
    request: Request,
    operation_id: str,
    tenant: Filter = None,
    destination: Filter = None,
    action: Filter = None,
) -> HTMLResponse:
    """Three facts with their sources, every route's reading, the verdict from it and why."""
    console = console_of(request)
    found = await records.operation_records(
        console.ledger, operation_id, tenant=chosen(tenant), destination=chosen(destination), action=chosen(action)
    )
    if not found:
        raise _unknown(operation_id)
    if len(found) > 1:
        return await page(request, "which_operation.html", operation_id=operation_id, records=found)
    return await page(request, "operation.html", **await shown(request, found[0]))


async def shown(request: Request, record: OperationRecord) -> dict[str, Any]:
    """What the page of one operation tells."""
    console = console_of(request)
    o = record.operation
    contract = await browse.contract_of(console.ledger, o.destination, o.contract_digest)
    return {
        **acts_operations.operation_values(request, record),
        **acts_operations.fresh_values(),
        "r": record,
        "o": o,
        "lights": facts.lights(record),
        "contract": contract,
        "newest": facts.newest(record, contract),
        "policy": policy(o.reason) if o.reason else None,
        "may_commit": may_commit_words(o),
        "hold": next((h for h in record.holds if h["closed_at"] is None), None),
        "picture": timeline(record),
        "ui": ui_link(console, o.task_id),
    }


@router.get("/raw/operations/{operation_id}")
async def raw(request: Request, operation_id: str) -> JSONResponse:
    """Everything the ledger knows of an operation."""
    found = await records.operation_records(console_of(request).ledger, operation_id)
    if not found:
        raise _unknown(operation_id)
    return JSONResponse(jsonable_encoder({"operation_id": operation_id, "records": found}))


def _unknown(operation_id: str) -> HTTPException:
    return HTTPException(404, f"{operation_id} is not in this ledger: nothing was sent for it from here. Check the id.")
