"""Two doors to the console, and one way to use them: in a browser, or by its HTML forms over HTTP.

Contract: whoever comes signs in by the form, sees a page before anything is pressed on it, and sends the form that the
page has, with the token and the version that it carries. Nothing is sent twice by itself. `post` sends what no button
of the page sends: for what must be refused. A password or a cookie is in no address and in nothing that is returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import httpx

from actonce.testing.browser import open_browser
from drills.console.pages import Form, Seen, read

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

PATIENCE_S = 60.0  # of a page on a busy machine
LOADS, RETRY_AFTER_S = 3, 2.0  # as the page's Retry-After says
WIDTH, HEIGHT = 1280, 800


@dataclass(frozen=True)
class Login:
    """Somebody who may sign in at a console."""

    url: str
    name: str
    password: str


class Visitor(Protocol):
    """Somebody at the console."""

    door: str  # "browser" or "console"

    async def open(self, path: str) -> Seen:
        """Load a page, signing in on the way where that is asked for."""
        ...

    async def press(self, form: Form, values: Mapping[str, str], label: str) -> Seen:
        """Fill in a form of the page that was opened and press its button. The page that answers."""
        ...

    async def post(self, path: str, values: Mapping[str, str]) -> Seen:
        """Send what the page has no button for."""
        ...

    async def raw(self, path: str) -> Any:
        """A JSON that the console serves; None when it has none."""
        ...


class ByForms:
    """The console's HTML over HTTP."""

    door = "console"

    def __init__(self, login: Login, http: httpx.AsyncClient) -> None:
        self.login = login
        self._http = http
        self._origin = {"Origin": login.url}

    async def open(self, path: str) -> Seen:
        return await _signed_in(self, path)

    async def load(self, path: str) -> Seen:
        return _read(await self._http.get(path))

    async def press(self, form: Form, values: Mapping[str, str], label: str) -> Seen:
        _, button = form.button(label)
        data = {**form.fields, **values, **({button.name: button.value} if button.name else {})}
        return await self.post(button.action or form.action, data)

    async def post(self, path: str, values: Mapping[str, str]) -> Seen:
        return _read(await self._http.post(path, data=dict(values), headers=self._origin))

    async def raw(self, path: str) -> Any:
        answer = await self._http.get(path)
        return answer.json() if answer.status_code == 200 else None


async def _signed_in(who: ByForms | ByBrowser, path: str) -> Seen:
    """The page at `path`; where it asks who one is, the one behind the sign-in."""
    seen = await _served(lambda: who.load(path))
    form = seen.sent_to("/sign-in")
    if form is None:
        return seen
    return await who.press(form, {"name": who.login.name, "password": who.login.password}, "Sign in")


async def _served(load: Callable[[], Awaitable[Seen]]) -> Seen:
    """A page that says that the ledger does not answer is loaded again, as it asks; nothing is sent by that."""
    for _ in range(LOADS - 1):
        seen = await load()
        if seen.status != 503:
            return seen
        await asyncio.sleep(RETRY_AFTER_S)
    return await load()


def _read(answer: httpx.Response) -> Seen:
    return read(answer.text, answer.url.path, answer.status_code)


class ByBrowser:
    """The console's pages in a browser of one's own."""

    door = "browser"

    def __init__(self, login: Login, page: Page) -> None:
        self.login = login
        self.page = page

    async def open(self, path: str) -> Seen:
        return await _signed_in(self, path)

    async def load(self, path: str) -> Seen:
        answer = await self.page.goto(path)
        return await self._seen(answer.status if answer else 0)

    async def look_around(self, address: str) -> str | None:
        """Open another site once, so that it is quickly there when it is needed; what went wrong, if anything."""
        from playwright.async_api import Error

        try:
            await self.page.goto(address)
        except Error as error:
            return f"{address} could not be opened: {str(error).splitlines()[0]}"
        return None

    async def press(self, form: Form, values: Mapping[str, str], label: str) -> Seen:
        number, _ = form.button(label)
        place = self.page.locator(f'[id="{form.about}"]') if form.about else self.page.locator("body")
        await place.evaluate("e => { if (e.tagName === 'DETAILS') e.open = true }")
        shown = place.locator(f'form[action="{form.action}"]').first
        for name, value in values.items():
            await shown.locator(f'[name="{name}"]').fill(value)
        async with self.page.expect_navigation() as going:
            await shown.locator("button").nth(number).click()
        answer = await going.value
        return await self._seen(answer.status if answer else 0)

    async def post(self, path: str, values: Mapping[str, str]) -> Seen:
        headers = {"Origin": self.login.url}
        answer = await self.page.context.request.post(path, form=dict(values), headers=headers)
        return read(await answer.text(), path, answer.status)

    async def raw(self, path: str) -> Any:
        answer = await self.page.context.request.get(path)
        return await answer.json() if answer.ok else None

    async def _seen(self, status: int) -> Seen:
        return read(await self.page.content(), urlsplit(self.page.url).path, status)


@contextlib.asynccontextmanager
async def by_forms(login: Login) -> AsyncIterator[ByForms]:
    """Somebody without a browser."""
    async with httpx.AsyncClient(
        base_url=login.url, timeout=PATIENCE_S, trust_env=False, follow_redirects=True
    ) as http:
        yield ByForms(login, http)


@contextlib.asynccontextmanager
async def by_browser(login: Login, browser: Browser) -> AsyncIterator[ByBrowser]:
    """Somebody with a browser that has nothing of this console yet."""
    context = await browser.new_context(
        base_url=login.url,
        viewport={"width": WIDTH, "height": HEIGHT},
        timezone_id="UTC",
        reduced_motion="reduce",  # nothing half-way in a picture
        color_scheme="light",
    )
    context.set_default_timeout(PATIENCE_S * 1000)
    try:
        yield ByBrowser(login, await context.new_page())
    finally:
        await context.close()


@contextlib.asynccontextmanager
async def from_file(path: Path) -> AsyncIterator[Visitor]:
    """Somebody in a process of their own, by the file that says where the console is and how to sign in: with a browser
    of their own, if it says so."""
    given = json.loads(path.read_text(encoding="utf-8"))
    login = Login(given["url"], given["name"], given["password"])
    if not given["browser"]:
        async with by_forms(login) as person:
            yield person
        return
    async with open_browser() as browser, by_browser(login, browser) as person:
        yield person
