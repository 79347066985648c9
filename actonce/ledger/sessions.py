"""Signing in and out: who is at the console, and how often it may be tried.

Promises: who knows no right password learns nothing from the answer, nor from its time: there is a person or not, it is
the same work and the same words. Attempts are counted in the ledger before a password is looked at, so that neither a
restart nor many at once is a way round. A session outlives every restart of the console; it ends with the person's
password, by `sign_out`, and by time. Does not: retry; know of cookies, which are the console's.
"""

from __future__ import annotations

import ipaddress
import secrets
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from math import ceil

import psycopg
from argon2.exceptions import InvalidHashError, VerificationError
from psycopg.rows import DictRow

from actonce.contracts.errors import PersonRefused, SignInRefused
from actonce.contracts.people import PASSWORD_LENGTH_MAX, Person, Role, Session, checked_name, checked_password
from actonce.ledger.people import (
    HASHER,
    as_typed,
    end_sessions,
    is_last_admin,
    is_password,
    lock_person,
    name_subject,
    person_of,
    slowly,
)
from actonce.ledger.store import Connection, Ledger, audit, digest_of, one

SESSION_S = 12 * 3600.0  # a working day
IDLE_S = 3600.0
SEEN_EVERY_S = 60.0  # how exactly it is known when a session was last used: not every page is a write
_FORGET_S = 24 * 3600.0
_WRONG = "this name and password do not sign anybody in"


@dataclass(frozen=True)
class Limits:
    """Sign-ins that may be tried within `window_s`, of one name and from one place."""

    name_max: int = 5
    source_max: int = 20  # more than one person may sit behind an address
    window_s: float = 900.0


LIMITS = Limits()


async def sign_in(
    ledger: Ledger, name: str, password: str, source: str, *, limits: Limits = LIMITS, session_s: float = SESSION_S
) -> tuple[Session, str]:
    """Sign a person in by password. Returns the session and the value that stands for it, which is not kept.

    `source`: the address that it comes from. Raises SignInRefused: `wrong`; `too_many` with `retry_after_s`, also for
    a right password.
    """
    row = await _counted(ledger, name, source, limits)
    fresh = await slowly(_verify, row["password_hash"] if row is not None else None, password)
    if row is None or fresh is None or row["disabled_at"] is not None:
        async with ledger.transaction() as connection:
            known = None if row is None else row["name"]
            await audit(connection, "sign_in.refused", None, {"person": known, "source": _place(source)})
        raise SignInRefused(_WRONG, code="wrong")
    async with ledger.transaction() as connection:
        now = await one(connection, "SELECT * FROM actonce.person WHERE name = %s FOR UPDATE", (row["name"],))
        assert now is not None, "persons are never deleted"
        if (now["password_hash"], now["disabled_at"]) != (row["password_hash"], None):
            raise SignInRefused(_WRONG, code="wrong")  # changed while we looked
        if fresh != now["password_hash"]:
            await connection.execute(
                "UPDATE actonce.person SET password_hash = %s, changed_by = name, changed_what = 'hashed again'"
                " WHERE name = %s",
                (fresh, now["name"]),
            )
        await _forgiven(connection, now["name"], source)
        return await _begin(connection, person_of(now), "password", session_s)


async def sign_in_by_provider(
    ledger: Ledger, issuer: str, subject: str, name: str, roles: Collection[Role], *, session_s: float = SESSION_S
) -> tuple[Session, str]:
    """Sign in whom an identity provider vouches for: (issuer, subject) is who they are, for ever.

    The first time they are added under `name`; each time they have the roles that the provider says, also where that
    is none: then they are signed out everywhere, and their tokens open nothing. Only the last one with role `admin`
    keeps that beside them, as everywhere, and is signed in with it: else nobody could give it to anybody. Raises
    SignInRefused: `no_role`; `taken` (somebody else has that name here); `wrong` (disabled here).
    """
    try:
        async with ledger.transaction() as connection:
            row = await one(
                connection,
                "SELECT * FROM actonce.person WHERE issuer = %s AND subject = %s FOR UPDATE",
                (issuer, subject),
            )
            wanted = sorted({*roles, *await _kept(connection, row, roles)})
            if not wanted:
                await _no_role_any_more(connection, issuer, subject)
            elif row is None:
                row = await one(
                    connection,
                    "INSERT INTO actonce.person (name, issuer, subject, roles, changed_by) VALUES (%s, %s, %s, %s, %s)"
                    " RETURNING *",
                    (checked_name(name), issuer, subject, wanted, issuer),
                )
            elif sorted(row["roles"]) != wanted and row["disabled_at"] is None:
                row = await one(
                    connection,
                    "UPDATE actonce.person SET roles = %s, changed_by = %s, changed_what = 'roles',"
                    " version = version + 1 WHERE name = %s RETURNING *",
                    (wanted, issuer, row["name"]),
                )
            if wanted:
                assert row is not None
                if row["disabled_at"] is not None:
                    raise SignInRefused(f"{row['name']} is disabled here", code="wrong")
                return await _begin(connection, person_of(row), issuer, session_s)
    except psycopg.errors.UniqueViolation as error:
        raise SignInRefused(
            f"{issuer} vouches for {name[:100]!r}, and another person has that name here; an administrator has to "
            "rename one of them at the provider",
            code="taken",
        ) from error
    except PersonRefused as error:
        raise SignInRefused(str(error), code="taken") from error
    raise SignInRefused(f"{issuer} says nothing of {name[:100]!r} that is a role here", code="no_role")


async def _kept(connection: Connection, row: DictRow | None, said: Collection[Role]) -> set[Role]:
    """What a provider cannot take from somebody: the role that nobody else has and that gives all others."""
    if row is None or Role.ADMIN in said or not await is_last_admin(connection, row):
        return set()
    await audit(connection, "sign_in.last_admin_kept", None, {"person": row["name"], "said": sorted(said)})
    return {Role.ADMIN}


async def _no_role_any_more(connection: Connection, issuer: str, subject: str) -> None:
    """Who is known from before keeps nothing of what the provider takes away."""
    row = await one(
        connection,
        "UPDATE actonce.person SET roles = '{}', changed_by = %s, changed_what = 'roles', version = version + 1"
        " WHERE issuer = %s AND subject = %s AND roles <> '{}' RETURNING name",
        (issuer, issuer, subject),
    )
    if row is not None:
        await end_sessions(connection, row["name"], f"no role by {issuer}")


async def session_of(ledger: Ledger, value: str, *, idle_s: float = IDLE_S, by_person: bool = True) -> Session | None:
    """Who is signed in by this value, with the roles they have now; None when nobody is (any more).

    `by_person` False: a page asks for itself again, and nobody may be sitting there: the session goes on getting idle.
    """
    async with ledger.transaction() as connection:
        row = await one(
            connection,
            "SELECT s.session_id, s.csrf, s.created_at AS began_at, s.seen_at, s.expires_at, p.*,"
            " s.seen_at < clock_timestamp() - make_interval(secs => %s) AS unseen"
            " FROM actonce.session s JOIN actonce.person p ON p.name = s.person WHERE s.digest = %s"
            " AND s.ended_at IS NULL AND p.disabled_at IS NULL AND s.expires_at > clock_timestamp()"
            " AND s.seen_at > clock_timestamp() - make_interval(secs => %s)",
            (min(SEEN_EVERY_S, idle_s / 10), digest_of(value), idle_s),
        )
        if row is None:
            return None
        if row["unseen"] and by_person:
            await connection.execute(
                "UPDATE actonce.session SET seen_at = clock_timestamp() WHERE session_id = %s", (row["session_id"],)
            )
        return _session_of(row, person_of(row), row["began_at"])


async def change_password(
    ledger: Ledger, session: Session, current: str, fresh: str, source: str, *, limits: Limits = LIMITS
) -> None:
    """Who is signed in gives themselves another password. Their other sessions end; this one goes on.

    The current one is asked for, and counted like a sign-in: whoever finds an open page does not take it over by that.
    The same again changes nothing. Raises SignInRefused: `wrong`, `too_many`; PersonRefused: `password`.
    """
    checked_password(fresh)
    name = session.person.name
    row = await _counted(ledger, name, source, limits)
    assert row is not None, "persons are never deleted"
    kept = row["password_hash"]
    if not await slowly(is_password, kept, current):
        if await slowly(is_password, kept, fresh) and row["changed_by"] == name:
            return  # this press had changed it before
        async with ledger.transaction() as connection:
            await audit(connection, "sign_in.refused", None, {"person": name, "source": _place(source)})
        raise SignInRefused("the current password is another one", code="wrong")
    hashed = await slowly(HASHER.hash, as_typed(fresh))
    async with ledger.transaction() as connection:
        now = await lock_person(connection, name)
        if (now["password_hash"], now["disabled_at"]) != (kept, None):
            raise SignInRefused("it was changed meanwhile", code="wrong")
        await connection.execute(
            "UPDATE actonce.session SET ended_at = clock_timestamp(), ended_why = 'another password'"
            " WHERE person = %s AND ended_at IS NULL AND session_id <> %s",
            (name, session.session_id),
        )
        await connection.execute(
            "UPDATE actonce.person SET password_hash = %s, changed_by = name, changed_what = 'password',"
            " version = version + 1 WHERE name = %s",
            (hashed, name),
        )
        await _forgiven(connection, name, source)


async def sign_out(ledger: Ledger, value: str) -> None:
    """End the session of this value. Idempotent."""
    async with ledger.transaction() as connection:
        await connection.execute(
            "UPDATE actonce.session SET ended_at = clock_timestamp(), ended_why = 'signed out'"
            " WHERE digest = %s AND ended_at IS NULL",
            (digest_of(value),),
        )


async def _counted(ledger: Ledger, name: str, source: str, limits: Limits) -> DictRow | None:
    """Count one more attempt, refuse it when it is one too many, and return the person of that name if there is one."""
    waits: list[float] = []
    name = unicodedata.normalize("NFC", name)  # as names are kept
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT * FROM actonce.person WHERE lower(name) = lower(%s)", (name,))
        # By the person's own name: the database takes more spellings for the same than we do (İ, i), and each would
        # have attempts of its own.
        subject_name = name if row is None else row["name"]
        subjects = [(name_subject(subject_name), limits.name_max), (f"source:{_place(source)}", limits.source_max)]
        for subject, attempts_max in subjects:
            count = await _one_more(connection, subject, limits.window_s)
            if count["attempts"] > attempts_max:
                waits.append(count["left_s"])
            if count["attempts"] == attempts_max + 1:  # once in a window
                about = {"person": row and row["name"], "source": _place(source), "by": subject.partition(":")[0]}
                await audit(connection, "sign_in.blocked", None, about)
        await connection.execute(  # last, and waiting for nobody: others may do the same now
            "DELETE FROM actonce.sign_in_count WHERE subject IN (SELECT subject FROM actonce.sign_in_count"
            " WHERE began_at < clock_timestamp() - make_interval(secs => %s) FOR UPDATE SKIP LOCKED)",
            (_FORGET_S,),
        )
    if waits:
        wait_s = max(1, ceil(max(waits)))
        raise SignInRefused(
            f"too many attempts; try again in {wait_s} s, or have an administrator set another password",
            code="too_many",
            retry_after_s=wait_s,
        )
    return row


async def _one_more(connection: Connection, subject: str, window_s: float) -> DictRow:
    row = await one(
        connection,
        "INSERT INTO actonce.sign_in_count AS c (subject, attempts) VALUES (%(subject)s, 1) ON CONFLICT (subject)"
        " DO UPDATE SET attempts = CASE WHEN c.began_at < clock_timestamp() - make_interval(secs => %(window)s)"
        " THEN 1 ELSE c.attempts + 1 END, began_at = CASE WHEN c.began_at < clock_timestamp()"
        " - make_interval(secs => %(window)s) THEN clock_timestamp() ELSE c.began_at END RETURNING attempts,"
        " extract(epoch FROM began_at - clock_timestamp())::float + %(window)s AS left_s",
        {"subject": subject, "window": window_s},
    )
    assert row is not None
    return row


async def _forgiven(connection: Connection, name: str, source: str) -> None:
    """A right password: the name's attempts are forgotten, the place's only by this one."""
    await connection.execute("DELETE FROM actonce.sign_in_count WHERE subject = %s", (name_subject(name),))
    await connection.execute(
        "UPDATE actonce.sign_in_count SET attempts = attempts - 1 WHERE subject = %s AND attempts > 0",
        (f"source:{_place(source)}",),
    )


def _place(source: str) -> str:
    """What counts as one place: an address; of IPv6 the network of which one caller has all addresses."""
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return source[:100]
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


@cache
def _nobody() -> str:
    """A hash that takes as long as a real one. Nobody knows its password."""
    return HASHER.hash(secrets.token_bytes(32))


def _verify(kept: str | None, password: str) -> str | None:
    """The hash to keep from now on, None when it is not the password. The same work where there is none."""
    nobody = _nobody()
    try:
        HASHER.verify(kept or nobody, as_typed(password[:PASSWORD_LENGTH_MAX]))
    except (VerificationError, InvalidHashError):
        return None
    if kept is None or len(password) > PASSWORD_LENGTH_MAX:
        return None
    return HASHER.hash(as_typed(password)) if HASHER.check_needs_rehash(kept) else kept


async def _begin(connection: Connection, person: Person, how: str, session_s: float) -> tuple[Session, str]:
    value = secrets.token_urlsafe(32)
    row = await one(
        connection,
        "INSERT INTO actonce.session (digest, person, how, csrf, expires_at) VALUES (%s, %s, %s, %s,"
        " clock_timestamp() + make_interval(secs => %s)) RETURNING *",
        (digest_of(value), person.name, how, secrets.token_urlsafe(32), session_s),
    )
    assert row is not None
    return _session_of(row, person, row["created_at"]), value


def _session_of(row: DictRow, person: Person, began_at: datetime) -> Session:
    names = ("session_id", "csrf", "seen_at", "expires_at")
    return Session(person=person, created_at=began_at, **{name: row[name] for name in names})
