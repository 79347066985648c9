"""The run's one browser, opened when somebody first looks, and the pictures that it takes.

Contract: a picture is a PNG in the evidence folder, of what the window shows of a page that was loaded for it. Without
a browser `why_not` says so; nothing else depends on one. `close` leaves no browser behind.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from actonce.testing import browser as real

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

FOLDER = "pictures"
HEIGHT_MAX = 2400  # of a long page: what counts is at its top, and a folder must stay small


class Screens:
    """One for a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = AsyncExitStack()
        self._browser: Browser | None = None
        self._one = asyncio.Lock()

    @cached_property
    def why_not(self) -> str | None:
        """Why there is no browser here; None when there is one."""
        return real.why_not()

    async def browser(self) -> Browser:
        """The one browser."""
        async with self._one:
            if self._browser is None:
                self._browser = await self._open.enter_async_context(real.open_browser())
            return self._browser

    async def take(self, page: Page, name: str) -> tuple[str, str]:
        """Take a picture of what is loaded: its file within the evidence folder, and its SHA-256."""
        height = await page.evaluate("() => document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": min(height, HEIGHT_MAX)}  # type: ignore[index]
        png = await page.screenshot(full_page=True, clip=clip, animations="disabled", caret="hide", scale="css")  # type: ignore[arg-type]
        (self._folder / FOLDER).mkdir(exist_ok=True)
        file = f"{FOLDER}/{name}.png"
        (self._folder / file).write_bytes(png)
        return file, hashlib.sha256(png).hexdigest()

    async def close(self) -> None:
        """The browser is closed."""
        await self._open.aclose()
        self._browser = None
