"""What programs show at the entry. Creating and revoking one is an audit event of its own transaction (by trigger).

Promises: a token is kept as SHA-256 only, its value is given out once, by `create_token`; none is deleted, only
revoked. What one may do now is decided by the entry, from `presented`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from psycopg.rows import DictRow

from actonce.contracts.errors import PersonRefused
from actonce.contracts.people import Person, Scope, Token
from actonce.ledger.people import lock_person, person_of
from actonce.ledger.store import Ledger, digest_of, many, one

_TOKEN = re.compile(r"actonce_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True)
class Presented:
    """A token that somebody showed, as the ledger knows it now, by the ledger's clock."""

    token: Token
    expired: bool
    owner: Person | None


async def create_token(
    ledger: Ledger,
    label: str,
    scopes: Iterable[Scope],
    *,
    by: str,
    person: str | None = None,
    lifetime_s: float | None = None,
) -> tuple[Token, str]:
    """A new token and its value, which is not kept: who loses it makes another one.

    `person`: it can do what its scopes and that person's roles both allow, and speaks with that name. Without
    `lifetime_s` it lives until it is revoked. Raises PersonRefused: `unknown` person; `scope` (`act_for` is nobody's).
    """
    token, value = await create_token_once(
        ledger, label, scopes, by=by, press=None, person=person, lifetime_s=lifetime_s
    )
    assert value is not None, "without a press every call makes one"
    return token, value


async def create_token_once(
    ledger: Ledger,
    label: str,
    scopes: Iterable[Scope],
    *,
    by: str,
    press: str | None,
    person: str | None = None,
    lifetime_s: float | None = None,
) -> tuple[Token, str | None]:
    """As `create_token`; the same `press` again is the token that it made, and None: nobody can show its value again.

    Raises PersonRefused also with `press_reused`: it made another one.
    """
    wanted = frozenset(scopes)
    if person is not None and Scope.ACT_FOR in wanted:
        raise PersonRefused("a token with act_for speaks for whoever is signed in, so it is nobody's own", code="scope")
    value = f"actonce_{secrets.token_urlsafe(32)}"
    async with ledger.transaction() as connection:
        owner = None if person is None else (await lock_person(connection, person))["name"]
        row = await one(
            connection,
            "INSERT INTO actonce.token (digest, label, scopes, person, created_by, expires_at, press) VALUES (%s, %s,"
            " %s, %s, %s, clock_timestamp() + make_interval(secs => %s), %s) ON CONFLICT (press) DO NOTHING"
            " RETURNING *",
            (digest_of(value), label, sorted(wanted), owner, by, lifetime_s, press),
        )
        if row is not None:
            return _token_of(row), value
        before = await one(connection, "SELECT * FROM actonce.token WHERE press = %s", (press,))
        assert before is not None, "it is the reason why nothing was inserted"
    made = _token_of(before)
    if (made.label, made.scopes, made.person, made.created_by) != (label, wanted, owner, by):
        raise PersonRefused(
            f"this press made token {made.token_id} ({made.label}); another one needs a press of its own",
            code="press_reused",
        )
    return made, None


async def revoke_token(ledger: Ledger, token_id: int, *, by: str, label: str | None = None) -> Token:
    """It opens nothing any more; at the entry within `token_cache_s`. Idempotent.

    `label`: of the token that is meant. Raises PersonRefused: `unknown`; `stale` (it has another label).
    """
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT * FROM actonce.token WHERE token_id = %s", (token_id,))
        if row is not None and label not in (None, row["label"]):
            raise PersonRefused(f"token {token_id} is not the one with this label; look again", code="stale")
        await connection.execute(
            "UPDATE actonce.token SET revoked_at = clock_timestamp(), revoked_by = %s"
            " WHERE token_id = %s AND revoked_at IS NULL",
            (by, token_id),
        )
        row = await one(connection, "SELECT * FROM actonce.token WHERE token_id = %s", (token_id,))
        if row is None:
            raise PersonRefused(f"there is no token {token_id}; `actonce tokens list` names them", code="unknown")
        return _token_of(row)


async def list_tokens(ledger: Ledger) -> list[Token]:
    """Every token there ever was, without its value."""
    async with ledger.transaction() as connection:
        return [_token_of(row) for row in await many(connection, "SELECT * FROM actonce.token ORDER BY token_id")]


async def presented(ledger: Ledger, value: str) -> Presented | None:
    """What this value is, None when no token of this ledger ever had it."""
    if not _TOKEN.fullmatch(value):
        return None
    async with ledger.transaction() as connection:
        row = await one(
            connection,
            "SELECT *, coalesce(expires_at <= clock_timestamp(), false) AS expired FROM actonce.token"
            " WHERE digest = %s",
            (digest_of(value),),
        )
        if row is None:
            return None
        owner = None
        if row["person"] is not None:
            owner = await one(connection, "SELECT * FROM actonce.person WHERE name = %s", (row["person"],))
        return Presented(_token_of(row), row["expired"], None if owner is None else person_of(owner))


def _token_of(row: DictRow) -> Token:
    names = ("token_id", "label", "person", "created_by", "created_at", "expires_at", "revoked_at", "revoked_by")
    return Token(scopes=frozenset(Scope(scope) for scope in row["scopes"]), **{name: row[name] for name in names})
