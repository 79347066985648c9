"""What a sweep found, counted: every destination by operation, from both sides, each side on its own.

Every operation that may have sent, and that no list shows, is `ledger_only`; beside it stand what `sweeping` judges of
each object that was shown. A run whose two sides do not add up is not done: nothing is released on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from actonce.contracts.errors import RestoreRefused, StaleWrite
from actonce.ledger.store import Connection, Ledger, many, one
from actonce.ledger.sweeping import RECORD, Sweep, Totals

_TOTALS: LiteralString = f"""
WITH shown AS (
    SELECT x.outcome, x.operation_id, coalesce(x.operation_id, x.object_id) AS identity,
        o.completion = 'adopted' AND o.epoch = x.epoch AS adopted
    FROM actonce.restore_effect x {RECORD}
    WHERE x.epoch = %(epoch)s AND x.run = %(run)s AND x.destination = %(destination)s),
known AS (
    SELECT o.operation_id, o.state, s.operation_id IS NOT NULL AS is_shown
    FROM actonce.operation o LEFT JOIN (SELECT operation_id, bool_or(outcome <> 'destination_only') AS differs
        FROM shown WHERE operation_id IS NOT NULL GROUP BY 1) s USING (operation_id)
    WHERE o.destination = %(destination)s AND CASE
        WHEN o.completion IS NOT DISTINCT FROM 'adopted' AND o.epoch = %(epoch)s
        -- an adopted record is the destination's side, unless what it was adopted from has changed; one that its task
        -- came back for is counted by that task's own record
        THEN s.differs IS TRUE AND NOT EXISTS (SELECT 1 FROM actonce.operation own
            WHERE own.operation_id = o.operation_id AND own.destination = o.destination
            AND own.completion IS DISTINCT FROM 'adopted')
        ELSE s.operation_id IS NOT NULL OR (o.state = 'committed' AND o.issued_at >= %(since)s)
            OR EXISTS (SELECT 1 FROM actonce.attempt a WHERE (a.tenant, a.destination, a.action, a.operation_id) =
                (o.tenant, o.destination, o.action, o.operation_id) AND a.epoch = %(epoch)s
                AND a.outcome = 'lost_interval') END)
SELECT
    (SELECT count(DISTINCT identity) FROM shown WHERE outcome = 'matched') AS matched,
    (SELECT count(*) FROM known WHERE NOT is_shown) AS ledger_only,
    (SELECT count(*) FROM known WHERE NOT is_shown AND state = 'committed') AS ledger_only_committed,
    (SELECT count(DISTINCT identity) FROM shown WHERE outcome = 'destination_only') AS destination_only,
    (SELECT count(DISTINCT identity) FROM shown WHERE outcome = 'destination_only' AND adopted) AS adopted,
    (SELECT count(DISTINCT identity) FROM shown WHERE outcome = 'conflict') AS conflict,
    (SELECT count(*) FROM known) AS ledger_side,
    (SELECT count(DISTINCT identity) FROM shown) AS destination_side
"""


async def finish(
    ledger: Ledger, sweep: Sweep, swept: Sequence[str], listed: Sequence[str], not_swept: Mapping[str, str]
) -> Sweep:
    """Count, and end the run. `listed`: destinations that would have shown everything that was sent.

    Raises RestoreRefused while an outcome is not established, and when the two sides do not add up.
    """
    async with ledger.transaction() as connection:
        totals = [await _count(connection, sweep, name) for name in swept]
        wrong = [t.destination for t in totals if not t.balances]
        if wrong:
            raise RestoreRefused(
                "unbalanced",
                f"the two sides of {', '.join(wrong)} do not add up: "
                f"{[asdict(t) for t in totals if not t.balances]}; nothing is released on this; run the sweep again",
            )
        clean = {t.destination for t in totals if t.conflict == 0 and t.destination_only == t.adopted}
        for name in sorted(clean & set(listed)):
            await connection.execute(
                "INSERT INTO actonce.restore_listed (epoch, destination) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                (sweep.epoch, name),
            )
        row = await one(
            connection,
            "UPDATE actonce.sweep SET done_at = clock_timestamp(), totals = %s, not_swept = %s"
            " WHERE epoch = %s AND run = %s AND done_at IS NULL RETURNING *",
            (Jsonb([asdict(t) for t in totals]), Jsonb(dict(not_swept)), sweep.epoch, sweep.run),
        )
        if row is None:
            raise StaleWrite(f"run {sweep.run} of the sweep of epoch {sweep.epoch} was ended by another process")
        await connection.execute(
            "UPDATE actonce.restore SET swept_at = coalesce(swept_at, clock_timestamp()) WHERE epoch = %s",
            (sweep.epoch,),
        )
        return Sweep.of(row)


async def _count(connection: Connection, sweep: Sweep, destination: str) -> Totals:
    row = await one(
        connection,
        _TOTALS,
        {"epoch": sweep.epoch, "run": sweep.run, "destination": destination, "since": sweep.since},
    )
    assert row is not None
    return Totals(destination=destination, **row)


async def findings(ledger: Ledger, epoch: int, limit: int = 200) -> list[dict[str, Any]]:
    """What a person has to look at: conflicts, what could not be adopted, then what was."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "SELECT * FROM actonce.restore_effect WHERE epoch = %s AND outcome <> 'matched'"
            " ORDER BY outcome <> 'conflict', problem IS NULL, destination, object_id LIMIT %s",
            (epoch, limit),
        )
        return [dict(row) for row in rows]
