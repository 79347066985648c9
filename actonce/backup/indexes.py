"""Keys, triggers and indexes of ledger and memory: there, as the migrations declare them, valid, and answering.

What is declared is not kept in a second list: the migrations are applied to an empty database beside the one that is
looked at, and its catalog is what must be there. An index *answers* if a search that PostgreSQL sends through that
very index (shown by its plan) finds as many rows as the table holds; an index can exist, be valid and find nothing.

`rebuild` touches what is wrong and nothing else: each repair is one transaction that is undone unless the new index
then shows every row, so a kill at any point leaves what was there before, and running it again goes on. Writers of that
table wait meanwhile. Reads no rows' contents and changes none.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.rows import DictRow, dict_row

from actonce import migrating
from actonce.backup.databases import scratch_database
from actonce.backup.manifest import BackupError, Say
from actonce.memory.setting_up import set_up

Link = psycopg.Connection[DictRow]
Kind = Literal["index", "key", "trigger"]
TOLD_EVERY_S = 2.0
LOCK_WAIT_S = 60


@dataclass(frozen=True)
class Thing:
    """One index, key (constraint) or trigger of the catalog. `index`: whether rows can be looked up by it."""

    kind: Kind
    name: str  # schema.index, or table.constraint, table.trigger
    table: str
    definition: str  # the statement that makes it
    order: int  # in which they can be made: keys before what refers to them
    index: str | None = None  # of an index, and of the index behind a key
    unique: bool = False
    usable: bool = True  # valid, ready, live

    @property
    def guards(self) -> bool:
        """It protects rows; the others only find them."""
        return self.kind != "index" or self.unique


@dataclass(frozen=True)
class Finding:
    """What is wrong with one of them."""

    what: Literal["missing", "invalid", "differs", "incomplete", "not_used"]
    thing: Thing
    words: str

    def __str__(self) -> str:
        return f"{self.thing.kind} {self.thing.name}: {self.words}"


@dataclass(frozen=True)
class Report:
    looked_at: int
    answered: int  # rows were found through it, as many as there are
    findings: list[Finding]

    @property
    def missing(self) -> list[str]:
        """Names of indexes that do not serve, whatever the reason."""
        return sorted(f.thing.name for f in self.findings if not f.thing.guards)


def check(dsn: str, declared: dict[str, Thing] | None = None) -> Report:
    """Look at ledger and memory at `dsn`. `declared`: as `declared_at` said. Raises BackupError, psycopg.Error."""
    declared = declared_at(dsn) if declared is None else declared
    with connected(dsn) as link:
        there = catalog(link)
        findings = compare(declared, there)
        wrong = {finding.thing.name for finding in findings}
        answered = 0
        for thing in declared.values():
            if thing.index is None or thing.name in wrong:
                continue
            finding = answers(link, thing)
            answered += finding is None
            findings += [finding] if finding else []
        findings += _lost_memory(link)
    return Report(len(declared), answered, findings)


def rebuild(dsn: str, say: Say, *, only: Literal["guards", "all"] = "all") -> Report:
    """Make what is missing and build anew what does not serve. Returns what `check` says afterwards."""
    declared = declared_at(dsn)
    todo = [f for f in check(dsn, declared).findings if only == "all" or (f.thing.guards and f.what == "missing")]
    todo.sort(key=lambda finding: (finding.thing.order, finding.thing.name))
    for number, finding in enumerate(todo, 1):
        say(f"{number} of {len(todo)}: {finding}")
        with connected(dsn) as link, _progress(dsn, link.info.backend_pid, say):
            _repair(link, finding)
    return check(dsn, declared)


def connected(dsn: str) -> Link:
    """A connection on which the catalog's names are qualified: a schema that is named like the role is found first."""
    link = psycopg.connect(dsn, row_factory=dict_row, connect_timeout=10, autocommit=True)
    link.execute("SET search_path = ''")
    return link


# What must be there, and what is.


def declared_at(dsn: str) -> dict[str, Thing]:
    """What this release's migrations make, by name. The database at `dsn` must have all of them applied."""
    with connected(dsn) as link:
        _check_migrated(link)
        memory = None
        if _one(link, "SELECT to_regclass('actonce_memory.identity') IS NOT NULL AS there")["there"]:
            memory = link.execute("SELECT embedder, dimension FROM actonce_memory.identity").fetchone()
        vectors = _vector_schema(link)
    with scratch_database(dsn, "actonce_declared") as reference:
        migrating.apply(reference, "actonce.ledger")
        if memory is not None:
            if vectors is not None:  # names of the index's operators depend on where they were put
                with connected(reference) as link:
                    _run(link, f"CREATE EXTENSION vector SCHEMA {vectors}")
            set_up(reference, _Shape(memory["embedder"], memory["dimension"]))
        with connected(reference) as link:
            return catalog(link)


@dataclass(frozen=True)
class _Shape:
    """What `set_up` needs to know of an embedder. Nothing is embedded."""

    name: str
    dimension: int

    def embed(self, text: str) -> list[float]:
        raise NotImplementedError("the shape of a collection embeds nothing")


def _vector_schema(link: Link) -> str | None:
    row = link.execute(
        "SELECT extnamespace::regnamespace::text AS s FROM pg_extension WHERE extname = 'vector'"
    ).fetchone()
    return None if row is None else str(row["s"])


def _check_migrated(link: Link) -> None:
    if link.execute("SELECT to_regclass('public._yoyo_migration') AS t").fetchone() == {"t": None}:
        raise BackupError(f"{link.info.dbname} at {link.info.host} holds no ledger: fix the DSN.")
    applied = {
        row["migration_id"] for row in link.execute("SELECT migration_id FROM public._yoyo_migration").fetchall()
    }
    missing = sorted(shipped_migrations("actonce.ledger") - applied)
    if missing:
        raise BackupError(
            f"the ledger lacks the migrations {', '.join(missing)} of this release: start the entry service (or "
            "`actonce up`) once, which brings it up to date, then look again."
        )


def shipped_migrations(package: str) -> set[str]:
    folder = resources.files(package) / "migrations"
    return {entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql")}


_KEYS = """
SELECT conname AS name, conrelid::regclass::text AS on_table, pg_get_constraintdef(oid) AS what, contype::text AS type,
    conindid::regclass::text AS index FROM pg_constraint
WHERE connamespace::regnamespace::text IN ('actonce', 'actonce_memory') AND conrelid <> 0
    AND contype IN ('p', 'u', 'x', 'f', 'c')
"""
_INDEXES = """
SELECT i.indexrelid::regclass::text AS index, i.indrelid::regclass::text AS on_table,
    pg_get_indexdef(i.indexrelid) AS what,
    i.indisunique AS is_unique, i.indisvalid AND i.indisready AND i.indislive AS usable,
    EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x')) AS of_key
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace::regnamespace::text IN ('actonce', 'actonce_memory')
"""
_TRIGGERS = """
SELECT tgname AS name, tgrelid::regclass::text AS on_table, pg_get_triggerdef(t.oid) AS what FROM pg_trigger t
JOIN pg_class c ON c.oid = t.tgrelid
WHERE NOT tgisinternal AND c.relnamespace::regnamespace::text IN ('actonce', 'actonce_memory')
"""
_ORDER = {"p": 0, "u": 1, "x": 1, "c": 1, "index": 2, "f": 3, "trigger": 4}


def catalog(link: Link) -> dict[str, Thing]:
    """What the database has, by kind and name."""
    indexes = link.execute(_INDEXES).fetchall()
    usable = {row["index"]: row["usable"] for row in indexes}
    things = [
        Thing("index", row["index"], row["on_table"], row["what"], 2, row["index"], row["is_unique"], row["usable"])
        for row in indexes
        if not row["of_key"]
    ]
    for row in link.execute(_KEYS).fetchall():
        name = sql.Identifier(row["name"]).as_string()
        behind = row["index"] if row["type"] in ("p", "u", "x") else None
        definition = f"ALTER TABLE {row['on_table']} ADD CONSTRAINT {name} {row['what']}"
        things.append(
            Thing(
                *("key", f"{row['on_table']}.{row['name']}", row["on_table"], definition, _ORDER[row["type"]]),
                index=behind,
                usable=behind is None or usable[behind],
            )
        )
    for row in link.execute(_TRIGGERS).fetchall():
        things.append(Thing("trigger", f"{row['on_table']}.{row['name']}", row["on_table"], row["what"], 4))
    return {f"{thing.kind} {thing.name}": thing for thing in things}


def compare(declared: dict[str, Thing], there: dict[str, Thing]) -> list[Finding]:
    """What of the declared things is not there as declared, or not usable."""
    findings = []
    for key, thing in declared.items():
        found = there.get(key)
        if found is None:
            findings.append(Finding("missing", thing, "it is missing"))
        elif not found.usable:
            findings.append(Finding("invalid", thing, "it is not valid: its build broke off"))
        elif found.definition != thing.definition:
            findings.append(Finding("differs", thing, f"it is {found.definition}, declared is {thing.definition}"))
    return findings


# Does it answer?

_THROUGH = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_incremental_sort", "enable_tidscan")
_BESIDE = ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan")


def answers(link: Link, thing: Thing, *, locked: bool = False) -> Finding | None:
    """Count the rows through this index and without any; None when it shows as many as there are.

    `locked`: nobody else can write to the table now. Otherwise both are counted in a snapshot of its own.
    """
    assert thing.index is not None
    with link.transaction():
        if not locked:
            link.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = _one(
            link,
            "SELECT pg_get_indexdef(indexrelid) AS what, pg_get_expr(indpred, indrelid) AS only FROM pg_index"
            " WHERE indexrelid = %s::regclass",
            thing.index,
        )
        where = f" WHERE {row['only']}" if row["only"] else ""
        inner = f"SELECT 1 FROM {thing.table}{where} ORDER BY {_order(link, row['what'])} OFFSET 0"
        through = f"SELECT count(*) AS n FROM ({inner}) s"
        _choose(link, off=_THROUGH, on=_BESIDE[:2])
        if not _plan_uses(link, through, thing.index):
            return Finding("not_used", thing, "PostgreSQL does not search through it, so nothing shows that it answers")
        shown = _one(link, through)["n"]
        _choose(link, off=_BESIDE, on=_THROUGH[:1])
        held = _one(link, f"SELECT count(*) AS n FROM {thing.table}{where}")["n"]
    if shown != held:
        return Finding("incomplete", thing, f"it shows {shown} rows where the table holds {held}")
    return None


def _order(link: Link, definition: str) -> str:
    """What the index is sorted by, as ORDER BY wants it."""
    method, inner = re.search(r" USING (\w+) \((.*)$", definition).groups()  # type: ignore[union-attr]
    depth, end = 1, 0
    while depth:
        depth += {"(": 1, ")": -1}.get(inner[end], 0)
        end += 1
    columns = inner[: end - 1]
    if method == "btree":
        return columns
    column = columns.split()[0]  # a vector index sorts by distance; from which vector does not matter here
    table = re.search(r" ON (?:ONLY )?(\S+) USING", definition)[1]  # type: ignore[index]
    return f"{column} OPERATOR({_vector_schema(link)}.<=>) (SELECT {column} FROM {table} LIMIT 1)"


def _plan_uses(link: Link, query: str, index: str) -> bool:
    plan = _one(link, f"EXPLAIN (FORMAT JSON, VERBOSE) {query}")["QUERY PLAN"][0]["Plan"]
    return any(f"{n.get('Schema')}.{n.get('Index Name')}" == index.replace('"', "") for n in _nodes(plan))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _choose(link: Link, *, off: tuple[str, ...], on: tuple[str, ...]) -> None:
    for names, value in ((on, "on"), (off, "off")):
        for name in names:
            link.execute("SELECT set_config(%s, %s, true)", (name, value))
    link.execute("SELECT set_config('row_security', 'off', true)")


def _lost_memory(link: Link) -> list[Finding]:
    """Rows of the memory that its own table of tenants counts and its collection lacks: no index brings them back."""
    if _one(link, "SELECT to_regclass('actonce_memory.tenant') AS t")["t"] is None:
        return []
    if _one(link, "SELECT to_regclass('actonce_memory.item') AS t")["t"] is None:
        return []
    row = _one(
        link,
        "SELECT count(*) FILTER (WHERE held < put) AS tenants, count(*) FILTER (WHERE NOT canary) AS canaries FROM ("
        " SELECT t.items AS put, (SELECT count(*) FROM actonce_memory.item i WHERE i.tenant = t.tenant) AS held,"
        " EXISTS (SELECT FROM actonce_memory.item i WHERE i.tenant = t.tenant AND i.canary"
        "  AND i.facts ->> 'token' = t.canary::text) AS canary FROM actonce_memory.tenant t) s",
    )
    if not row["tenants"] and not row["canaries"]:
        return []
    thing = Thing("key", "actonce_memory.item.rows", "actonce_memory.item", "", 9)
    words = (
        f"rows of {row['tenants']} tenants and {row['canaries']} canaries are gone: restore the memory from a backup"
    )
    return [Finding("incomplete", thing, words)]


# Repair.


def _repair(link: Link, finding: Finding) -> None:
    """One transaction. Raises BackupError for what no build can mend, and leaves everything as it was."""
    thing = finding.thing
    if finding.what == "not_used" or (finding.what == "incomplete" and thing.index is None):
        raise BackupError(f"{finding}; building anew does not change that.")
    with link.transaction():
        link.execute("SELECT set_config('lock_timeout', %s, true)", (f"{LOCK_WAIT_S}s",))
        if finding.what in ("invalid", "incomplete"):
            _run(link, f"REINDEX INDEX {thing.index}")
        else:
            if finding.what == "differs":
                _drop(link, thing)
            _run(link, thing.definition)
        if thing.index is not None:
            left = answers(link, thing, locked=True)
            # While old snapshots last, PostgreSQL may not yet search through a new index: told by the check afterwards.
            if left is not None and left.what != "not_used":
                raise BackupError(f"{left}, right after it was built; nothing was changed. Look at PostgreSQL's log.")


def _drop(link: Link, thing: Thing) -> None:
    name = thing.name.rpartition(".")[2]
    if thing.kind == "index":
        _run(link, f"DROP INDEX {thing.name}")
    elif thing.kind == "trigger":
        link.execute(sql.SQL("DROP TRIGGER {} ON {}").format(sql.Identifier(name), sql.SQL(thing.table)))
    else:
        raise BackupError(f"key {thing.name} is another than declared: no rebuild changes a key, restore the ledger.")


def _run(link: Link, statement: str) -> None:
    """One of the catalog's own statements."""
    link.execute(sql.SQL(statement))


def _one(link: Link, query: str, *values: object) -> DictRow:
    row = link.execute(sql.SQL(query), values or None).fetchone()
    assert row is not None, "these statements always have a row"
    return row


@contextmanager
def _progress(dsn: str, pid: int, say: Say) -> Iterator[None]:
    """While it builds, tell how far it is."""
    done = threading.Event()

    def tell() -> None:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as other:
            while not done.wait(TOLD_EVERY_S):
                row = other.execute(
                    "SELECT phase, blocks_done, blocks_total FROM pg_stat_progress_create_index WHERE pid = %s", (pid,)
                ).fetchone()
                if row is not None:
                    say(f"    {row[0]}: {row[1]:,} of {row[2]:,} blocks")

    thread = threading.Thread(target=tell, daemon=True, name="index-progress")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(TOLD_EVERY_S)


__all__ = ["Finding", "Report", "Thing", "answers", "catalog", "check", "compare", "rebuild"]
