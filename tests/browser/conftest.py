"""A browser for the tests in this folder, and what happens when there is none.

Without a Chromium these tests are taken out of the run, and its summary ends with a line that says so and how to get
one. `ACTONCE_REQUIRE_BROWSER=1` makes that an error: `.ci/run` sets it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import pytest_asyncio

from actonce.stack import Stack
from actonce.testing.browser import PATIENCE_MS, open_browser, why_not
from tests.browser.staged import Staged, staged
from tests.not_run import tell_not_run

if TYPE_CHECKING:
    from playwright.async_api import Browser

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:  # the first one also waits for the whole deployment
        item.add_marker(pytest.mark.timeout(300))
    lacking = why_not() if ours else None
    if lacking is None or os.environ.get("ACTONCE_REQUIRE_BROWSER") == "1":
        return
    items[:] = [item for item in items if item not in ours]
    config.hook.pytest_deselected(items=ours)
    tell_not_run(config, f"{len(ours)} browser tests DID NOT RUN. {lacking}")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """One browser for the session; each test opens contexts of its own in it."""
    from playwright.async_api import expect

    lacking = why_not()
    if lacking is not None:
        pytest.fail(f"the browser tests are required (ACTONCE_REQUIRE_BROWSER=1) and cannot run: {lacking}", False)
    expect.set_options(timeout=PATIENCE_MS)
    async with open_browser() as browser:
        yield browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def console(postgres_server: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Staged]:
    """The console that all tests here share."""
    async with await psycopg.AsyncConnection.connect(postgres_server.ledger_dsn, autocommit=True) as link:
        await link.execute("CREATE DATABASE staged_console")
    dsn = postgres_server.ledger_dsn.rsplit("/", 1)[0] + "/staged_console"
    async with staged(dsn, tmp_path_factory.mktemp("staged")) as running:
        yield running
