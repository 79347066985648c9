"""People with browsers: who they are, how they sign in, and what their browsers find wrong."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page

from actonce.contracts.people import Role

PASSWORD = "correct horse battery staple"  # of everybody in these deployments
NAMES = {Role.VIEWER: "vera", Role.OPERATOR: "olga", Role.APPROVER: "anton", Role.ADMIN: "ada"}
SECOND_OPERATOR = "oskar"


@dataclass(kw_only=True)
class Visited:
    """A console that browsers visit."""

    url: str
    states: dict[str, Any] = field(default_factory=dict)  # name → the browser's cookies, once signed in

    @contextlib.asynccontextmanager
    async def signed_in(self, browser: Browser, who: str | Role = Role.OPERATOR, **options: Any) -> AsyncIterator[Page]:
        """A page of somebody's own browser, signed in by the form. What it logs or throws fails the test."""
        name = NAMES[who] if isinstance(who, Role) else who
        if name not in self.states:
            async with self.visiting(browser) as page:
                await sign_in(page, name)
                self.states[name] = await page.context.storage_state()
        async with self.visiting(browser, storage_state=self.states[name], **options) as page:
            yield page

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


def is_fault(said: ConsoleMessage) -> bool:
    """A refusal (4xx) is logged by the browser as an error of the page's resource; that is what some tests ask for."""
    return said.type in ("error", "warning") and "Failed to load resource" not in said.text


async def sign_in(page: Page, name: str, password: str = PASSWORD) -> None:
    await page.goto("/sign-in")
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Sign in").click()
