"""Every refusal of the entry service, as problem+json (RFC 9457): the fact, the id, the next step."""

from __future__ import annotations

import uuid
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi_problem.error import Problem
from fastapi_problem.handler import ExceptionHandler, add_exception_handler, new_exception_handler
from starlette.requests import Request

from actonce.contracts.errors import (
    AccessRefused,
    ApprovalRefused,
    BacklogFull,
    DecisionRefused,
    ForeignLedger,
    LedgerUnavailable,
    PayloadError,
    PersonRefused,
    ReleaseRefused,
    RestoreRefused,
    TaskConflict,
)
from actonce.ledger.listing import BadCursor
from actonce.ledger.tasks import StillRecording

log = structlog.get_logger("actonce.entry")
URN = "urn:actonce:problem:{type}"
MEDIA_TYPE = "application/problem+json"


def problem(
    status: int, type_: str, title: str, detail: str, *, retry_after_s: int | None = None, **more: Any
) -> Problem:
    """Build one refusal. `more` becomes members of the JSON object."""
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s is not None else None
    return Problem(title, type_=type_, detail=detail, status=status, headers=headers, **more)


def _still_recording(_: ExceptionHandler, __: Request, error: StillRecording) -> Problem:
    return problem(409, "still-recording", "The first request is still being recorded", str(error), retry_after_s=1)


def _task_conflict(_: ExceptionHandler, __: Request, error: TaskConflict) -> Problem:
    return problem(422, "payload-differs", "This key was used with another payload", str(error))


def _cursor(_: ExceptionHandler, __: Request, error: BadCursor) -> Problem:
    return problem(422, "bad-cursor", "The cursor does not fit", str(error))


def _backlog(_: ExceptionHandler, __: Request, error: BacklogFull) -> Problem:
    return problem(503, "backlog-full", "No more tasks are accepted now", str(error), retry_after_s=error.retry_after_s)


def _release(_: ExceptionHandler, __: Request, error: ReleaseRefused) -> Problem:
    return problem(409, "changed-meanwhile", "It has changed since you read it", str(error))


def _restore(_: ExceptionHandler, __: Request, error: RestoreRefused) -> Problem:
    status = 422 if error.code == "press_reused" else 409
    return problem(status, "restore-refused", "The restore stands otherwise", str(error), code=error.code)


def _payload(_: ExceptionHandler, __: Request, error: PayloadError) -> Problem:
    return problem(422, "payload-has-no-digest", "The payload cannot be identified", str(error))


def _decision(_: ExceptionHandler, __: Request, error: DecisionRefused) -> Problem:
    return problem(
        422 if error.code == "press_reused" else 409,
        "decision-refused",
        "The decision was refused",
        str(error),
        code=error.code,
        may_commit_until=error.may_commit_until,
        decided_by=error.decided_by,
        decided_at=error.decided_at,
    )


_APPROVAL_TITLES = {
    "unknown_approval": "There is no such approval",
    "already_decided": "Already decided",
    "expired": "The approval expired",
    "changed": "It is about something else than you decided about",
}


def _approval(_: ExceptionHandler, __: Request, error: ApprovalRefused) -> Problem:
    return problem(
        404 if error.code == "unknown_approval" else 409,
        error.code.replace("_", "-"),
        _APPROVAL_TITLES.get(error.code, "It decides nothing"),
        str(error),
        code=error.code,
        decided_by=error.decided_by,
        decided_at=error.decided_at,
    )


def _access(_: ExceptionHandler, __: Request, error: AccessRefused) -> Problem:
    if error.code == "unknown":
        return problem(404, "unknown-credential", "There is no such credential", str(error), code=error.code)
    return problem(409, "access-refused", "The change was refused", str(error), code=error.code)


_PERSON_STATUS = {"unknown": 404, "stale": 409, "taken": 409, "last_admin": 409}
_PERSON_TITLES = {
    "unknown": "There is nobody, or nothing, of that name",
    "stale": "It has changed since you read it",
    "taken": "There is somebody of that name already",
    "last_admin": "Somebody has to be able to undo it",
}


def _person(_: ExceptionHandler, __: Request, error: PersonRefused) -> Problem:
    title = _PERSON_TITLES.get(error.code, "That does not do")
    return problem(_PERSON_STATUS.get(error.code, 422), "person-refused", title, str(error), code=error.code)


def _unavailable(_: ExceptionHandler, __: Request, error: LedgerUnavailable) -> Problem:
    log.warning("ledger_unavailable", error=str(error))
    return problem(
        503,
        "ledger-unavailable",
        "The ledger does not answer",
        "Whether this request was recorded is not known; nothing is lost by sending the same request with the same key "
        "again. Operators: check PostgreSQL, then GET /dependencies.",
        retry_after_s=2,
    )


def _foreign(_: ExceptionHandler, __: Request, error: ForeignLedger) -> Problem:
    return problem(503, "foreign-ledger", "This is not the ledger of this deployment", str(error))


def _invalid(_: ExceptionHandler, __: Request, error: RequestValidationError) -> Problem:
    found = [{"where": ".".join(str(p) for p in e["loc"]), "what": e["msg"]} for e in error.errors()]
    if any(e["type"] == "json_invalid" for e in error.errors()):
        return problem(400, "not-json", "The body is not JSON", "Send one JSON object.", errors=found)
    words = "; ".join(f"{e['where']}: {e['what']}" for e in found)
    return problem(422, "invalid", "The request does not fit", words, errors=found)


def _unexpected(_: ExceptionHandler, request: Request, error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    incident = uuid.uuid4().hex[:12]
    log.error("unexpected", incident=incident, path=request.url.path, exc_info=error)
    return problem(500, "unexpected", "Unexpected error", f"The log has it as incident {incident}.", incident=incident)


def install(app: FastAPI) -> None:
    """Make every error of this app a problem."""
    handlers: dict[type[Exception], Any] = {
        StillRecording: _still_recording,
        TaskConflict: _task_conflict,
        PayloadError: _payload,
        BadCursor: _cursor,
        BacklogFull: _backlog,
        ReleaseRefused: _release,
        RestoreRefused: _restore,
        DecisionRefused: _decision,
        ApprovalRefused: _approval,
        AccessRefused: _access,
        PersonRefused: _person,
        LedgerUnavailable: _unavailable,
        ForeignLedger: _foreign,
    }
    handler = new_exception_handler(
        handlers=handlers,
        request_validation_handler=_invalid,
        documentation_uri_template=URN,
    )
    handler.handlers[Exception] = _unexpected  # last: the table is asked in order
    add_exception_handler(app, handler)
    for refusal in (*handlers, Problem):
        # By name: what is only handled as an Exception is also raised again, and logged as a fault of the service.
        app.add_exception_handler(refusal, handler)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for refusals."""
    return {
        status: {"description": _MEANS[status], "content": {MEDIA_TYPE: {"schema": _SCHEMA}}} for status in statuses
    }


_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "of a refused decision, vote or change"},
        "decided_by": {"type": ["string", "null"], "description": "who decided before"},
        "decided_at": {"type": ["string", "null"]},
        "may_commit_until": {"type": ["string", "null"], "description": "of a decision that came too early"},
    },
}
_MEANS = {
    400: "The Idempotency-Key is missing or malformed, or the body is not JSON.",
    401: "No token, or one that is unknown, expired or revoked.",
    403: "The token does not carry the scope, or speaks for somebody else than the body names.",
    404: "There is no such thing in this ledger.",
    408: "The body did not arrive in time; nothing was recorded. Send it again, whole.",
    409: "Not now: the first request is still being recorded (Retry-After); a decision or vote was refused (`code`); "
    "or what was decided on has changed.",
    413: "The body is too large; pass a reference and its digest instead.",
    422: "The same key was used with another payload, or the request does not fit.",
    503: "The ledger does not answer, or the backlog is full; send the same request again (Retry-After).",
}
