"""Is the audit trail whole? The ledger's chain, its facts, and the copies that were shipped (`actonce audit verify`).

Reads only, each part in one snapshot, and trusts no stored hash: every one is computed again. The sink is measured
before the ledger's snapshot is taken, so that everything in the sink must be in the snapshot. Costs one pass over the
audit table and over the sink. It cannot notice what was taken from the ledger *and* from every sink together; compare
the end that it prints with one that you kept elsewhere (`anchor`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from actonce.audit.files import file_name, files_of, read_folder
from actonce.contracts.audit import AuditDamaged, End, Finding, Sealed, Walk, genesis, parse, seal
from actonce.ledger.audit_chain import CHAIN_OF, COLUMNS, event_of
from actonce.ledger.audit_facts import check_facts

FINDINGS_MAX = 1000  # then it is broken everywhere, and the first ones tell how
Connection = AsyncConnection[DictRow]


class Unreadable(Exception):
    """The ledger or the folder could not be read to its end."""


@dataclass
class Report:
    """What was looked at and what was found. Whole if `findings` is empty."""

    end: End = field(default_factory=lambda: End(0, ""))
    sealed: int = 0
    unsealed: int = 0
    shipped: int = 0  # events in the folder
    restored: list[tuple[int, int]] = field(default_factory=list)  # (last before, first after) of each restore
    findings: list[Finding] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.findings

    def add(self, *findings: Finding) -> None:
        self.findings.extend(findings[: FINDINGS_MAX - len(self.findings)])


async def verify(dsn: str, folder: Path | None = None, *, folder_from: int = 1, anchor: End | None = None) -> Report:
    """Verify the ledger at `dsn`, and the copy in `folder` from event `folder_from` on.

    `anchor`: an end that was noted earlier; the chain must contain it. Raises Unreadable for what cannot be read: that
    is no finding and no proof.
    """
    try:
        return await _verify(dsn, folder.absolute() if folder is not None else None, folder_from, anchor)
    except (psycopg.Error, OSError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


async def _verify(dsn: str, folder: Path | None, folder_from: int, anchor: End | None) -> Report:
    report = Report()
    async with await AsyncConnection.connect(dsn, row_factory=dict_row, connect_timeout=10) as connection:
        # In this order, while work goes on: what was confirmed is in the folder, and what is there is in the snapshot.
        confirmed = await _confirmed(connection, folder) if folder is not None else None
        sizes = {path: path.stat().st_size for path in files_of(folder)} if folder is not None else {}
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute("SET LOCAL timezone TO 'UTC'")
        await _chain(connection, report, anchor)
        if folder is not None:
            if confirmed is None:
                words = f"nothing was ever shipped to file:{folder} by this ledger: nothing tells how far it must reach"
                report.add(Finding("sink_unknown", words))
            await _folder(connection, report, folder, sizes, folder_from, confirmed or 0)
        async for finding in check_facts(connection):
            report.add(finding)
    return report


async def _chain(connection: Connection, report: Report, anchor: End | None) -> None:
    """Every sealed event follows the one before it and has the hash of its own content."""
    identity = await (await connection.execute(f"SELECT {CHAIN_OF} FROM actonce.identity")).fetchone()
    assert identity is not None, "actonce.identity is empty"
    jumps = await connection.execute(
        "SELECT (body ->> 'audit_from')::bigint AS seq FROM actonce.audit WHERE kind = 'ledger.epoch'"
        " AND body ? 'audit_from'"
    )
    walk = Walk(End(0, genesis(str(identity["chain_of"]))), frozenset(row["seq"] for row in await jumps.fetchall()))
    async for told, event in _sealed(connection):
        report.sealed += 1
        report.add(*walk.step(event))
        if told != event.hash:
            words = f"its content has hash {event.hash[:12]}…, sealed was {told[:12]}…: it was changed"
            report.add(Finding("altered", words, event.seq))
            walk.end = End(event.seq, told)  # one finding for one change, not one for each event after it
        if anchor is not None and event.seq == anchor.seq and told != anchor.hash:
            report.add(Finding("anchor_differs", f"it has hash {told}, noted was {anchor.hash}", anchor.seq))
    report.end, report.restored = walk.end, walk.jumped
    if anchor is not None and anchor.seq > walk.end.seq:
        report.add(Finding("truncated", f"the chain ends at {walk.end.seq}, noted was {anchor.seq}", anchor.seq))
    row = await (
        await connection.execute(
            "SELECT (SELECT count(*) FROM actonce.audit WHERE seq IS NULL) AS unsealed, sink, seq FROM"
            " (SELECT 1) AS always LEFT JOIN actonce.audit_cursor ON true ORDER BY seq DESC NULLS LAST LIMIT 1"
        )
    ).fetchone()
    assert row is not None
    report.unsealed = row["unsealed"]
    if row["seq"] is not None and row["seq"] > walk.end.seq:
        words = f"the chain ends at {walk.end.seq}, {row['sink']} has confirmed {row['seq']}"
        report.add(Finding("truncated", words, row["seq"]))


async def _sealed(connection: Connection, after: int = 0) -> AsyncIterator[tuple[str, Sealed]]:
    """(stored hash, event as its content says), in order."""
    query: LiteralString = f"SELECT {COLUMNS}, seq, hash, previous_hash FROM actonce.audit WHERE seq > %s ORDER BY seq"
    async with connection.cursor("audit_chain") as cursor:
        cursor.itersize = 1000
        await cursor.execute(query, (after,))
        async for row in cursor:
            yield row["hash"] or "", seal(event_of(row), row["seq"], row["previous_hash"] or "")


async def _confirmed(connection: Connection, folder: Path) -> int | None:
    """Up to which event the folder has confirmed the chain, in a transaction of its own. By whatever path it is named:
    one that is reached through a link would else be whole however little is left in it."""
    rows = await (await connection.execute("SELECT sink, seq FROM actonce.audit_cursor")).fetchall()
    await connection.commit()
    shipped = {Path(row["sink"].removeprefix("file:")).resolve(): row["seq"] for row in _files_of(rows)}
    return shipped.get(folder.resolve())


def _files_of(cursors: list[DictRow]) -> list[DictRow]:
    """Those of folders, the one that is furthest last."""
    return sorted((row for row in cursors if row["sink"].startswith("file:")), key=lambda row: int(row["seq"]))


async def _folder(
    connection: Connection, report: Report, folder: Path, sizes: dict[Path, int], first: int, confirmed: int
) -> None:
    """The folder holds the ledger's events from `first` up to `confirmed`, in order and byte by byte."""
    copies = _lines(folder, sizes, report)
    copy = next(copies, None)
    missing: dict[int, Finding] = {}
    async for told, event in _sealed(connection, first - 1):
        while copy is not None and (copy.seq < event.seq or copy.seq > report.end.seq):
            await _out_of_turn(connection, report, copy, missing)
            copy = next(copies, None)
        if copy is None or copy.seq > event.seq:
            if event.seq <= confirmed and len(missing) < FINDINGS_MAX:
                missing[event.seq] = Finding("sink_missing", "confirmed as shipped, and not in the folder", event.seq)
            continue
        if (copy.hash, copy.line) != (told, event.line):
            report.add(Finding("sink_differs", f"it has hash {copy.hash[:12]}…, the ledger {told[:12]}…", event.seq))
        copy = next(copies, None)
    while copy is not None:
        await _out_of_turn(connection, report, copy, missing)
        copy = next(copies, None)
    report.add(*missing.values())


async def _out_of_turn(connection: Connection, report: Report, copy: Sealed, missing: dict[int, Finding]) -> None:
    """A line that is not the next one: again, late or foreign. The same event a second time is no harm."""
    row = await (await connection.execute("SELECT hash FROM actonce.audit WHERE seq = %s", (copy.seq,))).fetchone()
    if row is None:
        report.add(Finding("sink_foreign", "the ledger has no such event", copy.seq))
    elif row["hash"] != copy.hash:
        report.add(Finding("sink_differs", "another copy of it differs from the ledger", copy.seq))
    elif missing.pop(copy.seq, None) is not None:
        report.add(Finding("sink_out_of_order", "it comes after later events", copy.seq))


def _lines(folder: Path, sizes: dict[Path, int], report: Report) -> Iterator[Sealed]:
    """The folder's events, in the order of its files and lines; what is none is a finding."""
    for path, number, text, whole in read_folder(folder, sizes):
        where = f"{path.name} line {number}"
        if not whole:
            continue  # a write was under way when the folder was measured, or a crash left it: shipped again
        try:
            event = parse(text)
        except AuditDamaged as error:
            report.add(Finding("sink_damaged", f"{where}: {error}"))
            continue
        if number == 1 and path.name != file_name(event.seq):
            report.add(Finding("sink_misnamed", f"{path.name} begins with another event", event.seq))
        report.shipped += 1
        yield event


__all__ = ["Report", "Unreadable", "verify"]
