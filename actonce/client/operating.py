"""Commands of the person on call: resolve, pages, ack, alerts, dependencies."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from actonce.client.app import app
from actonce.client.base import AsJson, Entry, EntryUrl, Who, Why, at, dump, escape, out, table


@app.command()
def resolve(
    operation_id: str,
    action: Annotated[str, typer.Option(help="mark_committed, mark_absent, permit_one_retry or resume.")],
    name: Who,
    reason: Why,
    expected_version: Annotated[int, typer.Option(help="The version you decide on; `show` has it.")],
    expected_epoch: Annotated[int, typer.Option(help="The epoch you decide on; `show` has it.")],
    evidence: Annotated[str, typer.Option(help="What you saw, and where.")] = "",
    object_id: Annotated[str | None, typer.Option(help="The destination's id; for mark_committed.")] = None,
    expires_in_s: Annotated[float, typer.Option(help="The decision lapses when it is not consumed by then.")] = 3600.0,
    press: Annotated[
        str | None, typer.Option(help="Name this decision: sending the same again changes nothing.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="When the id has several records.")] = None,
    destination: Annotated[str | None, typer.Option(help="When the id has several records.")] = None,
    operation_action: Annotated[str | None, typer.Option(help="When the id has several records.")] = None,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Record a decision about a held operation. It is consumed after one more reading of the destination."""
    body = {
        "action": action,
        "name": name,
        "reason": reason,
        "evidence": evidence,
        "object_id": object_id,
        "expected_version": expected_version,
        "expected_epoch": expected_epoch,
        "expires_in_s": expires_in_s,
        "tenant": tenant,
        "destination": destination,
        "operation_action": operation_action,
    }
    headers = {"Idempotency-Key": press} if press else {}
    found = Entry(entry).post(f"/v1/operations/{quote(operation_id, safe='')}/decisions", body, **headers)
    if as_json:
        return dump(found)
    out.print(f"decision {found['decision_id']} is recorded: {found['decision']} by {escape(found['name'])}")
    if found["residual_risk"]:
        out.print(f"[yellow]residual risk:[/yellow] {escape(found['residual_risk'])}")
    if found["waits_for_second_person"]:
        out.print(f"it waits for a second person: {escape(found['what_to_do'][0])}")
        return None
    told = "the workflow was told" if found["workflow_told"] else "the workflow will be told by the ledger watcher"
    out.print(f"{told}; what came of it: {' '.join(found['what_to_do'])}")
    return None


@app.command()
def second(
    operation_id: str,
    decision: Annotated[int, typer.Option(help="Which decision; `show` has its number.")],
    confirm: Annotated[bool, typer.Option("--confirm/--decline", help="Let it take effect, or end it without effect.")],
    name: Who,
    why: Why,
    tenant: Annotated[str | None, typer.Option(help="When the id has several records.")] = None,
    destination: Annotated[str | None, typer.Option(help="When the id has several records.")] = None,
    operation_action: Annotated[str | None, typer.Option(help="When the id has several records.")] = None,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Confirm or decline somebody else's decision that waits for a second person. Needs a token of your own."""
    record = {"tenant": tenant, "destination": destination, "operation_action": operation_action}
    path = f"/v1/operations/{quote(operation_id, safe='')}/decisions/{decision}/second"
    found = Entry(entry).post(path, {"agrees": confirm, "name": name, "why": why, **record})
    if as_json:
        return dump(found)
    what = "takes effect after one more reading" if confirm else "has ended without effect"
    out.print(f"decision {decision} ({found['decision']} by {escape(found['name'])}) {what}")
    return None


@app.command()
def pages(
    all_: Annotated[bool, typer.Option("--all", help="Also closed ones.")] = False,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """List pages, newest first."""
    found = Entry(entry).get("/v1/pages", all="true" if all_ else None)
    if as_json:
        return dump(found)
    for page in found:
        seen = f"seen by {page['acknowledged_by']}" if page["acknowledged_by"] else "nobody has seen it"
        sent = ", ".join(f"{channel}: {said}" for channel, said in page["delivery"].items()) or "not sent yet"
        state = "closed" if page["closed_at"] else "open"
        out.print(f"[bold]page {page['page_id']}[/bold]  {state}, {escape(seen)}; {escape(sent)}")
        out.print(f"  {escape(page['title'])}\n  " + escape(page["body"]).replace("\n", "\n  "))
    if not found:
        out.print("no open pages")
    return None


@app.command()
def ack(
    page_id: int,
    name: Annotated[str, typer.Option(help="Who has seen it.", envvar="ACTONCE_OPERATOR")],
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say that you have seen a page: it is not repeated. The incident stays open."""
    found = Entry(entry).post(f"/v1/pages/{page_id}/acknowledge", {"name": name})
    first = f"{escape(found['acknowledged_by'])} at {at(found['acknowledged_at'])}"
    dump(found) if as_json else out.print(f"page {page_id} is acknowledged by {first}")


@app.command()
def alerts(
    all_: Annotated[bool, typer.Option("--all", help="Also what is over.")] = False,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what is wrong with the deployment now, by the alert rules; firing first."""
    found = Entry(entry).get("/v1/alerts", all="true" if all_ else None)
    if as_json:
        return dump(found)
    if found["evaluated"] != "current":
        out.print(f"[red]the rules are not evaluated[/red] ({found['evaluated']}): {escape(found['detail'] or '')}")
        out.print("What is listed may be over, and what is wrong may be missing.")
    for one in found["alerts"]:
        out.print(
            f"[bold]{one['state']}[/bold] since {at(one['since'])}  {escape(one['name'])}: {escape(one['summary'])}"
        )
        out.print(f"  {one['severity']}, {one['reason']}, value {one['value']:g}. {escape(one['description'])}")
        out.print(
            f"  owner: {escape(one['owner'])}; procedure: {one['procedure']}; over when {escape(one['over_when'])}"
        )
    if not found["alerts"]:
        out.print("no alerts")
    for step in found["what_to_do"]:
        out.print(f"do: {escape(step)}")
    return None


@app.command()
def dependencies(entry: EntryUrl = None, as_json: AsJson = False) -> None:
    """Show what everything needs, as it was last really reached."""
    found = Entry(entry).get("/dependencies")
    if as_json:
        return dump(found)
    for one in found["dependencies"]:
        age = "" if one["age_s"] is None else f"{one['age_s']:.0f} s ago"
        one["state"] += f" (was {one['last_reading']})" if one["last_reading"] else ""
        one["state"] += " (nobody can ask)" if one["nothing_to_ask"] else ""
        one["read"] = age
    out.print(f"[bold]{found['state']}[/bold]")
    table(found["dependencies"], ("name", "state", "read", "detail", "blocks"))
    return None
