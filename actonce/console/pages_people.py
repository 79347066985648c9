"""What waits for people: approvals, alerts, pages."""

from __future__ import annotations

from typing import get_args

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from actonce.console.acts import Kept
from actonce.console.pages_tasks import ROWS, Cursor, Filter, chosen, more
from actonce.console.rendering import page
from actonce.console.state import console_of
from actonce.contracts.approval import differences
from actonce.contracts.errors import ApprovalRefused
from actonce.contracts.reasons import policy
from actonce.ledger import alerts as ledger_alerts
from actonce.ledger import approvals as ledger_approvals
from actonce.ledger import listing, readings, records
from actonce.ledger.approvals import ApprovalState
from actonce.ledger.readings import EVALUATOR

router = APIRouter()


@router.get("/approvals")
async def approvals(
    request: Request, state: Filter = None, tenant: Filter = None, cursor: Cursor = None
) -> HTMLResponse:
    """Newest first."""
    wanted = {"state": chosen(state), "tenant": chosen(tenant)}
    found = await listing.approvals(console_of(request).ledger, **wanted, cursor=cursor, limit=ROWS)
    return await page(
        request,
        "approvals.html",
        approvals=found,
        wanted=wanted,
        states=get_args(ApprovalState),
        first=cursor is None,
        next=more("/approvals", found.next, **wanted),
    )


@router.get("/approvals/{approval_id}")
async def approval(request: Request, approval_id: str) -> HTMLResponse:
    """Exactly what would run, and what people said."""
    try:
        found, clicks = await ledger_approvals.record(console_of(request).ledger, approval_id)
    except ApprovalRefused as error:
        raise HTTPException(404, str(error)) from error
    changed = differences(found.proposal.what, found.found.what) if found.found else []
    return await page(request, "approval.html", a=found, clicks=clicks, changed=changed, kept=Kept())


@router.get("/alerts")
async def alerts(request: Request, all: bool = False, cursor: Cursor = None) -> HTMLResponse:
    """What the rules find wrong now, whether they are looked at, and whom it called."""
    console = console_of(request)
    rows = await ledger_alerts.listing(console.ledger, resolved=all)
    told = await records.list_dependencies(console.ledger)
    believed = [readings.believe(row, console.settings.stale_after_s) for row in told]
    pages = await listing.pages(console.ledger, open_only=not all, cursor=cursor, limit=ROWS)
    return await page(
        request,
        "alerts.html",
        alerts=rows,
        pages=pages,
        all=all,
        policy=policy,
        evaluator=next((r for r in believed if r.name == EVALUATOR), None),
        first=cursor is None,
        next=more("/alerts", pages.next, all="true" if all else None),
    )
