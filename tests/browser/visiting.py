"""People with browsers: who they are, how they sign in, and what their browsers find wrong."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Response, expect

from actonce.contracts.people import Role
from actonce.ledger import sessions
from actonce.ledger.store import Ledger

PASSWORD = "correct horse battery staple"  # of everybody in these deployments
NAMES = {Role.VIEWER: "vera", Role.OPERATOR: "olga", Role.APPROVER: "anton", Role.ADMIN: "ada"}
SECOND_OPERATOR = "oskar"


@dataclass(kw_only=True)
class Visited:
    """A console that browsers visit."""

    url: str
    states: dict[str, Any] = field(default_factory=dict)  # name → the cookies of whoever has signed in

    @contextlib.asynccontextmanager
    async def visiting(self, browser: Browser, **options: Any) -> AsyncIterator[Page]:
        """A page of a browser that has nothing of this console yet."""
        options = {
            "timezone_id": "Europe/Berlin",
            "reduced_motion": "reduce",
            **options,
        }  # nothing half-way in a picture
        context: BrowserContext = await browser.new_context(base_url=self.url, **options)
        wrong: list[str] = []
        context.on("weberror", lambda error: wrong.append(f"thrown: {error.error}"))
        context.on("console", lambda said: wrong.append(f"logged: {said.text}") if is_fault(said) else None)
        try:
            yield await context.new_page()
        finally:
            await context.close()
        assert wrong == [], "the browser found something wrong with these pages"


async def browser_state(ledger: Ledger, url: str, name: str, role: Role) -> Any:
    """The cookies of a browser in which somebody is signed in, without a password: hashing one takes its time."""
    _, value = await sessions.sign_in_by_provider(ledger, "tests", name, name, [role])
    cookie = {"name": f"actonce-session-{urlsplit(url).port}", "value": value, "domain": "127.0.0.1"}
    kept = {"path": "/", "expires": -1, "httpOnly": True, "secure": False, "sameSite": "Strict"}
    return {"cookies": [cookie | kept], "origins": []}


def is_fault(said: ConsoleMessage) -> bool:
    """A refusal (4xx) is logged by the browser as an error of the page's resource; that is what some tests ask for."""
    return said.type in ("error", "warning") and "Failed to load resource" not in said.text


async def sign_in(page: Page, name: str, password: str = PASSWORD) -> Response:
    """By the form. Returns the answer to it, when the browser has gone where it leads."""
    await page.goto("/sign-in")
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Password").fill(password)
    async with page.expect_response(lambda answer: answer.request.method == "POST") as answered:
        await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_load_state()
    return await answered.value


async def answered(page: Page) -> None:
    """After a press: the page that says what became of it is there."""
    # Not the word about the page itself, which is hidden while it is live.
    said = page.get_by_role("main").locator("[role=status], [role=alert]:not(#not-live)")
    await expect(said.first).to_be_visible()
