"""People and tokens in a real browser: added, changed, disabled; made, shown once, revoked."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect

from actonce.contracts.people import Role
from actonce.ledger import tokens
from tests.browser.staged import Staged
from tests.browser.visiting import PASSWORD, sign_in

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_somebody_is_added_signs_in_gets_a_password_of_their_own_and_is_disabled(
    chromium: Browser, console: Staged
) -> None:
    own = "a password of my own"
    async with console.signed_in(chromium, Role.ADMIN) as admin, console.visiting(chromium) as hers:
        await admin.goto("/people")
        form = admin.locator("#act-add")
        await form.locator("summary").click()
        await form.get_by_label("Name").fill("Frida")
        await form.get_by_label("operator").check()
        await form.get_by_label("New password").fill(PASSWORD)
        await form.get_by_label("The same again").fill(PASSWORD)
        await form.get_by_role("button", name="Add").dblclick()
        await expect(admin.get_by_role("heading", level=1)).to_have_text("Frida")
        assert PASSWORD not in admin.url
        await sign_in(hers, "Frida")
        await hers.get_by_role("banner").get_by_role("link", name="Frida").click()
        await hers.get_by_label("Current password").fill(PASSWORD)
        await hers.get_by_label("New password").fill(own)
        await hers.get_by_label("The same again").fill(own)
        await hers.get_by_role("button", name="Set the password").click()
        await expect(hers.get_by_role("status").first).to_contain_text("Your password is changed")
        stale = admin.locator("#act-disable")
        await stale.locator("summary").click()
        await stale.get_by_label("Type Frida").fill("Frida")
        await stale.get_by_role("button").click()
        await expect(admin.get_by_role("alert")).to_contain_text("changed since you read it")
        await expect(admin.get_by_role("main")).to_contain_text("another password")
        await stale.get_by_label("Type Frida").fill("Frieda")
        await stale.get_by_role("button").click()
        await expect(admin.get_by_role("alert")).to_contain_text("not confirmed")
        await stale.get_by_label("Type Frida").fill("Frida")
        await stale.get_by_role("button").click()
        await expect(admin.get_by_role("status").first).to_contain_text("disabled and signed out")
        await hers.goto("/tasks")
        assert hers.url.startswith(f"{console.url}/sign-in")
        await sign_in(hers, "Frida", own)
        await expect(hers.get_by_role("alert")).to_be_visible()


async def test_a_token_is_shown_by_the_press_that_made_it_and_revoked_by_its_number(
    chromium: Browser, console: Staged
) -> None:
    async with console.signed_in(chromium, Role.ADMIN) as page:
        await page.goto("/tokens")
        form = page.locator("#act-create")
        await form.locator("summary").click()
        await form.get_by_label("What it is for").fill("a nightly batch")
        await form.get_by_label("start and cancel tasks").check()
        await form.get_by_role("button", name="Make it").click()
        value = await page.locator("#token-value").inner_text()
        shown = await tokens.presented(console.ledger, value)
        assert re.fullmatch(r"actonce_\S{43}", value) and shown is not None
        assert (shown.token.scopes, value in page.url) == ({"read", "start"}, False)
        await page.reload()  # the browser sends the same press again
        await expect(page.get_by_role("status").first).to_contain_text("This press had made it before")
        assert value not in await page.content()
        await page.get_by_role("link", name="To the token").click()
        await page.locator("#act-revoke summary").click()
        await page.locator("#act-revoke").get_by_label("to confirm").fill(str(shown.token.token_id))
        await page.locator("#act-revoke").get_by_role("button").click()
        await expect(page.get_by_role("status").first).to_contain_text("The token is revoked")
        await expect(page.locator("#act-revoke")).to_have_count(0)
        assert [t.label for t in await tokens.list_tokens(console.ledger) if t.revoked_at] == ["a nightly batch"]


async def test_who_is_no_administrator_finds_neither(chromium: Browser, console: Staged) -> None:
    async with console.signed_in(chromium) as page:
        await page.goto("/policy")
        await expect(page.get_by_role("main")).to_contain_text("route_unavailable")
        await expect(page.get_by_role("navigation").get_by_role("link", name="People")).to_have_count(0)
        answer = await page.goto("/people")
        assert answer is not None and answer.status == 403
