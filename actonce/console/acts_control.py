"""Buttons about pages, release, credentials and tasks: acknowledge, pause, rotate, cancel, another deadline."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from actonce.console.acting import Refused, path
from actonce.console.acts import Kept, ask, done, missing, refused_page
from actonce.console.csrf import Form
from actonce.console.person import Press, pressed
from actonce.console.rendering import segment
from actonce.console.state import console_of
from actonce.contracts.people import Scope
from actonce.ledger import changes, leases, release, tasks

router = APIRouter()
Decides = Annotated[Press, Depends(pressed(Scope.DECIDE))]
Grants = Annotated[Press, Depends(pressed(Scope.ACCESS))]
Releases = Annotated[Press, Depends(pressed(Scope.RELEASE))]


@router.post("/pages/{page_id}/acknowledge")
async def acknowledge(page_id: int, request: Request, press: Decides) -> Response:
    """It is not repeated. Who said so first stays on record."""
    try:
        await ask(request, press, path("pages", str(page_id), "acknowledge"), {})
    except Refused as refused:
        return await refused_page(request, refused, "refused.html", back="/alerts")
    return done("/alerts", "acknowledged")


# release ----------------------------------------------------------------------------------------------------------


@router.post("/release/{task_type}")
async def change_release(task_type: str, request: Request, press: Releases) -> Response:
    """Pause, let go again, or set rate and window, on what the form showed."""
    form = press.form
    version = form.number("version")
    refused = missing(form, "why")
    if refused is None:
        try:
            body = {"expected_version": version, "why": form["why"], "evidence": form["evidence"], **_wanted(form)}
            await ask(request, press, path("release", task_type), body)
        except Refused as error:
            refused = error
        else:
            return done("/release", "released")
    settings = console_of(request).settings
    if task_type not in settings.task_types:
        raise HTTPException(404, f"There is no task type {task_type} here; nothing was recorded.")
    ledger = console_of(request).ledger
    return await refused_page(
        request,
        refused,
        "refused_release.html",
        back="/release",
        changes=await changes.of_release(ledger, task_type, version),
        kept=Kept(task_type, form.values),
        control=await release.control(ledger, task_type, settings.queue_of(task_type)),
    )


def _wanted(form: Form) -> dict[str, Any]:
    """What the pressed button asks for. Raises Refused."""
    if form["do"] in ("pause", "resume"):
        return {"paused": form["do"] == "pause"}
    try:
        rate = float(form["rate"].replace(",", ".")) if form["rate"] else 0.0  # 0: no limit
        window = int(form["window"])
    except ValueError as error:
        raise Refused(422, "Something does not fit", "Rate and window are numbers. Nothing was recorded.") from error
    if not 0 <= rate < 1e6 or not 1 <= window <= 100_000:
        words = "The rate is 0 (no limit) or more, the window 1 to 100000. Nothing was recorded."
        raise Refused(422, "Something does not fit", words)
    return {"rate_per_s": rate, "window_max": window}


# credentials ------------------------------------------------------------------------------------------------------


@router.post("/credentials/rotations")
async def rotate(request: Request, press: Grants) -> Response:
    """Every process leases it anew."""
    return await _credential(request, press, "rotations", "rotated")


@router.post("/credentials/revocations")
async def revoke(request: Request, press: Grants) -> Response:
    """No permit is given under it any more."""
    return await _credential(request, press, "revocations", "revoked")


async def _credential(request: Request, press: Press, what: str, word: str) -> Response:
    form = press.form
    refused = missing(form, "reason")
    if refused is None:
        try:
            generation = form.number("generation")
            body = {"credential": form["credential"], "expected_generation": generation, "reason": form["reason"]}
            await ask(request, press, path("credentials", what), body)
        except Refused as error:
            refused = error
        else:
            return done("/credentials", word)
    found = [c for c in await leases.list_credentials(console_of(request).ledger) if c["name"] == form["credential"]]
    if not found:
        raise HTTPException(404, "There is no such credential in this ledger; nothing was recorded.")
    return await refused_page(
        request,
        refused,
        "refused_credential.html",
        back="/credentials",
        kept=Kept(form["credential"], form.values),
        credential=found[0],
    )


# tasks ------------------------------------------------------------------------------------------------------------


@router.post("/tasks/{task_id:path}/cancel")
async def cancel(task_id: str, request: Request, press: Decides) -> Response:
    """Unused permits are void when this is answered."""
    refused = missing(press.form, "why")
    if refused is None:
        try:
            answer = await ask(request, press, path("tasks", task_id, "cancel"), {"why": press.form["why"]})
        except Refused as error:
            refused = error
        else:
            ended = answer.body.get("state") in ("complete", "failed", "cancelled")
            return done(_address(task_id), "ended-before" if ended else "cancelled")
    return await _refused(request, task_id, refused, press.form, "cancel")


@router.post("/tasks/{task_id:path}/deadline")
async def deadline(task_id: str, request: Request, press: Decides) -> Response:
    """Another deadline than the one that the form showed. Written and shown in UTC."""
    form = press.form
    refused = missing(form, "deadline", "why")
    if refused is None:
        try:
            body = {"deadline": _utc(form["deadline"]), "expected_deadline": form["expected"] or None}
            await ask(request, press, path("tasks", task_id, "deadline"), {**body, "why": form["why"]})
        except Refused as error:
            refused = error
        else:
            return done(_address(task_id), "deadline")
    return await _refused(request, task_id, refused, form, "deadline")


def _utc(typed: str) -> str:
    """`2026-01-31T12:00`, as a browser's own field writes it. Raises Refused."""
    try:
        found = datetime.fromisoformat(typed.removesuffix("UTC").strip())
    except ValueError as error:
        words = "Write the deadline like 2026-01-31T12:00, in UTC. Nothing was recorded."
        raise Refused(422, "That is no time", words) from error
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).isoformat()


async def _refused(request: Request, task_id: str, refused: Refused, form: Form, about: str) -> Response:
    ledger = console_of(request).ledger
    task = await tasks.get(ledger, task_id)
    if task is None:
        raise HTTPException(404, "There is no such task in this ledger; nothing was recorded.")
    return await refused_page(
        request,
        refused,
        "refused_task.html",
        back=_address(task_id),
        changes=await changes.of_deadline(ledger, task_id) if about == "deadline" else (),
        kept=Kept(about, form.values),
        task=task,
    )


def _address(task_id: str) -> str:
    return f"/tasks/{segment(task_id)}"
