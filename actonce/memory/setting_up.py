"""Makes a memory once, and rebuilds its index. Blocking; run it in a thread.

Promises: idempotent; a collection that was lost is *not* made again, since an empty one in its place would say that
nothing is remembered. Rebuilding touches the index only, and never a row.
"""

from __future__ import annotations

import uuid
from typing import LiteralString

import psycopg
from psycopg import sql

from actonce import migrating
from actonce.contracts.memory import Trouble
from actonce.memory.embedding import DIMENSION_MAX, Embedder
from actonce.memory.proof import INDEX, Unproven

_COLLECTION: LiteralString = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE actonce_memory.item (
    tenant        text NOT NULL,
    key           text NOT NULL,
    text          text NOT NULL,
    facts         jsonb NOT NULL,
    embedding     vector({dimension}) NOT NULL,
    canary        boolean NOT NULL DEFAULT false,
    remembered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant, key)
);
CREATE TRIGGER nothing_is_deleted BEFORE DELETE OR TRUNCATE ON actonce_memory.item
    FOR EACH STATEMENT EXECUTE FUNCTION actonce_memory.nothing_is_deleted();
CREATE TRIGGER items_are_counted AFTER INSERT ON actonce_memory.item
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION actonce_memory.items_are_counted();
"""
# One list, read whole: exact. A graph (HNSW), or several lists of which some are read, may lose sight of a row that is
# there, and an answer that may miss rows can never say `empty`. See docs/adr/0007.
_BUILD = sql.SQL(
    "CREATE INDEX {} ON actonce_memory.item USING ivfflat (embedding vector_cosine_ops) WITH (lists = 1)"
).format(sql.Identifier(INDEX))


def set_up(dsn: str, embedder: Embedder) -> str:
    """Make the memory at `dsn` if there has never been one. Returns its memory_id.

    Raises psycopg.Error, and Unproven where there has been one and its tables are gone.
    """
    if not 1 <= embedder.dimension <= DIMENSION_MAX:
        raise ValueError(f"embedder {embedder.name}: {embedder.dimension} dimensions, at most {DIMENSION_MAX} fit")
    migrating.apply(dsn, "actonce.memory")
    try:
        return _identity(dsn, embedder)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise Unproven(
            Trouble.COLLECTION_MISSING, "the memory's tables are gone from this database; restore them from a backup"
        ) from error


def _identity(dsn: str, embedder: Embedder) -> str:
    with psycopg.connect(dsn) as link:
        made = link.execute(
            "INSERT INTO actonce_memory.identity (memory_id, embedder, dimension) VALUES (%s, %s, %s)"
            " ON CONFLICT DO NOTHING RETURNING memory_id",
            (uuid.uuid4(), embedder.name, embedder.dimension),
        ).fetchone()
        if made is not None:  # in the same transaction: identity and collection, or neither
            link.execute(sql.SQL(_COLLECTION).format(dimension=sql.Literal(embedder.dimension)))
            link.execute(_BUILD)
        row = link.execute("SELECT memory_id FROM actonce_memory.identity").fetchone()
    assert row is not None, "it was inserted, or was there"
    return str(row[0])


def rebuild_index(dsn: str) -> None:
    """Build the index anew over all rows, beside nothing: recalls are unavailable meanwhile. Raises psycopg.Error."""
    with psycopg.connect(dsn) as link:
        link.execute(sql.SQL("DROP INDEX IF EXISTS actonce_memory.{}").format(sql.Identifier(INDEX)))
        link.execute(_BUILD)
