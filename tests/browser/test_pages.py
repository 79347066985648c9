"""Every page, as people meet it: in both schemes, on a wide screen and on a phone, by keyboard, with nothing wrong."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from actonce.contracts.people import Role
from tests.browser.staged import Staged
from tests.browser.visiting import NAMES
from tests.integration.console_stage import MARKUP, Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
GRAVE = {"serious", "critical"}
PAGES = {
    "/": "Overview",
    "/tasks": "Tasks",
    "/tasks/{held}": "{held}",
    "/tasks/{ada}": "{ada}",
    "/tasks/{markup}": "{markup}",
    "/operations": "Operations",
    "/operations/{held.refund}": "{held.refund}",
    "/operations/{ada.refund}": "{ada.refund}",
    "/operations/{word.refund}": "{word.refund}",
    "/approvals": "Approvals",
    "/approvals/{large}": "refund at payments",
    "/approvals/{gone}": "refund at payments",
    "/alerts": "Alerts",
    "/dependencies": "Dependencies",
    "/release": "Release",
    "/credentials": "Credentials",
    "/audit": "Audit",
    "/policy": "Policy",
    "/restore": "Restore",
    "/people": "People",
    "/people/{person}": "{person}",
    "/tokens": "Tokens",
    "/tokens/1": "Token 1: console",
    "/you": "{person}",
    "/search": "Search",
    "/procedures": "Procedures",
    "/procedures/route_unavailable": "route_unavailable",
    "/no-such-page": "There is no such page",
}


def placed(stage: Stage, text: str) -> str:
    """With the ids of what was staged: a task or an approval by name, an operation by name and step."""
    name = text.partition("{")[2].partition("}")[0]
    if not name:
        return text
    if name == "person":
        return text.format(person=NAMES[Role.ADMIN])
    if text.startswith("/approvals"):
        return f"/approvals/{stage.approvals[name]}"
    found = stage.operations[name].operation_id if "." in name else stage.tasks[name]
    return text.replace(f"{{{name}}}", quote(found, safe="") if text.startswith("/") else found)


async def found_by_axe(page: Page) -> list[str]:
    results = await Axe().run(page)
    return [
        f"{found['impact']}: {found['id']} at {', '.join(str(n['target'][0]) for n in found['nodes'][:4])}"
        for found in results.response["violations"]
        if found["impact"] in GRAVE
    ]


async def too_wide(page: Page) -> str | None:
    """What makes the page scroll sideways, None when it does not."""
    said: Any = await page.evaluate(
        """() => {
            const root = document.documentElement;
            if (root.scrollWidth <= root.clientWidth) return null;
            const all = [...document.querySelectorAll("body *")];
            const out = all.filter((e) => e.getBoundingClientRect().right > root.clientWidth + 1).slice(0, 3);
            return `${root.scrollWidth} px: ` + out.map((e) => e.outerHTML.slice(0, 120)).join(" | ");
        }"""
    )
    return str(said) if said else None


@pytest.mark.parametrize("path", PAGES)
async def test_page_is_whole_readable_and_within_its_width(chromium: Browser, console: Staged, path: str) -> None:
    stage = console.stage
    async with console.signed_in(chromium, Role.ADMIN, viewport=WIDE, color_scheme="light") as page:
        answer = await page.goto(placed(stage, path))
        assert answer is not None and answer.status == (404 if path == "/no-such-page" else 200)
        heading = page.get_by_role("heading", level=1)
        await expect(heading).to_have_count(1)
        await expect(heading).to_contain_text(placed(stage, PAGES[path]))
        assert (await page.title()).endswith("actonce")
        assert await too_wide(page) is None
        assert await found_by_axe(page) == []
        await page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        await page.emulate_media(color_scheme="dark")
        assert await too_wide(page) is None
        assert await found_by_axe(page) == []


async def test_axe_finds_what_is_wrong_with_a_page(chromium: Browser) -> None:
    """The check above can fail."""
    page = await chromium.new_page()
    await page.set_content("<html lang=en><title>t</title><main><h1>x</h1><img src=x><p style='color:#ccc'>pale</p>")
    found = await found_by_axe(page)
    assert [line for line in found if "image-alt" in line] and [line for line in found if "color-contrast" in line]
    await page.set_content("<p style='width:3000px'>wide</p>")
    assert await too_wide(page) is not None
    await page.close()


async def test_by_keyboard_alone_from_the_first_page_to_a_decision(chromium: Browser, console: Staged) -> None:
    async with console.signed_in(chromium, viewport=WIDE) as page:
        await page.goto("/")
        await page.keyboard.press("Tab")
        await expect(page.locator(":focus")).to_have_text("Skip to content")
        await page.keyboard.press("Enter")
        await expect(page.locator(":focus")).to_have_attribute("id", "main")
        await page.goto(placed(console.stage, "/operations/{held.refund}"))
        decision = page.locator("#act-mark_committed")
        seen = await tab_to(page, decision.locator("summary"))
        await page.keyboard.press("Enter")
        await expect(decision.get_by_label("Why")).to_be_visible()
        seen += await tab_to(page, decision.get_by_role("button"))
        assert [where for where in seen if where is not None] == [], "each stop shows that it has the focus"


async def tab_to(page: Page, target: Any) -> list[str | None]:
    """Press Tab until the target has the focus. For each stop: None, or what does not show that it had it."""
    seen: list[str | None] = []
    for _ in range(120):
        await page.keyboard.press("Tab")
        seen.append(
            await page.evaluate(
                """() => {
                    const style = getComputedStyle(document.activeElement);
                    const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
                    return seen || style.boxShadow !== "none" ? null : document.activeElement.outerHTML.slice(0, 100);
                }"""
            )
        )
        if await target.evaluate("(e) => e === document.activeElement"):
            return seen
    raise AssertionError(f"the keyboard does not reach {target}")


async def test_times_are_local_by_script_with_utc_beside_and_in_utc_without(chromium: Browser, console: Staged) -> None:
    path = placed(console.stage, "/operations/{held.refund}")
    async with (
        console.signed_in(chromium) as page,
        console.signed_in(chromium, java_script_enabled=False) as plain,
    ):
        for one in (page, plain):
            await one.goto(path)
        time = page.get_by_role("main").locator("time").first
        assert (await time.get_attribute("title") or "").endswith(" UTC")
        assert not (await time.inner_text()).endswith("UTC")
        assert (await plain.get_by_role("main").locator("time").first.inner_text()).endswith(" UTC")


async def test_without_a_script_a_page_says_the_same(chromium: Browser, console: Staged) -> None:
    """But for times, which are in UTC then, and are not looked at here."""
    said = []
    for script in (True, False):
        async with console.signed_in(chromium, java_script_enabled=script) as page:
            await page.goto(placed(console.stage, "/operations/{held.refund}"))
            facts = page.locator(".light .light-word")
            said.append([await facts.all_inner_texts(), await page.get_by_role("heading").all_inner_texts()])
            await expect(page.get_by_role("table").first).to_be_visible()
    assert said[0] == said[1] and said[0][0] == ["yes", "not established", "not established"]


async def test_an_open_page_follows_what_happens_without_being_loaded_again(chromium: Browser, console: Staged) -> None:
    async with console.signed_in(chromium) as page:
        await page.goto("/tasks")
        await page.evaluate("() => { window.same = true }")
        await expect(page.locator("#live")).to_contain_text("live")
        await console.stage.task("just-now")
        await expect(page.get_by_role("main")).to_contain_text("rf-just-now")
        assert await page.evaluate("() => window.same") is True


async def test_an_open_page_goes_on_following_when_the_console_was_started_again(
    chromium: Browser, console: Staged
) -> None:
    async with console.signed_in(chromium) as page:
        await page.goto("/tasks")
        await page.evaluate("() => { window.same = true }")
        await expect(page.locator("#live")).to_contain_text("live")
        await console.restart_console()
        await console.stage.task("after-the-restart")
        await expect(page.get_by_role("main")).to_contain_text("rf-after-the-restart")
        assert await page.evaluate("() => window.same") is True


async def test_a_payload_full_of_markup_stays_text(chromium: Browser, console: Staged) -> None:
    asked: list[str] = []
    async with console.signed_in(chromium) as page:
        page.on("dialog", lambda dialog: asked.append(dialog.message))
        for path in ("/approvals/{large}", "/tasks/{markup}", "/operations/{markup.refund}", "/tasks", "/audit", "/"):
            await page.goto(placed(console.stage, path))
            await expect(page.locator("main script, main img")).to_have_count(0)
        await page.goto(placed(console.stage, "/tasks/{markup}"))
        await expect(page.get_by_role("main")).to_contain_text('<script>alert(\\"owned\\")</script>')
        await page.goto("/search")
        await page.get_by_label("A whole name").fill(MARKUP)
        await page.get_by_role("main").get_by_role("button", name="Search").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(console.stage.tasks["markup"])
        assert MARKUP[:10] not in page.url and asked == []
