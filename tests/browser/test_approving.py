"""Votes on approvals: about exactly what is shown, before its deadline by the server's clock, with one winner."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Browser, Page, expect

from actonce.contracts.people import Role
from tests.browser.staged import Staged
from tests.browser.visiting import NAMES, answered

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def press(page: Page, button: str, note: str = "the order is hers") -> None:
    await page.get_by_label("Note").fill(note)
    await page.get_by_role("button", name=button, exact=True).click()


async def test_it_shows_exactly_what_will_run_and_an_approval_is_about_that(chromium: Browser, console: Staged) -> None:
    approval_id = await console.one_asked(amount_minor=43_210)
    async with console.signed_in(chromium, Role.APPROVER) as page:
        await page.goto("/approvals")
        await page.locator(f'a[href="/approvals/{approval_id}"]').click()
        record = await console.approval(approval_id)
        for shown in (record["digest"], record["what"]["payload"]["payment_id"], "43210"):
            await expect(page.get_by_role("main")).to_contain_text(shown)
        await press(page, "Approve")
        await expect(page.get_by_role("status").first).to_contain_text("Your approval is recorded")
        record = await console.approval(approval_id)
        assert [(c["name"], c["note"], c["effect"]) for c in record["clicks"]] == [
            (NAMES[Role.APPROVER], "the order is hers", "counted")
        ]


async def test_a_rejection_needs_a_note_and_ends_the_step(chromium: Browser, console: Staged) -> None:
    approval_id = await console.one_asked()
    async with console.signed_in(chromium, Role.APPROVER) as page:
        await page.goto(f"/approvals/{approval_id}")
        await press(page, "Reject", note="")
        await expect(page.get_by_role("alert")).to_contain_text("missing")
        assert (await console.approval(approval_id))["state"] == "pending"
        await press(page, "Reject", note="she has been refunded in the shop")
        await expect(page.get_by_role("status").first).to_contain_text("Your rejection is recorded")
        record = await console.approval(approval_id)
        assert (record["state"], record["decided_by"]) == ("rejected", NAMES[Role.APPROVER])


async def test_of_two_votes_at_once_one_counts_and_the_other_is_told_who_won(
    chromium: Browser, console: Staged
) -> None:
    approval_id = await console.one_asked()
    async with (
        console.signed_in(chromium, Role.APPROVER) as anton,
        console.signed_in(chromium, Role.ADMIN) as ada,
    ):
        for page in (anton, ada):
            await page.goto(f"/approvals/{approval_id}")
            await page.get_by_label("Note").fill("it is right")
        await asyncio.gather(
            anton.get_by_role("button", name="Approve", exact=True).click(),
            ada.get_by_role("button", name="Reject", exact=True).click(),
        )
        await asyncio.gather(answered(anton), answered(ada))
        winner = (await console.approval(approval_id))["decided_by"]
        won, lost = (anton, ada) if winner == NAMES[Role.APPROVER] else (ada, anton)
        await expect(won.get_by_role("status").first).to_contain_text("is recorded")
        await expect(lost.get_by_role("alert")).to_contain_text("Already decided")
        await expect(lost.get_by_role("main")).to_contain_text(winner)


async def test_the_countdown_goes_by_the_servers_clock_and_what_is_over_cannot_be_approved(
    chromium: Browser, console: Staged
) -> None:
    """Case e2 on a screen: this machine's clock is three days behind, and changes nothing."""
    async with console.signed_in(chromium, Role.APPROVER) as page:
        await page.clock.install(time=datetime.now(UTC) - timedelta(days=3))
        approval_id = await console.one_asked(valid_s=12.0)
        await page.goto(f"/approvals/{approval_id}")
        left = page.locator("[data-until]").first
        await expect(left).to_have_text("over")
        await press(page, "Approve")  # the page was loaded in time, so it still has the button
        await expect(page.get_by_role("alert")).to_contain_text("expired")
        await page.goto(f"/approvals/{approval_id}")
        await expect(page.get_by_role("main")).to_contain_text("nothing is sent on it")
        record = await console.approval(approval_id)
        assert record["state"] == "expired" and record["consumed_at"] is None


async def test_who_asked_is_told_that_somebody_else_has_to_approve(chromium: Browser, console: Staged) -> None:
    approval_id = await console.one_asked()
    async with console.signed_in(chromium, Role.APPROVER, "desk-agent") as page:
        await page.goto(f"/approvals/{approval_id}")
        await expect(page.get_by_role("main")).to_contain_text("somebody else has to approve it")
        await press(page, "Approve")
        await expect(page.get_by_role("alert")).to_contain_text("requester")
        assert (await console.approval(approval_id))["state"] == "pending"


async def test_taken_back_it_is_withdrawn_and_says_by_whom(chromium: Browser, console: Staged) -> None:
    approval_id = await console.one_asked()
    async with console.signed_in(chromium, Role.APPROVER) as page:
        await page.goto(f"/approvals/{approval_id}")
        await page.get_by_text("Take it back").click()
        await page.locator("#act-withdraw").get_by_label("Why").fill("wrong customer")
        await page.get_by_role("button", name="Withdraw").click()
        await expect(page.get_by_role("status").first).to_contain_text("withdrawn")
        await expect(page.get_by_role("main")).to_contain_text("wrong customer")
        assert (await console.approval(approval_id))["ended_by"] == NAMES[Role.APPROVER]


async def test_asked_again_for_a_held_operation_it_can_be_approved_anew(chromium: Browser, console: Staged) -> None:
    approval_id, operation_id = await console.one_asked_and_held()
    async with console.signed_in(chromium, Role.APPROVER) as page:
        await page.goto(f"/approvals/{approval_id}")
        await page.get_by_text("Take it back").click()
        await page.locator("#act-withdraw").get_by_label("Why").fill("wrong amount")
        await page.get_by_role("button", name="Withdraw").click()
        await page.locator("#act-renew summary").click()
        await page.locator("#act-renew").get_by_label("Why").fill("it was right after all")
        await page.get_by_role("button", name="Ask again").click()
        await expect(page.get_by_role("status").first).to_contain_text("A new approval is asked for")
        renewed = page.url.partition("/approvals/")[2].partition("?")[0]
        assert renewed != approval_id
        await expect(page.get_by_role("main")).to_contain_text("You asked for this yourself")
    async with console.signed_in(chromium, Role.ADMIN) as page:
        await page.goto(f"/approvals/{renewed}")
        await press(page, "Approve")
        await expect(page.get_by_role("status").first).to_contain_text("Your approval is recorded")
        found = [await console.approval(one) for one in (approval_id, renewed)]
        assert [one["state"] for one in found] == ["withdrawn", "approved"]
        assert found[1]["operation_id"] == operation_id


async def test_an_operator_is_no_approver(chromium: Browser, console: Staged) -> None:
    approval_id = await console.one_asked()
    async with console.signed_in(chromium, Role.OPERATOR) as page:
        await page.goto(f"/approvals/{approval_id}")
        await expect(page.get_by_role("main")).to_contain_text("Voting needs the role approver")
        await expect(page.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
