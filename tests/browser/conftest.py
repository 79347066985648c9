"""A browser for the tests in this folder, and what happens when there is none.

Without a Chromium these tests are taken out of the run, and its summary ends with a line that says so and how to get
one. `ACTONCE_REQUIRE_BROWSER=1` makes that an error: `.ci/run` sets it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from actonce.testing.browser import open_browser, why_not

if TYPE_CHECKING:
    from playwright.async_api import Browser

HERE = Path(__file__).parent
NOT_RUN = pytest.StashKey[str]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    lacking = why_not() if ours else None
    if lacking is None:
        return
    if os.environ.get("ACTONCE_REQUIRE_BROWSER") == "1":
        raise pytest.UsageError(f"the browser tests are required (ACTONCE_REQUIRE_BROWSER=1) and cannot run: {lacking}")
    items[:] = [item for item in items if item not in ours]
    config.hook.pytest_deselected(items=ours)
    config.stash[NOT_RUN] = f"{len(ours)} browser tests DID NOT RUN. {lacking}"


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Generator[None]:
    yield
    if NOT_RUN in config.stash:
        terminalreporter.write_line(config.stash[NOT_RUN], yellow=True, bold=True)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """One browser for the session; each test opens contexts of its own in it."""
    async with open_browser() as browser:
        yield browser
