"""What must be shown before the memory's answer counts: catalog, canary, completeness. All in one snapshot.

    catalog       the extension, the table with its dimension, and exactly our index: valid, ready, over all rows
    plan          the database answers this very statement through that index
    canary        a row of this tenant that must be there is shown by the index, with what only we know it says
    completeness  the index shows as many rows as the table holds for this filter, counted without it, and the table
                  holds as many rows of this tenant as were ever put there, counted at the time and kept elsewhere

A dropped index alone would lose no row, since PostgreSQL then scans the table; it would only be slow, and unproven.
What reads as "nothing remembered" is a collection that was made anew, half a restore, or an index whose rows are
missing. Canary and completeness see those, whatever the catalog says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg.rows import DictRow

from actonce.contracts.memory import Trouble
from actonce.memory.wire import Link

TABLE = "actonce_memory.item"
INDEX = "item_embedding"
OPERATOR_CLASS = "vector_cosine_ops"
LISTS = 1  # all of which are read: the index is exact


class Unproven(Exception):
    """The memory answered, and its answer proves nothing."""

    def __init__(self, trouble: Trouble, words: str) -> None:
        super().__init__(words)
        self.trouble = trouble
        self.words = words


@dataclass(frozen=True)
class Question:
    """One search. `filter`: facts that an item must have."""

    tenant: str
    vector: str  # as PostgreSQL reads it
    k: int
    filter: str  # JSON
    canary: bool = False

    @property
    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


# For one transaction: the planner must not take another way while the index exists, and the index must show every row.
# Rows that a policy of the database hides from this role are an error, not nothing.
SETTINGS: LiteralString = (
    "SELECT set_config(name, value, true) FROM (VALUES ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'),"
    " ('enable_sort', 'off'), ('enable_incremental_sort', 'off'), ('ivfflat.probes', '1'),"
    " ('row_security', 'off'), ('statement_timeout', %(timeout_ms)s))"
    " AS s (name, value)"
)
SEARCH: LiteralString = (
    "SELECT key, text, facts, remembered_at, embedding <=> %(vector)s::vector AS distance FROM actonce_memory.item"
    " WHERE tenant = %(tenant)s AND canary = %(canary)s AND facts @> %(filter)s::jsonb"
    " ORDER BY embedding <=> %(vector)s::vector LIMIT %(k)s"
)
COUNT: LiteralString = (
    "SELECT count(*) AS rows FROM (SELECT 1 FROM actonce_memory.item WHERE tenant = %(tenant)s"
    " AND canary = %(canary)s AND facts @> %(filter)s::jsonb LIMIT %(k)s + 1) AS capped"
)
_ROWS: LiteralString = (
    "SELECT (SELECT items FROM actonce_memory.tenant WHERE tenant = %(tenant)s) AS put,"
    " (SELECT count(*) FROM actonce_memory.item WHERE tenant = %(tenant)s) AS held"
)
_CATALOG: LiteralString = (
    "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'vector') AS extension,"
    " to_regclass('actonce_memory.identity') IS NOT NULL AS set_up,"
    " to_regclass('actonce_memory.item') IS NOT NULL AS collection,"
    " (SELECT format_type(a.atttypid, a.atttypmod) FROM pg_attribute a WHERE a.attname = 'embedding'"
    "  AND a.attrelid = to_regclass('actonce_memory.item') AND NOT a.attisdropped) AS type"
)
_INDEX: LiteralString = (
    "SELECT i.indisvalid AS valid, i.indisready AS ready, i.indislive AS live, i.indpred IS NULL AS whole,"
    " i.indrelid = to_regclass('actonce_memory.item') AS ours, am.amname AS method, o.opcname AS operators,"
    " c.reloptions AS options, pg_get_indexdef(c.oid, 1, true) AS what"
    " FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_am am ON am.oid = c.relam"
    " JOIN pg_opclass o ON o.oid = i.indclass[0]"
    " WHERE c.oid = to_regclass('actonce_memory.item_embedding')"
)


async def check_catalog(link: Link, dimension: int) -> None:
    """The collection and exactly our index exist and are usable. Raises Unproven."""
    row = await _one(link, _CATALOG)
    if not row["set_up"]:
        raise Unproven(Trouble.NOT_SET_UP, "this database holds no memory")
    if not row["extension"]:
        raise Unproven(Trouble.NO_EXTENSION, "pgvector is not installed in this database")
    if not row["collection"]:
        raise Unproven(Trouble.COLLECTION_MISSING, f"{TABLE} is gone; restore it from a backup")
    if row["type"] != f"vector({dimension})":
        raise Unproven(
            Trouble.EMBEDDER_CHANGED, f"the collection holds {row['type']}, the embedder gives vector({dimension})"
        )
    await _check_index(link)


async def _check_index(link: Link) -> None:
    cursor = await link.execute(_INDEX)
    index = await cursor.fetchone()
    if index is None:
        raise Unproven(Trouble.INDEX_MISSING, f"the index {INDEX} is gone; rebuild it")
    if not (index["valid"] and index["ready"] and index["live"]):
        raise Unproven(
            Trouble.INDEX_INVALID, f"the index {INDEX} is not valid: its build runs, or broke off: rebuild it"
        )
    found = tuple(index[name] for name in ("ours", "whole", "method", "options", "operators", "what"))
    if found != (True, True, "ivfflat", [f"lists={LISTS}"], OPERATOR_CLASS, "embedding"):
        raise Unproven(
            Trouble.INDEX_WRONG,
            f"the index {INDEX} is {index['method']} {index['options']} {index['operators']} on {index['what']}"
            f"{'' if index['ours'] else ' of another table'}{'' if index['whole'] else ' over a part of the rows'}; "
            f"it must be ivfflat ['lists={LISTS}'] {OPERATOR_CLASS} on embedding over all rows: rebuild it",
        )


async def check_plan(link: Link, question: Question) -> None:
    """The database answers this statement through our index. Raises Unproven."""
    row = await _one(link, "EXPLAIN (FORMAT JSON) " + SEARCH, question.values)
    if not any(node.get("Index Name") == INDEX for node in _nodes(row["QUERY PLAN"][0]["Plan"])):
        raise Unproven(Trouble.INDEX_NOT_USED, f"the database does not answer through {INDEX}; rebuild it")


def _nodes(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in _nodes(child))]


async def check_canary(link: Link, question: Question, token: str | None) -> None:
    """The tenant's canary comes back through the index. `question` is the canary's own. Raises Unproven."""
    cursor = await link.execute(SEARCH, question.values)
    shown = [row["facts"].get("token") for row in await cursor.fetchall()]
    if token is None or shown != [token]:
        raise Unproven(
            Trouble.CANARY_MISSING,
            f"the index {'shows another canary' if shown else 'does not show the canary'} of tenant "
            f"{question.tenant!r}: rows are missing from the index or from the collection",
        )


async def check_rows(link: Link, tenant: str) -> None:
    """The collection holds what this tenant ever put there. Raises Unproven."""
    row = await _one(link, _ROWS, {"tenant": tenant})
    if row["held"] < row["put"]:
        raise Unproven(
            Trouble.ROWS_MISSING,
            f"the collection holds {row['held']} of the {row['put']} rows of tenant {tenant!r}; restore it from a "
            "backup",
        )


async def search(link: Link, question: Question) -> tuple[list[DictRow], bool]:
    """The nearest rows through the index, and whether there is none beyond. Raises Unproven when some are missing."""
    cursor = await link.execute(SEARCH, question.values)
    rows = await cursor.fetchall()
    held = (await _one(link, COUNT, question.values))["rows"]
    check_complete(len(rows), min(held, question.k))
    return rows, held <= question.k


def check_complete(shown: int, held: int) -> None:
    """The index shows what the table holds. Raises Unproven."""
    if shown != held:
        raise Unproven(
            Trouble.INDEX_INCOMPLETE,
            f"the index {INDEX} shows {shown} rows where the collection holds {held}: rebuild it",
        )


async def _one(link: Link, query: LiteralString, values: Mapping[str, Any] | None = None) -> DictRow:
    row = await (await link.execute(query, values)).fetchone()
    assert row is not None, "this statement always has a row"
    return row


def vector_text(vector: list[float]) -> str:
    """As PostgreSQL reads a vector."""
    return json.dumps(vector)
