"""Composition of the entry service: state of the process, routes, errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.requests import Request

from actonce.entry import (
    access,
    problems,
    routes_alerts,
    routes_approvals,
    routes_browse,
    routes_credentials,
    routes_operations,
    routes_people,
    routes_policy,
    routes_release,
    routes_restore,
    routes_tasks,
)
from actonce.entry.access import Access
from actonce.entry.door import BodyLimit
from actonce.entry.settings import EntrySettings
from actonce.entry.starter import Connect, Starter, connect_by_environment
from actonce.entry.state import Entry, entry_of
from actonce.entry.views import Dependencies, Health
from actonce.ledger.store import Ledger
from actonce.serving import BodyDeadline
from actonce.version import __version__

TURN_ENDS_S = 8.0  # the deadlines of Temporal and the ledger (2 s and 4 s), and something on top
DESCRIPTION = """Starts tasks once and tells the truth about them.

**Start**: `POST /v1/tasks/{task_type}` with the business identity as `Idempotency-Key`. The same key and payload
are the same task for ever; its stored outcome is replayed.
**Decide**: a held operation is resolved by a recorded decision; what needs an approval waits for people.
**Who may**: a token in `Authorization: Bearer`, with the scope that an operation names.
Every refusal is `application/problem+json` and says what to do."""


def create_app(
    settings: EntrySettings, *, connect: Connect = connect_by_environment, namespace: str = "default"
) -> FastAPI:
    """Build the application. `connect` makes the Temporal client; nothing is contacted before the app starts."""

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        async with Ledger(settings.ledger_dsn.get_secret_value(), ledger_id=settings.ledger_id) as ledger:
            starter = Starter(ledger, settings, connect)
            app.state.entry = Entry(settings, ledger, starter, Access(ledger, settings.token_cache_s), namespace)
            stopping = asyncio.Event()
            loop = asyncio.create_task(starter.run(stopping), name="start accepted tasks")
            try:
                yield
            finally:
                stopping.set()
                await asyncio.wait([loop], timeout=TURN_ENDS_S)
                loop.cancel()

    app = FastAPI(title="actonce entry", version=__version__, description=DESCRIPTION, lifespan=life, redoc_url=None)
    problems.install(app)
    app.add_middleware(BodyLimit, bytes_max=settings.body_bytes_max)
    app.add_middleware(BodyDeadline, within_s=settings.body_within_s)

    @app.get("/health", summary="Is this process there", tags=["service"])
    async def health() -> Health:
        return Health(status="ok", version=__version__, run_id=settings.run_id, pid=os.getpid())

    @app.get("/dependencies", summary="What everything needs, as last really reached", tags=["service"])
    async def dependencies(request: Request) -> Dependencies:
        return await entry_of(request).dependencies()

    access.include(
        app,
        routes_tasks.router,
        routes_operations.router,
        routes_approvals.router,
        routes_release.router,
        routes_restore.router,
        routes_credentials.router,
        routes_alerts.router,
        routes_browse.router,
        routes_people.router,
        routes_policy.router,
    )
    return app
