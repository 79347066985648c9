"""Who may do what at the entry: the one place where it is decided.

Every route but the open ones of `app.py` is a `Guarded` one and declares with `needs` which scopes open it: what the
OpenAPI document says is what is enforced, before the body is read. A request shows a token (`Authorization: Bearer`).

Promises: a token that is unknown, expired or revoked, or whose person is disabled, gets 401; one that does not carry
the scope gets 403, which names it. A token with `act_for` speaks for the person in `Actonce-Person`, with that person's
roles of now and nothing of its own. Where a caller has a name, nobody else's is taken from a body. A change is noticed
within `token_cache_s`. Does not: limit how often one calls; let anything through while the ledger does not answer, but
for tokens that it confirmed less than `token_cache_s` ago.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, cast
from urllib.parse import unquote

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from fastapi_problem.error import Problem
from starlette.requests import Request
from starlette.responses import Response

from actonce.contracts.people import Person, Scope
from actonce.entry.problems import documented, problem
from actonce.ledger import people, tokens
from actonce.ledger.store import Ledger, digest_of

SCHEME = "token"
PERSON_HEADER = "Actonce-Person"
_KNOWN_MAX = 10_000  # callers of one cache time; more are asked for again
_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token of this deployment (`actonce tokens create`). The list beside it in an operation is the "
    f"scope that it must carry. One with `act_for` names the person it speaks for as `{PERSON_HEADER}` "
    "(UTF-8, percent-encoded).",
}
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Caller:
    """Who is asking, as far as that is known, and what they may do."""

    scopes: frozenset[Scope]
    name: str | None  # None: a deployment's own token; whoever has it says whose words they bring

    def speaks_as(self, name: str) -> None:
        """Refuse words that are brought in somebody else's name."""
        if self.name is not None and name != self.name:
            raise problem(
                403,
                "name-differs",
                "This is somebody else's name",
                f"The token speaks for {self.name!r}, the request for {name!r}. Send {self.name!r} as name.",
            )

    def is_somebody(self, why: str) -> None:
        """Refuse a token that is nobody's own, where it matters which of two people one is."""
        if self.name is None:
            raise problem(
                403,
                "person-needed",
                "It must be known who this is",
                f"{why}. Use a person's own token (`actonce tokens create LABEL --person NAME --scope decide`), or "
                "sign in at the console.",
            )


class Access:
    """The callers that one entry process has met lately."""

    def __init__(self, ledger: Ledger, cache_s: float) -> None:
        self._ledger = ledger
        self._cache_s = cache_s
        self._known: dict[tuple[str, str | None], tuple[float, Caller]] = {}

    async def allow(self, request: Request, wanted: frozenset[Scope]) -> Caller:
        """The caller of this request. Raises the problem that answers it: 401, or 403 with none of `wanted`."""
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not value.strip():
            raise _unknown("It shows no token", "Bearer")
        caller = await self.caller(value.strip(), _person_of(request))
        if not caller.scopes & wanted:
            words = " or ".join(sorted(wanted))
            raise _refused(
                f"It needs scope {words}; what was shown carries {', '.join(sorted(caller.scopes)) or 'none'}.", words
            )
        return caller

    async def caller(self, value: str, person: str | None) -> Caller:
        """Whom this token stands for now. Raises the problem that answers it."""
        key = (digest_of(value), person)
        until, caller = self._known.get(key, (0.0, None))
        now = time.monotonic()
        if caller is not None and now < until:
            return caller
        caller = await self._look(value, person)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[key] = (now + self._cache_s, caller)  # from before it was looked at
        return caller

    async def _look(self, value: str, person: str | None) -> Caller:
        found = await tokens.presented(self._ledger, value)
        if found is None:
            raise _unknown("This deployment has no such token")
        token = found.token
        if token.revoked_at is not None:
            raise _unknown(f"Token {token.token_id} ({token.label}) was revoked by {token.revoked_by}")
        if found.expired:
            raise _unknown(f"Token {token.token_id} ({token.label}) expired at {token.expires_at}")
        if person is not None:
            if Scope.ACT_FOR not in token.scopes:
                raise _refused(f"Speaking for {person!r} needs scope act_for.", "act_for")
            return _of(await people.get_person(self._ledger, person), person)
        if token.person is None:
            return Caller(token.scopes, None)
        owner = _of(found.owner, token.person)
        return Caller(owner.scopes & token.scopes, owner.name)


def _person_of(request: Request) -> str | None:
    given = request.headers.get(PERSON_HEADER)
    return None if given is None else unquote(given)


def _of(person: Person | None, name: str) -> Caller:
    if person is None or person.disabled_at is not None:
        raise _unknown(f"{name!r} is not, or no longer, a person here")
    return Caller(person.scopes, person.name)


def _unknown(why: str, challenge: str = 'Bearer error="invalid_token"') -> Problem:
    return _challenging(
        problem(
            401,
            "token-needed",
            "Who is asking is not known",
            f"{why}. Send `Authorization: Bearer TOKEN`; an administrator makes one with `actonce tokens create`.",
        ),
        challenge,
    )


def _refused(why: str, scope: str) -> Problem:
    challenge = f'Bearer error="insufficient_scope", scope="{scope.replace(" or ", " ")}"'
    return _challenging(problem(403, "scope-missing", "This token does not allow it", why), challenge)


def _challenging(found: Problem, challenge: str) -> Problem:
    found.headers = {"WWW-Authenticate": challenge}
    return found


# routes -----------------------------------------------------------------------------------------------------------


def needs(*scopes: Scope, **more: Any) -> dict[str, Any]:
    """`openapi_extra` of a route that any one of these scopes opens."""
    return {**more, "security": [{SCHEME: [scope.value]} for scope in scopes]}


class Guarded(APIRoute):
    """A route that says what opens it, and keeps to it."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        declared = (more.get("openapi_extra") or {}).get("security") or []
        self.wanted = frozenset(Scope(scope) for one in declared for scope in one.get(SCHEME, []))
        if not self.wanted:
            raise TypeError(f"{path}: say which scope opens it: openapi_extra=needs(Scope.READ)")
        more["responses"] = {**documented(401, 403), **(more.get("responses") or {})}
        super().__init__(path, endpoint, **more)

    def get_route_handler(self) -> Handler:
        answer = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            access: Access = request.app.state.entry.access
            request.state.caller = await access.allow(request, self.wanted)
            return await answer(request)

        return guarded


def guarded_router(prefix: str, tag: str) -> APIRouter:
    """A router whose routes all say what opens them."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=Guarded)


def include(app: FastAPI, *routers: APIRouter) -> None:
    """Add these routers. Raises TypeError for one with a route that is not guarded."""
    for router in routers:
        for route in router.routes:
            if not isinstance(route, Guarded):
                raise TypeError(f"{router.prefix}: {route} is open to everybody; make its router with guarded_router")
        app.include_router(router)
    plain = app.openapi

    def described() -> dict[str, Any]:
        document = plain()
        document.setdefault("components", {})["securitySchemes"] = {SCHEME: _SCHEME}
        return document

    app.openapi = described  # type: ignore[method-assign]


def _caller_of(request: Request) -> Caller:
    return cast(Caller, request.state.caller)


Who = Annotated[Caller, Depends(_caller_of)]
