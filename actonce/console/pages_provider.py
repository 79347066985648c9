"""Signing in by an identity provider: the way there and the way back. Only there where one is set up."""

from __future__ import annotations

from urllib.parse import quote, unquote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from actonce.console.pages_sign import sign_in_page, signed_in
from actonce.console.person import PROVIDER_COOKIE, cookie_name, drop_cookie, local, own_origins, set_cookie
from actonce.console.provider import ATTEMPT_S, Provider, ProviderRefused
from actonce.console.state import console_of
from actonce.contracts.errors import SignInRefused
from actonce.ledger import sessions

router = APIRouter()


@router.get("/sign-in/with-provider")
async def begin(request: Request, next: str = "/") -> Response:
    """Off to the identity provider. A link and no form: what a form is sent to may not lead elsewhere (CSP)."""
    try:
        attempt, url = await _provider(request).begin(_back(request))
    except ProviderRefused as error:
        return sign_in_page(request, next, refused=SignInRefused(str(error), code="provider"))
    answer = RedirectResponse(url, 303)
    kept = f"{attempt.kept}.{quote(local(next), safe='')}"
    set_cookie(request, answer, PROVIDER_COOKIE, kept, cross_site=True, for_s=ATTEMPT_S)
    return answer


@router.get("/sign-in/back")
async def back(request: Request) -> Response:
    """Back from there: signed in is who the provider vouches for, with the roles it says, if this browser had begun."""
    kept, _, next_ = request.cookies.get(cookie_name(request, PROVIDER_COOKIE), "").partition(".")
    try:
        found = await _provider(request).finish(kept, request.query_params, _back(request))
        _, value = await sessions.sign_in_by_provider(
            console_of(request).ledger, found.issuer, found.subject, found.name, found.roles
        )
        answer = signed_in(request, value, unquote(next_))
    except ProviderRefused as error:
        answer = sign_in_page(request, unquote(next_), refused=SignInRefused(str(error), code="provider"))
    except SignInRefused as error:
        answer = sign_in_page(request, unquote(next_), refused=error)
    drop_cookie(request, answer, PROVIDER_COOKIE)
    return answer


def _provider(request: Request) -> Provider:
    provider = console_of(request).provider
    assert provider is not None, "these pages are there only with one"
    return provider


def _back(request: Request) -> str:
    return f"{own_origins(request)[0].rstrip('/')}/sign-in/back"
