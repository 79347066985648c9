"""Votes on approvals: approve, reject, take back, ask again. Each is about exactly the digest that the form showed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from actonce.console.acting import Refused, path
from actonce.console.acts import Kept, ask, done, missing, refused_page
from actonce.console.person import Press, pressed
from actonce.console.rendering import segment
from actonce.console.state import console_of
from actonce.contracts.errors import ApprovalRefused
from actonce.contracts.people import Scope
from actonce.ledger import approvals
from actonce.ledger.changes import Change

router = APIRouter(prefix="/approvals/{approval_id}")
Approves = Annotated[Press, Depends(pressed(Scope.APPROVE))]


@router.post("/approve")
async def approve(approval_id: str, request: Request, press: Approves) -> Response:
    """One voice for it."""
    body = {"digest": press.form["digest"], "note": press.form["note"]}
    return await _act(request, press, approval_id, "approve", body, "approved")


@router.post("/reject")
async def reject(approval_id: str, request: Request, press: Approves) -> Response:
    """One voice against it is enough."""
    body = {"digest": press.form["digest"], "note": press.form["note"]}
    return await _act(request, press, approval_id, "reject", body, "rejected", "note")


@router.post("/withdraw")
async def withdraw(approval_id: str, request: Request, press: Approves) -> Response:
    """No further permit is given on it."""
    return await _act(request, press, approval_id, "withdraw", {"note": press.form["note"]}, "withdrawn", "note")


@router.post("/renew")
async def renew(approval_id: str, request: Request, press: Approves) -> Response:
    """Ask again, and go to what is asked now."""
    body = {"note": press.form["note"], "as_approved": press.form["as_approved"] == "yes"}
    return await _act(request, press, approval_id, "renew", body, "renewed", "note")


async def _act(
    request: Request, press: Press, approval_id: str, verb: str, body: dict[str, Any], word: str, *needed: str
) -> Response:
    refused = missing(press.form, *needed)
    if refused is None:
        try:
            answer = await ask(request, press, path("approvals", approval_id, verb), body)
        except Refused as error:
            refused = error
        else:
            return done(f"/approvals/{segment(str(answer.body.get('approval_id', approval_id)))}", word)
    try:
        approval, clicks = await approvals.record(console_of(request).ledger, approval_id)
    except ApprovalRefused as error:
        raise HTTPException(404, str(error)) from error
    return await refused_page(
        request,
        refused,
        "refused_approval.html",
        back=f"/approvals/{segment(approval_id)}",
        changes=[Change(c["at"], f"{c['decision']}: {_said(c['effect'])}; {c['note']}", c["name"]) for c in clicks],
        kept=Kept(verb, press.form.values),
        approval=approval,
    )


def _said(effect: str) -> str:
    return "counted" if effect == "counted" else f"changed nothing ({effect.replace('_', ' ')})"
