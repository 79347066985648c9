"""The documentation's pictures of the console, taken anew: `python -m tests.browser.pictures [FOLDER]`.

On the staged ledger of the tests: one refund whose answer got lost is held, decided about by a person who presses the
buttons, and goes on. Every page is pictured on the way. Default folder: docs/images/console.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Browser, Page

from actonce.contracts.people import Role
from actonce.stack import Stack
from actonce.testing.browser import open_browser
from tests.browser.staged import Staged, staged
from tests.browser.visiting import NAMES

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "console"
WIDE, PHONE = {"width": 1180, "height": 760}, {"width": 390, "height": 780}


class Album:
    """Where the pictures go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    async def take(self, page: Page, name: str, path: str | None = None, *, whole: bool = False) -> None:
        """One picture of a page: what the window shows, or all of it."""
        if path is not None:
            await page.goto(path)
        file = self.folder / f"{name}.png"
        await page.screenshot(path=file, full_page=whole, animations="disabled", caret="hide")
        print(f"{file.name}: {file.stat().st_size // 1024} KiB", flush=True)


async def story(browser: Browser, console: Staged, album: Album) -> None:
    """From the page that wakes somebody to the decision and what became of it."""
    operation_id = await console.one_held("1042", customer="ann@example.com")
    task_id = console.stage.tasks["1042"].replace("/", "%2F")
    async with console.visiting(browser, viewport=WIDE) as page:
        await album.take(page, "sign-in", "/")
    async with console.signed_in(browser, Role.OPERATOR, viewport=WIDE) as page:
        for name, path in (("overview", "/"), ("alerts", "/alerts"), ("operations", "/operations?state=held")):
            await album.take(page, name, path)
        await album.take(page, "task-held", f"/tasks/{task_id}")
        await album.take(page, "operation-held", f"/operations/{operation_id}", whole=True)
        await album.take(page, "procedure", "/procedures/route_unavailable")
        await page.goto(f"/operations/{operation_id}")
        form = page.locator("#act-mark_committed")
        await form.locator("summary").click()
        await form.get_by_label("object id").fill("re_1042")
        await form.get_by_label("Why").fill("The bank's own console shows the refund")
        await form.get_by_label("What you saw").fill("Refunds, today, line 4: 49.00 EUR to ann@example.com")
        await form.get_by_label("Type").fill(operation_id[-6:])
        await form.get_by_role("button").scroll_into_view_if_needed()
        await album.take(page, "decide")
        await form.get_by_role("button").click()
        await page.get_by_role("status").first.wait_for()
        await album.take(page, "decided")
        await console.take_effect(operation_id)
        await album.take(page, "operation-decided", f"/operations/{operation_id}")


async def pages(browser: Browser, console: Staged, album: Album) -> None:
    """Every other page, a phone, and the dark scheme."""
    async with console.signed_in(browser, Role.ADMIN, viewport=WIDE) as page:
        await album.take(page, "approval", f"/approvals/{console.stage.approvals['large']}")
        for name in ("tasks", "approvals", "dependencies", "release", "credentials", "audit", "restore"):
            await album.take(page, name, f"/{name}")
        for name in ("policy", "people", "tokens", "you", "procedures"):
            await album.take(page, name, f"/{name}")
        await album.take(page, "person", f"/people/{NAMES[Role.OPERATOR]}")
        await page.goto("/search")
        await page.get_by_label("A whole name").fill("re_ada_refund")
        await album.take(page, "search")
        await album.take(page, "task-complete", f"/tasks/{console.stage.tasks['ada'].replace('/', '%2F')}")
    operation_id = console.stage.operations["held.refund"].operation_id
    async with console.signed_in(browser, Role.OPERATOR, viewport=PHONE, color_scheme="dark") as page:
        await album.take(page, "phone-dark", f"/operations/{operation_id}")
    async with console.signed_in(browser, Role.OPERATOR, viewport=WIDE, color_scheme="dark") as page:
        await album.take(page, "overview-dark", "/")


async def main(folder: Path) -> None:
    album = Album(folder)
    with tempfile.TemporaryDirectory(prefix="actonce-pictures-") as scratch:
        async with (
            Stack.open(Path(scratch) / "servers", {"postgres"}) as stack,
            staged(stack.postgres.dsn, Path(scratch)) as console,
            open_browser() as browser,
        ):
            await story(browser, console, album)
            await pages(browser, console, album)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
