"""What the console's tests share: the app in this process, on a real ledger, seen as HTML."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from fastapi import FastAPI

from actonce.console.app import create_app
from actonce.console.settings import ConsoleSettings


@contextlib.asynccontextmanager
async def console(
    dsn: str, *, peer: str = "127.0.0.1", **settings: Any
) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """Run the console on the ledger at `dsn`, asked by somebody at `peer`. Redirects are not followed."""
    app = create_app(ConsoleSettings(**{"ledger_dsn": dsn, "temporal_ui_url": "http://127.0.0.1:8233", **settings}))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, client=(peer, 40_000))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://console") as http,
    ):
        yield app, http
