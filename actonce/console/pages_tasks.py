"""Tasks: the list, the story of one, and everything on record about it as JSON."""

from __future__ import annotations

from typing import Annotated, Any, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from fastapi.encoders import jsonable_encoder
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse

from actonce.console.acts import Kept
from actonce.console.rendering import page
from actonce.console.state import Console, console_of
from actonce.ledger import listing, readings, records, release, story, words
from actonce.ledger.listing import shown_of
from actonce.ledger.records import TaskRecord
from actonce.ledger.tasks import TaskState

router = APIRouter()
ROWS = 50  # of a list on one page
Cursor = Annotated[str | None, Query(max_length=2000)]
Filter = Annotated[str | None, Query(max_length=200)]


def more(path: str, cursor: str | None, **wanted: str | None) -> str | None:
    """The address of the next page of a list."""
    if cursor is None:
        return None
    given = {name: value for name, value in wanted.items() if value}
    return f"{path}?{urlencode({**given, 'cursor': cursor})}"


def chosen(value: str | None) -> str | None:
    """A filter as a form sends it: empty means any."""
    return value or None


@router.get("/tasks")
async def tasks(
    request: Request, state: Filter = None, task_type: Filter = None, tenant: Filter = None, cursor: Cursor = None
) -> HTMLResponse:
    """Newest first."""
    console = console_of(request)
    wanted = {"state": chosen(state), "task_type": chosen(task_type), "tenant": chosen(tenant)}
    found = await listing.tasks(console.ledger, **wanted, cursor=cursor, limit=ROWS)
    return await page(
        request,
        "tasks.html",
        tasks=found,
        wanted=wanted,
        states=get_args(TaskState),
        types=sorted(console.settings.task_types),
        first=cursor is None,
        next=more("/tasks", found.next, **wanted),
    )


@router.get("/tasks/{task_id:path}")
async def task(request: Request, task_id: str) -> HTMLResponse:
    """What was asked, what happened in order, where it stands and why."""
    console = console_of(request)
    record = await _record(console, task_id)
    entries = await story.story(console.ledger, task_id)
    working, behind = await _prospects(console, record)
    state, why, steps = words.task_words(record, None, working, None, behind)
    shown = shown_of(state, record.operations)
    return await page(
        request,
        "task.html",
        r=record,
        task=record.task,
        shown=shown,
        why=why,
        steps=steps,
        working=working,
        entries=entries,
        holds={(h["destination"], h["action"], h["operation_id"]): h for h in record.holds},
        ui=ui_link(console, record.task.workflow_id),
        history=history_link(console, record.task.workflow_id),
        kept=Kept(),
    )


@router.get("/raw/tasks/{task_id:path}")
async def raw(request: Request, task_id: str) -> JSONResponse:
    """Everything the ledger knows of a task and its operations."""
    console = console_of(request)
    record = await _record(console, task_id)
    entries = await story.story(console.ledger, task_id)
    operations: list[Any] = []
    for operation in record.operations:
        operations += await records.operation_records(
            console.ledger,
            operation.operation_id,
            tenant=operation.tenant,
            destination=operation.destination,
            action=operation.action,
        )
    return JSONResponse(jsonable_encoder({"record": record, "story": entries, "operations": operations}))


async def _record(console: Console, task_id: str) -> TaskRecord:
    record = await records.task_record(console.ledger, task_id)
    if record is None:
        raise HTTPException(404, f"Task {task_id} is not in this ledger. A task id is tenant/task_type/task_key.")
    return record


async def _prospects(console: Console, record: TaskRecord) -> tuple[readings.Working, release.Control | None]:
    """Is anyone working on it, and what keeps it in the backlog."""
    task = record.task
    if task.state in words.FINAL_STATES or task.task_type not in console.settings.task_types:
        return "unknown", None
    queue = console.settings.queue_of(task.task_type)
    rows = await records.list_dependencies(console.ledger)
    working = readings.working([readings.believe(row, console.settings.stale_after_s) for row in rows], queue)
    behind = await release.standing(console.ledger, task.task_type, queue) if task.released_at is None else None
    return working, behind


def ui_link(console: Console, workflow_id: str) -> str | None:
    """Where the Temporal UI shows a workflow; its runs are there."""
    base = console.settings.temporal_ui_url
    return words.ui_link(base, console.namespace, workflow_id, None)


def history_link(console: Console, workflow_id: str) -> str | None:
    """The history of its latest run as JSON, from the Temporal UI's own API."""
    base = console.settings.temporal_ui_url
    return words.history_link(base, console.namespace, workflow_id)
