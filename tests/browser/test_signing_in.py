"""Who gets in, as whom, and for how long."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from actonce.contracts.people import Role
from actonce.ledger import people
from tests.browser.staged import Staged
from tests.browser.visiting import PASSWORD, sign_in

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_page_asks_who_you_are_and_goes_on_to_it_afterwards(chromium: Browser, console: Staged) -> None:
    await console.person("victor", Role.VIEWER)
    async with console.visiting(chromium) as page:
        await page.goto("/approvals")
        await expect(page).to_have_url(f"{console.url}/sign-in?next=/approvals")
        await page.get_by_label("Name").fill("victor")
        await page.get_by_label("Password").fill(PASSWORD)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page).to_have_url(f"{console.url}/approvals")
        await expect(page.get_by_role("banner")).to_contain_text("victor")


async def test_a_wrong_password_and_an_unknown_name_are_told_the_same(chromium: Browser, console: Staged) -> None:
    await console.person("wilma", Role.VIEWER)
    async with console.visiting(chromium) as page:
        said = []
        for name in ("wilma", "nobody-of-that-name"):
            await sign_in(page, name, "not the password at all")
            said.append(await page.get_by_role("alert").inner_text())
            await expect(page.get_by_label("Password")).to_have_value("")
        assert said[0] == said[1]
        await page.goto("/")
        assert page.url.startswith(f"{console.url}/sign-in")


async def test_too_many_attempts_are_told_when_to_try_again_also_with_the_right_password(
    chromium: Browser, console: Staged
) -> None:
    await console.person("eve", Role.VIEWER)
    async with console.visiting(chromium) as page:
        for _ in range(5):
            await sign_in(page, "eve", "not the password at all")
        answer = await sign_in(page, "eve")
        assert answer.status == 429 and int(await answer.header_value("retry-after") or 0) > 0
        await expect(page.get_by_role("alert")).to_contain_text("Too many attempts")


async def test_signing_out_ends_the_session_for_every_copy_of_the_cookie(chromium: Browser, console: Staged) -> None:
    await console.person("petra", Role.VIEWER)
    async with console.visiting(chromium) as page:
        await sign_in(page, "petra")
        copied = await page.context.storage_state()
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("status")).to_contain_text("You are signed out")
        async with console.visiting(chromium, storage_state=copied) as other:
            await other.goto("/tasks")
            assert other.url.startswith(f"{console.url}/sign-in")


async def test_no_script_can_read_the_session_and_no_page_may_be_framed(chromium: Browser, console: Staged) -> None:
    async with console.signed_in(chromium, Role.VIEWER) as page:
        answer = await page.goto("/")
        assert answer is not None
        assert await page.evaluate("() => document.cookie") == ""
        assert "frame-ancestors 'none'" in (await answer.header_value("content-security-policy") or "")
        cookies = await page.context.cookies()
        assert cookies and all(c["httpOnly"] and c["sameSite"] == "Strict" for c in cookies)


async def test_a_disabled_person_is_out_at_the_next_page(chromium: Browser, console: Staged) -> None:
    await console.person("dora", Role.OPERATOR)
    async with console.visiting(chromium) as page:
        await sign_in(page, "dora")
        await page.goto("/tasks")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")
        await people.disable(console.ledger, "dora", by="tests")
        await page.reload()
        assert page.url.startswith(f"{console.url}/sign-in")
