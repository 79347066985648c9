"""The first pages: is anything unresolved, what everything needs, what a name means, what to do for a reason."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from actonce.console import procedures
from actonce.console.person import Press, pressed
from actonce.console.rendering import page, segment
from actonce.console.state import console_of
from actonce.contracts.people import Scope
from actonce.contracts.reasons import POLICIES, policy
from actonce.ledger import browse, readings, records
from actonce.ledger.browse import FOUND_MAX, Found

router = APIRouter()
WORD_LENGTH_MAX = 500
KINDS = {
    "ledger": "Ledger",
    "temporal": "Temporal",
    "pollers": "Workers",
    "destination": "Destinations",
    "route": "Read routes",
    "memory": "Memory",
    "lease_manager": "Credentials",
    "audit_sink": "Audit sinks",
    "paging": "Paging",
    "watch": "Loops of the watching process",
}


@router.get("/")
async def overview(request: Request) -> HTMLResponse:
    """Counts and ages of everything that is open."""
    console = console_of(request)
    found = await browse.overview(console.ledger)
    believed = [readings.believe(row, console.settings.stale_after_s) for row in found.readings]
    evaluator = next((r for r in believed if r.name == readings.EVALUATOR), None)
    return await page(
        request,
        "overview.html",
        o=found,
        state=readings.worst(believed)
        if evaluator is not None
        else "unknown",  # nobody looks whether anything is wrong
        evaluator=evaluator,
        troubled=[r for r in believed if r.state != "up" and not r.nothing_to_ask],
        asked=[r for r in believed if not r.nothing_to_ask],
        unasked=[r for r in believed if r.nothing_to_ask],
        workers=[r for r in believed if r.kind == "pollers"],
        policy=policy,
    )


@router.get("/dependencies")
async def dependencies(request: Request) -> HTMLResponse:
    """Every dependency with its state, since when, how it was established, and what waits for it."""
    console = console_of(request)
    rows = await records.list_dependencies(console.ledger)
    believed = [readings.believe(row, console.settings.stale_after_s) for row in rows]
    order = list(KINDS)
    kinds = sorted({r.kind for r in believed}, key=lambda kind: (order.index(kind) if kind in order else 99, kind))
    groups = [(KINDS.get(kind, kind.replace("_", " ")), [r for r in believed if r.kind == kind]) for kind in kinds]
    return await page(request, "dependencies.html", groups=groups, state=readings.worst(believed))


@router.get("/search")
async def search_form(request: Request) -> HTMLResponse:
    """The form. What is looked for may be a customer, so it is never part of an address."""
    return await page(request, "search.html", word=None, found=[], max=FOUND_MAX)


@router.post("/search")
async def search(request: Request, press: Annotated[Press, Depends(pressed(Scope.READ))]) -> Response:
    """What a name means. A name of one thing leads there."""
    word = press.form["word"][:WORD_LENGTH_MAX]
    found = await browse.search(console_of(request).ledger, word)
    if len(found) == 1:
        return RedirectResponse(_address(found[0]), 303)
    return await page(request, "search.html", word=word, found=found, max=FOUND_MAX)


def _address(one: Found) -> str:
    if one.task is not None:
        return f"/tasks/{segment(one.task.task.task_id)}"
    if one.operation is not None:
        return f"/operations/{segment(one.operation.operation_id)}"
    return f"/approvals/{segment(one.approval_id or '')}"


@router.get("/procedures")
@router.get("/procedures/")
async def procedure_index(request: Request) -> HTMLResponse:
    """Every reason code, with its owner and what it means."""
    return await page(request, "procedures.html", policies=list(POLICIES.values()))


@router.get("/procedures/{reason}")
async def procedure(request: Request, reason: str) -> HTMLResponse:
    """One procedure, as it is written in docs/operations."""
    known = next((row for row in POLICIES.values() if row.reason.value == reason), None)
    text = procedures.text_of(reason) if known else None
    if known is None or text is None:
        raise HTTPException(404, "There is no such procedure; the list of them is at /procedures.")
    return await page(request, "procedure.html", policy=known, body=procedures.render(text))
