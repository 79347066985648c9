"""Who may act, and by which rules: people and tokens (for administrators), oneself, the deployment's policy.

Promises: no password and no token's value is on any of these pages; the page that shows a value once is the answer to
the press that made it (`acts_access`).
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from actonce.console.acts import Kept, fresh_press
from actonce.console.person import Visitor, need
from actonce.console.rendering import page
from actonce.console.state import console_of
from actonce.contracts.people import PASSWORD_LENGTH_MIN, SCOPES_OF, Person, Role, Scope
from actonce.contracts.reasons import POLICIES
from actonce.ledger import authority, browse, changes, tokens
from actonce.ledger import people as ledger_people
from actonce.ledger import policy as ledger_policy

router = APIRouter()
ROLES = [(role.value, sorted(SCOPES_OF[role])) for role in Role]
SCOPES = {
    Scope.READ: "see everything",
    Scope.START: "start and cancel tasks",
    Scope.DECIDE: "decide about held operations, acknowledge pages",
    Scope.APPROVE: "vote on approvals",
    Scope.RELEASE: "how fast waiting tasks are let go",
    Scope.ACCESS: "credentials and the access policy",
    Scope.ADMIN: "people and tokens",
    Scope.ACT_FOR: "speak for whoever is signed in at a console; nobody's own",
}
FORMS: dict[str, Any] = {
    "roles": ROLES,
    "scopes": [(scope.value, words) for scope, words in SCOPES.items()],
    "password_min": PASSWORD_LENGTH_MIN,
}


@router.get("/people")
async def people(request: Request) -> HTMLResponse:
    """Everybody, also who is disabled."""
    _administrator(request)
    return await page(request, "people.html", **await people_values(request), kept=Kept())


@router.get("/people/{name}")
async def person(request: Request, name: str) -> HTMLResponse:
    """One person: what they may do, their tokens, how that changed."""
    _administrator(request)
    return await page(request, "person.html", **await person_values(request, name), kept=Kept())


@router.get("/tokens")
async def token_list(request: Request) -> HTMLResponse:
    """Those that open something first."""
    _administrator(request)
    return await page(request, "tokens.html", **await tokens_values(request), kept=Kept(), press=fresh_press())


@router.get("/tokens/{token_id:int}")
async def token(request: Request, token_id: int) -> HTMLResponse:
    """One token, without its value."""
    _administrator(request)
    return await page(request, "token.html", **await token_values(request, token_id), kept=Kept())


@router.get("/you")
async def you(request: Request) -> HTMLResponse:
    """Who is signed in: what they may do, and another password."""
    return await page(request, "you.html", you=_visitor(request).person, **FORMS)


@router.get("/policy")
async def policy(request: Request) -> HTMLResponse:
    """Contracts as workers recorded them, authority, second persons, reason codes."""
    console = console_of(request)
    found = await ledger_policy.contracts(console.ledger)
    return await page(
        request,
        "policy.html",
        contracts=[one for one in found if one.newest],
        older=[one for one in found if not one.newest],
        authority=await authority.standing(console.ledger),
        second_person=console.settings.second_person,
        policies=list(POLICIES.values()),
    )


# what their forms are made of -------------------------------------------------------------------------------------


async def people_values(request: Request) -> dict[str, Any]:
    return {"people": await ledger_people.list_people(console_of(request).ledger), **FORMS}


async def person_values(request: Request, name: str, version: int = 0) -> dict[str, Any]:
    """Raises 404. `version`: changes after it are told."""
    ledger = console_of(request).ledger
    found = await ledger_people.get_person(ledger, name)
    if found is None:
        raise HTTPException(404, "There is no such person here.")
    owned = [one for one in await tokens.list_tokens(ledger) if one.person == found.name]
    told = await changes.of_person(ledger, found.name, version)
    return {"p": found, "owned": owned, "history": told, "is_you": _is_you(request, found), **FORMS}


async def tokens_values(request: Request) -> dict[str, Any]:
    ledger = console_of(request).ledger
    now = (await browse.heading(ledger, console_of(request).settings.stale_after_s)).now
    known = await tokens.list_tokens(ledger)
    good = [one for one in known if one.revoked_at is None and (one.expires_at is None or one.expires_at > now)]
    people = [p.name for p in await ledger_people.list_people(ledger) if p.disabled_at is None]
    return {"good": good, "ended": [one for one in known if one not in good][::-1], "people": people, **FORMS}


async def token_values(request: Request, token_id: int) -> dict[str, Any]:
    """Raises 404."""
    found = [one for one in await tokens.list_tokens(console_of(request).ledger) if one.token_id == token_id]
    if not found:
        raise HTTPException(404, "There is no such token here.")
    return {"t": found[0]}


def _visitor(request: Request) -> Visitor:
    found: Visitor = request.state.person
    return found


def _is_you(request: Request, person: Person) -> bool:
    return _visitor(request).name == person.name


def _administrator(request: Request) -> None:
    need(_visitor(request), Scope.ADMIN)
