"""Who looks at a page and who presses a button: sessions, their cookie, and what each person may do here.

Promises: no page without a session, no press without a session, an origin of ours, the form's token and the scope that
the press needs. A role that was taken away, a disabled person and a signed-out session count at the next request. What
is shown or hidden by scope is courtesy: the entry service decides, and looks up the person's roles itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from actonce.console import csrf
from actonce.console.csrf import Form
from actonce.console.state import console_of
from actonce.contracts.people import SCOPES_OF, Person, Scope
from actonce.ledger import sessions

SESSION_COOKIE, SIGN_IN_COOKIE, PROVIDER_COOKIE = "session", "sign-in", "provider"


class SignInNeeded(Exception):
    """Nobody is signed in (any more)."""


@dataclass(frozen=True)
class Visitor:
    """Who asks for a page. `name` None: nobody is signed in, and only the pages about signing in are served."""

    person: Person | None = None
    csrf: str = ""

    @property
    def name(self) -> str | None:
        return self.person.name if self.person else None

    @property
    def roles(self) -> list[str]:
        return sorted(self.person.roles) if self.person else []

    def may(self, scope: str) -> bool:
        """Would the entry let this person do it?"""
        return self.person is not None and Scope(scope) in self.person.scopes


@dataclass(frozen=True)
class Press:
    """A button that a person pressed, after every check that needs no entry."""

    person: Person
    form: Form


async def person_of(request: Request) -> Visitor:
    """FastAPI dependency of every page: who looks, and may. Raises SignInNeeded when nobody is signed in."""
    visitor = await signed_in(request)
    need(visitor, Scope.READ)
    return visitor


async def signed_in(request: Request) -> Visitor:
    """Who this is, whatever they may do. Raises SignInNeeded."""
    value = request.cookies.get(cookie_name(request, SESSION_COOKIE))
    if not value:
        raise SignInNeeded
    by_person = request.headers.get("sec-fetch-mode", "navigate") == "navigate"  # our script fetches by itself
    session = await sessions.session_of(console_of(request).ledger, value, by_person=by_person)
    if session is None:
        raise SignInNeeded
    visitor = Visitor(session.person, csrf.token(session.csrf))
    request.state.person = visitor
    return visitor


def pressed(scope: Scope | None) -> Callable[[Request], Awaitable[Press]]:
    """FastAPI dependency of a button. `scope` None: whoever is signed in may press it."""

    async def checked(request: Request) -> Press:
        visitor = await signed_in(request)
        assert visitor.person is not None
        form = await csrf.form_of(request)
        csrf.check(request, form, visitor.csrf, own_origins(request))
        if scope is not None:
            need(visitor, scope)
        return Press(visitor.person, form)

    return checked


def need(visitor: Visitor, scope: Scope) -> None:
    """Refuse (403) what this person's roles do not allow, and name the roles that do."""
    if visitor.may(scope):
        return
    roles = " or ".join(role.value for role, scopes in SCOPES_OF.items() if scope in scopes)
    mine = ", ".join(visitor.roles) or "no role"
    raise HTTPException(403, f"This needs the role {roles}; you have {mine}. An administrator can change that.")


def own_origins(request: Request) -> list[str]:
    """Where people reach this console."""
    settings = console_of(request).settings
    return csrf.own_origins(request, settings.console_url, behind_tls_proxy=settings.console_behind_tls_proxy)


# cookies ----------------------------------------------------------------------------------------------------------


def is_secure(request: Request) -> bool:
    """Do people reach it by https? Without it a console listens on the loopback interface only."""
    return all(origin.startswith("https:") for origin in own_origins(request))


def cookie_name(request: Request, what: str) -> str:
    """`__Host-` binds a cookie to exactly this host. A cookie knows no port: on loopback the name has it."""
    if is_secure(request):
        return f"__Host-actonce-{what}"
    return f"actonce-{what}-{request.url.port or 80}"


def set_cookie(
    request: Request, response: Response, what: str, value: str, *, cross_site: bool = False, for_s: int | None = None
) -> None:
    """A cookie that no script reads. `cross_site`: it must come back from elsewhere; `for_s` None: while the browser is
    open."""
    response.set_cookie(
        cookie_name(request, what),
        value,
        path="/",
        max_age=for_s,
        secure=is_secure(request),
        httponly=True,
        samesite="lax" if cross_site else "strict",
    )


def drop_cookie(request: Request, response: Response, what: str) -> None:
    response.delete_cookie(cookie_name(request, what), path="/", secure=is_secure(request), httponly=True)


# signing in -------------------------------------------------------------------------------------------------------


def sign_in_url(request: Request) -> str:
    """The sign-in page, and where to go on afterwards. Of a press: the page that it was on."""
    # As it was sent: an id may hold a percent-encoded `?`, and decoded it would be another address.
    here = request.scope.get("raw_path", b"/").decode("ascii", "replace") if request.method == "GET" else "/"
    return f"/sign-in?next={quote(local(here))}" if local(here) != "/" else "/sign-in"


def local(address: str) -> str:
    """An address of this console; anything that a browser could take for another place becomes the first page."""
    plain = address.startswith("/") and not address.startswith(("//", "/\\")) and "\\" not in address
    fine = plain and address.isprintable() and not address.startswith(("/sign-in", "/sign-out", "/events"))
    return address if fine else "/"


def draw() -> str:
    """A value that nobody can guess: 256 bits."""
    return secrets.token_urlsafe(32)
