"""Somebody who sends half a request and stays: the entry and the console, each a process, let go of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import psycopg
import pytest
import pytest_asyncio

from actonce.ledger.migrate import migrate
from actonce.stack import Stack
from tests.databases import empty_database
from tests.integration.entry_token import TOKEN, let_in

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATIENCE_S = 60.0  # until a process that was to let go at once counts as one that never does


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dsn(postgres_server: Stack) -> AsyncIterator[str]:
    async with empty_database(postgres_server.postgres.dsn) as made:
        migrate(made)
        let_in(made)
        yield made


@contextlib.asynccontextmanager
async def program(name: str, dsn: str) -> AsyncIterator[str]:
    """`python -m actonce.NAME`, which waits for a body for a moment only. Its URL."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ACTONCE_", "TEMPORAL_"))}
    known = {"ACTONCE_LEDGER_DSN": dsn, "ACTONCE_BODY_WITHIN_S": "0.2", "TEMPORAL_ADDRESS": "127.0.0.1:1"}
    process = await create_subprocess_exec(*(sys.executable, "-m", f"actonce.{name}"), env=clean | known, stdout=PIPE)
    try:
        assert process.stdout is not None
        yield json.loads(await asyncio.wait_for(process.stdout.readline(), PATIENCE_S))["url"]
    finally:
        process.kill()
        await process.wait()


async def half_a_request(url: str, path: str, kind: str, body: bytes, *headers: str) -> str:
    """Promise 1000 bytes, send these, and read what comes until the other side closes."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = (f"POST {path} HTTP/1.1", f"Host: {where.netloc}", f"Content-Type: {kind}", "Content-Length: 1000", *headers)
    writer.write("\r\n".join((*head, "", "")).encode() + body)
    await writer.drain()
    said = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return said.decode()


async def test_entry_lets_go_of_who_sends_half_a_task_and_records_nothing(dsn: str) -> None:
    who = (f"Authorization: Bearer {TOKEN}", "Idempotency-Key: slow-1")
    async with program("entry", dsn) as url:
        said = await half_a_request(url, "/v1/tasks/refund", "application/json", b'{"amount_minor": 1', *who)
    head, _, problem = said.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 408") and "connection: close" in head.lower()
    assert "application/problem+json" in head and "nothing was recorded" in json.loads(problem)["detail"]
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM actonce.task").fetchone() == (0,)


async def test_console_lets_go_of_who_sends_half_a_form(dsn: str) -> None:
    async with program("console", dsn) as url:
        kind = "application/x-www-form-urlencoded"
        said = await half_a_request(url, "/sign-in", kind, b"name=ada&pass", f"Origin: {url}")
    assert said.startswith("HTTP/1.1 408") and "did not arrive within 0.2 s" in said
