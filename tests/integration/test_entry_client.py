"""The client as a person uses it: a fresh process that knows only what a page or the entry told it."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actonce.contracts.commands import CLIENT
from actonce.contracts.messages import TaskReport
from actonce.health import LedgerPages
from actonce.ledger import tasks
from actonce.ledger.store import Ledger
from actonce.paging import Pager, PagingSettings
from actonce.stack import Stack
from tests.integration.entry_bench import Bench, bench, contract
from tests.integration.entry_token import TOKEN, let_in
from tests.integration.test_entry_process import entry

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


@dataclass
class Said:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def client(*words: str, cwd: Path = ROOT, **env: str) -> Said:
    """Type what pages tell, in a process of its own, with nothing of ours in its environment but a token and `env`."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ACTONCE_", "TEMPORAL_"))}
    # This tree's package is the installed one, also for whoever stands elsewhere.
    here = {"PYTHONPATH": str(ROOT), "ACTONCE_ENTRY_TOKEN": TOKEN}
    command = [sys.executable, *shlex.split(CLIENT)[1:], *words]
    process = await create_subprocess_exec(*command, env={**clean, **here, **env}, cwd=cwd, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())


@asynccontextmanager
async def desk(dsn: str, **env: str) -> AsyncIterator[tuple[str, Bench]]:
    """An entry process, and this test's own hands on its ledger."""
    async with entry(dsn, **env) as (_, ready), bench(dsn, None, start_deadline_s=0.2) as on:
        yield ready["url"], on


async def test_start_twice_is_one_task_and_a_finished_one_is_replayed(servers: Stack, fresh_dsn: str) -> None:
    async with desk(fresh_dsn, TEMPORAL_ADDRESS=servers.temporal_address, ACTONCE_TASK_QUEUE="client-q") as (url, on):
        words = ("start", "single", "--key", "k-1", "--payload", '{"amount_minor": 5}', "--json", "--entry", url)
        first, second = await client(*words), await client(*words)
        assert (first.status, second.status) == (0, 0), first.err
        assert first.json["task_id"] == second.json["task_id"] == "default/single/k-1"
        other = await client("start", "single", "--key", "k-1", "--payload", '{"amount_minor": 6}', "--entry", url)
        assert other.status == 3 and "another payload" in other.err
        await tasks.report(on.ledger, TaskReport(task_id="default/single/k-1", state="complete", summary="refunded"))
        done = await client(*words[:-3], "--wait", "--entry", url)
        assert done.status == 0 and "complete" in done.out and "refunded" in done.out
        listed = await client("list", "--state", "complete", "--json", "--entry", url)
        assert [t["task_id"] for t in listed.json] == ["default/single/k-1"]


async def test_page_alone_leads_a_person_to_the_decision(fresh_dsn: str, tmp_path: Path) -> None:
    """A fresh process is given the page's text and nothing else."""
    file = tmp_path / "pages.jsonl"
    async with desk(fresh_dsn) as (url, on):
        await on.start("h-1")
        operation = await on.held("default/single/h-1", contract(bounded=True))
        settings = PagingSettings(page_urls=(f"actonce-file://{file}",), entry_url=url)
        await Pager(LedgerPages(on.ledger), settings).deliver_once()
        text = json.loads(file.read_text())["message"]

        entry_url = re.findall(r"Entry service: (\S+)", text)[0]
        show = shlex.split(re.findall(rf"{CLIENT} (show \S+)", text)[0])
        shown = await client(*show, ACTONCE_ENTRY_URL=entry_url)
        assert shown.status == 0 and "not_visible" in shown.out
        assert (ROOT / re.findall(r"docs/operations/\S+\.md", text)[0]).exists()

        retry = shlex.split(re.findall(rf"{CLIENT} (resolve \S+ [^…]*)…", text)[0])
        who = ("--name", "Ada", "--reason", "asked the bank", "--evidence", "statement 4")
        early = await client(*retry, "--action", "permit_one_retry", *who, ACTONCE_ENTRY_URL=entry_url)
        assert early.status == 3 and "too_early" in early.err and "may still happen until" in early.err

        command = re.findall(rf"do: {CLIENT} (resolve .*--action mark_committed.*)", shown.out)[0]
        filled = command.replace("OBJECT_ID", "re_1").replace("YOU", "Ada")
        decided = await client(*shlex.split(filled), ACTONCE_ENTRY_URL=entry_url)
        assert decided.status == 0, decided.err
        assert "is recorded: mark_committed by Ada" in decided.out
        again = await client(*shlex.split(filled), ACTONCE_ENTRY_URL=entry_url)
        assert again.status == 3 and "decided" in again.err
        record = (await client("show", operation.operation_id, "--json", "--entry", url)).json["records"][0]
        assert [d["decision"] for d in record["decisions"]] == ["mark_committed"]


async def test_follow_stops_at_a_hold_and_says_what_to_do(fresh_dsn: str) -> None:
    async with desk(fresh_dsn) as (url, on):
        await on.start("h-1")
        operation = await on.held("default/single/h-1", contract(bounded=True))
        held = await client("follow", "default/single/h-1", "--entry", url)
        assert held.status == 5 and f"do: python -m actonce.client show {operation.operation_id}" in held.out
        patient = await client("follow", "default/single/h-1", "--past-holds", "--timeout-s", "0.5", "--entry", url)
        assert patient.status == 6 and "still held" in patient.err
        cancelled = await client("cancel", "default/single/h-1", "--entry", url)
        assert cancelled.status == 0 and operation.operation_id in cancelled.out
        pages = await client("pages", "--entry", url)
        assert "nobody has seen it" in pages.out
        assert (await client("ack", "1", "--name", "Ada", "--entry", url)).status == 0
        assert "seen by Ada" in (await client("pages", "--entry", url)).out
        assert (await client("dependencies", "--entry", url)).status == 0


async def test_entry_that_is_not_there_and_ids_that_are_not_are_said(fresh_dsn: str, tmp_path: Path) -> None:
    nowhere = await client("list", "--entry", "http://127.0.0.1:1")
    assert nowhere.status == 4 and "does not answer" in nowhere.err and "actonce up" in nowhere.err
    unnamed = await client("list", cwd=tmp_path)
    assert unnamed.status == 2 and "ACTONCE_ENTRY_URL" in unnamed.err
    assert (await client("start", "single", "--key", "k", "--payload", "{", "--entry", "http://x")).status == 2
    async with desk(fresh_dsn) as (url, _):
        folder = tmp_path / ".actonce"
        folder.mkdir()
        (folder / "stack.json").write_text(json.dumps({"parts": {"entry": {"values": {"url": url}}}}))
        found = await client("list", cwd=tmp_path)
        assert (found.status, found.out.strip()) == (0, "none")
        unknown = await client("show", "op1_none", "--entry", url)
        assert unknown.status == 3 and "There is no such operation" in unknown.err
        assert (await client("show", "half/an-id", "--entry", url)).status == 2
        assert (await client("show", "default/single/none", "--entry", url)).status == 3


async def test_natural_key_finds_the_operation_that_holds_it(fresh_dsn: str) -> None:
    async with desk(fresh_dsn) as (url, on):
        await on.start("n-1")
        permit = await on.dispatched("default/single/n-1", contract(bounded=True))
        await _set_natural_key(on.ledger, permit.operation.operation_id)
        found = await client("list", "--natural-key", "pay_1:goodwill", "--json", "--entry", url)
        assert [o["operation_id"] for o in found.json] == [permit.operation.operation_id]


async def _set_natural_key(ledger: Ledger, operation_id: str) -> None:
    async with ledger.transaction() as connection:
        await connection.execute(
            "UPDATE actonce.operation SET natural_key = 'pay_1:goodwill' WHERE operation_id = %s", (operation_id,)
        )


async def test_client_behind_a_proxy_setting_still_reaches_its_own_machine(fresh_dsn: str) -> None:
    async with entry(fresh_dsn) as (_, ready):
        let_in(fresh_dsn)
        said = await client(
            "list", "--entry", ready["url"], HTTP_PROXY="http://127.0.0.1:1", http_proxy="http://127.0.0.1:1"
        )
        assert said.status == 0, said.err
