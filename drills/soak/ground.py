"""What a soak's deployment has beside the parts of every cell: leased credentials, and two copies of its audit trail.

Contract: for `CellSpec.attach`. One copy is a folder on a small file system of its own, which outlives this process so
that a resumed soak goes on with it; the other is kept by a collector behind a proxy, which writes what it is given to a
file and holds nothing. `count_copies` reads both line by line, past the system, against the ledger's sealed events, and
puts the counts on record for the whole run. `writable` makes the ledger refuse every write, as a server does that a
failover left behind, and takes that back.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from actonce.evidence.checks_audit import COUNTED, CopyCount
from actonce.testing.collector import Collector
from actonce.testing.disk import Disk
from actonce.testing.export import READER
from actonce.testing.waiting import eventually
from drills import auditing, leasing
from drills.rig import Cell
from drills.soak.state import SoakState

LOG_BYTES = 256 << 20  # an hour takes less than a third of it; only what is used is taken from memory
LEASE_S = 15.0  # of the write's credential: renewed at half of it, also on a busy machine
TICK_S = 3.0  # each asks the manager about every lease, and each question is a line of its journal
SETTINGS = {
    "ACTONCE_AUDIT_LAG_WARN_S": "2",
    "ACTONCE_AUDIT_LAG_PAGE_S": "4",
    "ACTONCE_AUDIT_RETRY_MAX_S": "0.5",
    "ACTONCE_AUDIT_DEADLINE_S": "1",
    "ACTONCE_PROBE_EVERY_S": "2",
}
CAUGHT_UP_S = 120.0
COLLECTED = "collected.jsonl"
VERIFY_S = 900.0  # every fact against its event and both against the chain, for all of a long run


class FileCollector(Collector):
    """A collector that keeps its lines in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def keep(self, texts: list[str]) -> None:
        self._file.writelines(f"{text}\n" for text in texts)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def ground(state: SoakState) -> Callable[[Cell], AbstractAsyncContextManager[dict[str, str]]]:
    """See the module."""

    @contextlib.asynccontextmanager
    async def attach(cell: Cell) -> AsyncIterator[dict[str, str]]:
        await writable(cell, now=True)  # an earlier life may have ended while it was not
        async with (
            leasing.leased(tick_s=TICK_S, searched=False, life_s=LEASE_S)(cell) as credentials,
            _collector(cell) as collected,
        ):
            with _log(cell, state) as logged:
                yield {**credentials, **SETTINGS, "ACTONCE_AUDIT_SINKS": ",".join([*logged, collected])}

    return attach


@contextlib.asynccontextmanager
async def _collector(cell: Cell) -> AsyncIterator[str]:
    """`cell.extras["collector"]`, and the sink that is it."""
    collector = FileCollector(cell.folder / COLLECTED)
    try:
        async with collector as running:
            proxy = await cell.add_proxy("collector", running.host, running.port)
            cell.extras["collector"] = running
            yield f"otlp+http://{proxy.host}:{proxy.port}/v1/logs"
    finally:
        collector.close()


@contextlib.contextmanager
def _log(cell: Cell, state: SoakState) -> Iterator[list[str]]:
    """`cell.extras["log"]`, and the sink that is it; nothing where no file system may be mounted."""
    if "audit:full" not in state.kinds:
        yield []
        return
    if state.log_disk is None or not state.log_disk.is_mount():
        state.log_disk = Disk.mount(LOG_BYTES).path
    disk = Disk(state.log_disk, LOG_BYTES)
    disk.free()
    folder = disk.path / "audit"
    folder.mkdir(exist_ok=True)
    cell.extras["log"] = auditing.LogFolder(folder, disk)
    yield [f"file://{folder}"]


def put_away(state: SoakState) -> None:
    """No other life will go on with the file system."""
    if state.log_disk is not None and state.log_disk.is_mount():
        Disk(state.log_disk, LOG_BYTES).close()


async def writable(cell: Cell, *, now: bool) -> None:
    """Whether the cell's ledger takes writes."""
    await take_writes(cell.run.stack.ledger_dsn, cell.database, allowed=now)


async def take_writes(server_dsn: str, database: str, *, allowed: bool) -> None:
    """Whether a database takes writes. Whoever is connected, but for evidence's reader, must connect again."""
    change = sql.SQL("RESET default_transaction_read_only" if allowed else "SET default_transaction_read_only = on")
    async with await psycopg.AsyncConnection.connect(server_dsn, autocommit=True) as link:
        await link.execute(sql.SQL("ALTER DATABASE {} ").format(sql.Identifier(database)) + change)
        await link.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name <> %s",
            (database, READER),
        )


async def try_to_write(dsn: str) -> dict[str, Any]:
    """The witness's own row in that ledger. Returns {sqlstate, error}."""
    try:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:
            await link.execute("INSERT INTO actonce.write_probe VALUES (clock_timestamp())")
    except psycopg.Error as error:
        return {"sqlstate": error.sqlstate, "error": str(error)[:200]}
    return {"sqlstate": None, "error": None}


def sinks(cell: Cell) -> list[str]:
    """Where this life's processes ship to."""
    return cell.env["ACTONCE_AUDIT_SINKS"].split(",")


# the copies ---------------------------------------------------------------------------------------------------------


async def caught_up(cell: Cell) -> int:
    """Wait until every event is sealed and every sink of this life is at the end. Returns the last seq."""
    names = {url.replace("file://", "file:").replace("otlp+", "otlp:") for url in sinks(cell)}

    async def check() -> int | None:
        (end,) = await cell.ledger.rows("audit_end")
        cursors = [c for c in await cell.ledger.rows("audit_cursor") if c["sink"] in names]
        shipped = len(cursors) == len(names) and all(cursor["seq"] == end["last"] for cursor in cursors)
        return int(end["last"]) if shipped and not end["unsealed"] else None

    last: int = await eventually(check, within_s=CAUGHT_UP_S, what=f"{cell.name}: every event shipped", every_s=0.5)
    return last


async def count_copies(cell: Cell) -> None:
    """The ledger's events of effects, and what the witness counted of each copy, for the whole run."""
    last = await caught_up(cell)
    sealed = {row["seq"]: row["hash"] for row in await cell.ledger.rows("audit_sealed") if row["seq"] <= last}
    lives = sorted((cell.run.folder / "cells").glob(f"{cell.number}-*/{COLLECTED}"))
    copies: dict[str, list[Path]] = {"collector": lives}
    if log := cell.extras.get("log"):
        copies[f"folder on {log.used}"] = sorted(log.folder.glob("audit-*.jsonl"))
    for destination, paths in copies.items():
        count = CopyCount(destination)
        for path in paths:
            with path.open(encoding="utf-8") as file:
                whole = (line[:-1] for line in file if line.endswith("\n"))  # a life may have ended in a line
                count.read(line for line in whole if auditing.seq_of(line) <= last)
        facts = count.facts(sealed)
        cell.run.writer.append("witness", "observation", None, name=COUNTED, target=destination, facts=facts)
    auditing.record_events(cell, await cell.ledger.rows("audit_of_effects"), cell.run.place)
