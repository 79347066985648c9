"""Signing in and out.

The sign-in form carries a token too, from a cookie of its own: else somebody could sign you in as themselves, and see
what you then do. The session's cookie is never sent with a request that another site caused, so a link in a chat seems
to come from nobody: that sign-in page asks once again by itself, now from here.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from actonce.console import csrf
from actonce.console.csrf import Form
from actonce.console.person import (
    SESSION_COOKIE,
    SIGN_IN_COOKIE,
    Press,
    cookie_name,
    draw,
    drop_cookie,
    local,
    own_origins,
    pressed,
    set_cookie,
)
from actonce.console.rendering import fill
from actonce.console.state import console_of
from actonce.contracts.errors import SignInRefused
from actonce.ledger import sessions

router = APIRouter()


@router.get("/sign-in")
async def form(request: Request, next: str = "/", here: bool = False) -> Response:
    """The form. Whoever is signed in already goes on."""
    if await _is_signed_in(request):
        return RedirectResponse(local(next), 303)
    elsewhere = request.headers.get("sec-fetch-site") == "cross-site"
    return sign_in_page(request, next, look_again=elsewhere and not here)


@router.get("/sign-in/here")
async def from_here(request: Request, next: str = "/") -> Response:
    """Where that page asks again: this request was caused by this console, so the cookie is there if there is one."""
    if await _is_signed_in(request):
        return RedirectResponse(local(next), 303)
    return RedirectResponse(f"/sign-in?here=true&next={quote(local(next))}", 303)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """By name and password. The same words for a name that does not exist; too many attempts are told when to try."""
    given = await csrf.form_of(request)
    expected = request.cookies.get(cookie_name(request, SIGN_IN_COOKIE), "")
    csrf.check(request, given, csrf.token(expected) if expected else draw(), own_origins(request))
    source = request.client.host if request.client else "unknown"
    try:
        _, value = await sessions.sign_in(console_of(request).ledger, given["name"], _password(given), source)
    except SignInRefused as error:
        refused = sign_in_page(request, given["next"], name=given["name"], refused=error)
        if error.retry_after_s is not None:
            refused.headers["Retry-After"] = str(error.retry_after_s)
        return refused
    return signed_in(request, value, given["next"])


@router.post("/sign-out")
async def sign_out(request: Request, press: Annotated[Press, Depends(pressed(None))]) -> Response:
    """Ends the session in the ledger: a copy of the cookie opens nothing either."""
    value = request.cookies[cookie_name(request, SESSION_COOKIE)]
    await sessions.sign_out(console_of(request).ledger, value)
    answer = RedirectResponse("/sign-in?done=signed-out", 303)
    drop_cookie(request, answer, SESSION_COOKIE)
    return answer


def signed_in(request: Request, value: str, next_: str) -> Response:
    """Hand out the session's cookie and go on. Always a new value: one from before signing in is worth nothing."""
    answer = RedirectResponse(local(next_), 303)
    set_cookie(request, answer, SESSION_COOKIE, value)
    drop_cookie(request, answer, SIGN_IN_COOKIE)
    return answer


async def _is_signed_in(request: Request) -> bool:
    value = request.cookies.get(cookie_name(request, SESSION_COOKIE))
    return bool(value) and await sessions.session_of(console_of(request).ledger, value or "") is not None


def sign_in_page(
    request: Request, next_: str, *, name: str = "", refused: SignInRefused | None = None, look_again: bool = False
) -> Response:
    """The form, with what was typed before (but for the password) and why that let nobody in."""
    drawn = request.cookies.get(cookie_name(request, SIGN_IN_COOKIE)) or draw()  # the same in two tabs
    provider = console_of(request).provider
    status = 200 if refused is None else 429 if refused.code == "too_many" else 401
    answer = fill(
        request,
        "sign_in.html",
        None,
        status=status,
        csrf=csrf.token(drawn),
        next=local(next_),
        name=name,
        refused=refused,
        look_again=look_again,
        provider=urlsplit(provider.terms.issuer).hostname if provider else None,
    )
    set_cookie(request, answer, SIGN_IN_COOKIE, drawn)
    return answer


def _password(given: Form) -> str:
    return given.values.get("password", "")
