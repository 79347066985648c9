"""`actonce backup` while work goes on: one moment of each part, what it shows, and what is no backup."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
from temporalio.client import Client
from typer.testing import CliRunner

from actonce.audit import AuditSettings, FileSink, Shipper
from actonce.backup import BackupError, Manifest, databases, history, read_manifest
from actonce.backup.audit_copy import copy_events
from actonce.backup.making import make_backup, source_of
from actonce.backup.manifest import SCHEMA, digest_of, verify_files
from actonce.cli import app
from actonce.contracts.audit import parse
from actonce.ledger import audit_chain, tasks
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from actonce.memory import HashingEmbedder, Memory
from actonce.stack import Stack
from actonce.stack.unfinished import mark_of
from actonce.trail import LedgerJournal
from tests.integration.audit.work import work

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Made:
    """A stack, one backup of it that was taken while tasks were accepted, and what was there before it began."""

    stack: Stack
    folder: Path
    before: set[str]  # task ids that were accepted before
    manifest: Manifest


async def ship(ledger: Ledger, folder: Path) -> None:
    """What the watching process does all the time."""
    sink = FileSink(folder)
    while await audit_chain.seal_once(ledger):
        while await Shipper(LedgerJournal(ledger), sink, AuditSettings()).ship_once():
            pass
    sink.close()


async def accept(ledger: Ledger, client: Client, name: str) -> str:
    """As the entry does: first the ledger, then Temporal."""
    task, _ = await tasks.accept(ledger, "default", "single", name, {"n": 1})
    await client.start_workflow("single.v1", id=task.workflow_id, task_queue="nobody-works")
    return task.task_id


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Made]:
    root = tmp_path_factory.mktemp("backup")
    async with Stack.open(root / "stack", {"postgres", "temporal"}, end_at_once=True) as stack:
        migrate(stack.ledger_dsn)
        memory = Memory(stack.ledger_dsn, HashingEmbedder())
        await memory.set_up()
        await memory.remember("acme", "refund:1", "refund of a vase", {"customer": "ada"})
        await memory.close()
        client = await Client.connect(stack.temporal_address)
        async with Ledger(stack.ledger_dsn) as ledger:
            await work(ledger)
            before = {await accept(ledger, client, f"before-{number}") for number in range(3)}
            await ship(ledger, stack.folder / "audit")
            (stack.folder / "client.token").write_text("secret")
            stop = asyncio.Event()

            async def go_on() -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    await accept(ledger, client, f"during-{number}")
                    await ship(ledger, stack.folder / "audit")

            busy = asyncio.create_task(go_on())
            await make_backup(source_of(stack.folder), root / "made", lambda text: None)
            stop.set()
            await busy
        yield Made(stack, root / "made", before, read_manifest(root / "made")[0])


async def test_the_backup_shows_one_moment_of_each_part_and_says_which(made: Made) -> None:
    manifest, boundary = made.manifest, made.manifest.ledger.boundary
    verify_files(made.folder, manifest, lambda text: None)
    assert boundary.at <= boundary.snapshot_at
    assert boundary.tasks >= len(made.before) and boundary.operations > 0 and boundary.lsn.count("/") == 1
    skew = manifest.history_older_by
    assert skew is not None and 0 <= skew.at_least_s <= skew.at_most_s
    assert manifest.order == ["temporal", "ledger", "audit"]
    assert manifest.memory.where == "ledger" and manifest.memory.items == 2  # the canary is one
    assert manifest.run_id == made.stack.run_id
    assert len([name for name in manifest.ledger.migrations if name.startswith("00")]) > 10
    with closing(sqlite3.connect(made.folder / "temporal.db")) as copy:
        assert copy.execute("SELECT count(*) FROM current_executions").fetchone() == (manifest.temporal.workflows,)
    assert manifest.temporal.workflows is not None and manifest.temporal.workflows >= len(made.before)


async def test_the_audit_files_end_where_the_ledger_of_the_backup_ends(made: Made) -> None:
    assert made.manifest.audit is not None
    lines = [line for name in made.manifest.audit.files for line in (made.folder / name).read_text().splitlines()]
    boundary = made.manifest.ledger.boundary
    last = parse(lines[-1])
    assert (last.seq, last.hash) == (boundary.audit_seq, boundary.audit_hash)
    assert [parse(line).seq for line in lines] == list(range(1, boundary.audit_seq + 1))


async def test_nobody_else_can_read_it_and_secrets_are_not_in_it(made: Made) -> None:
    files = [path for path in made.folder.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o077 for path in files} == {0} and made.folder.stat().st_mode & 0o077 == 0
    assert {"client.token", "env.json", "stack.json"} <= set(made.manifest.left_out)
    password = made.stack.postgres.recorded.values["password"].encode()
    assert all(password not in path.read_bytes() for path in files)
    assert {str(path.relative_to(made.folder)) for path in files} == {
        "manifest.json",
        *(entry.path for entry in made.manifest.files),
    }


async def test_the_form_of_the_manifest_is_shipped(made: Made) -> None:
    assert json.loads(SCHEMA.read_text()) == Manifest.model_json_schema()
    assert Manifest.model_validate_json((made.folder / "manifest.json").read_bytes()) == made.manifest


async def test_a_flipped_byte_a_missing_file_and_a_file_without_checksum_are_refused(made: Made) -> None:
    dump = made.folder / "ledger.dump"
    good = dump.read_bytes()
    middle = len(good) // 2
    try:
        dump.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
        with pytest.raises(BackupError, match=r"ledger\.dump has .* bytes and SHA-256"):
            verify_files(made.folder, made.manifest, lambda text: None)
        dump.unlink()
        with pytest.raises(BackupError, match=r"ledger\.dump is missing"):
            verify_files(made.folder, made.manifest, lambda text: None)
    finally:
        dump.write_bytes(good)
    fewer = made.manifest.model_copy(update={"files": made.manifest.files[1:]})
    with pytest.raises(BackupError, match=r"ledger\.dump has no checksum"):
        verify_files(made.folder, fewer, lambda text: None)
    verify_files(made.folder, made.manifest, lambda text: None)


async def test_a_folder_without_a_whole_manifest_is_no_backup(made: Made, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="is no backup"):
        read_manifest(tmp_path)
    raw = (made.folder / "manifest.json").read_text()
    (tmp_path / "manifest.json").write_text(raw[: len(raw) // 2])
    with pytest.raises(BackupError, match="damaged"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text(raw.replace('"form": 1', '"form": 2'))
    with pytest.raises(BackupError, match="form 2"):
        read_manifest(tmp_path)


async def test_a_transaction_under_way_moves_the_boundary_before_it(made: Made, tmp_path: Path) -> None:
    """What it writes is not in the backup, and was written before the snapshot: the boundary must not be later."""
    async with await psycopg.AsyncConnection.connect(made.stack.ledger_dsn) as slow:
        row = await (await slow.execute("SELECT clock_timestamp()")).fetchone()
        assert row is not None
        only = replace(source_of(made.stack.folder), history=None, temporal_elsewhere="elsewhere:7233", audit=None)
        manifest, _ = read_manifest(await make_backup(only, tmp_path / "made", lambda text: None))
        assert manifest.ledger.boundary.at <= row[0] < manifest.ledger.boundary.snapshot_at
    assert manifest.temporal.elsewhere == "elsewhere:7233" and manifest.history_older_by is None


async def test_a_server_newer_than_every_pg_dump_here_is_said(made: Made) -> None:
    assert databases.program_for("pg_dump", 18_0004).name == "pg_dump"
    with pytest.raises(BackupError, match="PostgreSQL 99 needs pg_dump 99 or newer"):
        databases.program_for("pg_dump", 99_0001)


async def test_a_newer_temporal_is_refused() -> None:
    ours = history.server_version()
    assert ours is not None
    history.check_version(ours)
    with pytest.raises(BackupError, match="older server does not read it"):
        history.check_version("temporal version 9.9.9 (Server 99.0.0, UI 1.0.0)")


async def test_a_torn_or_changed_audit_line_is_not_backed_up_as_good(made: Made, tmp_path: Path) -> None:
    assert made.manifest.audit is not None
    good = (made.folder / made.manifest.audit.files[0]).read_text().splitlines(keepends=True)
    source = tmp_path / "audit"
    source.mkdir()
    file = source / Path(made.manifest.audit.files[0]).name
    file.write_text("".join(good[:3]) + good[3][:20])
    [copied] = copy_events(source, tmp_path / "torn", 100)
    assert copied.read_text() == "".join(good[:3])
    file.write_text(good[0] + good[1].replace('"seq":2', '"seq":7'))
    with pytest.raises(ValueError, match="line 2"):
        copy_events(source, tmp_path / "changed", 100)


async def test_nothing_but_postgresql_starts_in_a_folder_whose_restore_is_unfinished(tmp_path: Path) -> None:
    folder = tmp_path / "stack"
    folder.mkdir()
    mark_of(folder).write_text("A restore of backup b1 into this folder is not finished")
    result = await asyncio.to_thread(CliRunner().invoke, app, ["up", "--folder", str(folder)])
    assert result.exit_code == 1 and not (folder / "postgres").exists()
    mark_of(folder).unlink()


async def test_the_command_says_what_it_made_and_refuses_a_folder_that_is_not_empty(made: Made, tmp_path: Path) -> None:
    async def run(target: Path) -> tuple[int, str]:
        arguments = ["backup", str(target), "--folder", str(made.stack.folder), "--dsn", made.stack.ledger_dsn]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        return result.exit_code, result.output

    code, said = await run(tmp_path / "one")
    assert code == 0 and f"backup complete: {tmp_path / 'one' / 'manifest.json'}" in said
    code, _ = await run(tmp_path / "one")
    assert code == 1
    assert digest_of(tmp_path / "one" / "manifest.json")[0] > 0
