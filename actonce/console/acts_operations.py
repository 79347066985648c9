"""Decisions about held operations: record one, agree or disagree with somebody else's."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from actonce.console import choices
from actonce.console.acting import Refused, path
from actonce.console.acts import Kept, ask, done, fresh_press, missing, press_for, refused_page
from actonce.console.csrf import Form
from actonce.console.person import Press, pressed
from actonce.console.rendering import segment
from actonce.console.state import console_of
from actonce.contracts.identity import OperationKey
from actonce.contracts.people import Scope
from actonce.ledger import changes, records
from actonce.ledger.records import OperationRecord

router = APIRouter()
Decides = Annotated[Press, Depends(pressed(Scope.DECIDE))]


@router.post("/operations/{operation_id}/decisions")
async def decide(operation_id: str, request: Request, press: Decides) -> Response:
    """Record a decision on exactly what the form showed: its epoch and its version."""
    form = press.form
    stamp = {"expected_epoch": form.number("epoch"), "expected_version": form.number("version")}
    refused = _unfinished(operation_id, form)
    if refused is None:
        body = {
            **_named(form),
            **stamp,
            "action": form["action"],
            "reason": form["reason"],
            "evidence": form["evidence"],
            "object_id": form["object_id"] or None,
        }
        try:
            answer = await ask(
                request, press, path("operations", operation_id, "decisions"), body, key=form["press"] or None
            )
        except Refused as error:
            refused = error
        else:
            waits = answer.body.get("waits_for_second_person")
            word = "decided-again" if answer.again else "waits-for-second" if waits else "decided"
            return done(_address(operation_id), word)
    return await _refused(request, operation_id, refused, form, form["action"])


@router.post("/operations/{operation_id}/decisions/{decision_id}/second")
async def second(operation_id: str, decision_id: int, request: Request, press: Decides) -> Response:
    """Agree or disagree with a decision of somebody else that waits for it. The entry knows who may not."""
    form = press.form
    refused = missing(form, "why")
    if refused is None:
        body = {**_named(form), "agrees": form["agrees"] == "yes", "why": form["why"]}
        try:
            await ask(request, press, path("operations", operation_id, "decisions", str(decision_id), "second"), body)
        except Refused as error:
            refused = error
        else:
            return done(_address(operation_id), "agreed" if body["agrees"] else "disagreed")
    return await _refused(request, operation_id, refused, form, f"second-{decision_id}")


def _unfinished(operation_id: str, form: Form) -> Refused | None:
    """What a form lacks before anybody is asked. None: it is complete."""
    action = form["action"]
    needed = ["reason"] if action == "resume" else ["reason", "evidence"]
    if action == "mark_committed":
        needed.append("object_id")
    refused = missing(form, *needed)
    if refused is None and action in choices.DANGEROUS and not choices.is_confirmed(operation_id, form["confirm"]):
        return Refused(
            422,
            "It is not confirmed",
            f"Type the last {choices.CONFIRM_CHARS} characters of the operation_id that you decide about. "
            "Nothing was recorded.",
            "not-confirmed",
        )
    return refused


def _named(form: Form) -> dict[str, str]:
    """Which of the records with this operation_id."""
    return {name: form[name] for name in ("tenant", "destination", "operation_action")}


async def _refused(request: Request, operation_id: str, refused: Refused, form: Form, about: str) -> Response:
    record = await _record(request, operation_id, form)
    key: OperationKey = record.operation.key
    since = await changes.of_operation(console_of(request).ledger, key, form.number("version"))
    return await refused_page(
        request,
        refused,
        "refused_operation.html",
        back=_address(operation_id),
        changes=since,
        kept=Kept(about, form.values),
        press=press_for(form, refused),
        **operation_values(request, record),
    )


async def _record(request: Request, operation_id: str, form: Form) -> OperationRecord:
    found = await records.operation_records(
        console_of(request).ledger,
        operation_id,
        tenant=form["tenant"],
        destination=form["destination"],
        action=form["operation_action"],
    )
    if len(found) != 1:
        raise HTTPException(404, "There is no such operation in this ledger; nothing was recorded.")
    return found[0]


def operation_values(request: Request, record: OperationRecord) -> dict[str, Any]:
    """What the decision forms of one operation are made of (see `decisions` in forms.html)."""
    return {
        "record": record,
        "operation": record.operation,
        "choices": choices.choices(record, console_of(request).settings.second_person),
        "confirmation": choices.confirmation(record.operation.operation_id),
        "procedure": choices.procedure_of(record.operation),
        "waiting": choices.waiting(record),
    }


def fresh_values() -> dict[str, Any]:
    """What a fresh form has beside: nothing typed, and a key of its own."""
    return {"kept": Kept(), "press": fresh_press()}


def _address(operation_id: str) -> str:
    return f"/operations/{segment(operation_id)}"
