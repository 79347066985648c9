"""Commands of who approves: approvals, approve, reject, withdraw, renew."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from actonce.client.app import app
from actonce.client.base import AsJson, Entry, EntryUrl, Who, Why, at, dump, escape, out, table
from actonce.unseen import visible_json

Digest = Annotated[str, typer.Option(help="The digest you were shown; you decide about exactly this.")]


@app.command()
def approvals(
    approval_id: Annotated[str | None, typer.Argument(help="Show this one with exactly what would run.")] = None,
    state: Annotated[str | None, typer.Option(help="Only this state, e.g. pending.")] = None,
    task: Annotated[str | None, typer.Option(help="Only of this task.")] = None,
    limit: int = 50,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """List approvals, newest first; with an id, show exactly what would run and what people said."""
    service = Entry(entry)
    if approval_id is not None:
        one = service.get(f"/v1/approvals/{quote(approval_id, safe='')}")
        return dump(one) if as_json else _show(one)
    found = service.get("/v1/approvals", state=state, task_id=task, limit=limit)
    if as_json:
        return dump(found)
    for one in found:
        one["left"] = f"{one['seconds_left']:.0f} s" if one["state"] in ("pending", "approved") else ""
        one["tool"], one["given"] = one["what"]["tool"], f"{one['approvals_given']} of {one['approvers_needed']}"
    table(found, ("approval_id", "state", "left", "given", "tool", "requested_by", "task_id"))
    return None


def _show(a: dict[str, Any]) -> None:
    out.print(f"[bold]{a['approval_id']}[/bold]  {a['state']}, {a['approvals_given']} of {a['approvers_needed']} given")
    what = dict(a["what"])
    for name in ("tool", "account", "principal", "payload", "resolved"):
        value = what[name] if isinstance(what[name], str) else visible_json(what[name])
        out.print(f"  {name}: {escape(value)}")
    out.print(f"  digest: {a['digest']}")
    out.print(f"  asked by {escape(a['requested_by'])} for step {escape(a['step'])} of {escape(a['task_id'])}")
    left = f" ({a['seconds_left']:.0f} s left)" if a["state"] in ("pending", "approved") else ""
    out.print(f"  until {at(a['expires_at'])}{left}")
    if a["ended_by"]:
        out.print(f"  {a['state']} by {escape(a['ended_by'])} {at(a['ended_at'])}: {escape(a['ended_why'])}")
    for d in a["differences"]:
        out.print(
            f"  [red]differs[/red] {escape(d['where'])}: approved {escape(json.dumps(d['approved']))}, "
            f"now {escape(json.dumps(d['found']))}"
        )
    for click in a["clicks"]:
        said = "" if click["effect"] == "counted" else f" (a click only: {click['effect']})"
        out.print(f"  {at(click['at'])} {escape(click['name'])}: {click['decision']}{said}: {escape(click['note'])}")
    for step in a["what_to_do"]:
        out.print(f"  do: {escape(step)}")


@app.command()
def approve(
    approval_id: str, name: Who, digest: Digest, note: Why = "", entry: EntryUrl = None, as_json: AsJson = False
) -> None:
    """Approve exactly the digest you were shown."""
    _act("approve", approval_id, {"name": name, "note": note, "digest": digest}, entry, as_json)


@app.command()
def reject(
    approval_id: str, name: Who, digest: Digest, note: Why = "", entry: EntryUrl = None, as_json: AsJson = False
) -> None:
    """Reject it: the step ends, and nothing of it is sent."""
    _act("reject", approval_id, {"name": name, "note": note, "digest": digest}, entry, as_json)


@app.command()
def withdraw(approval_id: str, name: Who, note: Why, entry: EntryUrl = None, as_json: AsJson = False) -> None:
    """Take an approval back: no further permit is given on it."""
    _act("withdraw", approval_id, {"name": name, "note": note}, entry, as_json)


@app.command()
def renew(
    approval_id: str,
    name: Who,
    note: Why,
    as_approved: Annotated[bool, typer.Option("--as-approved", help="A change was put right: ask as before.")] = False,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Ask people again about a held operation whose approval expired, changed or was withdrawn."""
    _act("renew", approval_id, {"name": name, "note": note, "as_approved": as_approved}, entry, as_json)


def _act(verb: str, approval_id: str, body: dict[str, Any], entry: str | None, as_json: bool) -> None:
    found = Entry(entry).post(f"/v1/approvals/{quote(approval_id, safe='')}/{verb}", body)
    if as_json:
        return dump(found)
    given = f"{found['approvals_given']} of {found['approvers_needed']}"
    out.print(f"{found['approval_id']} is {found['state']} ({given} given, until {at(found['expires_at'])})")
    if found["consumed_at"]:
        out.print(f"a permit was given on it at {at(found['consumed_at'])}: what was sent is not called back")
    for step in found["what_to_do"]:
        out.print(f"do: {escape(step)}")
    return None
