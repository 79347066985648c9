"""`actonce authority`: what a task type may do at a destination with effects in the world, within caps, on evidence.

Works on the ledger, so it needs its DSN: whoever has that may do everything anyway. Granting judges the evidence anew.
Exit status as `actonce`: 0 done, 1 it did not work, 2 wrong usage.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from actonce.cli_people import By, Dsn, err, on_ledger, out, show_table, told
from actonce.contracts.errors import AuthorityRefused

if TYPE_CHECKING:
    from actonce.evidence.rehearsal import Rehearsal
    from actonce.ledger.authority import Row, Shown
    from actonce.ledger.store import Ledger

app = typer.Typer(no_args_is_help=True, help="What task types may do at destinations that are no sandbox.")

Destination = Annotated[str, typer.Argument(help="Its contract's name.", show_default=False)]
TaskType = Annotated[str, typer.Argument(help="Tasks of this type.", show_default=False)]
Reason = Annotated[str, typer.Option(help="Why, for the audit trail.", show_default=False)]
AmountMax = Annotated[int | None, typer.Option(min=1, help="Minor units, of one operation.", show_default=False)]
PerHour = Annotated[int, typer.Option(min=1, help="Operations within an hour.", show_default=False)]
Count = Annotated[int, typer.Option(min=1, help="Operations in all, ever.", show_default=False)]
Total = Annotated[int | None, typer.Option(min=1, help="Minor units in all, ever.", show_default=False)]
Field = Annotated[str, typer.Option(help="Where a payload has its amount.")]


@app.command()
def grant(
    destination: Destination,
    task_type: TaskType,
    evidence: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="A signed folder of drills.", show_default=False)
    ],
    per_hour: PerHour,
    count: Count,
    reason: Reason,
    name: By,
    amount_max: AmountMax = None,
    total: Total = None,
    amount_field: Field = "amount_minor",
    days: Annotated[float, typer.Option(min=0.01, help="It ends then, or with its evidence.")] = 30.0,
    dsn: Dsn = None,
) -> None:
    """Give a task type authority at a destination, in place of what it had, if the evidence shows what it must."""
    from actonce.evidence.record import EvidenceError
    from actonce.evidence.rehearsal import rehearsal
    from actonce.ledger import authority

    try:
        seen = rehearsal(evidence)
    except EvidenceError as error:
        err.print(f"[red]actonce:[/red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from error

    async def give(ledger: Ledger) -> Row:
        shown = await _shown(ledger, destination, seen)
        life = timedelta(days=days)
        return await authority.grant(ledger, destination, task_type, caps, shown, by=name, reason=reason, life=life)

    with told():
        caps = authority.Caps(amount_max, per_hour, count, total, amount_field)
    _say(on_ledger(dsn, give))


@app.command()
def lower(
    destination: Destination,
    task_type: TaskType,
    per_hour: PerHour,
    count: Count,
    reason: Reason,
    name: By,
    amount_max: AmountMax = None,
    total: Total = None,
    amount_field: Field = "amount_minor",
    dsn: Dsn = None,
) -> None:
    """Allow less from now on, on the same evidence. To allow more, grant again."""
    from actonce.ledger import authority

    with told():
        caps = authority.Caps(amount_max, per_hour, count, total, amount_field)
    _say(on_ledger(dsn, lambda ledger: authority.lower(ledger, destination, task_type, caps, by=name, reason=reason)))


@app.command()
def withdraw(destination: Destination, task_type: TaskType, reason: Reason, name: By, dsn: Dsn = None) -> None:
    """Give no permit any more. What passed its fence before may still send until its `not_after`."""
    from actonce.ledger import authority

    row = on_ledger(dsn, lambda ledger: authority.withdraw(ledger, destination, task_type, by=name, reason=reason))
    out.print(f"tasks of type {escape(row['task_type'])} have no authority at {escape(row['destination'])} any more")


@app.command("list")
def show(dsn: Dsn = None) -> None:
    """Every authority, newest first, with what was used of it and on which evidence it was given."""
    from actonce.ledger import authority

    columns = ("destination", "task type", "caps", "used", "until", "granted by", "evidence", "state")
    show_table(columns, [_row(row) for row in on_ledger(dsn, authority.standing)])


async def _shown(ledger: Ledger, destination: str, seen: Rehearsal) -> Shown:
    """What the evidence shows of this destination's contract. Raises AuthorityRefused with what is missing."""
    from actonce.contracts.contract import Contract
    from actonce.ledger import authority

    known = await authority.contracts_of(ledger, destination)
    if not known:
        raise AuthorityRefused(f"no worker has registered a contract of {destination}; start one with it first")
    wanted = known[0]
    if wanted.sandbox:
        raise AuthorityRefused(f"the contract of {destination} says that it is a sandbox: it needs no authority")
    alike = []
    for one in seen.contracts:
        stand_in = Contract.model_validate(one.body)
        if stand_in.name == destination and stand_in.sandbox and stand_in.promise_digest == wanted.promise_digest:
            alike.append(one)
    if not alike:
        others = ", ".join(sorted(one.name for one in seen.contracts)) or "none"
        raise AuthorityRefused(
            f"the evidence has no stand-in with the promises of {destination} v{wanted.version} "
            f"({wanted.promise_digest}); struck in it were stand-ins of: {others}"
        )
    if not any(one.after_commit for one in alike) or not any(one.before_commit for one in alike):
        raise AuthorityRefused(
            f"the evidence must show {destination} struck after its commit and before it: it has "
            f"{sum(one.after_commit for one in alike)} and {sum(one.before_commit for one in alike)} operations"
        )
    if len(seen.releases) != 1:
        raise AuthorityRefused(f"the evidence is of several releases: {', '.join(sorted(seen.releases))}")
    signature = seen.signatures[-1]
    return authority.Shown(
        contract_digest=wanted.digest,
        release=next(iter(seen.releases)),
        evidence_digest=seen.sha256,
        evidence_at=seen.oldest_at,
        signed_by=signature.name,
        saw=signature.saw,
    )


def _say(row: Row) -> None:
    from actonce.ledger.authority import caps_of

    out.print(
        f"tasks of type {escape(row['task_type'])} may act at {escape(row['destination'])}: {caps_of(row).words()}, "
        f"until {row['expires_at']:%Y-%m-%d %H:%M %Z}",
        soft_wrap=True,
    )


def _row(row: Row) -> tuple[str, ...]:
    from actonce.ledger.authority import caps_of

    ended = f"ended by {row['ended_by']}: {row['ended_why']}" if row["ended_at"] else "expired, or of another release"
    return (
        row["destination"],
        row["task_type"],
        caps_of(row).words(),
        f"{row['uses']} ({row['in_hour']} within an hour), {row['spent_minor']} minor units",
        f"{row['expires_at']:%Y-%m-%d %H:%M %Z}",
        f"{row['granted_by']}: {row['reason']}",
        f"{row['evidence_digest'][:12]} of {row['evidence_at']:%Y-%m-%d}, signed by {row['signed_by']}",
        "in force" if row["in_force"] else ended,
    )
