"""docs/start.md: the two files that make a charge safe run on real servers with an API that loses its answer."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from activities.planner import ScriptedPlanner
from actonce import OperationActivities, Registry, TaskInput, compose
from actonce.entry.settings import EntrySettings
from actonce.stack import Stack
from actonce.stack.program import programs_of

PAGE = Path(__file__).parents[2] / "docs" / "start.md"
LINES_MAX = 40


def blocks() -> dict[str, str]:
    """The page's Python files by the name in their first line."""
    found = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return dict(found)


class ChargesApi:
    """Keeps charges by Idempotency-Key. Loses the first answer after the charge is made."""

    def __init__(self) -> None:
        self.charges: dict[str, dict[str, Any]] = {}
        self.posts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int((re.search(r"content-length: (\d+)", head, re.IGNORECASE) or [0, 0])[1])
            body = json.loads(await reader.readexactly(length)) if length else {}
            answer = self.answer(head, body)
            if answer is not None:
                status, content = answer
                text = json.dumps(content)
                writer.write(
                    f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()
                )
                await writer.drain()
        finally:
            writer.close()

    def answer(self, head: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        method, path, _ = head.split(" ", 2)
        if method == "GET":
            charge = self.charges.get(path.rsplit("/", 1)[1])
            return (404, {}) if charge is None else (200, charge)
        self.posts += 1
        match = re.search(r"idempotency-key: (\S+)", head, re.IGNORECASE)
        assert match is not None
        made = self.charges.setdefault(match[1], {"id": f"ch_{len(self.charges) + 1}", **body})
        return None if self.posts == 1 else (201, made)


@asynccontextmanager
async def api() -> AsyncIterator[tuple[ChargesApi, str]]:
    charges = ChargesApi()
    server = await asyncio.start_server(charges.serve, "127.0.0.1", 0)
    async with server:
        yield charges, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in blocks().items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in blocks():
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_the_page_is_short() -> None:
    safe = ("charges", "charge_task")
    lines = [line for name in safe for line in blocks()[name].splitlines() if line.strip()]
    assert set(blocks()) == {*safe, "worker"}
    assert len(lines) < LINES_MAX, f"{len(lines)} lines of code"


async def test_the_page_makes_one_charge_although_its_answer_is_lost(
    pages: Path, servers: Stack, fresh_dsn: str
) -> None:
    import charge_task  # type: ignore[import-not-found]
    import charges  # type: ignore[import-not-found]

    assert isinstance(charges, ModuleType)
    client = await Client.connect(servers.temporal_address, data_converter=pydantic_data_converter)
    async with api() as (world, url), compose(fresh_dsn, Registry([charges.charges])) as system:
        charges.API = url
        task = TaskInput(
            tenant="default",
            task_id="default/charge/1",
            task_type="charge",
            task_key="1",
            payload={"amount_minor": 500, "currency": "EUR"},
        )
        async with Worker(
            client,
            task_queue="start-page",
            workflows=[charge_task.ChargeTask],
            activities=OperationActivities(system, ScriptedPlanner()).all(),
        ):
            report = await client.execute_workflow(
                "ChargeTask", task, id=task.task_id, task_queue="start-page", result_type=dict
            )
        await charges.client.aclose()
    assert report["state"] == "complete"
    assert report["operations"][0]["object_id"] == "ch_1"
    assert (len(world.charges), world.posts) == (1, 1)


def test_the_page_says_what_up_starts_and_which_workflow_a_task_type_is(pages: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (pages / "pyproject.toml").write_text(table, encoding="utf-8")
    assert [(spec.name, spec.count) for spec in programs_of(pages)] == [("entry", 1), ("worker", 2)]
    assert asyncio.iscoroutinefunction(import_module("worker").main)
    (types,) = re.findall(r"ACTONCE_TASK_TYPES='([^']*)'", text)
    settings = EntrySettings.model_validate({"ledger_dsn": "postgresql://nowhere", "task_types": json.loads(types)})
    assert settings.task_types["charge"].workflow == import_module("charge_task").ChargeTask.__name__
    (payload,) = re.findall(r"start charge .* --payload '([^']*)'", text)
    assert import_module("charges").CONTRACT.digest_of("create", json.loads(payload))
