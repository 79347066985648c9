"""A page that stays open: it follows what happens, and one that cannot says so where everybody looks."""

from __future__ import annotations

import contextlib

import pytest
from playwright.async_api import Browser, expect

from actonce.contracts.people import Role
from actonce.ledger import people
from tests.browser.staged import Staged
from tests.browser.visiting import sign_in

pytestmark = pytest.mark.asyncio(loop_scope="session")
TABS = 8  # more than a browser has connections to one host


async def test_more_pages_than_a_browser_has_connections_all_load_and_the_newest_are_live(
    chromium: Browser, console: Staged
) -> None:
    async with console.signed_in(chromium, Role.VIEWER) as page, contextlib.AsyncExitStack() as _:
        tabs = [page, *[await page.context.new_page() for _ in range(TABS - 1)]]
        for tab in tabs:
            await tab.goto("/tasks")
            await expect(tab.locator("#live")).to_contain_text("live")
        await expect(tabs[0].locator("#not-live")).to_contain_text("open in other windows")
        await expect(tabs[-1].locator("#not-live")).to_be_hidden()
        await console.stage.task("many-tabs")
        await expect(tabs[-1].get_by_role("main")).to_contain_text("rf-many-tabs")
        await tabs[0].evaluate("() => dispatchEvent(new Event('focus'))")  # somebody looks at it again
        await expect(tabs[0].locator("#not-live")).to_be_hidden()
        await expect(tabs[0].get_by_role("main")).to_contain_text("rf-many-tabs")


async def test_a_reading_that_grows_old_is_told_on_a_page_that_is_open(chromium: Browser, console: Staged) -> None:
    async with console.signed_in(chromium, Role.VIEWER) as page:
        await page.goto("/dependencies")
        row = page.get_by_role("row").filter(has_text="temporal").first
        await expect(row).not_to_contain_text("stale")
        await expect(page.locator("#live")).to_contain_text("live")
        await age(console, "2 hours")
        try:
            await expect(row).to_contain_text("stale")
        finally:
            await age(console, "0 s")


async def age(console: Staged, by: str) -> None:
    """The prober says nothing more: its reading of Temporal gets old."""
    async with console.ledger.transaction() as connection:
        await connection.execute(
            "UPDATE actonce.dependency SET checked_at = clock_timestamp() - %s::interval WHERE name = 'temporal'", (by,)
        )


async def test_what_stands_around_a_page_follows_too(chromium: Browser, console: Staged) -> None:
    async with console.signed_in(chromium, Role.VIEWER) as page:
        await page.goto("/operations")
        count = page.get_by_role("navigation", name="Console").get_by_title("held")
        before, as_of = int(await count.inner_text()), await page.locator("#as-of").inner_html()
        await expect(page.locator("#live")).to_contain_text("live")
        await console.one_held()
        await expect(count).to_have_text(str(before + 1))
        await expect(page.locator("#as-of")).not_to_have_text(as_of)


async def test_who_was_disabled_hears_nothing_more_and_is_told(chromium: Browser, console: Staged) -> None:
    await console.person("dirk", Role.VIEWER)
    async with console.visiting(chromium) as page:
        await sign_in(page, "dirk")
        await page.goto("/tasks")
        await expect(page.locator("#live")).to_contain_text("live")
        await people.disable(console.ledger, "dirk", by="tests")
        await expect(page.locator("#not-live")).to_contain_text("no longer signed in")
        await console.stage.task("after-dirk")
        await expect(page.get_by_role("main")).not_to_contain_text("rf-after-dirk")


async def test_a_page_that_hears_nothing_says_so_above_everything(chromium: Browser, console: Staged) -> None:
    """A line that is cut without a word: no event comes, and no error either."""
    async with console.signed_in(chromium, Role.VIEWER) as page:
        await page.clock.install()
        await page.goto("/")
        await expect(page.locator("#live")).to_contain_text("live")
        await expect(page.locator("#not-live")).to_be_hidden()
        await page.clock.fast_forward(60_000)
        await expect(page.locator("#not-live")).to_contain_text("nothing was heard")
