"""`pg_dump`, `pg_restore` and the databases that they read and fill.

Promises: no password among a program's arguments; a database that is being filled has another name until it is whole,
so that nothing that knows the DSN can start on half of one; what was there before is renamed, never dropped, unless it
is empty. `pg_dump` must be of the server's major version or newer: ours, else one on PATH, else an error that says so.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from actonce.backup.manifest import BackupError
from actonce.stack import Missing, binaries, spawn

UNFINISHED = "actonce: a restore that is not finished"  # comment on a database that nothing may start on
RUN_S = 6 * 3600.0  # an upper bound for one dump or restore; the ledger's line tells how it goes
LOCK_WAIT_MS = 60_000


def with_database(dsn: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{quote(name, safe='')}"))


def database_of(dsn: str) -> str:
    """The name of the database that a DSN (a postgresql:// URL) leads to."""
    parts = conninfo_to_dict(dsn)
    return str(parts.get("dbname") or parts.get("user"))


def program_for(name: str, server_version: int) -> Path:
    """`pg_dump` or `pg_restore` that fits a server. `server_version`: as in server_version_num."""
    major = server_version // 10_000
    found: list[str] = []
    for path in _candidates(name):
        ours = _major(path)
        if ours is not None and ours >= major:
            return path
        found.append(f"{path} is {ours}")
    raise BackupError(
        f"PostgreSQL {major} needs {name} {major} or newer; {'; '.join(found) or f'there is no {name} here'}. Install "
        f"the client programs of PostgreSQL {major} so that {name} is on PATH."
    )


def _candidates(name: str) -> list[Path]:
    """Ours first, then the one on PATH."""
    on_path = [Path(found)] if (found := shutil.which(name)) is not None else []
    try:
        return [binaries.postgres() / name, *on_path]
    except Missing:  # a deployment on servers of its own needs no embedded one
        return on_path


def _major(program: Path) -> int | None:
    try:
        run = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\) (\d+)", run.stdout)
    return int(found[1]) if found else None


async def run_program(program: Path, arguments: list[str], dsn: str, log: Path) -> None:
    """Run one of PostgreSQL's programs on the database at `dsn`. Raises BackupError with the end of its log."""
    parts = conninfo_to_dict(dsn)
    password = parts.pop("password", None)
    environment = dict(os.environ)
    if password:
        environment["PGPASSWORD"] = str(password)
    child = spawn(
        program.name,
        [str(program), *arguments, f"--dbname={make_conninfo('', **parts)}"],
        log=log,
        env=environment,
        umask=0o077,
    )
    code = await child.wait(RUN_S)
    if code is None:
        await child.stop()
        raise BackupError(f"{program.name} was not done within {RUN_S / 3600:g} hours. See {log}.")
    if code != 0:
        raise BackupError(f"{program.name} ended with status {code}. Its log {log} ends:\n{child.tail()}")


@contextmanager
def scratch_database(dsn: str, prefix: str) -> Iterator[str]:
    """DSN of an empty database beside the one at `dsn`; it is dropped afterwards."""
    name = f"{prefix}_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as link:
        create(link, name)
        try:
            yield with_database(dsn, name)
        finally:
            link.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def create(link: psycopg.Connection, name: str) -> None:
    """An empty database with nothing of template1's. Raises BackupError where the role may not."""
    try:
        link.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
    except psycopg.errors.InsufficientPrivilege as error:
        raise BackupError(
            f"the role {link.info.user} may not create a database at {link.info.host}: give it CREATEDB "
            f"(ALTER ROLE {link.info.user} CREATEDB), then run this again."
        ) from error


def make_room(link: psycopg.Connection, name: str, *, replace: bool) -> None:
    """Raise BackupError unless a restored database may take `name`. `link` is to another database of the server."""
    found = link.execute(
        "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s", (f"{name}_restoring",)
    ).fetchone()
    if found is not None:
        if found[0] != UNFINISHED:
            raise BackupError(
                f"the database {name}_restoring is there and not ours: rename or drop it, then try again."
            )
        link.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(f"{name}_restoring")))
    if _exists(link, name) and not replace and not _is_empty(link, name):
        raise BackupError(
            f"the database {name} at {link.info.host} is not empty. With --replace it is renamed and kept; nothing was "
            "changed."
        )


def begin(link: psycopg.Connection, name: str) -> str:
    """Make the database that is filled; its name tells that it is not whole."""
    unfinished = f"{name}_restoring"
    create(link, unfinished)
    link.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(sql.Identifier(unfinished), sql.Literal(UNFINISHED)))
    return unfinished


def take_place(link: psycopg.Connection, name: str, suffix: str) -> str | None:
    """The filled database gets its name. Returns the new name of what had it, None when nothing worth keeping did."""
    kept = None
    if _exists(link, name):
        if _is_empty(link, name):
            link.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
        else:
            kept = f"{name}_{suffix}"
            _rename(link, name, kept)
    link.execute(sql.SQL("COMMENT ON DATABASE {} IS NULL").format(sql.Identifier(f"{name}_restoring")))
    _rename(link, f"{name}_restoring", name)
    return kept


def _rename(link: psycopg.Connection, old: str, new: str) -> None:
    try:
        link.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(sql.Identifier(old), sql.Identifier(new)))
    except psycopg.errors.ObjectInUse as error:
        raise BackupError(
            f"the database {old} is in use: stop entry, console, workers and watch first. The restored data is in "
            f"another database and nothing was replaced; run this again afterwards."
        ) from error


def _exists(link: psycopg.Connection, name: str) -> bool:
    return link.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is not None


def _is_empty(link: psycopg.Connection, name: str) -> bool:
    info = conninfo_to_dict(link.info.dsn, password=link.info.password, dbname=name)
    with psycopg.connect(make_conninfo("", **info)) as other:
        row = other.execute(
            "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
        ).fetchone()
    return row == (0,)
