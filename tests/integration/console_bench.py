"""What the console's tests share: the app in this process, on a real ledger, seen as HTML by somebody signed in."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
from fastapi import FastAPI

from actonce.console.app import create_app
from actonce.console.settings import ConsoleSettings
from actonce.contracts.errors import LedgerUnavailable
from actonce.contracts.people import Role, Scope
from actonce.ledger import sessions, tokens
from actonce.ledger.store import Ledger
from tests.integration.entry_bench import Bench, bench

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


@dataclass
class Desk:
    """A console that acts through a real entry; and whoever sits at it."""

    on: Bench
    app: FastAPI

    async def browser(self, role: str = "operator", name: str | None = None) -> httpx.AsyncClient:
        """Somebody's browser, signed in. It says where a form comes from, as browsers do."""
        http = served(self.app)
        http.headers["Origin"] = "http://console"
        carry(http, await session(self.on.ledger, role, name))
        return http


@contextlib.asynccontextmanager
async def desk(dsn: str, *, second_person: str = "") -> AsyncIterator[Desk]:
    """Entry and console on the ledger at `dsn`, each its real application. Another role counts at once."""
    async with bench(dsn, None, start_deadline_s=0.2, token_cache_s=0, second_person=second_person) as on:
        _, token = await tokens.create_token(on.ledger, "console", [Scope.ACT_FOR], by="tests")
        known: Any = {"ledger_dsn": dsn, "entry_url": "http://entry", "console_token": token}
        app = create_app(ConsoleSettings(**known, second_person=second_person), entry=on.transport)
        async with app.router.lifespan_context(app):
            yield Desk(on, app)


async def press(http: httpx.AsyncClient, page: str, address: str, **fields: str) -> httpx.Response:
    """Load a page, fill in its form that is sent to `address`, press its button."""
    shown = await http.get(page)
    assert shown.status_code == 200, shown.text
    having = {"action": fields["action"]} if "action" in fields else {}
    return await http.post(address, data={**form_of(shown.text, address, **having), **fields})


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


def form_of(page: str, address: str, **having: str) -> dict[str, str]:
    """The hidden fields of the form (with these among them) that a page sends to `address`, as a browser would."""
    forms = re.findall(rf'<form method="post" action="{re.escape(html.escape(address))}".*?</form>', page, re.S)
    for form in forms:
        pairs = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)
        fields = {name: html.unescape(value) for name, value in pairs}
        if having.items() <= fields.items():
            return fields
    raise AssertionError(f"no form for {address} with {having} in {page}")
