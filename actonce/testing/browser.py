"""A real browser for whoever must see what people see: Chromium by Playwright, which is imported only when it is used.

Promises: the browser is one that is installed (`actonce.stack.chromium`), headless, in a profile of its own, and gone
when the context is left. It keeps its sandbox, but for root, where Chromium has none. Nothing is retried.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from actonce.stack.chromium import chromium
from actonce.stack.errors import Missing

if TYPE_CHECKING:
    from playwright.async_api import Browser

PATIENCE_MS = 30_000.0  # of a click or a navigation on a busy machine; nothing waits that long on a quiet one


def why_not() -> str | None:
    """Why no browser can be opened here and how to get one; None when one can."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed. Get it: pip install playwright (in a checkout: make setup)."
    try:
        chromium()
    except Missing as missing:
        return str(missing)
    return None


@contextlib.asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Chromium, until the context is left. Raises Missing when there is none."""
    program = chromium()
    from playwright.async_api import async_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()
