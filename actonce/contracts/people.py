"""Who may do what: scopes, roles, persons, sessions, tokens. Facts only; the one secret among them is `Session.csrf`.

A *scope* is what a request needs; a *role* is the set of scopes that a person has by it. A *token* carries scopes of
its own and may belong to a person: then it can do what both allow, and speaks with that person's name. A *session* is
one person signed in at the console. What may be done is decided in one place (`actonce.entry.access`), from these.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from actonce.contracts.errors import PersonRefused

NAME_LENGTH_MAX = 100  # as long as a name in a decision
PASSWORD_LENGTH_MIN = 12
PASSWORD_LENGTH_MAX = 1000  # hashing is made to be slow; nobody chooses how slow
_NAME = re.compile(r"[^\W_][\w.@+' -]*[\w.]|[^\W_]")


class Scope(StrEnum):
    """What a request needs."""

    READ = "read"
    START = "start"  # start and cancel tasks
    DECIDE = "decide"  # decisions about held operations, acknowledging pages, deadlines, cancelling
    APPROVE = "approve"  # votes on approvals
    RELEASE = "release"  # how fast waiting tasks are released, and whether at all
    ACCESS = "access"  # credentials and the access policy
    ADMIN = "admin"  # people and tokens
    ACT_FOR = "act_for"  # speak for a signed-in person; of tokens only, and alone it opens nothing


class Role(StrEnum):
    """What a person is here."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"


SCOPES_OF: Mapping[Role, frozenset[Scope]] = {
    Role.VIEWER: frozenset({Scope.READ}),
    Role.OPERATOR: frozenset({Scope.READ, Scope.DECIDE, Scope.RELEASE}),
    Role.APPROVER: frozenset({Scope.READ, Scope.APPROVE}),
    Role.ADMIN: frozenset(Scope) - {Scope.ACT_FOR},
}


def scopes_of(roles: Iterable[Role]) -> frozenset[Scope]:
    """Everything that these roles allow together. No role allows nothing."""
    return frozenset().union(*(SCOPES_OF[role] for role in roles))


@dataclass(frozen=True)
class Person:
    """Somebody who may sign in, unless disabled."""

    name: str
    roles: frozenset[Role]
    has_password: bool
    issuer: str | None  # of the identity provider that vouches for them
    disabled_at: datetime | None
    created_at: datetime
    version: int = 1  # another one after every change but a password's being hashed anew
    changed_by: str = ""  # the last one, and what it was
    changed_what: str = ""

    @property
    def scopes(self) -> frozenset[Scope]:
        """What this person may do now: nothing while disabled."""
        return scopes_of(self.roles) if self.disabled_at is None else frozenset()


@dataclass(frozen=True)
class Session:
    """One person signed in. Over at `expires_at`, and an idle time after `seen_at`."""

    session_id: int
    person: Person
    csrf: str = field(repr=False)  # secret: from it the pages derive what their forms must bring back
    created_at: datetime
    seen_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class Token:
    """A token without its value, which is shown once and never kept."""

    token_id: int
    label: str
    scopes: frozenset[Scope]
    person: str | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


def checked_name(name: str) -> str:
    """A person's name as it is kept. Raises PersonRefused (`name`): it would look like another one, or like none."""
    normal = unicodedata.normalize("NFC", name)
    if len(normal) > NAME_LENGTH_MAX or not _NAME.fullmatch(normal) or "  " in normal:
        raise PersonRefused(
            f"{name[:NAME_LENGTH_MAX]!r} cannot be a person's name: letters, digits, and inside of it . _ @ + ' - or a "
            f"space, at most {NAME_LENGTH_MAX}",
            code="name",
        )
    return normal


def checked_password(password: str) -> str:
    """A password that may be set. Raises PersonRefused (`password`), without the password in it."""
    if not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
        raise PersonRefused(
            f"a password has {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX} characters, this one has {len(password)}",
            code="password",
        )
    return password


def checked_roles(roles: Iterable[str]) -> frozenset[Role]:
    """Roles by their words. Raises PersonRefused (`role`) for a word that is none, and for no role at all."""
    return frozenset(Role(word) for word in _checked(roles, [role.value for role in Role], "role"))


def checked_scopes(scopes: Iterable[str]) -> frozenset[Scope]:
    """Scopes by their words. Raises PersonRefused (`scope`) for a word that is none, and for no scope at all."""
    return frozenset(Scope(word) for word in _checked(scopes, [scope.value for scope in Scope], "scope"))


def _checked(words: Iterable[str], known: list[str], what: str) -> list[str]:
    given = list(words)
    unknown = sorted(set(given) - set(known))
    if unknown or not given:
        found = f"{', '.join(map(repr, unknown))} is no {what}" if unknown else f"no {what} is given"
        raise PersonRefused(f"{found}; there are {', '.join(known)}", code=what)
    return given
