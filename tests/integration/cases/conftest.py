"""The session's lab and the runner of its cases."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from actonce.stack import Stack
from tests.integration.cases.kit import Lab, Runner, open_lab


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def lab(servers: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    async with open_lab(servers, tmp_path_factory.mktemp("cases")) as opened:
        yield opened


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def runner(lab: Lab, request: pytest.FixtureRequest) -> AsyncIterator[Runner]:
    running = Runner(lab, request.session.items)
    try:
        yield running
    finally:
        await running.close()
