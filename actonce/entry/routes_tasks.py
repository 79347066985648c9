"""Routes about tasks: start, list, show, cancel."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from actonce.contracts.errors import LedgerError, LedgerUnavailable
from actonce.contracts.people import Scope
from actonce.entry.access import Who, guarded_router, needs
from actonce.entry.door import deadline_of, json_object, known_type, task_key, tenant_of
from actonce.entry.lists import Cursor, Limit, link_next, listed
from actonce.entry.problems import documented, problem
from actonce.entry.state import Entry, entry_of
from actonce.entry.views import CancelBody, CancelView, DeadlineBody, TaskSummary, TaskView, summary_view, task_view
from actonce.ledger import listing, records, release, tasks
from actonce.ledger.tasks import Task, TaskState
from actonce.ledger.words import FINAL_STATES

router = guarded_router("/v1/tasks", "tasks")
Shared = Annotated[Entry, Depends(entry_of)]

_START: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": True,
            "description": "The task key: the caller's business identity of this task.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
        },
        {
            "name": "Actonce-Tenant",
            "in": "header",
            "required": False,
            "description": "Whose task it is.",
            "schema": {"type": "string", "default": "default"},
        },
        {
            "name": "Actonce-Deadline",
            "in": "header",
            "required": False,
            "description": "ISO 8601 with an offset: nothing is sent for this task afterwards. The first one stands.",
            "schema": {"type": "string", "format": "date-time"},
        },
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
        "description": "The task's payload. Money is integer minor units; floats are refused.",
    },
}


@router.post(
    "/{task_type}",
    summary="Start a task, or find the one with this key",
    status_code=202,
    response_model=TaskView,
    openapi_extra=needs(Scope.START, **_START),
    responses={
        200: {
            "description": "It has an outcome; this is the stored one (`Idempotent-Replayed: true`).",
            "model": TaskView,
            "headers": {"Idempotent-Replayed": {"schema": {"type": "string"}}},
        },
        202: {"description": "It is recorded and will be done, also while Temporal or all workers are down."},
        **documented(400, 404, 408, 409, 413, 422, 503),
    },
)
async def start(task_type: str, request: Request, response: Response, entry: Shared, who: Who) -> TaskView:
    """The task is in the ledger before this answers. The same key and payload are the same task, for ever."""
    known_type(task_type, entry.settings.task_types)
    key, tenant = task_key(request), tenant_of(request)
    payload = await json_object(request)
    task, _ = await tasks.accept(
        entry.ledger,
        tenant,
        task_type,
        key,
        payload,
        recording_wait_s=entry.settings.recording_wait_s,
        deadline=deadline_of(request),
        backlog_max=entry.settings.backlog_max,
        submitted_by=who.name,
    )
    if task.outcome is not None:
        response.status_code = 200
        response.headers["Idempotent-Replayed"] = "true"
    else:
        await entry.starter.let_go(task)
    response.headers["Location"] = f"/v1/tasks/{quote(task.task_id, safe='')}"
    return await _answer(entry, task)


async def _answer(entry: Entry, task: Task) -> TaskView:
    """The task as it is now. It is accepted whatever happens here, so a ledger lost just now is no refusal."""
    try:
        record = await records.task_record(entry.ledger, task.task_id)
    except LedgerUnavailable:
        record = None
    if record is None:
        record = records.TaskRecord(task, [], [], None, task.created_at)
    return await _view(entry, record, ask_temporal=False)


async def _view(entry: Entry, record: records.TaskRecord, *, ask_temporal: bool) -> TaskView:
    task = record.task
    final = task.state in FINAL_STATES
    run = await entry.starter.describe(task.workflow_id) if ask_temporal and entry.starter.away is None else None
    working = "unknown" if final else await entry.working(task.task_type)
    behind = await entry.release_of(task) if task.released_at is None and not final else None
    trouble = entry.starter.trouble(task)
    return task_view(record, run, working, trouble, behind, (entry.settings.temporal_ui_url, entry.namespace))


@router.get(
    "",
    summary="List tasks, newest first",
    response_model=list[TaskSummary],
    responses=listed(422, 503),
    openapi_extra=needs(Scope.READ),
)
async def list_tasks(
    entry: Shared,
    request: Request,
    response: Response,
    state: Annotated[TaskState | None, Query(description="only this state")] = None,
    task_type: str | None = None,
    tenant: str | None = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> list[TaskSummary]:
    """The ledger's word on each task; Temporal is not asked."""
    found = await listing.tasks(
        entry.ledger, state=state, task_type=task_type, tenant=tenant, cursor=cursor, limit=limit
    )
    link_next(request, response, found.next)
    return [summary_view(line) for line in found]


@router.get(
    "/{task_id:path}",
    summary="The truth about one task",
    response_model=TaskView,
    responses=documented(404, 503),
    openapi_extra=needs(Scope.READ),
)
async def show(task_id: str, entry: Shared) -> TaskView:
    """State, why, since when, what to do, and the evidence. The id is `tenant/task_type/task_key`."""
    record = await records.task_record(entry.ledger, task_id)
    if record is None:
        raise _no_task(task_id)
    return await _view(entry, record, ask_temporal=True)


@router.post(
    "/{task_id:path}/cancel",
    summary="Ask for cancellation",
    status_code=202,
    response_model=CancelView,
    responses=documented(404, 422, 503),
    openapi_extra=needs(Scope.START, Scope.DECIDE),
)
async def cancel(
    task_id: str, response: Response, entry: Shared, who: Who, body: CancelBody | None = None
) -> CancelView:
    """Unused permits are void when this answers. What may have been sent is reconciled before the task ends."""
    if body is not None:
        who.speaks_as(body.name)
    before = await tasks.get(entry.ledger, task_id)
    if before is None:
        raise _no_task(task_id)
    if before.outcome is not None:
        response.status_code = 200
        return CancelView(task_id=task_id, state=before.state, workflow_told=False, in_flight=[])
    try:
        task, in_flight = await tasks.cancel(entry.ledger, task_id, **(body.model_dump() if body else {}))
    except LedgerUnavailable:
        raise
    except LedgerError as error:
        raise _no_task(task_id) from error
    told = await entry.starter.cancel(task.workflow_id) if entry.starter.away is None else False
    return CancelView(
        task_id=task_id, state=task.state, workflow_told=told, in_flight=[o.operation_id for o in in_flight]
    )


@router.post(
    "/{task_id:path}/deadline",
    summary="Give a task another deadline",
    response_model=TaskView,
    responses=documented(404, 409, 422, 503),
    openapi_extra=needs(Scope.DECIDE),
)
async def deadline(task_id: str, body: DeadlineBody, entry: Shared, who: Who) -> TaskView:
    """Recorded with who and why. An operation that is held for its deadline is resumed by a decision afterwards."""
    who.speaks_as(body.name)
    changed = await release.set_deadline(
        entry.ledger, task_id, name=body.name, why=body.why, deadline=body.deadline, expected=body.expected_deadline
    )
    if changed is None:
        raise _no_task(task_id)
    return await _answer(entry, changed)


def _no_task(task_id: str) -> Exception:
    return problem(
        404,
        "unknown-task",
        "There is no such task",
        f"Task {task_id} is not in this ledger. A task id is tenant/task_type/task_key; GET /v1/tasks lists them.",
    )
