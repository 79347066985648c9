"""Commands for looking around: overview, search, story, audit."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from actonce.client.app import app
from actonce.client.base import AsJson, Entry, EntryUrl, at, dump, escape, out, table


@app.command()
def overview(entry: EntryUrl = None, as_json: AsJson = False) -> None:
    """Show what is open and how long: the first look."""
    found = Entry(entry).get("/v1/overview")
    if as_json:
        return dump(found)
    quarantine = "  [red]quarantined: nothing is sent[/red]" if found["quarantined"] else ""
    out.print(f"[bold]{escape(found['deployment'])}[/bold] at {at(found['at'])}{quarantine}")
    for state, n in found["tasks"].items():
        oldest = f", the oldest for {_long(found['oldest_s'][state])}" if n and state in found["oldest_s"] else ""
        out.print(f"  tasks {state}: {n}{oldest}")
    for name, what in (("holds", "held for"), ("backlog", "in the backlog,")):
        for key, count in found[name].items():
            out.print(f"  {count['n']} {what} {escape(key)}, the oldest for {_long(count['oldest_s'])}")
    for destination, states in found["unresolved"].items():
        words = ", ".join(f"{count['n']} {state}" for state, count in states.items())
        out.print(f"  without a final outcome at {escape(destination)}: {words}")
    if found["overdue"]:
        out.print(f"  [red]{found['overdue']} should have been settled or held by now[/red]")
    for name, what in (("open_pages", "open"), ("firing_alerts", "firing")):
        for severity, n in found[name].items():
            out.print(f"  {n} {what}: {severity}")
    for queue, working in found["working"].items():
        out.print(f"  anyone working on {escape(queue)}: {working}")
    out.print(f"  dependencies: {found['dependencies']} {escape(', '.join(found['not_up']))}".rstrip())
    if found["nothing_to_ask"]:
        out.print(f"  nobody can ask: {escape(', '.join(found['nothing_to_ask']))}")
    return None


def _long(seconds: float) -> str:
    for name, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} s"


@app.command()
def search(
    word: Annotated[str, typer.Argument(help="A whole name.")], entry: EntryUrl = None, as_json: AsJson = False
) -> None:
    """Find what has this name: a task's id or key, an operation_id, an approval, an object at a destination, a natural
    effect key, or a customer (the field `customer` of a payload)."""
    found = Entry(entry).post("/v1/search", {"word": word})
    if as_json:
        return dump(found)
    table([_line(one) for one in found], ("found_by", "what", "state", "created_at"))
    return None


def _line(one: dict[str, Any]) -> dict[str, Any]:
    thing = one["task"] or one["operation"] or {}
    what = thing.get("operation_id") or thing.get("task_id") or one["approval_id"]
    state = thing.get("shown") or thing.get("state", "")
    return {"found_by": one["how"], "what": what, "state": state, "created_at": thing.get("created_at", "")}


@app.command()
def story(task_id: str, entry: EntryUrl = None, as_json: AsJson = False) -> None:
    """Tell what happened to a task, in order."""
    found = Entry(entry).get(f"/v1/story/{quote(task_id, safe='')}")
    if as_json:
        return dump(found)
    for one in found:
        who = f" by {escape(one['who'])}" if one["who"] else ""
        out.print(f"{at(one['at'])}  [bold]{escape(one['what'])}[/bold]{who}")
        if one["words"]:
            out.print(f"    {escape(one['words'])}")
    return None


@app.command()
def audit(
    kind: Annotated[str | None, typer.Option(help="With a dot at its end: all kinds that begin so.")] = None,
    task_id: Annotated[str | None, typer.Option(help="Of this task and its operations.")] = None,
    operation_id: Annotated[str | None, typer.Option(help="Of this operation.")] = None,
    limit: int = 50,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """List audit events, newest first; each sealed one is hashed again."""
    found = Entry(entry).get("/v1/audit", kind=kind, task_id=task_id, operation_id=operation_id, limit=limit)
    if as_json:
        return dump(found)
    for one in found:
        whole = {True: "whole", False: "[red]damaged[/red]", None: "not sealed yet"}[one["whole"]]
        number = "-" if one["seq"] is None else one["seq"]
        about = one["operation_id"] or one["task_id"] or ""
        out.print(f"{number}  {at(one['at'])}  [bold]{escape(one['kind'])}[/bold]  {escape(about)}  {whole}")
    if not found:
        out.print("none")
    return None
