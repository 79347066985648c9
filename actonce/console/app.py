"""Composition of the console: state of the process, routes, errors, headers."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httpx
import psycopg
import structlog
from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from actonce.console import (
    acts_access,
    acts_approvals,
    acts_control,
    acts_operations,
    events,
    pages_access,
    pages_control,
    pages_operations,
    pages_overview,
    pages_people,
    pages_restore,
    pages_sign,
    pages_tasks,
)
from actonce.console.acting import Acting
from actonce.console.events import Pulse
from actonce.console.files import router as files
from actonce.console.headers import SecurityHeaders
from actonce.console.person import SignInNeeded, person_of, sign_in_url
from actonce.console.rendering import fill
from actonce.console.settings import ConsoleSettings
from actonce.console.state import Console
from actonce.contracts.errors import ForeignLedger, LedgerUnavailable
from actonce.ledger.listing import BadCursor
from actonce.ledger.store import Ledger
from actonce.serving import BodyDeadline
from actonce.version import __version__

if TYPE_CHECKING:
    from actonce.console.provider import ProviderTerms

log = structlog.get_logger("actonce.console")
# Each for whoever is signed in.
PAGES = (events, pages_overview, pages_tasks, pages_operations, pages_people, pages_control, pages_access)
ACTS = (
    acts_operations,
    acts_approvals,
    acts_control,
    acts_access,
    pages_restore,
)  # each checks who may press it (`person.pressed`)


class _App(FastAPI):
    """Headers go around everything, the answer to an unexpected error included."""

    def build_middleware_stack(self) -> ASGIApp:
        return SecurityHeaders(super().build_middleware_stack())


def create_app(
    settings: ConsoleSettings, *, namespace: str = "default", entry: httpx.AsyncBaseTransport | None = None
) -> FastAPI:
    """Build the application. Nothing is contacted before the first page. `namespace`: Temporal's, for links.

    `entry`: another way to the entry service than the network.
    """
    token = settings.console_token.get_secret_value() if settings.console_token else None
    acting = Acting(settings.entry_url, token, entry)
    ledger = Ledger(settings.ledger_dsn.get_secret_value(), ledger_id=settings.ledger_id)
    stopping = asyncio.Event()

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        async with ledger:
            yield
            stopping.set()
            await acting.close()

    app = _App(title="actonce console", lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.console = Console(
        settings, ledger, Pulse(ledger, settings.stale_after_s, stopping), stopping, acting, None, namespace
    )

    @app.get("/health")
    async def health() -> JSONResponse:
        """This process is there. It says nothing about what it needs."""
        return JSONResponse({"status": "ok", "version": __version__})

    app.add_middleware(BodyDeadline, within_s=settings.body_within_s)
    app.include_router(files)
    app.include_router(pages_sign.router)
    if settings.provider is not None:
        _offer_provider(app, settings.provider)
    for module in ACTS:
        app.include_router(module.router)
    for module in PAGES:
        app.include_router(module.router, dependencies=[Depends(person_of)])  # a page without it would be open to all
    _install_errors(app)
    return app


def _offer_provider(app: FastAPI, terms: ProviderTerms) -> None:
    from actonce.console import pages_provider  # what it needs takes a tenth of a second that few consoles need
    from actonce.console.provider import Provider

    app.state.console.provider = Provider(terms)
    app.include_router(pages_provider.router)


def _install_errors(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> HTMLResponse:
        title = {404: "There is no such page", 403: "It is refused", 405: "Not like that"}
        words = error.detail if error.detail != "Not Found" else "Check the address; ids are found by the search."
        answer = _error(request, error.status_code, title.get(error.status_code, "It cannot be shown"), words)
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(SignInNeeded)
    async def nobody(request: Request, error: SignInNeeded) -> Response:
        is_page = request.method in ("GET", "HEAD") and request.url.path != "/events"
        if is_page:
            return RedirectResponse(sign_in_url(request), 303)
        words = "Your sign-in is over, or was ended. Nothing was recorded: sign in, load the page and press again."
        return _error(request, 401, "You are not signed in", words)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> HTMLResponse:
        words = "; ".join(f"{'.'.join(str(p) for p in e['loc'][1:])}: {e['msg']}" for e in error.errors())
        return _error(request, 422, "The address does not fit", words)

    @app.exception_handler(BadCursor)
    async def cursor(request: Request, error: BadCursor) -> HTMLResponse:
        return _error(request, 422, "The address does not fit", str(error))

    @app.exception_handler(LedgerUnavailable)
    async def unavailable(request: Request, error: LedgerUnavailable) -> HTMLResponse:
        log.warning("ledger_unavailable", error=str(error))
        words = (
            "Nothing is known while it does not answer, and nothing can be sent by anybody either. "
            "Operators: check PostgreSQL (docs/operations/ledger_unavailable.md), then load this page again."
        )
        answer = _error(request, 503, "The ledger does not answer", words)
        answer.headers["Retry-After"] = "2"
        return answer

    @app.exception_handler(ForeignLedger)
    async def foreign(request: Request, error: ForeignLedger) -> HTMLResponse:
        return _error(request, 503, "This is not the ledger of this deployment", str(error))

    @app.exception_handler(psycopg.errors.UndefinedTable)
    @app.exception_handler(psycopg.errors.InvalidSchemaName)
    async def none_yet(request: Request, error: Exception) -> HTMLResponse:
        words = "The entry service and the workers make it when they start. Check them and ACTONCE_LEDGER_DSN."
        return _error(request, 503, "There is no ledger here yet", words)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        incident = uuid.uuid4().hex[:12]
        log.error("unexpected", incident=incident, kind=type(error).__name__)
        return _error(request, 500, "Unexpected error", f"The log has it as incident {incident}.")


def _error(request: Request, status: int, title: str, words: str) -> HTMLResponse:
    return fill(request, "error.html", None, status=status, code=status, title=title, words=words)
