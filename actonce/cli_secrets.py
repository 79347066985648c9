"""`actonce secrets`: write the encrypted file that a deployment without a secret manager keeps its secrets in.

A secret comes by standard input or is asked for without an echo; never as an argument, which other users of the machine
could read, and nothing here prints one. Exit status as `actonce`: 0 done, 1 it did not work, 2 wrong usage.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from actonce.contracts.errors import SealedFileUnusable

if TYPE_CHECKING:
    from actonce.credentials.sealed import Account, SealedFile

app = typer.Typer(no_args_is_help=True, help="Secrets in an encrypted file (ACTONCE_CREDENTIALS: sealed_file).")
out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

File = Annotated[Path, typer.Argument(help="The encrypted file.", show_default=False)]
Name = Annotated[str, typer.Argument(help="The credential, as the contract names it.", show_default=False)]
KeyFile = Annotated[
    Path | None, typer.Option(help="File with the key; `new-key` makes one. Or --key-env.", show_default=False)
]
KeyEnv = Annotated[str | None, typer.Option(help="Name of the environment variable with the key.", show_default=False)]


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What cannot be done is said in a sentence."""
    try:
        yield
    except (SealedFileUnusable, OSError) as error:
        err.print(f"[red]actonce:[/red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from error


def _file(path: Path, key_file: Path | None, key_env: str | None) -> SealedFile:
    from actonce.credentials.sealed import SealedFile

    try:
        return SealedFile(path, key_file, key_env)
    except ValueError as error:
        raise typer.BadParameter("name the key by either --key-file or --key-env") from error


@app.command("new-key")
def make_key(path: Annotated[Path, typer.Argument(help="A file that is not there yet.", show_default=False)]) -> None:
    """Write a random key into a new file that only its owner may read."""
    from actonce.credentials.sealed import new_key

    with _told():
        new_key(path)
    out.print(f"{path}: keep it away from the encrypted file and from its backups; without it nothing opens again")


@app.command()
def put(
    file: File,
    credential: Name,
    principal: Annotated[str, typer.Option(help="Whom it makes us at the destination.", show_default=False)],
    scope: Annotated[list[str], typer.Option(help="What it grants; may be repeated.", show_default=False)],
    life_s: Annotated[float, typer.Option(min=1, help="How long one lease lasts.")] = 300.0,
    key_file: KeyFile = None,
    key_env: KeyEnv = None,
) -> None:
    """Put one credential in, or replace it; its secret is read from standard input. Makes the file if there is none."""
    from actonce.credentials.sealed import Account

    sealed = _file(file, key_file, key_env)
    secret = (
        typer.prompt("secret", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read().rstrip("\r\n")
    )
    if not secret:
        raise typer.BadParameter("standard input has no secret")
    account = Account(principal=principal, scope=tuple(scope), secret=secret, life_s=life_s)
    with _told():
        sealed.change(lambda accounts: accounts | {credential: account}, create=True)
    out.print(f"{credential} is in {file}; running processes have it within one renewal tick or half a lease's life")


@app.command("list")
def show(file: File, key_file: KeyFile = None, key_env: KeyEnv = None) -> None:
    """What is in it, without the secrets."""
    with _told():
        accounts = _file(file, key_file, key_env).read()
    table = Table(box=None, pad_edge=False)
    for column in ("credential", "principal", "scope", "lease, s"):
        table.add_column(column, overflow="fold")
    for name, account in sorted(accounts.items()):
        table.add_row(*(escape(t) for t in (name, account.principal, " ".join(account.scope), f"{account.life_s:g}")))
    out.print(table)


@app.command()
def remove(file: File, credential: Name, key_file: KeyFile = None, key_env: KeyEnv = None) -> None:
    """Take one out. Running processes hold its leases for revoked within one renewal tick."""

    def without(accounts: dict[str, Account]) -> dict[str, Account]:
        if credential not in accounts:
            raise SealedFileUnusable(f"{file} has no credential {credential}; it has: {', '.join(sorted(accounts))}")
        return {name: account for name, account in accounts.items() if name != credential}

    with _told():
        _file(file, key_file, key_env).change(without)
    out.print(f"{credential} is no longer in {file}; only its destination can end the secret itself")


@app.command()
def rekey(
    file: File,
    new_key_file: Annotated[Path, typer.Option(help="File with the key from now on.", show_default=False)],
    key_file: KeyFile = None,
    key_env: KeyEnv = None,
) -> None:
    """Seal it with another key. Processes need the new key before they read the file again."""
    with _told():
        _file(file, key_file, key_env).rekey(_file(file, new_key_file, None))
    out.print(f"{file} is sealed with the key in {new_key_file}; copies of the old file still open with the old key")
