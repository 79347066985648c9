"""Commands about the deployment itself: policy, authority, people, tokens. They only look; whoever has the ledger
changes people, tokens and authority by `actonce`, whoever has a browser people and tokens at the console."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from actonce.client.app import app
from actonce.client.base import AsJson, Entry, EntryUrl, at, dump, escape, out, table


@app.command()
def policy(
    reasons: Annotated[bool, typer.Option("--reasons", help="Also every reason code.")] = False,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show by which rules the deployment acts: second persons, contracts as workers recorded them, reason codes."""
    found = Entry(entry).get("/v1/policy")
    if as_json:
        return dump(found)
    second = ", ".join(found["second_person"]) or "no decision"
    out.print(f"a second person has to confirm: {second}")
    for one in found["contracts"]:
        _contract(one)
    if not found["contracts"]:
        out.print("no worker has recorded a contract yet")
    if reasons:
        for row in found["reasons"]:
            row["actions"] = ", ".join(row["actions"]) or "nothing"
        table(found["reasons"], ("reason", "owner", "severity", "actions", "resumes_when"))
    return None


@app.command()
def authority(
    all_: Annotated[bool, typer.Option("--all", help="Also what has ended.")] = False,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """What task types may do at destinations that are no sandbox: caps, what was used, on which evidence."""
    found = [a for a in Entry(entry).get("/v1/policy")["authority"] if all_ or a["ended_at"] is None]
    if as_json:
        return dump(found)
    for one in found:
        state = "in force" if one["in_force"] else "NOT in force"
        out.print(f"[bold]{escape(one['task_type'])}[/bold] at {escape(one['destination'])}: {state}")
        caps = {
            "an hour": (one["in_hour"], one["per_hour_max"]),
            "in all": (one["uses"], one["count_max"]),
            "minor units in all": (one["spent_minor"], one["total_max_minor"]),
        }
        for what, (used, most) in caps.items():
            out.print(f"  {used} of {'any number' if most is None else most} {what}")
        if one["amount_max_minor"] is not None:
            most = f"{one['amount_max_minor']} minor units in {escape(one['amount_field'])}"
            out.print(f"  one operation: at most {most}")
        out.print(f"  until {at(one['expires_at'])}, by {escape(one['granted_by'])}: {escape(one['reason'])}")
        evidence = f"{one['evidence_digest'][:12]}, signed by {escape(one['signed_by'])}: {escape(one['saw'])}"
        out.print(f"  evidence {evidence}")
        if one["ended_at"]:
            out.print(f"  ended {at(one['ended_at'])} by {escape(one['ended_by'])}: {escape(one['ended_why'])}")
    if not found:
        out.print("no task type has authority anywhere; sandboxes need none")
    return None


def _contract(one: dict[str, Any]) -> None:
    where = f"[bold]{escape(one['name'])}[/bold]  version {one['version']}"
    out.print(f"{where}, first seen {at(one['first_seen'])}, {one['operations']} unsettled under it")
    terms = one["contract"]
    if terms is None:
        out.print("  [red]this release cannot read it[/red]; --json has it as it was recorded")
        return
    out.print(f"  actions {escape(', '.join(sorted(terms['actions'])))}; complete with {terms['completion']}")
    routes = ", ".join(f"{route['name']} ({route['kind']})" for route in terms["routes"])
    out.print(f"  late arrival: {terms['late_arrival']['kind']}; read by {escape(routes) or 'nothing'}")
    for rule in terms["approvals"]:
        over = "" if rule["over_minor"] is None else f" over {rule['over_minor']} minor units"
        out.print(f"  {escape(rule['action'])}{over}: {rule['approvers']} must approve, valid {rule['valid_s']:g} s")


@app.command()
def people(entry: EntryUrl = None, as_json: AsJson = False) -> None:
    """List who may sign in, and who no more. Needs the scope admin; no password is shown."""
    found = Entry(entry).get("/v1/people")
    if as_json:
        return dump(found)
    for one in found:
        one["roles"] = ", ".join(one["roles"]) or "none"
        one["signs_in_by"] = one["issuer"] or ("password" if one["has_password"] else "nothing yet")
        one["state"] = "disabled" if one["disabled_at"] else "may sign in"
        one["changed"] = f"{one['changed_what']} by {one['changed_by']}"
    table(found, ("name", "roles", "state", "signs_in_by", "version", "changed", "created_at"))
    return None


@app.command()
def tokens(entry: EntryUrl = None, as_json: AsJson = False) -> None:
    """List every token without its value. Needs the scope admin."""
    found = Entry(entry).get("/v1/tokens")
    if as_json:
        return dump(found)
    for one in found:
        one["scopes"] = ", ".join(one["scopes"])
        one["of"] = one["person"] or "the deployment"
        one["until"] = at(one["expires_at"]) or "it is revoked"
        one["revoked"] = f"{at(one['revoked_at'])} by {one['revoked_by']}" if one["revoked_at"] else ""
    table(found, ("token_id", "label", "scopes", "of", "until", "revoked", "created_by"))
    return None
