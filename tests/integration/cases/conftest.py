"""The session's lab and the runner of its cases."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from actonce.ledger.migrate import migrate
from actonce.stack import Stack, spawn
from actonce.stack.zygote import Zygote
from actonce.testing.waiting import eventually
from drills.rig import base_environment
from drills.running import PRELOADED
from drills.world.client import World
from tests.integration.cases.kit import ROOT, Lab, Runner


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def lab(servers: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    folder = tmp_path_factory.mktemp("cases")
    template = f"cases_{secrets.token_hex(4)}"
    async with await psycopg.AsyncConnection.connect(servers.ledger_dsn, autocommit=True) as link:
        await link.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(template)))
    dsn = servers.ledger_dsn.rsplit("/", 1)[0] + "/" + template
    await asyncio.to_thread(migrate, dsn)
    env = base_environment(servers)
    async with contextlib.AsyncExitStack() as cleanup:
        command = [sys.executable, "-m", "drills.world", "--folder", str(folder / "world")]
        process = spawn("world", command, log=folder / "world.log", env=dict(os.environ), cwd=ROOT)
        cleanup.push_async_callback(process.stop)
        started = folder / "world" / "world.json"
        await eventually(started.exists, within_s=60, what=f"the world ready (log: {folder / 'world.log'})")
        world = await cleanup.enter_async_context(World(json.loads(started.read_text())))
        zygote = await Zygote.start(PRELOADED, log=folder / "zygote.log", cwd=ROOT, env=env)
        await cleanup.enter_async_context(zygote)
        temporal = await Client.connect(servers.temporal_address, data_converter=pydantic_data_converter)
        yield Lab(servers, temporal, world, zygote, template, env, folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def runner(lab: Lab, request: pytest.FixtureRequest) -> AsyncIterator[Runner]:
    running = Runner(lab, request.session.items)
    try:
        yield running
    finally:
        await running.close()
