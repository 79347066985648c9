"""The audit chain in the ledger: events are sealed after their commit, one sealer at a time, and read in order.

An event is written in the transaction of the state it describes (`store.audit`, triggers). Its place in the chain it
gets later, here: a gapless number taken in that transaction would make all transactions wait for one lock. What a
sealer sees is a consistent cut, and within it the order of `audit_id` is an order in which causes come before effects:
whoever changes a row after another transaction did draws its `audit_id` after that one's commit.

Promises: numbers 1..N without gaps, each event once, causes before effects. A restore skips the numbers that may have
been given out after its backup (`identity.audit_from`, told by the event `ledger.epoch`); the hashes go on across that
gap. Sealing may lag; nothing waits for it.
Raises LedgerUnavailable; the next turn goes on where this one stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from actonce.contracts.audit import End, Event, Sealed, genesis, seal
from actonce.ledger.store import Connection, Ledger, many, one

SEAL_MAX = 500  # in one transaction, well within its deadline
CHAIN_OF: LiteralString = "coalesce(chain_id, ledger_id) AS chain_of"  # a clone goes on with the chain it came with
COLUMNS: LiteralString = "audit_id, at, kind, tenant, task_id, operation_id, body"


def event_of(row: Mapping[str, Any]) -> Event:
    """An event from a row with COLUMNS."""
    return Event(**{name: row[name] for name in Event.__dataclass_fields__})


async def seal_once(ledger: Ledger, limit: int = SEAL_MAX) -> int:
    """Seal what has been committed and is not sealed, at most `limit` events. Returns how many (0 beside another)."""
    async with ledger.transaction() as connection:
        mine = await one(connection, "SELECT pg_try_advisory_xact_lock(hashtext('actonce.audit.seal')) AS mine")
        if mine is None or not mine["mine"]:
            return 0
        end = await _end(connection)
        first = await one(connection, "SELECT audit_from FROM actonce.identity")
        assert first is not None, "actonce.identity is empty"
        rows = await many(
            connection,
            f"SELECT {COLUMNS} FROM actonce.audit WHERE seq IS NULL ORDER BY audit_id LIMIT %s",
            (limit,),
        )
        sealed: list[Sealed] = []
        for row in rows:
            sealed.append(seal(event_of(row), max(end.seq + 1, first["audit_from"]), end.hash))
            end = End(sealed[-1].seq, sealed[-1].hash)
        if sealed:
            await connection.execute(
                "UPDATE actonce.audit a SET seq = s.seq, hash = s.hash, previous_hash = s.previous_hash,"
                " sealed_at = clock_timestamp() FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::text[])"
                " AS s (audit_id, seq, hash, previous_hash) WHERE a.audit_id = s.audit_id",
                (
                    [row["audit_id"] for row in rows],
                    [s.seq for s in sealed],
                    [s.hash for s in sealed],
                    [s.previous_hash for s in sealed],
                ),
            )
        return len(sealed)


async def _end(connection: Connection) -> End:
    last = await one(connection, "SELECT seq, hash FROM actonce.audit WHERE seq IS NOT NULL ORDER BY seq DESC LIMIT 1")
    if last is not None:
        return End(last["seq"], last["hash"])
    identity = await one(connection, f"SELECT {CHAIN_OF} FROM actonce.identity")
    assert identity is not None, "actonce.identity is empty"
    return End(0, genesis(str(identity["chain_of"])))


async def chain_end(ledger: Ledger) -> End:
    """The last sealed event."""
    async with ledger.transaction() as connection:
        return await _end(connection)


async def sealed_after(ledger: Ledger, seq: int, limit: int) -> list[Sealed]:
    """Sealed events after `seq`, in order, built from their rows; their `hash` is the one in the ledger."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            f"SELECT {COLUMNS}, seq, hash, previous_hash FROM actonce.audit WHERE seq > %s ORDER BY seq LIMIT %s",
            (seq, limit),
        )
        return [seal(event_of(row), row["seq"], row["previous_hash"]) for row in rows]


async def hash_at(ledger: Ledger, seq: int) -> str | None:
    """The hash of one sealed event (of the beginning for 0); None when the chain does not reach that far."""
    async with ledger.transaction() as connection:
        if seq == 0:
            row = await one(connection, f"SELECT {CHAIN_OF} FROM actonce.identity")
            return None if row is None else genesis(str(row["chain_of"]))
        row = await one(connection, "SELECT hash FROM actonce.audit WHERE seq = %s", (seq,))
        return None if row is None else str(row["hash"])


async def cursor_of(ledger: Ledger, sink: str) -> int:
    """Up to which event a sink has confirmed the chain; 0 for a sink that was never asked."""
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT seq FROM actonce.audit_cursor WHERE sink = %s", (sink,))
        return int(row["seq"]) if row else 0


async def move_cursor(ledger: Ledger, sink: str, end: End) -> None:
    """A sink has confirmed everything up to `end`, which may be less than it once had."""
    async with ledger.transaction() as connection:
        await connection.execute(
            "INSERT INTO actonce.audit_cursor (sink, seq, hash, shipped_at, tried_at)"
            " VALUES (%s, %s, %s, clock_timestamp(), clock_timestamp()) ON CONFLICT (sink) DO UPDATE SET"
            " seq = excluded.seq, hash = excluded.hash, tried_at = clock_timestamp(), failing_since = NULL,"
            " error = NULL, shipped_at = CASE WHEN audit_cursor.seq = excluded.seq THEN audit_cursor.shipped_at"
            " ELSE clock_timestamp() END",
            (sink, end.seq, end.hash),
        )


async def sink_failed(ledger: Ledger, sink: str, error: str) -> None:
    """A sink did not take what it was given. It gets it again."""
    async with ledger.transaction() as connection:
        await connection.execute(
            "INSERT INTO actonce.audit_cursor (sink, tried_at, failing_since, error)"
            " VALUES (%s, clock_timestamp(), clock_timestamp(), %s) ON CONFLICT (sink) DO UPDATE SET"
            " tried_at = clock_timestamp(), error = excluded.error,"
            " failing_since = coalesce(audit_cursor.failing_since, clock_timestamp())",
            (sink, error[:2000]),
        )


@dataclass(frozen=True)
class Lag:
    """How far behind the ledger a sink is. Ages are of the oldest waiting event, in seconds by the ledger's clock."""

    sink: str
    head: int
    shipped: int
    behind: int  # sealed events that the sink has not confirmed
    unsealed: int
    age_s: float
    failing_s: float | None
    error: str | None

    @property
    def waiting(self) -> int:
        return self.behind + self.unsealed


async def lag_of(ledger: Ledger, sink: str) -> Lag:
    """Measure it. `shipped` beyond `head` means that the ledger lost the end of its chain."""
    async with ledger.transaction() as connection:
        row = await one(
            connection,
            "WITH c AS (SELECT coalesce((SELECT seq FROM actonce.audit_cursor WHERE sink = %(sink)s), 0) AS seq)"
            " SELECT c.seq AS shipped, coalesce((SELECT max(seq) FROM actonce.audit WHERE seq IS NOT NULL), 0) AS head,"
            " (SELECT count(*) FROM actonce.audit WHERE seq > c.seq) AS behind,"
            " (SELECT count(*) FROM actonce.audit WHERE seq IS NULL) AS unsealed,"
            " extract(epoch FROM clock_timestamp() - least((SELECT min(at) FROM actonce.audit WHERE seq IS NULL),"
            " (SELECT at FROM actonce.audit WHERE seq > c.seq ORDER BY seq LIMIT 1)))::float8 AS age_s,"
            " (SELECT extract(epoch FROM clock_timestamp() - failing_since)::float8 FROM actonce.audit_cursor"
            " WHERE sink = %(sink)s) AS failing_s,"
            " (SELECT error FROM actonce.audit_cursor WHERE sink = %(sink)s) AS error FROM c",
            {"sink": sink},
        )
        assert row is not None
        return Lag(
            sink=sink,
            head=row["head"],
            shipped=row["shipped"],
            behind=row["behind"],
            unsealed=row["unsealed"],
            age_s=row["age_s"] or 0.0,
            failing_s=row["failing_s"],
            error=row["error"],
        )


def check(row: Mapping[str, Any]) -> bool | None:
    """Is the hash of a sealed row that of its content? None while it has no place in the chain."""
    if row["seq"] is None:
        return None
    return seal(event_of(row), row["seq"], row["previous_hash"]).hash == str(row["hash"])


@dataclass(frozen=True)
class Standing:
    """How far the chain goes, what waits to be sealed, and how far each sink has confirmed it."""

    end: End
    sealed_at: datetime | None
    unsealed: int
    unsealed_s: float  # age of the oldest of them
    sinks: list[dict[str, Any]]  # sink, seq, waiting, shipped_at, failing_since, error


async def standing(ledger: Ledger) -> Standing:
    """Counts; whether the chain is whole is for `actonce audit verify` to say."""
    async with ledger.transaction() as connection:
        end = await _end(connection)
        last = await one(connection, "SELECT sealed_at FROM actonce.audit WHERE seq = %s", (end.seq,))
        waiting = await one(
            connection,
            "SELECT count(*)::int AS n, coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)::float8 AS age_s"
            " FROM actonce.audit WHERE seq IS NULL",
        )
        sinks = await many(
            connection,
            "SELECT sink, seq, (SELECT count(*) FROM actonce.audit a WHERE a.seq > c.seq) AS waiting, shipped_at,"
            " failing_since, error FROM actonce.audit_cursor c ORDER BY sink",
        )
    assert waiting is not None
    sealed_at = last["sealed_at"] if last else None
    return Standing(end, sealed_at, waiting["n"], waiting["age_s"], [dict(row) for row in sinks])
