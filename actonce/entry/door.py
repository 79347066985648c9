"""What comes through the door, checked before anything is recorded: the key, the tenant, the type, the body."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from fastapi import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actonce.entry.problems import problem

KEY_CHARS_MAX = 200  # tenant + type + key must fit into an operation_id's parts
YEARS = range(1970, 9999)  # a day more or less, in another time zone, is still a time
_KEY = re.compile(r"[\x21-\x7e]+")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_TYPE = re.compile(r"[a-z][a-z0-9_.-]{0,62}")


class BodyLimit:
    """ASGI middleware: no request body is read beyond `bytes_max`."""

    def __init__(self, app: ASGIApp, bytes_max: int) -> None:
        self.app = app
        self.bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.bytes_max:
                raise HTTPException(
                    413, f"The body is larger than {self.bytes_max} bytes; pass a reference and its digest instead."
                )
            return message

        await self.app(scope, counted if scope["type"] == "http" else receive, send)


def task_key(request: Request) -> str:
    """The caller's business identity. `"abc"` (the structured-field form) and `abc` are the same key."""
    key = _idempotency_key(request)
    if key is None:
        raise problem(
            400,
            "idempotency-key-missing",
            "The Idempotency-Key header is missing",
            "Send the business identity of this task as Idempotency-Key; the same key always means the same task.",
        )
    return key


def press_of(request: Request) -> str | None:
    """Which press of a button this is, where the caller says so: the same one again changes nothing."""
    return _idempotency_key(request)


def _idempotency_key(request: Request) -> str | None:
    given = request.headers.getlist("idempotency-key")
    if not given or not given[0].strip():
        return None
    key = given[0].strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if len(given) > 1 or not _KEY.fullmatch(key) or len(key) > KEY_CHARS_MAX:
        raise problem(
            400,
            "idempotency-key-malformed",
            "The Idempotency-Key cannot be used",
            f"Send exactly one key of 1 to {KEY_CHARS_MAX} visible ASCII characters without spaces.",
        )
    return key


def tenant_of(request: Request) -> str:
    """The tenant, from the Actonce-Tenant header."""
    given = request.headers.getlist("actonce-tenant")
    tenant = given[0] if given else "default"
    if len(given) > 1 or not _TENANT.fullmatch(tenant):
        raise problem(
            400,
            "tenant-malformed",
            "The Actonce-Tenant header cannot be used",
            "Send it once. A tenant is 1 to 63 letters, digits, `_`, `.` or `-`, and starts with a letter or digit.",
        )
    return tenant


def deadline_of(request: Request) -> datetime | None:
    """The Actonce-Deadline header: from then on nothing is sent for the task."""
    given = request.headers.get("actonce-deadline")
    if given is None:
        return None
    try:
        return moment(datetime.fromisoformat(given.strip()))
    except ValueError as error:
        raise problem(
            400,
            "deadline-malformed",
            "The Actonce-Deadline header cannot be used",
            "Send a time with an offset, such as 2026-01-31T12:00:00Z, or leave the header out.",
        ) from error


def moment(given: datetime) -> datetime:
    """A moment that every clock and database here can hold. Raises ValueError."""
    if given.tzinfo is None:
        raise ValueError("a time needs an offset")
    if given.year not in YEARS:
        raise ValueError(f"a year between {YEARS.start} and {YEARS.stop - 1} is needed")
    return given


def known_type(task_type: str, known: dict[str, Any]) -> str:
    """Refuse a task type that no workflow is named for."""
    if task_type not in known or not _TYPE.fullmatch(task_type):
        raise problem(
            404,
            "unknown-task-type",
            "There is no such task type",
            f"Known task types: {', '.join(sorted(known)) or 'none'} (ACTONCE_TASK_TYPES).",
        )
    return task_type


async def json_object(request: Request) -> dict[str, Any]:
    """The body as one JSON object. Duplicate members and NaN are not JSON; floats are left for the digest to refuse."""
    raw = await request.body()
    try:
        value = json.loads(raw, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise problem(400, "not-json", "The body is not JSON", f"Send one JSON object: {error}.") from error
    if not isinstance(value, dict):
        raise problem(
            422, "payload-is-no-object", "The payload is not an object", "Send the task's payload as one JSON object."
        )
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member occurs twice, and nobody can tell which one is meant")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
