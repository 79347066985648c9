"""Commands about a restore: how it stands, tasks released from its quarantine, its end."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from actonce.client.app import app
from actonce.client.base import AsJson, Entry, EntryUrl, Failure, Who, Why, at, dump, escape, out

Epoch = Annotated[int | None, typer.Option(help="The restore epoch you decide on; shown without an option.")]


@app.command()
def restore(
    release: Annotated[
        str | None, typer.Option(help="Let the tasks of a group go: settled, resumable or held.")
    ] = None,
    close: Annotated[bool, typer.Option("--close", help="End the restore.")] = False,
    expected_epoch: Epoch = None,
    name: Who = "",
    why: Why = "",
    press: Annotated[
        str | None, typer.Option(help="A key of your choice: the same one again is the same release.")
    ] = None,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show how the last restore stands, release a group of its tasks, or close it."""
    service = Entry(entry)
    if release is None and not close:
        found = service.get("/v1/restore")
        return dump(found) if as_json else _show(found)
    if release is not None and close:
        raise Failure(2, "--release and --close are two acts; give one")
    if not name or not why or expected_epoch is None:
        raise Failure(2, "it is recorded: give --name, --why and --expected-epoch (shown without an option)")
    body: dict[str, Any] = {"expected_epoch": expected_epoch, "name": name, "reason": why}
    if close:
        closed = service.post("/v1/restore/close", body)
        return dump(closed) if as_json else out.print(f"closed; not known then: {escape(closed['close_risk'])}")
    headers = {"Idempotency-Key": press} if press else {}
    made = service.post("/v1/restore/release", {**body, "group": release}, **headers)
    return dump(made) if as_json else out.print(f"released {made['tasks']} tasks of group {escape(made['what'])}")


def _show(found: dict[str, Any]) -> None:
    restore = found["restore"]
    if restore is None:
        out.print(f"epoch {found['epoch']}; this ledger was never restored")
        return
    state = "closed" if restore["closed_at"] else "QUARANTINED" if found["quarantined"] else "open"
    out.print(f"[bold]epoch {found['epoch']}[/bold]  {state}: {escape(restore['kind'])} at {at(restore['at'])}")
    out.print(f"  the lost interval: {at(restore['boundary_at'])} to {at(restore['at'])}")
    out.print(f"  {restore['operations']} operations and {restore['tasks']} tasks were open at the boundary")
    out.print(f"  {found['unsettled']} operations are neither established nor held")
    sweep = found["sweep"]
    if restore["swept_at"]:
        out.print(f"  swept at {at(restore['swept_at'])}")
    elif sweep:
        out.print(f"  run {sweep['run']} of the sweep is not done")
    else:
        out.print(f"  not swept; the sweep may begin at {at(restore['bounds_until'])}")
    for one in sweep["totals"] if sweep else []:
        out.print(
            f"    {escape(one['destination'])}: {one['matched']} matched, {one['ledger_only']} ledger only, "
            f"{one['destination_only']} destination only ({one['adopted']} adopted), {one['conflict']} conflicts"
        )
    for destination, words in (sweep["not_swept"] if sweep else {}).items():
        out.print(f"    {escape(destination)}: not swept, {escape(words)}")
    for group, count in (found["waiting"] or {}).items():
        out.print(f"  {count} tasks wait in group {escape(group)}")
    for one in found["releases"]:
        out.print(
            f"  {at(one['at'])} {escape(one['name'])} released {one['tasks']} {one['what']}: {escape(one['reason'])}"
        )
    for one in found["gone"]:
        out.print(
            f"  gone: task {escape(one['task_id'])}, {one['shown']} of its {one['operations']} operations are shown"
        )
    if found["why_not"]:
        out.print(f"  nothing can be released: {escape(found['why_not'])}")
