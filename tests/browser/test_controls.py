"""Buttons beside decisions and votes: pages, release, tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, expect

from actonce.contracts.people import Role
from tests.browser.staged import Staged
from tests.browser.visiting import NAMES


def listed(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return list(answer.json())


pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_page_that_somebody_has_seen_says_who(chromium: Browser, console: Staged) -> None:
    operation_id = await console.one_held()
    pages = listed(await console.entry.get("/v1/pages"))
    page_id = next(p["page_id"] for p in pages if p["operation_id"] == operation_id)
    async with console.signed_in(chromium) as page:
        await page.goto("/alerts")
        await page.get_by_role("button", name=f"I have seen it (page {page_id})").click()
        await expect(page.get_by_role("status").first).to_contain_text("acknowledged")
        await expect(page.get_by_role("main")).to_contain_text(NAMES[Role.OPERATOR])
        known = listed(await console.entry.get("/v1/pages"))
        assert next(p for p in known if p["page_id"] == page_id)["acknowledged_by"] == NAMES[Role.OPERATOR]


async def test_a_pause_keeps_tasks_where_they_are_until_somebody_lets_them_go(
    chromium: Browser, console: Staged
) -> None:
    async with console.signed_in(chromium) as page:
        await page.goto("/release")
        form = page.locator("#release-batch")
        await form.locator("summary").click()
        await form.get_by_label("Why").fill("the bank asked us to")
        await form.get_by_role("button", name="Pause").click()
        await expect(page.get_by_role("status").first).to_contain_text("The release is changed")
        await expect(page.get_by_role("main")).to_contain_text("the bank asked us to")
        found = {c["task_type"]: c for c in listed(await console.entry.get("/v1/release"))}
        assert (found["batch"]["paused"], found["batch"]["changed_by"]) == (True, NAMES[Role.OPERATOR])
        assert found["single"]["paused"] is False
        await form.locator("summary").click()
        await form.get_by_label("Why").fill("they are done")
        await form.get_by_role("button", name="Let tasks go again").click()
        await expect(page.get_by_role("status").first).to_contain_text("The release is changed")
        found = {c["task_type"]: c for c in listed(await console.entry.get("/v1/release"))}
        assert found["batch"]["paused"] is False


async def test_a_credential_is_rotated_and_revoked_on_the_generation_that_was_looked_at(
    chromium: Browser, console: Staged
) -> None:
    before = {c["name"]: c for c in listed(await console.entry.get("/v1/credentials"))}["bank-sftp"]["generation"]
    async with console.signed_in(chromium, Role.ADMIN) as page, console.signed_in(chromium, Role.ADMIN) as early:
        for one in (page, early):
            await one.goto("/credentials")
            await one.locator("#credential-bank-sftp summary").click()
        await page.locator("#credential-bank-sftp").get_by_label("Why").fill("renewed at the bank")
        await page.locator("#credential-bank-sftp").get_by_role("button", name="Rotate").click()
        await expect(page.get_by_role("status").first).to_contain_text("The credential is rotated")
        await early.locator("#credential-bank-sftp").get_by_label("Why").fill("it leaked")
        await early.locator("#credential-bank-sftp").get_by_role("button", name="Revoke").click()
        await expect(early.get_by_role("alert")).to_be_visible()
        await early.locator("#credential-bank-sftp").get_by_role("button", name="Revoke").click()
        await expect(early.get_by_role("status").first).to_contain_text("The credential is revoked")
        found = {c["name"]: c for c in listed(await console.entry.get("/v1/credentials"))}["bank-sftp"]
        assert (found["state"], found["generation"], found["why"]) == ("revoked", before + 1, "it leaked")


async def test_a_task_that_waits_gets_another_deadline_and_is_cancelled(chromium: Browser, console: Staged) -> None:
    task_id = (await console.approval(await console.one_asked()))["task_id"]
    async with console.signed_in(chromium) as page:
        await page.goto(f"/tasks/{task_id.replace('/', '%2F')}")
        until = (datetime.now(UTC) + timedelta(days=2)).replace(second=0, microsecond=0, tzinfo=None)
        deadline = page.locator("#act-deadline")
        await deadline.locator("summary").click()
        await deadline.get_by_label("New deadline").fill(until.isoformat(timespec="minutes"))
        await deadline.get_by_label("Why").fill("the owner agreed")
        await deadline.get_by_role("button", name="Set the deadline").click()
        await expect(page.get_by_role("status").first).to_contain_text("The deadline is changed")
        task = (await console.entry.get(f"/v1/tasks/{task_id}")).json()
        assert datetime.fromisoformat(task["deadline"]) == until.replace(tzinfo=UTC)
        cancel = page.locator("#act-cancel")
        await cancel.locator("summary").click()
        await cancel.get_by_label("Why").fill("the customer took it back")
        await cancel.get_by_role("button", name="Cancel the task").click()
        await expect(page.get_by_role("status").first).to_contain_text("Cancellation is recorded")
        await expect(page.locator("#act-cancel")).to_have_count(0)
