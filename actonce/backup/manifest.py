"""The manifest of a backup: its boundaries, versions and files with their checksums.

Promises: written last and atomically, after every file that it names is on disk; `verify_files` reads every byte before
anybody acts on the backup. Its form is `manifest.schema.json` beside this module.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

FORM = 1
MANIFEST = "manifest.json"
SCHEMA = Path(__file__).with_name("manifest.schema.json")
Say = Callable[[str], None]


class BackupError(Exception):
    """It cannot be backed up or restored like this; the message says why and what to do."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class File(_Model):
    path: str = Field(description="relative to the manifest")
    size: int
    sha256: str


class LedgerBoundary(_Model):
    """The moment that the ledger's dump shows. One snapshot."""

    at: datetime = Field(description="ledger time; whatever is not in the backup was written at this time or later")
    snapshot_at: datetime = Field(description="ledger time at which the snapshot had been taken")
    snapshot: str = Field(description="PostgreSQL's transaction snapshot (pg_current_snapshot)")
    lsn: str = Field(description="position in the write-ahead log when the snapshot had been taken")
    audit_seq: int = Field(description="highest number of a sealed audit event, 0: none")
    audit_hash: str = Field(description="its hash; empty: none")
    audit_id: int = Field(description="highest audit_id, also of events that are not sealed; 0: none")
    operations: int
    last_operation_at: datetime | None = Field(description="creation of the newest operation")
    tasks: int
    last_task_at: datetime | None


class LedgerPart(_Model):
    file: str = Field(description="pg_dump, custom format, of the whole database")
    boundary: LedgerBoundary
    deployment: str
    ledger_id: str
    restore_epoch: int
    quarantined: bool
    server_version: int = Field(description="server_version_num of the PostgreSQL that was dumped")
    migrations: list[str] = Field(description="applied, of ledger and memory")


class TemporalPart(_Model):
    """Either the embedded server's file, or the address of a server whose backup is somebody else's business."""

    file: str | None
    elsewhere: str | None = None
    version: str | None = None
    begun_at: datetime | None = Field(default=None, description="ledger time just before it was copied")
    ended_at: datetime | None = Field(default=None, description="ledger time just after")
    workflows: int | None = None


class MemoryPart(_Model):
    where: Literal["ledger", "elsewhere", "none"] = Field(description="`ledger`: in the ledger's dump, same snapshot")
    memory_id: str | None = None
    items: int | None = None


class AuditPart(_Model):
    """The shipped events up to the ledger's last sealed one."""

    files: list[str]
    upto: int = Field(description="no event beyond this number is in the files")


class Skew(_Model):
    """How much older Temporal's history is than the ledger, by the ledger's clock: between these two, in seconds."""

    at_least_s: float
    at_most_s: float


class Manifest(_Model):
    form: int = FORM
    backup_id: str
    release: str
    order: list[str] = Field(description="in which the parts were read")
    ledger: LedgerPart
    memory: MemoryPart
    temporal: TemporalPart
    audit: AuditPart | None = Field(description="null: no folder of audit files belongs to this stack")
    history_older_by: Skew | None = Field(description="null: Temporal is not in this backup")
    run_id: str | None = Field(description="of the stack; task queues are named after it")
    left_out: list[str] = Field(description="what the stack's folder holds and the backup does not")
    files: list[File]


def digest_of(path: Path) -> tuple[int, str]:
    """(size in bytes, SHA-256) of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()


def listed(folder: Path, paths: list[Path]) -> list[File]:
    """Entries for files of the backup in `folder`, each put onto the disk first."""
    found = []
    for path in paths:
        sync(path)
        size, digest = digest_of(path)
        found.append(File(path=str(path.relative_to(folder)), size=size, sha256=digest))
    return found


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """The last act of a backup: from here on the folder is one."""
    path, fresh = folder / MANIFEST, folder / f".{MANIFEST}"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(manifest.model_dump_json(indent=1) + "\n")
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(path)
    sync(folder)
    return path


def read_manifest(path: Path) -> tuple[Manifest, str]:
    """The manifest and its own SHA-256. `path`: the file, or the backup's folder. Raises BackupError."""
    file = path / MANIFEST if path.is_dir() else path
    try:
        raw = file.read_bytes()
    except FileNotFoundError as error:
        raise BackupError(
            f"{file} is not there: a folder without a manifest is no backup (it broke off, or is not whole yet). "
            "Take another one; nothing was changed."
        ) from error
    except OSError as error:
        raise BackupError(f"{file} cannot be read: {error.strerror or error}. Nothing was changed.") from error
    try:
        form = json.loads(raw).get("form")
        if form != FORM:
            raise BackupError(f"{file} has form {form!r}, this release reads form {FORM}: restore it with its release.")
        return Manifest.model_validate_json(raw), hashlib.sha256(raw).hexdigest()
    except (ValidationError, ValueError, AttributeError) as error:
        raise BackupError(
            f"{file} is damaged and cannot be trusted: {str(error)[:300]}. Use another backup."
        ) from error


def verify_files(folder: Path, manifest: Manifest, say: Say) -> None:
    """Every file is there and is what was written. Raises BackupError that names each one that is not."""
    wrong = []
    for entry in manifest.files:
        path = folder / entry.path
        say(f"verifying {entry.path} ({entry.size:,} bytes) …")
        if not path.resolve().is_relative_to(folder.resolve()):
            wrong.append(f"{entry.path} leads out of the backup's folder")
        elif not path.is_file():
            wrong.append(f"{entry.path} is missing")
        elif (found := digest_of(path)) != (entry.size, entry.sha256):
            wrong.append(f"{entry.path} has {found[0]} bytes and SHA-256 {found[1][:12]}…, not {entry.sha256[:12]}…")
    named = {entry.path for entry in manifest.files}
    parts = {manifest.ledger.file, manifest.temporal.file, *(manifest.audit.files if manifest.audit else ())} - {None}
    wrong += [f"{name} has no checksum" for name in sorted(str(part) for part in parts - named)]
    if wrong:
        raise BackupError(f"backup {manifest.backup_id} is damaged: {'; '.join(wrong)}. Nothing was changed.")


def sync(path: Path) -> None:
    """Onto the disk: a file, or the names in a folder."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
