"""`actonce indexes`: what the migrations declare is there and answers, and a rebuild never makes it worse (case g3)."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql
from typer.testing import CliRunner

from actonce.backup import databases, indexes
from actonce.backup.indexes import Report, Thing
from actonce.cli import app
from actonce.contracts.memory import Found
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from actonce.memory import HashingEmbedder, Memory
from actonce.memory.setting_up import set_up
from actonce.stack import Stack
from tests.databases import empty_database
from tests.integration.audit.work import work

VECTORS = "actonce_memory.item_embedding"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def prepared(postgres_server: Stack) -> AsyncIterator[str]:
    """A ledger with work in it, and a memory with rows, in one database: to copy, not to break."""
    async with empty_database(postgres_server.postgres.dsn) as dsn:
        migrate(dsn)
        set_up(dsn, HashingEmbedder())
        async with Ledger(dsn) as ledger:
            await work(ledger)
        memory = Memory(dsn, HashingEmbedder())
        for number in range(3):
            await memory.remember("acme", f"refund:{number}", f"refund of vase {number}", {"n": number})
        await memory.close()
        yield dsn


@pytest_asyncio.fixture
async def dsn(prepared: str, postgres_server: Stack) -> AsyncIterator[str]:
    """A copy of this test's own."""
    admin, name = postgres_server.postgres.dsn, f"copy_{secrets.token_hex(6)}"
    made, copied = sql.Identifier(name), sql.Identifier(databases.database_of(prepared))
    with psycopg.connect(admin, autocommit=True) as link:
        link.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(made, copied))
    yield databases.with_database(admin, name)
    with psycopg.connect(admin, autocommit=True) as link:
        link.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(made))


@pytest.fixture(scope="module")
def known() -> dict[str, dict[str, Thing]]:
    return {}


@pytest.fixture
def check(known: dict[str, dict[str, Thing]]) -> Callable[[str], Report]:
    """`indexes.check`; what the migrations declare is found out once."""

    def checked(dsn: str) -> Report:
        if "declared" not in known:
            known["declared"] = indexes.declared_at(dsn)
        return indexes.check(dsn, known["declared"])

    return checked


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as link:
        for statement in statements:
            link.execute(statement)  # type: ignore[call-overload]


def found(report: Report) -> dict[str, str]:
    return {f.thing.name: f.what for f in report.findings}


def files_of(dsn: str) -> dict[str, int]:
    """Which file on disk each index has: another one after it was built again."""
    with indexes.connected(dsn) as link:
        rows = link.execute(
            "SELECT oid::regclass::text AS name, relfilenode FROM pg_class WHERE relkind = 'i'"
            " AND relnamespace::regnamespace::text IN ('actonce', 'actonce_memory')"
        ).fetchall()
    return {row["name"]: row["relfilenode"] for row in rows}


def lose_rows(dsn: str, index: str, statement: str) -> None:
    """An index that exists, is valid and does not show a row: what a build that broke off or a damaged file leaves."""
    flag = f"UPDATE pg_index SET indisready = {{}} WHERE indexrelid = '{index}'::regclass"
    run(dsn, flag.format("false"))
    run(dsn, statement)
    run(dsn, flag.format("true"))


COPY_ITEM = (
    "INSERT INTO actonce_memory.item (tenant, key, text, facts, embedding) SELECT tenant, 'refund:9', text, facts,"
    " embedding FROM actonce_memory.item WHERE key = 'refund:1'"
)
COPY_TASK = (
    "INSERT INTO actonce.task (task_id, tenant, task_type, task_key, workflow_id, payload, payload_digest)"
    " SELECT 'copy', tenant, task_type, 'copy', 'copy', payload, payload_digest FROM actonce.task LIMIT 1"
)


def test_every_declared_index_answers_on_a_good_ledger(dsn: str) -> None:
    declared = indexes.declared_at(dsn)
    report = indexes.check(dsn, declared)
    assert report.findings == []
    assert {VECTORS, "actonce.task_by_key", "actonce.operation_object"} <= {t.name for t in declared.values()}
    assert {"key actonce.operation.operation_pkey", "trigger actonce.audit.nothing_is_deleted"} <= set(declared)
    assert report.answered == sum(thing.index is not None for thing in declared.values()) > 50


def test_missing_invalid_and_silent_indexes_are_named_and_a_rebuild_heals_exactly_them(
    dsn: str, check: Callable[[str], Report]
) -> None:
    run(
        dsn,
        "DROP INDEX actonce.task_newest",
        "DROP INDEX actonce.operation_natural_key",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'actonce.audit_kind'::regclass",
        "DROP INDEX actonce.operation_object; CREATE INDEX operation_object ON actonce.operation (object_id)",
    )
    lose_rows(dsn, "actonce.task_by_key", COPY_TASK)
    lose_rows(dsn, VECTORS, COPY_ITEM)
    report = check(dsn)
    assert found(report) == {
        "actonce.task_newest": "missing",
        "actonce.operation_natural_key": "missing",
        "actonce.audit_kind": "invalid",
        "actonce.operation_object": "differs",
        "actonce.task_by_key": "incomplete",
        VECTORS: "incomplete",
    }
    assert "actonce.operation_natural_key" not in report.missing, "it protects rows, and is named as that"
    before = files_of(dsn)
    said: list[str] = []
    assert indexes.rebuild(dsn, said.append).findings == []
    assert [line for line in said if line.startswith("6 of 6")]
    after = files_of(dsn)
    changed = {name for name in after if before.get(name) != after[name]}
    assert changed == set(found(report)), "what was good was not touched"


def test_keys_and_triggers_that_are_gone_are_named_and_made_again(dsn: str, check: Callable[[str], Report]) -> None:
    run(
        dsn,
        "ALTER TABLE actonce.verdict DROP CONSTRAINT verdict_pkey CASCADE",
        "DROP TRIGGER nothing_is_deleted ON actonce.operation",
    )
    report = check(dsn)
    assert found(report)["actonce.verdict.verdict_pkey"] == "missing"
    assert found(report)["actonce.operation.nothing_is_deleted"] == "missing"
    assert report.missing == []
    assert indexes.rebuild(dsn, lambda text: None, only="guards").findings == []
    with psycopg.connect(dsn) as link, pytest.raises(psycopg.errors.RaiseException, match="never deleted"):
        link.execute("DELETE FROM actonce.operation")


async def test_rows_of_the_memory_that_are_gone_are_no_business_of_a_rebuild(
    dsn: str, check: Callable[[str], Report]
) -> None:
    run(
        dsn,
        "ALTER TABLE actonce_memory.item DISABLE TRIGGER ALL; DELETE FROM actonce_memory.item WHERE key = 'refund:1'",
    )
    report = check(dsn)
    assert [f.words for f in report.findings if "restore the memory" in f.words]


DIES = """
import os, signal, sys
from actonce.backup import indexes
repair = indexes.answers
def dies(link, thing, *, locked=False):
    if locked and thing.name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)  # built, and not committed
    return repair(link, thing, locked=locked)
indexes.answers = dies
indexes.rebuild(sys.argv[1], lambda text: None)
"""


async def test_a_rebuild_that_is_killed_leaves_what_was_there_and_goes_on_when_run_again(
    dsn: str, check: Callable[[str], Report]
) -> None:
    run(dsn, "DROP INDEX actonce.task_newest")
    lose_rows(dsn, VECTORS, COPY_ITEM)
    before = files_of(dsn)
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", DIES, dsn, VECTORS],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert files_of(dsn)[VECTORS] == before[VECTORS]
    left = found(check(dsn))
    assert left[VECTORS] == "incomplete"
    assert indexes.rebuild(dsn, lambda text: None).findings == []
    memory = Memory(dsn, HashingEmbedder())
    said = await memory.recall("acme", "refund of vase")
    await memory.close()
    assert isinstance(said, Found) and len(said.items) == 4


def test_a_build_that_shows_nothing_does_not_replace_what_is_there(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(dsn, "DROP INDEX actonce.task_newest; CREATE INDEX task_newest ON actonce.task (created_at)")
    before = files_of(dsn)["actonce.task_newest"]
    thing = indexes.declared_at(dsn)["index actonce.task_newest"]
    empty = indexes.Finding("incomplete", thing, "it shows 0 rows where the table holds 4")
    with monkeypatch.context() as broken:
        broken.setattr(indexes, "answers", lambda link, thing, *, locked=False: empty if locked else None)
        with pytest.raises(indexes.BackupError, match="nothing was changed"):
            indexes.rebuild(dsn, lambda text: None)
    assert files_of(dsn)["actonce.task_newest"] == before
    # Negative control: whoever believes the build takes the empty one.
    with monkeypatch.context() as broken:
        broken.setattr(indexes, "answers", lambda link, thing, *, locked=False: None)
        indexes.rebuild(dsn, lambda text: None)
    assert files_of(dsn)["actonce.task_newest"] != before


def test_presence_alone_would_have_called_a_silent_index_good(dsn: str, check: Callable[[str], Report]) -> None:
    """Negative control of the look-up: the catalog says nothing."""
    lose_rows(dsn, "actonce.task_by_key", COPY_TASK)
    with indexes.connected(dsn) as link:
        assert indexes.compare(indexes.declared_at(dsn), indexes.catalog(link)) == []
    assert found(check(dsn)) == {"actonce.task_by_key": "incomplete"}


async def test_the_command_ends_with_1_while_something_is_missing_and_with_0_after_a_rebuild(dsn: str) -> None:
    async def actonce(*arguments: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, app, ["indexes", *arguments, "--dsn", dsn])
        return result.exit_code, result.output

    run(dsn, f"DROP INDEX {VECTORS}")
    code, said = await actonce("check")
    assert code == 1 and VECTORS in said and "whole" not in said
    code, said = await actonce("rebuild")
    assert code == 0 and said.rstrip().endswith("whole")
