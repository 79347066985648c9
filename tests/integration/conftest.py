"""Fixtures of several modules here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest_asyncio

from actonce.ledger.migrate import migrate
from tests.integration.odd_bench import Deployment


@pytest_asyncio.fixture
async def deployment(fresh_dsn: str) -> AsyncIterator[Deployment]:
    migrate(fresh_dsn)
    async with AsyncExitStack() as cleanup:
        yield Deployment(fresh_dsn, cleanup)
