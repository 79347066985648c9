"""Commands about the backlog: release, deadline."""

from __future__ import annotations

from typing import Annotated

import typer

from actonce.client.app import app
from actonce.client.base import AsJson, Entry, EntryUrl, Failure, Who, Why, at, dump, escape, out, task_path


@app.command()
def release(
    task_type: Annotated[str | None, typer.Argument(help="The task type to change; without one all are shown.")] = None,
    pause: Annotated[bool, typer.Option("--pause", help="Let nothing go.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Let go again.")] = False,
    rate_per_s: Annotated[float | None, typer.Option(help="At most so many a second; 0: no limit.")] = None,
    window_max: Annotated[int | None, typer.Option(help="So many may wait for a worker at a time.")] = None,
    expected_version: Annotated[
        int | None, typer.Option(help="The version you decide on; shown without a type.")
    ] = None,
    name: Who = "",
    why: Why = "",
    evidence: Annotated[str, typer.Option(help="What you saw, and where.")] = "",
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what waits to be let go, or change how: pause, resume, rate, window."""
    service = Entry(entry)
    if task_type is None:
        found = service.get("/v1/release")
        if as_json:
            return dump(found)
        for one in found:
            _show(one)
        return None
    if pause and resume:
        raise Failure(2, "--pause and --resume together mean nothing; give one")
    if not name or not why or expected_version is None:
        raise Failure(2, "a change is recorded: give --name, --why and --expected-version (shown without a task type)")
    body = {
        "expected_version": expected_version,
        "name": name,
        "why": why,
        "evidence": evidence,
        "paused": True if pause else False if resume else None,
        "rate_per_s": rate_per_s,
        "window_max": window_max,
    }
    changed = service.post(f"/v1/release/{task_type}", body)
    dump(changed) if as_json else _show(changed)
    return None


@app.command()
def deadline(
    task_id: str,
    to: Annotated[str, typer.Option(help="The new deadline, ISO 8601 with an offset.")],
    name: Who,
    why: Why,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give a task another deadline. What is held for the old one is resumed by a decision afterwards."""
    service = Entry(entry)
    seen = service.get(task_path(task_id))["deadline"]
    body = {"deadline": to, "expected_deadline": seen, "name": name, "why": why}
    changed = service.post(f"{task_path(task_id)}/deadline", body)
    dump(changed) if as_json else out.print(f"the deadline of {escape(task_id)} is {at(changed['deadline'])}")


def _show(one: dict[str, object]) -> None:
    rate = "no limit" if one["rate_per_s"] is None else f"{one['rate_per_s']:g} a second"
    state = f"kept: {one['why_not']}" if one["why_not"] else "let go"
    out.print(f"[bold]{escape(str(one['task_type']))}[/bold]  version {one['version']}  {escape(state)}")
    oldest = f", the oldest since {at(str(one['oldest_at']))}" if one["oldest_at"] else ""
    out.print(f"  {one['backlog']} wait{oldest}; {one['outstanding']} of {one['window_max']} wait for a worker; {rate}")
    if one["changed_by"]:
        out.print(
            f"  changed {at(str(one['changed_at']))} by {escape(str(one['changed_by']))}: {escape(str(one['why']))}"
        )
