"""The mark kept outside the backup: which permits were given, written before their first byte leaves (rule R14).

A folder of JSON lines, one file for each process, appended and synced in groups. After its permit has committed and
before it sends, an owner waits until the line of that permit is durable; a line that cannot be written ends the attempt
as provably not sent. So every line names a permit that the ledger had committed: a ledger that does not know one of the
present or a later epoch was restored, whoever did it, and enters quarantine (`notice_restore`).

The folder must not be part of the backup, nor be restored with it. Without one a restore by hand goes unnoticed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from actonce.contracts.errors import LedgerUnavailable, NotSent
from actonce.ledger.permits import Permit
from actonce.ledger.restoring import Boundary, Restore, enter_quarantine
from actonce.ledger.store import Connection, many, one

_BLOCK = 1 << 16  # bytes read at a time, from the end of a file
_ASKED = 500  # lines that the ledger is asked about at a time
SUFFIX = ".permits.jsonl"
_WORDS = ("nonce", "tenant", "destination", "action", "operation_id", "task_id")


class Journal:
    """The file of one process. `permitted` may be called by many at once; they share a sync."""

    def __init__(self, folder: Path, ledger_id: str, name: str) -> None:
        """Raises OSError where the folder cannot be written to: a journal that was asked for must be there."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{name}{SUFFIX}"
        self._ledger_id = ledger_id
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        _sync_folder(folder)
        self._torn = False  # the last write ended in the middle of a line
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def permitted(self, permit: Permit) -> None:
        """Return when the permit's line is durable. Raises NotSent when it is not: nothing may be sent under it."""
        operation = permit.operation
        line = {
            "ledger_id": self._ledger_id,
            "epoch": permit.epoch,
            "attempt": permit.attempt,
            "nonce": str(permit.nonce),
            "tenant": operation.tenant,
            "destination": operation.destination,
            "action": operation.action,
            "operation_id": operation.operation_id,
            "task_id": operation.task_id,
            "digest": operation.payload_digest,
            "issued_at": permit.issued_at.isoformat(),
            "not_after": permit.not_after.isoformat(),
        }
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((json.dumps(line, sort_keys=True).encode() + b"\n", written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        try:
            async with asyncio.timeout(permit.life_s):
                await written
        except OSError as error:  # a TimeoutError is one, too
            raise NotSent(
                f"{operation.operation_id}: the journal {self.path} could not be written ({error!r}); nothing was "
                "sent; make room or repair the folder of ACTONCE_JOURNAL"
            ) from error

    async def _write(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._append, b"".join(line for line, _ in group))
            except OSError as error:
                failure: OSError | None = error
            else:
                failure = None
            for _, written in group:
                if written.done():
                    continue  # whoever waited was cancelled
                if failure is None:
                    written.set_result(None)
                else:
                    written.set_exception(failure)

    def _append(self, data: bytes) -> None:
        # A short write leaves half a line, which the next one ends; whoever reads leaves it out.
        if os.write(self._fd, b"\n" + data if self._torn else data) < len(data):
            self._torn = True
            raise OSError("it took a part of a line only")
        self._torn = False
        os.fsync(self._fd)

    async def close(self) -> None:
        """Nothing is permitted any more."""
        if self._writing is not None:
            await self._writing
        os.close(self._fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@dataclass(frozen=True)
class _Line:
    epoch: int
    nonce: str
    issued_at: datetime
    not_after: datetime
    tenant: str
    destination: str
    action: str
    operation_id: str
    task_id: str


def _newest_first(path: Path, ledger_id: str) -> Iterator[_Line]:
    """The permits of this ledger in one file, from its end. What is no whole line is left out."""
    with path.open("rb") as file:
        at, rest = file.seek(0, os.SEEK_END), b""
        while at > 0:
            size = min(_BLOCK, at)
            at -= size
            file.seek(at)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            for text in reversed(lines):
                if (line := _parsed(text, ledger_id)) is not None:
                    yield line
        if (line := _parsed(rest, ledger_id)) is not None:
            yield line


def _parsed(text: bytes, ledger_id: str) -> _Line | None:
    try:
        told: dict[str, Any] = json.loads(text)
        if told["ledger_id"] != ledger_id:
            return None
        issued_at, not_after = (datetime.fromisoformat(told[name]) for name in ("issued_at", "not_after"))
        nonce, tenant, destination, action, operation_id, task_id = (str(told[name]) for name in _WORDS)
        return _Line(
            int(told["epoch"]), nonce, issued_at, not_after, tenant, destination, action, operation_id, task_id
        )
    except (ValueError, KeyError, TypeError):
        return None  # a torn write; its owner was told that it failed, and sent nothing


async def notice_restore(dsn: str, folder: Path) -> Restore | None:
    """Enter quarantine if the ledger does not know a permit that the journal has. None: it knows them all.

    What a restore that is not closed has lost is put on record with it, so that what is gone can be named.
    Reads each file from its end, down to the first lines that the ledger knows. Raises LedgerUnavailable.
    """
    if not folder.is_dir():
        return None
    try:
        async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row, connect_timeout=5) as connection:
            # Locked: of several that look at once the first enters, and the others see its epoch.
            identity = await one(
                connection, "SELECT ledger_id::text, restore_epoch, open_restore FROM actonce.identity FOR UPDATE"
            )
            if identity is None:
                return None
            epoch, open_epoch = identity["restore_epoch"], identity["open_restore"]
            since = epoch if open_epoch is None else open_epoch - 1
            missing: list[_Line] = []
            for path in sorted(folder.glob(f"*{SUFFIX}")):
                missing += await _unknown(connection, path, identity["ledger_id"], since)
            news = [line for line in missing if line.epoch >= epoch]
            if news:
                restore = await enter_quarantine(connection, await _boundary(connection, news), noticed=True)
                await _name(connection, restore.epoch, missing)
                return restore
            await _name(connection, open_epoch, missing)
            return None
    except psycopg.OperationalError as error:
        raise LedgerUnavailable(f"the ledger could not be compared with the journal: {error}") from error


async def _unknown(connection: Connection, path: Path, ledger_id: str, epoch: int) -> list[_Line]:
    """The permits of one file that the ledger does not have. Those of an epoch that a restore ended are explained."""
    missing: list[_Line] = []
    asked: list[_Line] = []

    async def ask() -> bool:
        rows = await many(
            connection,
            "SELECT nonce::text FROM actonce.attempt WHERE nonce = ANY(%s::uuid[])",
            ([a.nonce for a in asked],),
        )
        known = {row["nonce"] for row in rows}
        missing.extend(line for line in asked if line.nonce not in known)
        asked.clear()
        return bool(known)

    for line in _newest_first(path, ledger_id):
        if line.epoch < epoch:
            break
        asked.append(line)
        if len(asked) == _ASKED and await ask():
            return missing  # it knows some of these, so it knows what is older
    if asked:
        await ask()
    return missing


async def _name(connection: Connection, epoch: int, lost: list[_Line]) -> None:
    """Put the permits that a restore lost on record with it."""
    for line in lost:
        await connection.execute(
            "INSERT INTO actonce.restore_permitted (epoch, tenant, destination, action, operation_id, task_id,"
            " not_after) VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (epoch, line.tenant, line.destination, line.action, line.operation_id, line.task_id, line.not_after),
        )


async def _boundary(connection: Connection, missing: list[_Line]) -> Boundary:
    """At the latest when the first permit that it does not know was given, or when it last wrote anything."""
    row = await one(connection, "SELECT max(at) AS at FROM actonce.audit")
    first = min(line.issued_at for line in missing)
    last = row["at"] if row is not None and row["at"] is not None else first
    return Boundary(
        at=min(first, last),
        detail={"noticed": f"the journal names {len(missing)} permits that the ledger does not know"},
        highest={"restore_epoch": max(line.epoch for line in missing)},
    )


__all__ = ["Journal", "notice_restore"]
