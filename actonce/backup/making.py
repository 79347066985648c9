"""`actonce backup`: one folder with the ledger, the memory, Temporal's history and the audit files, while work goes on.

Order: history, then ledger (with the memory, in one snapshot), then audit files up to the ledger's last sealed event.
So the history is never newer than the ledger, by at most the time that this takes; the manifest says by how much. A
workflow that is older than the ledger asks it for operations that were done already and gets the same answers.

Promises: changes nothing but the new folder; what is in it is readable by its owner only. Tokens and passwords of the
stack's folder are left out: the ledger holds their digests, and `actonce up` makes new ones where a file is missing.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg.rows import DictRow, dict_row

from actonce.backup import databases, history
from actonce.backup.audit_copy import FOLDER as AUDIT
from actonce.backup.audit_copy import copy_events
from actonce.backup.manifest import (
    AuditPart,
    BackupError,
    LedgerBoundary,
    LedgerPart,
    Manifest,
    MemoryPart,
    Say,
    Skew,
    TemporalPart,
    listed,
    write_manifest,
)
from actonce.contracts.audit import AuditDamaged
from actonce.version import __version__

DUMP = "ledger.dump"
SECRETS = ("admin.password", "client.token", "console.token", "env.json", "stack.json")
Link = psycopg.Connection[DictRow]


@dataclass(frozen=True)
class Source:
    """What is to be backed up. `folder`: the stack's; `dsn`: of the ledger; `audit`: where a file sink writes."""

    folder: Path
    dsn: str
    history: Path | None
    temporal_elsewhere: str | None
    audit: Path | None
    memory_elsewhere: bool
    run_id: str | None


def source_of(folder: Path, dsn: str | None = None) -> Source:
    """What the stack in `folder` says of itself. `dsn`: another ledger than its own. Raises BackupError."""
    folder = folder.resolve()
    told: dict[str, str] = {}
    if (folder / "env.json").exists():
        told = json.loads((folder / "env.json").read_text())
    for name in ("ACTONCE_AUDIT_SINKS", "ACTONCE_MEMORY_DSN"):  # what a person sets is not in the stack's own file
        if name not in told and name in os.environ:
            told[name] = os.environ[name]
    ledger = dsn or told.get("ACTONCE_LEDGER_DSN")
    if ledger is None:
        raise BackupError(f"{folder} is no stack's folder and names no ledger: use --folder, or --dsn.")
    own = folder / history.FILE
    sinks = [urlsplit(one.strip()) for one in told.get("ACTONCE_AUDIT_SINKS", "").split(",")]
    files = [Path(unquote(one.path)) for one in sinks if one.scheme == "file"]
    memory = told.get("ACTONCE_MEMORY_DSN")
    elsewhere = told.get("TEMPORAL_ADDRESS", "a server that this stack did not start") if not own.exists() else None
    return Source(
        folder=folder,
        dsn=ledger,
        history=own if own.exists() else None,
        temporal_elsewhere=elsewhere,
        audit=next((path for path in files if path.is_dir()), None),
        memory_elsewhere=memory is not None and memory != ledger,
        run_id=told.get("ACTONCE_RUN_ID"),
    )


async def make_backup(source: Source, target: Path, say: Say) -> Path:
    """Make the backup in `target`, a new or empty folder. Returns its manifest. Raises BackupError, psycopg.Error."""
    if target.exists() and any(target.iterdir()):
        raise BackupError(f"{target} is not empty: each backup gets a folder of its own.")
    target.mkdir(parents=True, exist_ok=True)
    target.chmod(0o700)
    with psycopg.connect(source.dsn, autocommit=True, row_factory=dict_row, connect_timeout=10) as link:
        _check_is_ledger(link)
        temporal = await _history(link, source, target, say)
        ledger, memory = await _ledger(link, source, target, say)
    audit = _audit(source, target, ledger.boundary, say)
    paths = [target / ledger.file]
    paths += [target / temporal.file] if temporal.file else []
    paths += [target / name for name in audit.files] if audit else []
    say("writing the manifest …")
    return write_manifest(
        target,
        Manifest(
            backup_id=f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}",
            release=__version__,
            order=["temporal", "ledger", "audit"],
            ledger=ledger,
            memory=memory,
            temporal=temporal,
            audit=audit,
            history_older_by=_skew(temporal, ledger.boundary),
            run_id=source.run_id,
            left_out=[name for name in SECRETS if (source.folder / name).exists()],
            files=listed(target, paths),
        ),
    )


def _check_is_ledger(link: Link) -> None:
    row = link.execute("SELECT to_regclass('actonce.identity') IS NOT NULL AS there").fetchone()
    if row is None or not row["there"]:
        raise BackupError(
            f"{link.info.dbname} at {link.info.host} holds no ledger: fix the DSN. Nothing was backed up."
        )


async def _history(link: Link, source: Source, target: Path, say: Say) -> TemporalPart:
    if source.history is None:
        say(
            f"Temporal is {source.temporal_elsewhere}: its history is NOT in this backup, back it up with its own tools"
        )
        return TemporalPart(file=None, elsewhere=source.temporal_elsewhere)
    say("copying Temporal's history …")
    begun = _now(link)
    workflows = await asyncio.to_thread(history.copy_history, source.history, target / history.FILE)
    version = history.server_version()
    return TemporalPart(file=history.FILE, version=version, begun_at=begun, ended_at=_now(link), workflows=workflows)


async def _ledger(link: Link, source: Source, target: Path, say: Say) -> tuple[LedgerPart, MemoryPart]:
    program = databases.program_for("pg_dump", link.info.server_version)
    log = target / "pg_dump.log"
    with _snapshot(link) as (exported, boundary):
        identity = _one(link, "SELECT * FROM actonce.identity")
        migrations = _migrations(link)
        memory = _memory(link, source, say)
        say(f"dumping the ledger as of {boundary.snapshot_at:%H:%M:%S.%f} UTC …")
        arguments = [
            "--format=custom",
            "--no-owner",
            "--no-privileges",
            f"--lock-wait-timeout={databases.LOCK_WAIT_MS}",
        ]
        arguments += [f"--snapshot={exported}", f"--file={target / DUMP}"]
        await databases.run_program(program, arguments, source.dsn, log)
    log.unlink()
    part = LedgerPart(
        file=DUMP,
        boundary=boundary,
        deployment=identity["deployment"],
        ledger_id=str(identity["ledger_id"]),
        restore_epoch=identity["restore_epoch"],
        quarantined=identity["quarantined"],
        server_version=link.info.server_version,
        migrations=migrations,
    )
    return part, memory


_BOUNDARY = """
SELECT pg_export_snapshot() AS exported, pg_current_snapshot()::text AS snapshot,
    pg_current_wal_insert_lsn()::text AS lsn, clock_timestamp() AS snapshot_at,
    coalesce((SELECT max(seq) FROM actonce.audit), 0) AS audit_seq,
    coalesce((SELECT hash FROM actonce.audit WHERE seq IS NOT NULL ORDER BY seq DESC LIMIT 1), '') AS audit_hash,
    coalesce((SELECT max(audit_id) FROM actonce.audit), 0) AS audit_id,
    (SELECT count(*) FROM actonce.operation) AS operations,
    (SELECT max(created_at) FROM actonce.operation) AS last_operation_at,
    (SELECT count(*) FROM actonce.task) AS tasks, (SELECT max(created_at) FROM actonce.task) AS last_task_at
"""
# Before the snapshot: a transaction that is not in it was under way at this moment, or began later. So nothing that the
# backup lacks was written before the earlier of now and the oldest transaction's begin.
_EARLIEST = """
SELECT least(clock_timestamp(), (SELECT min(xact_start) FROM pg_stat_activity WHERE datname = current_database()
    AND pid <> pg_backend_pid())) AS at
"""


@contextmanager
def _snapshot(link: Link) -> Iterator[tuple[str, LedgerBoundary]]:
    """A snapshot that a dump can be made of while this lasts, and what it shows."""
    at = _one(link, _EARLIEST)["at"]
    with link.transaction():
        link.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        link.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        row = _one(link, _BOUNDARY)
        exported = row.pop("exported")
        yield exported, LedgerBoundary(at=_utc(at), **{name: _utc(value) for name, value in row.items()})


def _migrations(link: Link) -> list[str]:
    rows = link.execute("SELECT migration_id FROM public._yoyo_migration ORDER BY migration_id").fetchall()
    return [row["migration_id"] for row in rows]


def _memory(link: Link, source: Source, say: Say) -> MemoryPart:
    if source.memory_elsewhere:
        say("the memory (ACTONCE_MEMORY_DSN) is in another database: it is NOT in this backup, dump it as well")
        return MemoryPart(where="elsewhere")
    if not _one(link, "SELECT to_regclass('actonce_memory.item') IS NOT NULL AS there")["there"]:
        return MemoryPart(where="none")
    row = _one(
        link,
        "SELECT (SELECT memory_id FROM actonce_memory.identity) AS id, (SELECT count(*) FROM actonce_memory.item) AS n",
    )
    return MemoryPart(where="ledger", memory_id=str(row["id"]), items=row["n"])


def _audit(source: Source, target: Path, boundary: LedgerBoundary, say: Say) -> AuditPart | None:
    if source.audit is None:
        return None
    say(f"copying audit events up to {boundary.audit_seq} …")
    try:
        copied = copy_events(source.audit, target / AUDIT, boundary.audit_seq)
    except (AuditDamaged, OSError) as error:
        raise BackupError(
            f"the audit files cannot be copied: {error}. See docs/operations/audit_gap.md; there is no backup."
        ) from error
    return AuditPart(files=[str(path.relative_to(target)) for path in copied], upto=boundary.audit_seq)


def _skew(temporal: TemporalPart, boundary: LedgerBoundary) -> Skew | None:
    if temporal.begun_at is None or temporal.ended_at is None:
        return None
    least, most = boundary.snapshot_at - temporal.ended_at, boundary.snapshot_at - temporal.begun_at
    return Skew(at_least_s=least.total_seconds(), at_most_s=most.total_seconds())


def _now(link: Link) -> datetime:
    found: datetime = _utc(_one(link, "SELECT clock_timestamp() AS now")["now"])
    return found


def _one(link: Link, query: str) -> dict[str, Any]:
    row = link.execute(query).fetchone()  # constants of this module
    assert row is not None, "these statements always have a row"
    return dict(row)


def _utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value
