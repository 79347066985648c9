"""`actonce people` and `actonce tokens`: who may sign in, and what programs show at the entry.

Works on the ledger, so it needs its DSN: whoever has that may do everything anyway. A password comes by standard input
or is asked for without an echo, never as an argument. A token is printed once, by `tokens create`. Exit status as
`actonce`: 0 done, 1 it did not work, 2 wrong usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from actonce.contracts.errors import ActonceError
from actonce.contracts.people import Role, Scope, checked_roles, checked_scopes

if TYPE_CHECKING:
    from actonce.ledger.store import Ledger

people_app = typer.Typer(no_args_is_help=True, help="Who may sign in.")
tokens_app = typer.Typer(no_args_is_help=True, help="What programs show at the entry service.")
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
T = TypeVar("T")


def _me() -> str:
    try:
        return f"{getpass.getuser()} (shell)"
    except (OSError, KeyError):  # a container's user may have no name
        return f"user {os.getuid()} (shell)"


Dsn = Annotated[
    str | None,
    typer.Option(
        envvar="ACTONCE_LEDGER_DSN", help="The ledger; by default that of the stack here.", show_default=False
    ),
]
Name = Annotated[str, typer.Argument(help="The person's name.", show_default=False)]
Roles = Annotated[list[str], typer.Option("--role", help=f"{', '.join(Role)}; may be repeated.", show_default=False)]
By = Annotated[
    str,
    typer.Option(
        envvar="ACTONCE_OPERATOR",
        help="Who does this, for the audit trail.",
        default_factory=_me,
    ),
]

_FILES = {  # of a stack's folder: what for, which scopes
    "client.token": ("client", frozenset(Scope) - {Scope.ACT_FOR}),
    "console.token": ("console", frozenset({Scope.ACT_FOR})),
}
ADMIN_FILE = "admin.password"


@contextlib.contextmanager
def told() -> Iterator[None]:
    """What cannot be done is said in a sentence."""
    try:
        yield
    except (ActonceError, OSError) as error:
        err.print(f"[red]actonce:[/red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from error


def on_ledger(dsn: str | None, work: Callable[[Ledger], Awaitable[T]]) -> T:
    from actonce.ledger.store import Ledger

    async def run() -> T:
        async with Ledger(dsn or _of_the_stack(), ledger_id=os.environ.get("ACTONCE_LEDGER_ID"), pool_max=1) as ledger:
            await ledger.identity()
            return await work(ledger)

    with told():
        return asyncio.run(run())


def _of_the_stack() -> str:
    file = Path(os.environ.get("ACTONCE_STACK_FOLDER", ".actonce")) / "env.json"
    try:
        return str(json.loads(file.read_text())["ACTONCE_LEDGER_DSN"])
    except (OSError, ValueError, KeyError) as error:
        raise typer.BadParameter(f"which ledger? {file} names none; use --dsn or ACTONCE_LEDGER_DSN") from error


def _password() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.read().rstrip("\r\n")
    return str(typer.prompt("password", hide_input=True, confirmation_prompt=True, err=True))


# people -----------------------------------------------------------------------------------------------------------


@people_app.command("add")
def add_person(name: Name, role: Roles, by: By, dsn: Dsn = None) -> None:
    """Let somebody sign in; the password is read from standard input. (Who comes by a provider is added by it.)"""
    from actonce.ledger import people

    with told():
        roles = checked_roles(role)
    password = _password()
    person = on_ledger(dsn, lambda ledger: people.add_person(ledger, name, roles, password=password, by=by))
    out.print(f"{escape(person.name)} may sign in as {', '.join(sorted(person.roles))}", soft_wrap=True)


@people_app.command("roles")
def set_roles(name: Name, role: Roles, by: By, dsn: Dsn = None) -> None:
    """Give a person these roles and no others. The entry knows within seconds, pages at once."""
    from actonce.ledger import people

    with told():
        roles = checked_roles(role)
    person = on_ledger(dsn, lambda ledger: people.set_roles(ledger, name, roles, by=by))
    out.print(f"{escape(person.name)} is {', '.join(sorted(person.roles))} from now on", soft_wrap=True)


@people_app.command("password")
def set_password(name: Name, by: By, dsn: Dsn = None) -> None:
    """Another password, from standard input. Signs the person out everywhere and forgets failed attempts."""
    from actonce.ledger import people

    password = _password()
    person = on_ledger(dsn, lambda ledger: people.set_password(ledger, name, password, by=by))
    out.print(f"{escape(person.name)} has another password and is signed out", soft_wrap=True)


@people_app.command()
def disable(name: Name, by: By, dsn: Dsn = None) -> None:
    """Sign somebody out and let them in no more; their tokens open nothing."""
    from actonce.ledger import people

    person = on_ledger(dsn, lambda ledger: people.disable(ledger, name, by=by))
    out.print(f"{escape(person.name)} is disabled and signed out", soft_wrap=True)


@people_app.command()
def enable(name: Name, by: By, dsn: Dsn = None) -> None:
    """Let a disabled person in again."""
    from actonce.ledger import people

    person = on_ledger(dsn, lambda ledger: people.enable(ledger, name, by=by))
    out.print(f"{escape(person.name)} may sign in again", soft_wrap=True)


@people_app.command("list")
def show_people(dsn: Dsn = None) -> None:
    """Everybody, with roles and by what they sign in."""
    from actonce.ledger import people

    rows = [
        (
            p.name,
            " ".join(sorted(p.roles)),
            p.issuer or ("password" if p.has_password else "nothing"),
            _at(p.disabled_at),
        )
        for p in on_ledger(dsn, people.list_people)
    ]
    show_table(("person", "roles", "signs in by", "disabled"), rows)


# tokens -----------------------------------------------------------------------------------------------------------


@tokens_app.command("create")
def create_token(
    label: Annotated[str, typer.Argument(help="What it is for.", show_default=False)],
    by: By,
    scope: Annotated[list[str], typer.Option(help=f"{', '.join(Scope)}; may be repeated.", show_default=False)],
    person: Annotated[
        str | None, typer.Option(help="Whose it is: their roles bound it, and their name is used.")
    ] = None,
    days: Annotated[float, typer.Option(min=0, help="How long it lives; 0: until it is revoked.")] = 90.0,
    dsn: Dsn = None,
) -> None:
    """Make a token and print it, once, on standard output."""
    from actonce.ledger import tokens

    with told():
        scopes = checked_scopes(scope)
    life_s = days * 86400 or None
    token, value = on_ledger(
        dsn, lambda ledger: tokens.create_token(ledger, label, scopes, by=by, person=person, lifetime_s=life_s)
    )
    ends = f"expires {_at(token.expires_at)}" if token.expires_at else "until it is revoked"
    err.print(f"token {token.token_id}, {ends}; it is shown this once", soft_wrap=True)
    print(value)


@tokens_app.command()
def revoke(token_id: int, by: By, dsn: Dsn = None) -> None:
    """A token opens nothing any more: at the entry within ACTONCE_TOKEN_CACHE_S (5 s)."""
    from actonce.ledger import tokens

    token = on_ledger(dsn, lambda ledger: tokens.revoke_token(ledger, token_id, by=by))
    out.print(f"token {token.token_id} ({escape(token.label)}) is revoked", soft_wrap=True)


@tokens_app.command("list")
def show_tokens(dsn: Dsn = None) -> None:
    """Every token without its value."""
    from actonce.ledger import tokens

    rows = [
        (str(t.token_id), t.label, " ".join(sorted(t.scopes)), t.person or "", _at(t.expires_at), _at(t.revoked_at))
        for t in on_ledger(dsn, tokens.list_tokens)
    ]
    show_table(("token", "label", "scopes", "person", "expires", "revoked"), rows)


def _at(moment: datetime | None) -> str:
    return moment.strftime("%Y-%m-%d %H:%M %Z") if moment else ""


def show_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table if rows else "none")


# a new deployment -------------------------------------------------------------------------------------------------


@tokens_app.command()
def provision(
    folder: Annotated[Path, typer.Argument(help="A private folder.", show_default=False)], dsn: Dsn = None
) -> None:
    """What a new deployment needs to let anybody in, as files that only their owner may read.

    `client.token` for `client.py`, `console.token` for the console, and, unless somebody has role admin already,
    `admin.password` of a first person `admin`. What is there and good stays. Brings the ledger up to date, as the entry
    does, unless ACTONCE_LEDGER_ID names the one that must be there. Prints what was made, as JSON.
    """
    with told():
        if "ACTONCE_LEDGER_ID" not in os.environ:
            from actonce.ledger.migrate import migrate

            migrate(dsn or _of_the_stack(), deployment=os.environ.get("ACTONCE_DEPLOYMENT", "default"))
    made = on_ledger(dsn, lambda ledger: _provision(ledger, folder.resolve()))
    print(json.dumps({"event": "provisioned", "made": made}))


async def _provision(ledger: Ledger, folder: Path) -> list[str]:
    from actonce.ledger import people, tokens

    made = []
    for file, (what, scopes) in _FILES.items():
        path = folder / file
        shown = await tokens.presented(ledger, path.read_text().strip()) if path.exists() else None
        if shown is not None and shown.token.revoked_at is None and not shown.expired:
            continue
        label = f"{what} of {folder}"
        for old in await tokens.list_tokens(ledger):  # its value is lost, so it serves nobody who should have it
            if old.label == label and old.revoked_at is None:
                await tokens.revoke_token(ledger, old.token_id, by="provision")
        _, value = await tokens.create_token(ledger, label, scopes, by="provision")
        _write_private(path, value)
        made.append(file)
    if not any(Scope.ADMIN in person.scopes for person in await people.list_people(ledger)):
        password = secrets.token_urlsafe(18)
        name = "admin" if await people.get_person(ledger, "admin") is None else f"admin-{secrets.token_hex(3)}"
        _write_private(folder / ADMIN_FILE, f"{name} {password}")  # first: a person nobody can sign in as is no help
        await people.add_person(ledger, name, [Role.ADMIN], password=password, by="provision")
        made.append(ADMIN_FILE)
    return made


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all, and never readable by others in between."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
        sink.write(f"{text}\n")
        sink.flush()
        os.fsync(sink.fileno())
    fresh.rename(path)


if __name__ == "__main__":
    tokens_app()
