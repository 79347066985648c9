"""Decisions about held operations, pressed in a real browser, recorded by a real entry service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from actonce.contracts.people import Role
from tests.browser.staged import Staged
from tests.browser.visiting import NAMES, SECOND_OPERATOR, answered

pytestmark = pytest.mark.asyncio(loop_scope="session")
LABELS = {
    "mark_committed": "Mark as committed",
    "mark_absent": "Mark as absent",
    "permit_one_retry": "Permit one retry",
}
RECORDED = "Your decision is recorded"


async def fill(page: Page, operation_id: str, action: str, *, why: str = "the bank shows it", **more: str) -> Any:
    """Open one decision on the operation's page and fill it in. Returns the button."""
    if f"/operations/{operation_id}" not in page.url:
        await page.goto(f"/operations/{operation_id}")
    form = page.locator(f"#act-{action}")
    if await form.get_attribute("open") is None:
        await form.locator("summary").click()
    if action == "mark_committed":
        await form.get_by_label("object id").fill(more.get("object_id", f"re_{operation_id[-6:]}"))
    await form.get_by_label("Why").fill(why)
    await form.get_by_label("What you saw").fill(more.get("evidence", "statement of today, line 4"))
    if action != "mark_absent":
        await form.get_by_label("Type").fill(more.get("confirm", operation_id[-6:]))
    return form.get_by_role("button", name=LABELS[action])


async def decisions(console: Staged, operation_id: str) -> list[tuple[str, str]]:
    return [(d["decision"], d["name"]) for d in (await console.operation(operation_id))["decisions"]]


async def test_marked_as_committed_the_operation_says_that_it_is_by_a_persons_word(
    chromium: Browser, console: Staged
) -> None:
    operation_id = await console.one_held()
    async with console.signed_in(chromium) as page:
        button = await fill(page, operation_id, "mark_committed", object_id="re_778")
        await expect(page.locator("#act-mark_committed")).to_contain_text("If it is not true")
        await button.click()
        await expect(page.get_by_role("status").first).to_contain_text(RECORDED)
        assert await decisions(console, operation_id) == [("mark_committed", "olga")]
        assert await console.take_effect(operation_id) == "committed"
        record = await console.operation(operation_id)
        assert record["object_id"] == "re_778" and record["decisions"][0]["evidence"] == "statement of today, line 4"
        await page.reload()
        await expect(page.locator("#decide")).to_have_count(0)
        await expect(page.get_by_role("main")).to_contain_text("by a person's word")


async def test_the_procedure_of_the_reason_stands_beside_the_buttons(chromium: Browser, console: Staged) -> None:
    operation_id = await console.one_held()
    async with console.signed_in(chromium) as page:
        await page.goto(f"/operations/{operation_id}")
        await page.locator("#decide").get_by_role("link", name="procedure").first.click()
        await expect(page.get_by_role("heading", name="What to do")).to_be_visible()
        await expect(page.get_by_role("main")).to_contain_text("route_unavailable")


async def test_a_wrong_confirmation_records_nothing_and_keeps_what_was_typed(
    chromium: Browser, console: Staged
) -> None:
    operation_id = await console.one_held()
    async with console.signed_in(chromium) as page:
        button = await fill(page, operation_id, "permit_one_retry", why="nothing arrived", confirm="abcdef")
        await button.click()
        await expect(page.get_by_role("alert")).to_contain_text("not confirmed")
        await expect(page.locator("#act-permit_one_retry").get_by_label("Why")).to_have_value("nothing arrived")
        assert await decisions(console, operation_id) == []


async def test_a_double_click_is_one_decision(chromium: Browser, console: Staged) -> None:
    operation_id = await console.one_held()
    async with console.signed_in(chromium) as page:
        button = await fill(page, operation_id, "mark_committed")
        await button.dblclick()
        await expect(page.get_by_role("status").first).to_contain_text("ecision")
        assert await decisions(console, operation_id) == [("mark_committed", "olga")]


async def test_of_two_operators_at_once_one_decides_and_the_other_is_told_who(
    chromium: Browser, console: Staged
) -> None:
    operation_id = await console.one_held()
    async with console.signed_in(chromium) as hers, console.signed_in(chromium, name=SECOND_OPERATOR) as his:
        buttons = [
            await fill(hers, operation_id, "mark_committed", why="hers"),
            await fill(his, operation_id, "mark_committed", why="his"),
        ]
        await asyncio.gather(*(button.click() for button in buttons))
        await asyncio.gather(answered(hers), answered(his))
        ((_, winner),) = await decisions(console, operation_id)
        won, lost = (hers, his) if winner == NAMES[Role.OPERATOR] else (his, hers)
        await expect(won.get_by_role("status").first).to_contain_text(RECORDED)
        await expect(lost.get_by_role("alert")).to_be_visible()
        await expect(lost.get_by_role("main")).to_contain_text(winner)


async def test_a_page_from_before_is_refused_says_what_changed_and_offers_a_fresh_form(
    chromium: Browser, console: Staged
) -> None:
    """One retry is permitted, its answer is lost as well: held again, and a form from before decides nothing."""
    operation_id = await console.one_held()
    async with console.signed_in(chromium, name=SECOND_OPERATOR) as early, console.signed_in(chromium) as page:
        stale = await fill(early, operation_id, "mark_committed", why="I saw it this morning")
        await (await fill(page, operation_id, "permit_one_retry", why="nothing arrived")).click()
        await expect(page.get_by_role("status").first).to_contain_text(RECORDED)
        assert await console.take_effect(operation_id) == "ready"
        await console.lose_again(operation_id)
        await stale.click()
        await expect(early.get_by_role("alert")).to_be_visible()
        await expect(early.get_by_role("main")).to_contain_text("What changed since you looked")
        await expect(early.get_by_role("main")).to_contain_text("permit_one_retry was decided")
        await expect(early.locator("#act-mark_committed").get_by_label("Why")).to_have_value("I saw it this morning")
        assert [d for d, _ in await decisions(console, operation_id)] == ["permit_one_retry"]
        await early.locator("#act-mark_committed").get_by_label("Type").fill(operation_id[-6:])
        await early.locator("#act-mark_committed").get_by_role("button", name=LABELS["mark_committed"]).click()
        await expect(early.get_by_role("status").first).to_contain_text(RECORDED)
        assert sorted(await decisions(console, operation_id)) == [
            ("mark_committed", SECOND_OPERATOR),
            ("permit_one_retry", NAMES[Role.OPERATOR]),
        ]


async def test_a_restart_of_the_console_costs_nobody_their_sign_in_or_what_they_typed(
    chromium: Browser, console: Staged
) -> None:
    operation_id = await console.one_held()
    async with console.signed_in(chromium) as page:
        button = await fill(page, operation_id, "mark_committed", why="typed before the restart")
        await console.restart_console()
        await button.click()
        await expect(page.get_by_role("status").first).to_contain_text(RECORDED)
        (decision,) = (await console.operation(operation_id))["decisions"]
        assert (decision["name"], decision["reason"]) == ("olga", "typed before the restart")


async def test_without_a_script_everything_is_there_and_a_decision_is_made_by_form_alone(
    chromium: Browser, console: Staged
) -> None:
    operation_id = await console.one_held()
    async with console.signed_in(chromium, java_script_enabled=False) as page:
        await (await fill(page, operation_id, "mark_absent", why="no trace of it")).click()
        await expect(page.get_by_role("status").first).to_contain_text(RECORDED)
        assert await decisions(console, operation_id) == [("mark_absent", "olga")]
        assert await console.take_effect(operation_id) == "closed"
        await page.reload()
        await expect(page.locator("#decide")).to_have_count(0)


async def test_a_viewer_sees_everything_and_can_press_nothing(chromium: Browser, console: Staged) -> None:
    operation_id = await console.one_held()
    async with console.signed_in(chromium, Role.VIEWER) as page:
        await page.goto(f"/operations/{operation_id}")
        await expect(page.locator("#decide")).to_contain_text("Deciding needs the role operator")
        await expect(page.locator("#decide").get_by_role("button")).to_have_count(0)
        token = await page.locator("input[name=csrf]").first.get_attribute("value")
        record = await console.operation(operation_id)
        form = {"csrf": token or "", "press": "by-hand", "action": "mark_absent", "reason": "why not", "evidence": "no"}
        form |= {"tenant": "acme", "destination": "payments", "operation_action": "refund"}
        form |= {"epoch": str(record["epoch"]), "version": str(record["version"])}
        by_hand = await page.request.post(
            f"/operations/{operation_id}/decisions", form=form, headers={"Origin": console.url}
        )
        assert by_hand.status == 403 and "operator" in await by_hand.text()
        assert await decisions(console, operation_id) == []
