"""What the deployment is told to do and what it has on record: release, credentials, audit."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse

from actonce.console.acts import Kept
from actonce.console.pages_tasks import ROWS, Cursor, Filter, chosen, more
from actonce.console.rendering import page
from actonce.console.state import console_of
from actonce.ledger import audit_chain, leases, listing, readings, records
from actonce.ledger import release as ledger_release

router = APIRouter()


@router.get("/release")
async def release(request: Request) -> HTMLResponse:
    """What waits of each task type, since when, and what keeps it."""
    console = console_of(request)
    types = sorted(console.settings.task_types)
    controls = [await ledger_release.standing(console.ledger, name, console.settings.queue_of(name)) for name in types]
    return await page(request, "release.html", controls=controls, kept=Kept())


@router.get("/credentials")
async def credentials(request: Request) -> HTMLResponse:
    """Names, states, leases, decisions of the access policy. There is no secret to show."""
    ledger = console_of(request).ledger
    return await page(
        request,
        "credentials.html",
        credentials=await leases.list_credentials(ledger),
        policy=await leases.policy_in_force(ledger),
        kept=Kept(),
    )


@router.get("/audit")
async def audit(
    request: Request,
    kind: Filter = None,
    task_id: Filter = None,
    operation_id: Filter = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Newest first; each event of this page is hashed again, and how far each sink has the chain."""
    console = console_of(request)
    wanted = {"kind": chosen(kind), "task_id": chosen(task_id), "operation_id": chosen(operation_id)}
    found = await listing.audit(console.ledger, **wanted, cursor=cursor, limit=ROWS)
    rows = await records.list_dependencies(console.ledger)
    sinks = [readings.believe(row, console.settings.stale_after_s) for row in rows if row["kind"] == "audit_sink"]
    return await page(
        request,
        "audit.html",
        events=found,
        checks={row["audit_id"]: audit_chain.check(row) for row in found},
        standing=await audit_chain.standing(console.ledger),
        sinks=sinks,
        wanted=wanted,
        first=cursor is None,
        next=more("/audit", found.next, **wanted),
    )
