"""Commands about credentials and the access policy: credentials, rotate, revoke, access-policy."""

from __future__ import annotations

from typing import Annotated

import typer

from actonce.client.app import app
from actonce.client.base import AsJson, Entry, EntryUrl, Why, at, dump, escape, out, payload_of, table


@app.command()
def credentials(entry: EntryUrl = None, as_json: AsJson = False) -> None:
    """List credentials, their leases in force and what the access policy says of them. No secret is shown."""
    found = Entry(entry).get("/v1/credentials")
    if as_json:
        return dump(found)
    for one in found:
        by = f"{escape(one['changed_by'])}: {escape(one['why'])}"
        out.print(f"[bold]{escape(one['name'])}[/bold]  {one['state']} since {at(one['since'])}  ({by})")
        out.print(f"  generation {one['generation']}, {len(one['leases'])} leases in force")
        for lease in one["leases"]:
            who = f"{escape(lease['principal'])} with {escape(' '.join(lease['scope']))}"
            until = f"generation {lease['generation']}, until {at(lease['expires_at'])}"
            out.print(f"  {escape(lease['lease_id'])} ({until}): {who}")
            for check in lease["checks"] or []:
                out.print(f"    {'allowed' if check['allowed'] else 'REFUSED'}: {escape(check['words'])}")
        for step in one["what_to_do"]:
            out.print(f"  do: {escape(step)}")
    if not found:
        out.print("no credential is leased here")
    return None


Generation = Annotated[int, typer.Option(help="The generation you decide on; `credentials` has it.")]
Person = Annotated[str, typer.Option("--name", help="Who does it.", envvar="ACTONCE_OPERATOR")]


@app.command()
def rotate(
    credential: str,
    expected_generation: Generation,
    name: Person,
    reason: Why,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Have every process lease a credential anew; each new lease is checked by the access policy."""
    _change_credential("rotations", credential, expected_generation, name, reason, entry, as_json)


@app.command()
def revoke(
    credential: str,
    expected_generation: Generation,
    name: Person,
    reason: Why,
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give no permit under a credential any more, until it is rotated."""
    _change_credential("revocations", credential, expected_generation, name, reason, entry, as_json)


def _change_credential(
    what: str, credential: str, generation: int, name: str, reason: str, entry: str | None, as_json: bool
) -> None:
    body = {"credential": credential, "expected_generation": generation, "name": name, "reason": reason}
    found = Entry(entry).post(f"/v1/credentials/{what}", body)
    if as_json:
        return dump(found)
    out.print(f"{escape(found['name'])} is {found['state']}, generation {found['generation']}, by {escape(name)}")
    out.print("processes notice within a renewal tick; see: python -m actonce.client credentials")
    return None


@app.command("access-policy")
def access_policy(
    set_: Annotated[str | None, typer.Option("--set", help="The next policy: JSON, @file, or @-.")] = None,
    name: Annotated[str, typer.Option(help="Who does it; with --set.", envvar="ACTONCE_OPERATOR")] = "",
    reason: Annotated[str, typer.Option(help="Why; with --set.")] = "",
    entry: EntryUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show who may do what with which scope, or put the next policy in force."""
    service = Entry(entry)
    if set_ is None:
        found = service.get("/v1/access-policy")
    else:
        body = {"policy": payload_of(set_), "name": name, "reason": reason}
        found = service.post("/v1/access-policy", body)
    if as_json:
        return dump(found)
    out.print(
        f"policy {found['version']} by {escape(found['name'])} since {at(found['at'])}: {escape(found['reason'])}"
    )
    for rule in found["rules"]:
        rule["actions"] = ", ".join(rule["actions"])
    table(found["rules"], ("principal", "actions", "destination", "scope"))
    return None
