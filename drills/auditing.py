"""What the drill `audit-full` puts beside a cell, and what its witness reads there.

A log destination on a small file system of its own (or, where none may be mounted, a folder whose file is `/dev/full`),
a collector behind a proxy, a ledger whose tables lie on a small file system. The witness reads the log destination
itself, line by line, and the ledger's audit rows past every proxy; it shares no code with the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from actonce.testing import witness
from actonce.testing.collector import Collector
from actonce.testing.disk import CannotMount, Disk, full_device_as
from actonce.testing.export import utc
from actonce.testing.site import Invalid
from actonce.testing.waiting import eventually
from drills import doors
from drills.rig import ROOT, Cell

SINK_BYTES = 1 << 20
LEDGER_BYTES = 24 << 20  # a copy of the empty ledger takes about 9 MB
Place = Callable[[str | None, str | None], str | None]  # operation_id, task_id → cell
COLLECTOR_ASKED = (  # what the witness says to a collector
    b"POST /v1/logs HTTP/1.1\r\nHost: collector\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
    b'{"resourceLogs": []}'
)
FIRST_FILE = "audit-000000000001.jsonl"
# Seconds. Everything that pages after a while does so soon enough to be seen; a real deployment waits longer.
SOON = {
    "ACTONCE_AUDIT_LAG_WARN_S": "1",
    "ACTONCE_AUDIT_LAG_PAGE_S": "3",
    "ACTONCE_AUDIT_RETRY_MAX_S": "0.5",
    "ACTONCE_AUDIT_DEADLINE_S": "1",
    "ACTONCE_PROBE_EVERY_S": "2",
}


class LogFolder:
    """A sink's folder that can be filled: `used` says by what."""

    def __init__(self, folder: Path, disk: Disk | None) -> None:
        self.folder = folder
        self.disk = disk
        self.used = "tmpfs" if disk is not None else "/dev/full"

    def fill(self) -> dict[str, Any]:
        """Leave no room, and have the witness try for itself. The fallback is full from the start."""
        if self.disk is not None:
            self.disk.fill()
            return {**witness.write(self.folder / "witness"), "used": self.used}
        return {**witness.write(self.folder / FIRST_FILE), "used": self.used}

    def free(self) -> None:
        """Make room again, past everybody."""
        if self.disk is not None:
            self.disk.free()
        else:
            (self.folder / FIRST_FILE).unlink()

    def lines(self) -> list[str]:
        """Every whole line of every file, in the order of names and lines."""
        found: list[str] = []
        for path in sorted(self.folder.glob("audit-*.jsonl")):
            if not path.is_symlink():
                found += [line for line in path.read_text("utf-8").split("\n")[:-1] if line]
        return found


@contextlib.asynccontextmanager
async def log_folder(cell: Cell) -> AsyncIterator[dict[str, str]]:
    """`cell.extras["log"]`: a LogFolder, and the setting that makes it the sink."""
    disk: Disk | None = None
    folder = cell.folder / "log" / "audit"
    try:
        disk = Disk.mount(SINK_BYTES)
        folder = disk.path / "audit"
        folder.mkdir()
    except CannotMount as error:
        cell.run.writer.append("drill", "note", cell.name, text=f"/dev/full instead of a disk: {error}")
        full_device_as(folder / FIRST_FILE)
    cell.extras["log"] = LogFolder(folder, disk)
    try:
        yield {**SOON, "ACTONCE_AUDIT_SINKS": f"file://{folder}"}
    finally:
        if disk is not None:
            disk.close()


@contextlib.asynccontextmanager
async def collector(cell: Cell) -> AsyncIterator[dict[str, str]]:
    """`cell.extras["collector"]`: a Collector, behind the proxy `collector` of the cell."""
    async with Collector() as running:
        proxy = await cell.add_proxy("collector", running.host, running.port)
        cell.extras["collector"] = running
        yield {**SOON, "ACTONCE_AUDIT_SINKS": f"otlp+http://{proxy.host}:{proxy.port}/v1/logs"}


@contextlib.asynccontextmanager
async def ledger_disk(cell: Cell) -> AsyncIterator[dict[str, str]]:
    """`cell.extras["disk"]`: the Disk on which the cell's ledger lies. Raises Invalid where none may be mounted."""
    owner = (cell.run.stack.folder / "postgres").stat()
    try:
        disk = Disk.mount(LEDGER_BYTES, (owner.st_uid, owner.st_gid))
    except CannotMount as error:
        raise Invalid(f"{cell.name}: a ledger cannot be filled here: {error}") from error
    name = sql.Identifier(f"disk_{cell.database}")
    database = sql.Identifier(cell.database)
    try:
        async with await psycopg.AsyncConnection.connect(cell.run.stack.ledger_dsn, autocommit=True) as link:
            try:
                await link.execute(sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(name, str(disk.path)))
                await link.execute(sql.SQL("ALTER DATABASE {} SET TABLESPACE {}").format(database, name))
                cell.extras["disk"] = disk
                yield dict(SOON)
            finally:
                disk.free()
                await link.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))
                await link.execute(sql.SQL("DROP TABLESPACE IF EXISTS {}").format(name))
    finally:
        disk.close()  # whatever becomes of the database on it


async def fill_ledger(cell: Cell) -> dict[str, Any]:
    """Leave the cell's ledger no room, and have the witness try for itself."""
    disk: Disk = cell.extras["disk"]
    async with await psycopg.AsyncConnection.connect(cell.run.stack.ledger_dsn, autocommit=True) as link:
        # A fresh copy of a database may have holes; a checkpoint that cannot fill them fails for the whole server.
        await link.execute("CHECKPOINT")
    disk.fill()
    return {**witness.write(disk.path / "witness"), "used": "tmpfs"}


async def events(cell: Cell) -> list[dict[str, Any]]:
    """The ledger's audit rows, in order."""
    return await cell.ledger.rows("audit")


async def caught_up(cell: Cell, within_s: float) -> None:
    """Wait until everything is sealed and the cursor is at the end of the chain, by the ledger's own word."""

    async def check() -> bool:
        rows, cursors = await events(cell), await cell.ledger.rows("audit_cursor")
        last = max((row["seq"] or 0 for row in rows), default=0)
        return all(row["seq"] for row in rows) and bool(cursors) and all(c["seq"] == last for c in cursors)

    await eventually(check, within_s=within_s, what=f"{cell.name}: every audit event shipped", every_s=0.3)


async def export(cell: Cell, destination: str, copy: Callable[[], list[str]], within_s: float) -> None:
    """Put the ledger's events on record, and what the witness reads at the destination once these were shipped."""
    rows = await events(cell)
    last = max((row["seq"] or 0 for row in rows), default=0)

    async def confirmed() -> bool:
        return all(cursor["seq"] >= last for cursor in await cell.ledger.rows("audit_cursor"))

    await eventually(confirmed, within_s=within_s, what=f"{cell.name}: seq {last} shipped", every_s=0.3)
    record_events(cell, rows)
    for text in copy():
        if seq_of(text) <= last:  # what came since is not in `rows`
            cell.run.writer.append("witness", "audit_copy", cell.name, destination=destination, text=text)


def seq_of(text: str) -> int:
    """Of an event's line; 0 of what is none."""
    try:
        return int(json.loads(text)["seq"])
    except (ValueError, KeyError, TypeError):
        return 0  # no event: the judge is to see it


def record_events(cell: Cell, rows: list[dict[str, Any]], place: Place | None = None) -> None:
    """The ledger's own audit rows. `place`: the cell of a row, where cells share a ledger; its None leaves it out."""
    for row in rows:
        where = cell.name if place is None else place(row["operation_id"], row["task_id"])
        if where is None:
            continue
        cell.run.writer.append(
            "caller",
            "audit_event",
            where,
            event=row["kind"],
            event_seq=row["seq"],
            hash=row["hash"],
            written_at=utc(row["at"]),
            operation_id=row["operation_id"],
            state=row["body"].get("state") if row["kind"].startswith("operation.") else None,
        )


async def verify(cell: Cell, folder: Path | None, within_s: float = 60.0) -> tuple[int, str]:
    """`actonce audit verify`, in a process of its own. Returns its exit status and what it said."""
    dsn = cell.run.parts.dsn(cell.database)
    command = ["-m", "actonce.cli", "audit", "verify", "--dsn", dsn, *(["--sink", str(folder)] if folder else [])]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command),
        cwd=ROOT,
        env=cell.run.env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), within_s)
    return int(process.returncode or 0), said.decode(errors="replace").replace(dsn, "DSN")


async def repair(cell: Cell, reason: str, volume: Path) -> dict[str, Any]:
    """A fresh process is given the newest page with this reason and the volumes of the host, and follows it."""
    pages = [p for p in cell.run.sink.of(cell.channel) if p.body.get("message") and f"{reason}.md" in p.text]
    if not pages:
        raise Invalid(f"{cell.name}: no page names {reason}.md, so nobody is called")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "drills.repairs"),
        cwd=ROOT,
        env={**cell.run.env, **doors.shell_of(cell), "VOLUMES": str(volume)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    given = json.dumps({"title": pages[-1].title, "text": pages[-1].text})
    out, err = await asyncio.wait_for(process.communicate(given.encode()), 60)
    lines = out.decode().splitlines()
    done: dict[str, Any] = json.loads(lines[-1]) if lines else {"lost": err.decode(errors="replace")[-400:]}
    return done
