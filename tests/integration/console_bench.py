"""What the console's tests share: the app in this process, on a real ledger, seen as HTML by somebody signed in."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import psycopg
from fastapi import FastAPI

from actonce.console.app import create_app
from actonce.console.settings import ConsoleSettings
from actonce.contracts.errors import LedgerUnavailable
from actonce.contracts.people import Role
from actonce.ledger import sessions
from actonce.ledger.store import Ledger

COOKIE = "actonce-session-80"


@contextlib.asynccontextmanager
async def console(
    dsn: str, *, role: str | None = "admin", peer: str = "127.0.0.1", entry: Any = None, **settings: Any
) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """Run the console on the ledger at `dsn`, asked by somebody with `role` (None: nobody is signed in) at `peer`.

    Redirects are not followed. Without a ledger there is a cookie that nobody can look up.
    """
    known = ConsoleSettings(**{"ledger_dsn": dsn, "temporal_ui_url": "http://127.0.0.1:8233", **settings})
    app = create_app(known, entry=entry)
    async with app.router.lifespan_context(app), served(app, peer=peer) as http:
        if role is not None:
            carry(http, await session(app.state.console.ledger, role))
        yield app, http


def served(app: FastAPI, url: str = "http://console", *, peer: str = "127.0.0.1") -> httpx.AsyncClient:
    """A browser at `peer` in which nobody is signed in."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, client=(peer, 40_000))
    return httpx.AsyncClient(transport=transport, base_url=url)


def carry(http: httpx.AsyncClient, value: str) -> None:
    """Put a session's cookie where the console's own would be."""
    http.cookies.set(COOKIE, value, domain="console.local")  # as the cookie jar calls a host without a dot


def routes_of(app: Any) -> Iterator[tuple[str, set[str]]]:
    """(path, methods) of every route, those of included routers too."""
    for route in app.routes:
        if hasattr(route, "original_router"):
            yield from routes_of(route.original_router)
        else:
            yield route.path, route.methods


async def session(ledger: Ledger, role: str, name: str | None = None) -> str:
    """Sign somebody in, without a password. Returns the cookie's value."""
    who = name or role
    try:
        return (await sessions.sign_in_by_provider(ledger, "tests", who, who, [Role(role)]))[1]
    except (LedgerUnavailable, psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return "nobody-can-say"


def form_of(page: str, address: str) -> dict[str, str]:
    """The hidden fields of the first form on a page that is sent to `address`, as a browser would send them back."""
    found = re.search(rf'<form method="post" action="{re.escape(html.escape(address))}".*?</form>', page, re.S)
    assert found, f"no form for {address} in {page}"
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', found[0])
    return {name: html.unescape(value) for name, value in fields}
