"""The browser itself: it opens, it keeps to the pages' own rules, and what it cannot do shows as a failure."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_page_is_rendered_and_its_script_runs(chromium: Browser) -> None:
    page = await chromium.new_page()
    await page.set_content("<p id=a>off</p><script>document.getElementById('a').textContent = 'on'</script>")
    assert await page.text_content("#a") == "on"
    await page.close()


async def test_with_script_off_it_does_not_run(chromium: Browser) -> None:
    context = await chromium.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.set_content("<p id=a>off</p><script>document.getElementById('a').textContent = 'on'</script>")
    assert await page.text_content("#a") == "off"
    await context.close()
