"""Routes about people and tokens: list, add, change, disable; make and revoke. For administrators.

Promises: a password comes in a body and is in no answer, address or log; a token's value is in one answer, that to the
press that made it, and never again. What was decided on something older is refused (409), and what is so already is
answered as it is. Does not: change what `actonce people` and `actonce tokens` could not; they work on the same ledger.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Depends
from pydantic import BaseModel, Field, SecretStr, StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from actonce.contracts.errors import PersonRefused
from actonce.contracts.people import (
    NAME_LENGTH_MAX,
    PASSWORD_LENGTH_MAX,
    PASSWORD_LENGTH_MIN,
    Person,
    Role,
    Scope,
    Token,
)
from actonce.entry.access import Who, guarded_router, needs
from actonce.entry.door import press_of
from actonce.entry.problems import documented
from actonce.entry.state import Entry, entry_of
from actonce.ledger import people, tokens

router = guarded_router("/v1", "people and tokens")
Shared = Annotated[Entry, Depends(entry_of)]
_SAID = StringConstraints(strip_whitespace=True)  # not of a whole body: the spaces around a password are its own
By = Annotated[str, _SAID, Field(min_length=1, max_length=NAME_LENGTH_MAX, description="who does it")]
Named = Annotated[str, _SAID, Field(min_length=1, max_length=NAME_LENGTH_MAX, description="the person")]
Label = Annotated[str, _SAID, Field(min_length=1, max_length=200, description="what it is for")]
Roles = Annotated[set[Role], Field(min_length=1)]
Version = Annotated[int, Field(ge=1, lt=2**31, description="of the person, as it was looked at")]
Password = Annotated[SecretStr, Field(min_length=PASSWORD_LENGTH_MIN, max_length=PASSWORD_LENGTH_MAX)]
AGAIN = "Idempotent-Replayed"
_PRESS = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "Which press of the button this is. The same key again is the token it made, without its value.",
}


class PersonView(BaseModel):
    """Somebody who may sign in, unless disabled."""

    name: str
    roles: list[Role]
    has_password: bool
    issuer: str | None = Field(description="the identity provider that vouches for them, and says their roles")
    disabled_at: datetime | None
    created_at: datetime
    version: int
    changed_by: str
    changed_what: str


class PersonAdded(BaseModel):
    """Somebody new, and the password they begin with."""

    name: By
    person: Named
    roles: Roles
    password: Password


class PersonChange(BaseModel):
    """Whom somebody changes, and what they had looked at."""

    name: By
    person: Named
    expected_version: Version


class RolesChange(PersonChange):
    """These roles, and no others."""

    roles: Roles


class PasswordChange(PersonChange):
    """Another password."""

    password: Password


class TokenView(BaseModel):
    """A token without its value."""

    token_id: int
    label: str
    scopes: list[Scope]
    person: str | None = Field(description="whose it is: their roles bound it; null: the deployment's own")
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class TokenWanted(BaseModel):
    """What a new token is for, what it opens, and for how long."""

    name: By
    label: Label
    scopes: Annotated[set[Scope], Field(min_length=1)]
    person: Named | None = None
    days: float | None = Field(default=90.0, gt=0, le=3650, description="null: until it is revoked")


class TokenMade(BaseModel):
    """The token, and its value this once."""

    token: TokenView
    value: str | None = Field(description="null: this press had made it before; its value was shown then")


class TokenRevoked(BaseModel):
    """Which token opens nothing any more. Its label too, so that a wrong number revokes nothing."""

    name: By
    token_id: int = Field(ge=1, lt=2**63)
    label: Label


def _person(found: Person) -> PersonView:
    names = ("name", "has_password", "issuer", "disabled_at", "created_at", "version", "changed_by", "changed_what")
    return PersonView(roles=sorted(found.roles), **{name: getattr(found, name) for name in names})


def _token(found: Token) -> TokenView:
    names = [name for name in TokenView.model_fields if name != "scopes"]
    return TokenView(scopes=sorted(found.scopes), **{name: getattr(found, name) for name in names})


@router.get(
    "/people",
    summary="Who may sign in, and who no more",
    response_model=list[PersonView],
    responses=documented(503),
    openapi_extra=needs(Scope.ADMIN),
)
async def list_people(entry: Shared) -> list[PersonView]:
    """By name; nobody is ever deleted."""
    return [_person(one) for one in await people.list_people(entry.ledger)]


@router.post(
    "/people",
    summary="Let somebody sign in",
    response_model=PersonView,
    responses=documented(409, 422, 503),
    openapi_extra=needs(Scope.ADMIN),
)
async def add(body: PersonAdded, entry: Shared, who: Who, response: Response) -> PersonView:
    """By name and password. Who comes by an identity provider is added by it. The same again is the same person."""
    who.speaks_as(body.name)
    password = body.password.get_secret_value()
    try:
        return _person(await people.add_person(entry.ledger, body.person, body.roles, password=password, by=body.name))
    except PersonRefused as error:
        before = None
        if error.code == "taken":
            before = await people.was_added(entry.ledger, body.person, body.roles, password, by=body.name)
        if before is None:
            raise
        response.headers[AGAIN] = "true"
        return _person(before)


@router.post(
    "/people/roles",
    summary="Give a person other roles",
    response_model=PersonView,
    responses=documented(404, 409, 422, 503),
    openapi_extra=needs(Scope.ADMIN),
)
async def set_roles(body: RolesChange, entry: Shared, who: Who) -> PersonView:
    """Pages know at once, the entry within `token_cache_s`. The last one with role admin keeps it."""
    who.speaks_as(body.name)
    return _person(
        await people.set_roles(
            entry.ledger, body.person, body.roles, by=body.name, expected_version=body.expected_version
        )
    )


@router.post(
    "/people/passwords",
    summary="Set a person's password",
    response_model=PersonView,
    responses=documented(404, 409, 422, 503),
    openapi_extra=needs(Scope.ADMIN),
)
async def set_password(body: PasswordChange, entry: Shared, who: Who) -> PersonView:
    """Signs them out everywhere and forgets failed attempts."""
    who.speaks_as(body.name)
    given = body.password.get_secret_value()
    return _person(
        await people.set_password(
            entry.ledger, body.person, given, by=body.name, expected_version=body.expected_version
        )
    )


@router.post(
    "/people/disabled",
    summary="Let a person in no more",
    response_model=PersonView,
    responses=documented(404, 409, 422, 503),
    openapi_extra=needs(Scope.ADMIN),
)
async def disable(body: PersonChange, entry: Shared, who: Who) -> PersonView:
    """Signs them out at once; their tokens open nothing. The last one with role admin stays."""
    who.speaks_as(body.name)
    return _person(
        await people.disable(entry.ledger, body.person, by=body.name, expected_version=body.expected_version)
    )


@router.post(
    "/people/enabled",
    summary="Let a disabled person in again",
    response_model=PersonView,
    responses=documented(404, 409, 422, 503),
    openapi_extra=needs(Scope.ADMIN),
)
async def enable(body: PersonChange, entry: Shared, who: Who) -> PersonView:
    """With the roles they had. Sessions that were ended stay so."""
    who.speaks_as(body.name)
    return _person(await people.enable(entry.ledger, body.person, by=body.name, expected_version=body.expected_version))


@router.get(
    "/tokens",
    summary="Every token, without its value",
    response_model=list[TokenView],
    responses=documented(503),
    openapi_extra=needs(Scope.ADMIN),
)
async def list_tokens(entry: Shared) -> list[TokenView]:
    """Also those that have expired or were revoked. When one was used last is not recorded."""
    return [_token(one) for one in await tokens.list_tokens(entry.ledger)]


@router.post(
    "/tokens",
    summary="Make a token; its value is in this answer and nowhere else",
    response_model=TokenMade,
    responses=documented(400, 404, 422, 503),
    openapi_extra=needs(Scope.ADMIN, parameters=[_PRESS]),
)
async def create(body: TokenWanted, request: Request, response: Response, entry: Shared, who: Who) -> TokenMade:
    """The same `Idempotency-Key` again is the token that it made (`Idempotent-Replayed: true`), without the value."""
    who.speaks_as(body.name)
    token, value = await tokens.create_token_once(
        entry.ledger,
        body.label,
        body.scopes,
        by=body.name,
        press=press_of(request),
        person=body.person,
        lifetime_s=None if body.days is None else body.days * 86_400,
    )
    response.headers["Cache-Control"] = "no-store"
    if value is None:
        response.headers[AGAIN] = "true"
    return TokenMade(token=_token(token), value=value)


@router.post(
    "/tokens/revocations",
    summary="Revoke a token: it opens nothing any more",
    response_model=TokenView,
    responses=documented(404, 409, 422, 503),
    openapi_extra=needs(Scope.ADMIN),
)
async def revoke(body: TokenRevoked, entry: Shared, who: Who) -> TokenView:
    """At the entry within `token_cache_s`. Sending the same again changes nothing."""
    who.speaks_as(body.name)
    return _token(await tokens.revoke_token(entry.ledger, body.token_id, by=body.name, label=body.label))
