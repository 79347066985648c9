"""Shared fixtures: real servers in temporary folders, on ports from the operating system."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from actonce.stack import Stack
from actonce.testing.plugin import drill_stack
from tests.databases import empty_database
from tests.not_run import NotRun
from tests.sharing import Sharing


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(NotRun())
    config.pluginmanager.register(Sharing())


servers = drill_stack  # PostgreSQL, Temporal and Toxiproxy for the whole session: share them, kill none of them

# How fast examples are made and tried says something about the machine, not about the code. (The first example of a
# fresh clone builds the table of Unicode's characters, which takes a second.)
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """PostgreSQL alone, for the whole session. No test here is about a loss of power: it does not wait for the disk."""
    async with Stack.open(tmp_path_factory.mktemp("postgres"), {"postgres"}, end_at_once=True) as stack:
        async with await psycopg.AsyncConnection.connect(stack.postgres.dsn, autocommit=True) as link:
            await link.execute("ALTER SYSTEM SET fsync = off")
            await link.execute("SELECT pg_reload_conf()")
        yield stack


@pytest_asyncio.fixture
async def fresh_dsn(postgres_server: Stack) -> AsyncIterator[str]:
    """DSN of an empty database of this test's own."""
    async with empty_database(postgres_server.postgres.dsn) as dsn:
        yield dsn


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty folder that can hold a project of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder
