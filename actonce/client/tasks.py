"""Commands about tasks: start, follow, list, show, cancel."""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from actonce.client.app import app
from actonce.client.base import (
    ENDED,
    FINAL,
    HELD,
    POLL_S,
    TIMEOUT,
    AsJson,
    Entry,
    EntryUrl,
    Failure,
    PastHolds,
    Tenant,
    Timeout,
    at,
    dump,
    err,
    escape,
    out,
    payload_of,
    table,
    task_path,
)
from actonce.client.showing import show_operation, show_task


@app.command()
def start(
    task_type: Annotated[str, typer.Argument(help="For example refund.")],
    key: Annotated[str, typer.Option(help="The business identity of the task; the same key is the same task.")],
    payload: Annotated[str, typer.Option(help="JSON, @file, or @- for standard input.")],
    tenant: Tenant = "default",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it ends or is held.")] = False,
    timeout_s: Timeout = 600.0,
    past_holds: PastHolds = False,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Start a task, or find the one with this key."""
    service = Entry(entry)
    task = service.start(task_type, key, tenant, payload_of(payload))
    if wait:
        _follow(service, task["task_id"], timeout_s, past_holds, as_json)
    elif as_json:
        dump(task)
    else:
        show_task(task)


@app.command()
def follow(
    task_id: str,
    timeout_s: Timeout = 600.0,
    past_holds: PastHolds = False,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print each change of a task until it ends or is held."""
    _follow(Entry(entry), task_id, timeout_s, past_holds, as_json)


def _follow(service: Entry, task_id: str, timeout_s: float, past_holds: bool, as_json: bool) -> None:
    path, deadline, before = task_path(task_id), time.monotonic() + timeout_s, None
    with err.status(f"following {task_id}"):
        while True:
            task = service.get(path)
            now = (task["state"], task["why"], [(o["operation_id"], o["state"]) for o in task["operations"]])
            if now != before:
                before = now
                dump(task) if as_json else _change(task)
            if task["state"] in FINAL or (task["state"] == "held" and not past_holds):
                break
            if time.monotonic() > deadline:
                raise Failure(TIMEOUT, f"{task_id} is still {task['state']} after {timeout_s:g} s: {task['why']}")
            time.sleep(POLL_S)
    if not as_json:
        show_task(task)
    status = {"complete": 0, "held": HELD}.get(task["state"], ENDED)
    if status:
        raise typer.Exit(status)


def _change(task: dict[str, Any]) -> None:
    operations = ", ".join(f"{o['step']} {o['state']}" for o in task["operations"])
    out.print(f"{at(task['since'])}  [bold]{task['state']}[/bold]  {escape(task['why'])}  {escape(operations)}")


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="Only tasks in this state.")] = None,
    task_type: Annotated[str | None, typer.Option(help="Only this type.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    natural_key: Annotated[str | None, typer.Option(help="List operations with this natural effect key.")] = None,
    limit: int = 50,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """List tasks, newest first; with --natural-key the operations that hold that key."""
    service = Entry(entry)
    if natural_key is not None:
        found = service.get("/v1/operations", natural_key=natural_key, tenant=tenant, limit=limit)
        columns: tuple[str, ...] = ("operation_id", "destination", "action", "state", "reason", "task_id", "created_at")
    else:
        found = service.get("/v1/tasks", state=state, task_type=task_type, tenant=tenant, limit=limit)
        columns = ("task_id", "state", "reason", "since", "why")
    dump(found) if as_json else table(found, columns)


@app.command()
def show(
    id_: Annotated[str, typer.Argument(metavar="ID", help="A task id or an operation_id.")],
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a task, or every record about an operation."""
    service = Entry(entry)
    if id_.startswith("op1_"):
        found = service.get(f"/v1/operations/{quote(id_, safe='')}")
        if as_json:
            return dump(found)
        for record in found["records"]:
            show_operation(record)
    else:
        task = service.get(task_path(id_))
        dump(task) if as_json else show_task(task)
    return None


@app.command()
def cancel(
    task_id: str,
    name: Annotated[str | None, typer.Option(help="Who asks for it.", envvar="ACTONCE_OPERATOR")] = None,
    why: Annotated[str, typer.Option(help="Why.")] = "no reason given",
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Ask for cancellation. What may have been sent is reconciled before the task ends."""
    found = Entry(entry).post(f"{task_path(task_id)}/cancel", {"name": name, "why": why} if name else None)
    if as_json:
        return dump(found)
    if found["state"] in FINAL:
        out.print(f"{escape(task_id)} is {found['state']} already; nothing was cancelled")
    else:
        flying = ", ".join(found["in_flight"])
        out.print(f"cancellation of {escape(task_id)} is recorded; unused permits are void")
        out.print(f"may have been sent, being reconciled: {flying}" if flying else "nothing is in flight")
    return None
