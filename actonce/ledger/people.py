"""Who may act here. Every change of a person is an audit event of its own transaction (by trigger).

Promises: a password is kept as argon2id only; nobody is deleted, only disabled. Who is disabled, or gets another
password, is signed out by the same transaction. Once somebody may administer, no change here takes the last one's right
away. `expected_version`: what was decided on; a change that was decided on something older is refused (`stale`), but
for one that would leave everything as it is: so the same press again is no second change. Signing in:
`actonce.ledger.sessions`; what programs show: `actonce.ledger.tokens`.
"""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

import psycopg
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from psycopg import sql
from psycopg.rows import DictRow

from actonce.contracts.errors import PersonRefused
from actonce.contracts.people import PASSWORD_LENGTH_MAX, Person, Role, checked_name, checked_password
from actonce.ledger.store import Connection, Ledger, digest_of, many, one

HASHER = PasswordHasher()  # argon2id, RFC 9106's second choice: 64 MiB, 3 passes
_WORKSHOP = ThreadPoolExecutor(2, "password")  # who tries passwords gets a share of the machine, not all of it

T = TypeVar("T")


def as_typed(password: str) -> bytes:
    """The same password from every keyboard: NFKC, so that two ways to write a letter are one."""
    return unicodedata.normalize("NFKC", password).encode("utf-8", "surrogatepass")


async def slowly(work: Callable[..., T], *args: object) -> T:
    """Run what is slow on purpose beside the event loop, at most two at a time in this process."""
    return await asyncio.get_running_loop().run_in_executor(_WORKSHOP, work, *args)


async def _hashed(password: str) -> str:
    return await slowly(HASHER.hash, as_typed(checked_password(password)))


def is_password(kept: str | None, password: str) -> bool:
    """Is it the one that this hash was made of? Slow on purpose: see `slowly`."""
    if kept is None or len(password) > PASSWORD_LENGTH_MAX:
        return False
    try:
        return HASHER.verify(kept, as_typed(password))
    except (VerificationError, InvalidHashError):
        return False


async def add_person(ledger: Ledger, name: str, roles: Iterable[Role], *, password: str | None, by: str) -> Person:
    """Somebody may sign in from now on. Raises PersonRefused: `name`, `password`, `taken`."""
    name = checked_name(name)
    hashed = await _hashed(password) if password is not None else None
    try:
        async with ledger.transaction() as connection:
            row = await one(
                connection,
                "INSERT INTO actonce.person (name, password_hash, roles, changed_by) VALUES (%s, %s, %s, %s)"
                " RETURNING *",
                (name, hashed, sorted(roles), by),
            )
    except psycopg.errors.UniqueViolation as error:
        raise PersonRefused(
            f"there is a person {name!r} already, or one that differs in case only", code="taken"
        ) from error
    assert row is not None
    return person_of(row)


async def was_added(ledger: Ledger, name: str, roles: Iterable[Role], password: str, *, by: str) -> Person | None:
    """The person who was added by exactly these words and not changed since: a press again is no second person."""
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT * FROM actonce.person WHERE name = %s", (name,))
    if row is None or (row["version"], row["changed_by"], row["roles"]) != (1, by, sorted(roles)):
        return None
    return person_of(row) if await slowly(is_password, row["password_hash"], password) else None


async def set_roles(
    ledger: Ledger, name: str, roles: Iterable[Role], *, by: str, expected_version: int | None = None
) -> Person:
    """Give a person these roles, and no others. At the entry within `token_cache_s`. Raises PersonRefused."""
    wanted = frozenset(roles)
    async with ledger.transaction() as connection:
        row = await lock_person(connection, name)
        if wanted == set(row["roles"]):
            return person_of(row)
        _not_stale(row, expected_version)
        if Role.ADMIN not in wanted:
            await _another_admin(connection, row)
        return await _change(connection, row, "roles", sorted(wanted), what="roles", by=by)


async def set_password(
    ledger: Ledger, name: str, password: str, *, by: str, expected_version: int | None = None
) -> Person:
    """Another password; signs the person out everywhere and forgets failed attempts. Raises PersonRefused."""
    hashed = await _hashed(password)
    pressed_before = expected_version is not None and await _has_password(ledger, name, password)
    async with ledger.transaction() as connection:
        row = await lock_person(connection, name)
        if pressed_before and row["version"] != expected_version:
            return person_of(row)  # nothing else is left of what this press asks for
        _not_stale(row, expected_version)
        await end_sessions(connection, row["name"], f"password set by {by}")
        await connection.execute("DELETE FROM actonce.sign_in_count WHERE subject = %s", (name_subject(row["name"]),))
        return await _change(connection, row, "password_hash", hashed, what="password", by=by)


async def _has_password(ledger: Ledger, name: str, password: str) -> bool:
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT * FROM actonce.person WHERE lower(name) = lower(%s)", (name,))
    return row is not None and await slowly(is_password, row["password_hash"], password)


async def disable(ledger: Ledger, name: str, *, by: str, expected_version: int | None = None) -> Person:
    """Sign a person out and let them in no more; their tokens open nothing. Idempotent. Raises PersonRefused."""
    async with ledger.transaction() as connection:
        row = await lock_person(connection, name)
        if row["disabled_at"] is not None:
            return person_of(row)
        _not_stale(row, expected_version)
        await _another_admin(connection, row)
        await end_sessions(connection, row["name"], f"disabled by {by}")
        clock = await one(connection, "SELECT clock_timestamp() AS now")
        assert clock is not None
        return await _change(connection, row, "disabled_at", clock["now"], what="disabled", by=by)


async def enable(ledger: Ledger, name: str, *, by: str, expected_version: int | None = None) -> Person:
    """Let a disabled person in again, with the roles they had. Idempotent. Raises PersonRefused."""
    async with ledger.transaction() as connection:
        row = await lock_person(connection, name)
        if row["disabled_at"] is None:
            return person_of(row)
        _not_stale(row, expected_version)
        return await _change(connection, row, "disabled_at", None, what="enabled", by=by)


async def get_person(ledger: Ledger, name: str) -> Person | None:
    """A person by name, in whatever case it is written."""
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT * FROM actonce.person WHERE lower(name) = lower(%s)", (name,))
        return None if row is None else person_of(row)


async def list_people(ledger: Ledger) -> list[Person]:
    """Everybody, also who is disabled."""
    async with ledger.transaction() as connection:
        return [person_of(row) for row in await many(connection, "SELECT * FROM actonce.person ORDER BY name")]


def person_of(row: DictRow) -> Person:
    """One row of `actonce.person`."""
    return Person(
        name=row["name"],
        roles=frozenset(Role(role) for role in row["roles"]),
        has_password=row["password_hash"] is not None,
        issuer=row["issuer"],
        disabled_at=row["disabled_at"],
        created_at=row["created_at"],
        version=row["version"],
        changed_by=row["changed_by"],
        changed_what=row["changed_what"],
    )


def name_subject(name: str) -> str:
    """Under what failed sign-ins of a name are counted, whoever has it."""
    return f"name:{digest_of(unicodedata.normalize('NFC', name).lower())}"


async def end_sessions(connection: Connection, name: str, why: str) -> None:
    """Sign a person out everywhere, in the caller's transaction."""
    await connection.execute(
        "UPDATE actonce.session SET ended_at = clock_timestamp(), ended_why = %s"
        " WHERE person = %s AND ended_at IS NULL",
        (why, name),
    )


async def lock_person(connection: Connection, name: str) -> DictRow:
    """Read a person and lock the row for this transaction. Raises PersonRefused (`unknown`)."""
    row = await one(connection, "SELECT * FROM actonce.person WHERE lower(name) = lower(%s) FOR UPDATE", (name,))
    if row is None:
        raise PersonRefused(f"there is no person {name[:100]!r}; `actonce people list` names them", code="unknown")
    return row


def _not_stale(row: DictRow, expected_version: int | None) -> None:
    if expected_version is not None and row["version"] != expected_version:
        raise PersonRefused(
            f"{row['name']} is at version {row['version']} and you decided on version {expected_version}: "
            f"{row['changed_by']} changed it since (last: {row['changed_what']}); look at it as it is now",
            code="stale",
        )


async def _another_admin(connection: Connection, row: DictRow) -> None:
    """Refuse to lose the last one who could undo it."""
    if await is_last_admin(connection, row):
        raise PersonRefused(
            f"{row['name']} is the last one with role admin; give it to somebody else first", code="last_admin"
        )


async def is_last_admin(connection: Connection, row: DictRow) -> bool:
    """Has nobody else role admin? Asked before it is taken away: two who do this to each other at once wait for one
    another."""
    if Role.ADMIN not in row["roles"] or row["disabled_at"] is not None:
        return False
    await connection.execute("LOCK TABLE actonce.person IN SHARE ROW EXCLUSIVE MODE")
    other = await one(
        connection,
        "SELECT 1 FROM actonce.person WHERE %s = ANY(roles) AND disabled_at IS NULL AND name <> %s",
        (Role.ADMIN, row["name"]),
    )
    return other is None


async def _change(
    connection: Connection,
    row: DictRow,
    column: Literal["roles", "password_hash", "disabled_at"],
    value: object,
    **told: str,
) -> Person:
    query = sql.SQL(
        "UPDATE actonce.person SET {} = %s, changed_what = %s, changed_by = %s, version = version + 1 WHERE name = %s"
        " RETURNING *"
    ).format(sql.Identifier(column))
    cursor = await connection.execute(query, (value, told["what"], told["by"], row["name"]))
    changed = await cursor.fetchone()
    assert changed is not None, "the row is locked by this transaction"
    return person_of(changed)
