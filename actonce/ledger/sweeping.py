"""The sweep of a restore on record: which effects the destinations showed, what of them the ledger knows, the totals.

A *run* reads every destination that can list what is ours. One transaction for each page: the effects on it, the
records adopted for those that have none, and the cursor of the next page. So a run that dies goes on where it stood,
and a page that is read twice changes nothing. Of one destination every object is

    matched            its operation is committed, by this object with this digest
    destination_only   the ledger had no record of it: one is adopted, `committed`, and nothing of it is ever sent
    conflict           the ledger says something else than the destination: a person has to look

Both sides are counted by `sweep_totals`. Does not: ask a destination (`effects.sweep` does), decide an unknown
outcome (reconciliation does), send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from actonce.contracts.contract import Contract
from actonce.contracts.errors import RestoreRefused, StaleWrite
from actonce.contracts.identity import KeyFormat, operation_id_of
from actonce.contracts.verdict import Page, Row
from actonce.ledger.restoring import Restore, open_restore
from actonce.ledger.store import Connection, Ledger, Operation, audit, many, one, utc

MARGIN_S = 3600.0  # before the boundary: what was sent shortly before it may have been recorded after it
UNKNOWN = "?"  # tenant, task or action of an adopted record that nobody knows; no real one may be called that
BEACON = "beacon_"  # begins every id of a beacon of ours
_JUDGED_AT_ONCE = 500


@dataclass(frozen=True)
class Sweep:
    """One run."""

    epoch: int
    run: int
    since: datetime
    began_at: datetime
    done_at: datetime | None
    totals: list[Totals]
    not_swept: dict[str, str]

    @staticmethod
    def of(row: Mapping[str, Any]) -> Sweep:
        return Sweep(
            epoch=row["epoch"],
            run=row["run"],
            since=row["since"],
            began_at=row["began_at"],
            done_at=row["done_at"],
            totals=[Totals(**one) for one in row["totals"] or []],
            not_swept=row["not_swept"] or {},
        )


@dataclass(frozen=True)
class Totals:
    """One destination, counted by operation."""

    destination: str
    matched: int
    ledger_only: int
    ledger_only_committed: int  # of them: the ledger has evidence of an effect, and no list shows it
    destination_only: int
    adopted: int  # of them; the others cannot be proven to be ours
    conflict: int
    ledger_side: int  # counted in the ledger: operations that may have sent, and all that a list shows
    destination_side: int  # counted at the destination: operations that a list shows

    @property
    def balances(self) -> bool:
        """Both sides, each counted on its own, are what the outcomes add up to."""
        return (
            self.ledger_side == self.matched + self.ledger_only + self.conflict
            and self.destination_side == self.matched + self.destination_only + self.conflict
        )


@dataclass(frozen=True)
class RouteRun:
    """How far one route has been read in one run."""

    destination: str
    route: str
    status: str
    cursor: str | None
    pages: int
    rows_received: int
    declared_total: int | None
    totals_agree: bool
    as_of: datetime | None
    beacon_at: datetime | None
    error: str | None
    started_at: datetime
    finished_at: datetime | None

    @staticmethod
    def of(row: Mapping[str, Any]) -> RouteRun:
        return RouteRun(**{name: row[name] for name in RouteRun.__dataclass_fields__})

    @property
    def counted(self) -> bool:
        """Does what was received equal what was declared, where anything was?"""
        return self.totals_agree and self.declared_total in (None, self.rows_received)


# a run --------------------------------------------------------------------------------------------------------------


async def begin(ledger: Ledger) -> tuple[Restore, Sweep]:
    """The run that is not done yet, or a new one. Raises RestoreRefused before the restore's bounds have passed."""
    async with ledger.transaction() as connection:
        await connection.execute("SELECT 1 FROM actonce.identity FOR UPDATE")
        restore = await open_restore(connection)
        if restore is None:
            raise RestoreRefused("no_restore", "no restore is open in this ledger; there is nothing to sweep")
        now = await one(connection, "SELECT clock_timestamp() AS now")
        assert now is not None
        if now["now"] < restore.bounds_until:
            raise RestoreRefused(
                "too_early",
                f"the sweep of epoch {restore.epoch} may begin at {utc(restore.bounds_until)}: until then what was "
                "sent before the restore may still arrive or not be shown; run it again then",
            )
        last = await _last(connection, restore.epoch)
        if last is not None and last.done_at is None:
            return restore, last
        row = await one(
            connection,
            "INSERT INTO actonce.sweep (epoch, run, since) VALUES (%(epoch)s, %(run)s, least(%(since)s,"
            # what the boundary found open may have been sent long before it
            " (SELECT min(o.created_at) FROM actonce.operation o JOIN actonce.attempt a"
            " USING (tenant, destination, action, operation_id)"
            " WHERE a.epoch = %(epoch)s AND a.outcome = 'lost_interval'))) RETURNING *",
            {
                "epoch": restore.epoch,
                "run": last.run + 1 if last is not None else 1,
                "since": restore.boundary_at - timedelta(seconds=MARGIN_S),
            },
        )
        assert row is not None
        return restore, Sweep.of(row)


async def _last(connection: Connection, epoch: int) -> Sweep | None:
    row = await one(connection, "SELECT * FROM actonce.sweep WHERE epoch = %s ORDER BY run DESC LIMIT 1", (epoch,))
    return None if row is None else Sweep.of(row)


async def last_run(ledger: Ledger, epoch: int) -> Sweep | None:
    """The newest run of a restore, done or not."""
    async with ledger.transaction() as connection:
        return await _last(connection, epoch)


async def unsettled(ledger: Ledger, epoch: int, limit: int = 200) -> list[Operation]:
    """Operations presumed sent in a lost interval, neither established nor held; the longest unread first."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "SELECT o.* FROM actonce.operation o WHERE o.state IN ('dispatched', 'unknown', 'acknowledged')"
            " AND EXISTS (SELECT 1 FROM actonce.attempt a WHERE (a.tenant, a.destination, a.action, a.operation_id) ="
            " (o.tenant, o.destination, o.action, o.operation_id) AND a.epoch <= %s AND a.outcome = 'lost_interval')"
            " ORDER BY (SELECT max(v.at) FROM actonce.verdict v WHERE v.operation_id = o.operation_id) NULLS FIRST,"
            " o.created_at LIMIT %s",
            (epoch, limit),
        )
        return [Operation.of(row) for row in rows]


async def destinations_known(ledger: Ledger) -> list[str]:
    """Every destination that this ledger ever had a contract of."""
    async with ledger.transaction() as connection:
        return [row["name"] for row in await many(connection, "SELECT DISTINCT name FROM actonce.contract ORDER BY 1")]


async def want_beacon(ledger: Ledger, sweep: Sweep, contract: Contract) -> str:
    """Journal the run's own beacon before it is written: a list that does not show it is not fresh."""
    beacon_id = f"{BEACON}restore_{sweep.epoch}_{sweep.run}_{contract.name}"
    async with ledger.transaction() as connection:
        await connection.execute(
            "INSERT INTO actonce.beacon (beacon_id, destination, account, operation_id) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            (beacon_id, contract.name, contract.account, f"restore:{sweep.epoch}"),
        )
        await audit(connection, "beacon.wanted", None, {"beacon_id": beacon_id})
    return beacon_id


# pages --------------------------------------------------------------------------------------------------------------


async def route_run(ledger: Ledger, sweep: Sweep, destination: str, route: str, *, afresh: bool = False) -> RouteRun:
    """Where the reading of a route stands in this run. `afresh`: it begins at its first page again."""
    key = (sweep.epoch, sweep.run, destination, route)
    async with ledger.transaction() as connection:
        await connection.execute(
            "INSERT INTO actonce.sweep_route (epoch, run, destination, route) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT DO NOTHING",
            key,
        )
        if afresh:
            await connection.execute(
                "UPDATE actonce.sweep_route SET status = 'reading', cursor = NULL, pages = 0, rows_received = 0,"
                " declared_total = NULL, totals_agree = true, as_of = NULL, beacon_at = NULL, error = NULL,"
                f" started_at = clock_timestamp(), finished_at = NULL {_WHERE_ROUTE}",
                key,
            )
        row = await one(connection, f"SELECT * FROM actonce.sweep_route {_WHERE_ROUTE}", key)
    assert row is not None
    return RouteRun.of(row)


_WHERE_ROUTE: LiteralString = "WHERE epoch = %s AND run = %s AND destination = %s AND route = %s"


async def record_page(ledger: Ledger, sweep: Sweep, contract: Contract, at: RouteRun, page: Page) -> RouteRun:
    """Keep one page and move on. Raises StaleWrite when somebody else has read this route on meanwhile."""
    effects = _effects(contract, page.rows)
    beacons = [r.committed_at for r in page.rows if r.marker.startswith(BEACON) and r.by_us and r.committed_at]
    async with ledger.transaction() as connection:
        row = await one(
            connection,
            "UPDATE actonce.sweep_route SET cursor = %(next)s, pages = pages + 1, error = NULL,"
            " status = CASE WHEN %(next)s::text IS NULL THEN 'read' ELSE 'reading' END,"
            " finished_at = CASE WHEN %(next)s::text IS NULL THEN clock_timestamp() END,"
            " rows_received = rows_received + %(received)s,"
            " totals_agree = totals_agree AND (declared_total IS NULL OR %(declared)s::bigint IS NULL"
            " OR declared_total = %(declared)s), declared_total = coalesce(%(declared)s, declared_total),"
            " as_of = least(as_of, %(as_of)s), beacon_at = greatest(beacon_at, %(beacon)s)"
            " WHERE epoch = %(epoch)s AND run = %(run)s AND destination = %(destination)s AND route = %(route)s"
            " AND pages = %(pages)s AND cursor IS NOT DISTINCT FROM %(cursor)s RETURNING *",
            {
                "next": page.next_cursor,
                "received": page.rows_received,
                "declared": page.declared_total,
                "as_of": page.as_of,
                "beacon": max(beacons, default=None),
                "epoch": sweep.epoch,
                "run": sweep.run,
                "destination": at.destination,
                "route": at.route,
                "pages": at.pages,
                "cursor": at.cursor,
            },
        )
        if row is None:
            raise StaleWrite(f"another process reads {at.destination} {at.route} for this sweep; leave it to that one")
        if effects:
            await _keep(connection, sweep, contract, at.route, effects)
    return RouteRun.of(row)


async def stop_route(ledger: Ledger, sweep: Sweep, at: RouteRun, status: str, error: str) -> None:
    """The route gave no answer, or has no end. The run cannot be done before it has been read."""
    async with ledger.transaction() as connection:
        await connection.execute(
            f"UPDATE actonce.sweep_route SET status = %s, error = %s {_WHERE_ROUTE}",
            (status, error[:500], sweep.epoch, sweep.run, at.destination, at.route),
        )


def _effects(contract: Contract, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What of a page is an effect at this destination: its kind of object, with a marker where only we can write."""
    form = contract.keys.format if contract.keys is not None else KeyFormat()
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.kind != contract.object_kind or not row.own_field:
            continue
        operation_id = operation_id_of(row.marker, form)
        found[row.object_id] = {
            "object_id": row.object_id,
            "marker": row.marker,
            "operation_id": operation_id,
            "account": row.account,
            "digest": row.digest,
            "committed_at": row.committed_at.isoformat() if row.committed_at is not None else None,
            "problem": _problem(contract, row, operation_id),
        }
    return list(found.values())


def _problem(contract: Contract, row: Row, operation_id: str | None) -> str | None:
    """Why an object cannot be proven to be ours."""
    if operation_id is None:
        return f"its marker {row.marker[:100]} is none that this system makes"
    if row.account != contract.account:
        return f"it is in account {row.account}, ours is {contract.account}"
    if not row.by_us:
        return "its author is not our principal"
    if row.digest is None:
        return "the digest of what it holds cannot be computed"
    return None


_SHOWN: LiteralString = (
    "jsonb_to_recordset(%(rows)s) AS s(object_id text, marker text, operation_id text, account text, digest text,"
    " committed_at timestamptz, problem text)"
)


async def _keep(
    connection: Connection, sweep: Sweep, contract: Contract, route: str, effects: list[dict[str, Any]]
) -> None:
    params: dict[str, Any] = {
        "rows": Jsonb(effects),
        "epoch": sweep.epoch,
        "run": sweep.run,
        "destination": contract.name,
        "route": route,
    }
    await connection.execute(
        "INSERT INTO actonce.restore_effect (epoch, destination, object_id, run, route, marker, operation_id, account,"
        " digest, committed_at, problem) SELECT %(epoch)s, %(destination)s, s.object_id, %(run)s, %(route)s, s.marker,"
        f" s.operation_id, s.account, s.digest, s.committed_at, s.problem FROM {_SHOWN}"
        " ON CONFLICT (epoch, destination, object_id) DO UPDATE SET run = excluded.run, route = excluded.route,"
        " marker = excluded.marker, operation_id = excluded.operation_id, account = excluded.account,"
        " digest = excluded.digest, committed_at = excluded.committed_at, problem = excluded.problem",
        params,
    )
    await _adopt(connection, contract, params)
    await _judge(connection, sweep, contract.name, [e["object_id"] for e in effects])


async def _adopt(connection: Connection, contract: Contract, params: dict[str, Any]) -> None:
    """A record for each effect that has none. Whose it is stands in the journal outside the backup, or nobody knows."""
    await connection.execute(
        "INSERT INTO actonce.operation (tenant, destination, action, operation_id, task_id, step, iteration, payload,"
        " payload_digest, account, contract_version, contract_digest, guarantee, state, last_event, words, epoch,"
        " object_id, receipt, completion, committed_at)"
        " SELECT DISTINCT ON (s.operation_id) coalesce(p.tenant, %(unknown)s), %(destination)s,"
        " coalesce(p.action, %(action)s), s.operation_id, coalesce(p.task_id, %(unknown)s), %(unknown)s, 0, '{}',"
        " s.digest, s.account, %(version)s, %(digest)s, %(guarantee)s, 'committed', 'adopted', %(words)s, %(epoch)s,"
        " s.object_id, jsonb_build_object('object_id', s.object_id, 'digest', s.digest, 'at', s.committed_at,"
        " 'source', 'route:' || %(route)s::text, 'detail', '{}'::jsonb), 'adopted',"
        f" coalesce(s.committed_at, clock_timestamp()) FROM {_SHOWN}"
        " LEFT JOIN LATERAL (SELECT p.* FROM actonce.restore_permitted p WHERE p.destination = %(destination)s"
        " AND p.operation_id = s.operation_id ORDER BY p.epoch DESC LIMIT 1) p ON true"
        " WHERE s.problem IS NULL AND NOT EXISTS (SELECT 1 FROM actonce.operation o"
        " WHERE o.operation_id = s.operation_id AND o.destination = %(destination)s)"
        " ORDER BY s.operation_id, s.object_id ON CONFLICT DO NOTHING",
        {
            **params,
            "unknown": UNKNOWN,
            "action": next(iter(contract.actions)) if len(contract.actions) == 1 else UNKNOWN,
            "version": contract.version,
            "digest": contract.digest,
            "guarantee": contract.late_arrival.kind,
            "words": f"adopted by the sweep of epoch {params['epoch']}: the destination shows it, the restored ledger "
            "had no record of it; nothing of it is sent from here",
        },
    )


# Which record an effect has: its own before an adopted one, where a task came back for it under its own name.
RECORD: LiteralString = (
    "LEFT JOIN LATERAL (SELECT o.* FROM actonce.operation o WHERE o.operation_id = x.operation_id"
    " AND o.destination = x.destination ORDER BY (o.completion IS NOT DISTINCT FROM 'adopted') LIMIT 1) o ON true"
)
_JUDGE: LiteralString = f"""
UPDATE actonce.restore_effect e SET outcome = j.outcome, words = CASE j.outcome
    WHEN 'matched' THEN NULL
    WHEN 'destination_only' THEN coalesce(j.problem, 'adopted')
    ELSE coalesce(j.problem, CASE WHEN j.times > 1 THEN j.times || ' objects carry its key' END,
        'the ledger says ' || j.state || coalesce(' (' || j.reason || ')', '') || ' with '
        || coalesce('object ' || j.known, 'no object') || ' and digest ' || j.asked) END
FROM (
    SELECT x.object_id, x.problem, o.state, o.reason, o.object_id AS known, o.payload_digest AS asked, n.times,
        CASE WHEN o.operation_id IS NULL THEN 'destination_only'
            WHEN x.problem IS NOT NULL OR n.times > 1 OR o.object_id IS DISTINCT FROM x.object_id
                OR o.state <> 'committed' OR o.payload_digest IS DISTINCT FROM x.digest THEN 'conflict'
            WHEN o.completion = 'adopted' AND o.epoch = x.epoch THEN 'destination_only'
            ELSE 'matched' END AS outcome
    FROM actonce.restore_effect x {RECORD}
    CROSS JOIN LATERAL (SELECT count(*) AS times FROM actonce.restore_effect y WHERE y.destination = x.destination
        AND y.operation_id = x.operation_id AND y.epoch = x.epoch AND y.run = x.run) n
    WHERE x.epoch = %(epoch)s AND x.destination = %(destination)s AND x.run = %(run)s AND x.object_id = ANY(%(objects)s)
) j
WHERE e.epoch = %(epoch)s AND e.destination = %(destination)s AND e.object_id = j.object_id
    AND e.object_id = ANY(%(objects)s)
"""


async def _judge(connection: Connection, sweep: Sweep, destination: str, objects: list[str]) -> None:
    """Judge these objects, and those that share an operation with one of them."""
    params: dict[str, Any] = {"epoch": sweep.epoch, "run": sweep.run, "destination": destination, "objects": objects}
    beside = await many(
        connection,
        "SELECT y.object_id FROM actonce.restore_effect x JOIN actonce.restore_effect y"
        " USING (destination, operation_id)"
        " WHERE x.epoch = %(epoch)s AND x.destination = %(destination)s AND x.object_id = ANY(%(objects)s)"
        " AND y.epoch = x.epoch AND y.object_id <> x.object_id",
        params,
    )
    every = sorted({*objects, *(row["object_id"] for row in beside)})
    await connection.execute(_JUDGE, {**params, "objects": every})


# the end ------------------------------------------------------------------------------------------------------------


async def judge_again(ledger: Ledger, sweep: Sweep, destination: str) -> None:
    """What did not match when it was read may have been settled since. In small transactions."""
    after = ""
    while True:
        async with ledger.transaction() as connection:
            rows = await many(
                connection,
                "SELECT object_id FROM actonce.restore_effect WHERE epoch = %s AND destination = %s AND run = %s"
                " AND outcome <> 'matched' AND object_id > %s ORDER BY object_id LIMIT %s",
                (sweep.epoch, destination, sweep.run, after, _JUDGED_AT_ONCE),
            )
            if not rows:
                return
            await _judge(connection, sweep, destination, [row["object_id"] for row in rows])
            after = rows[-1]["object_id"]


async def routes_of(ledger: Ledger, sweep: Sweep) -> list[RouteRun]:
    """Every route that this run has begun to read."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "SELECT * FROM actonce.sweep_route WHERE epoch = %s AND run = %s ORDER BY destination, route",
            (sweep.epoch, sweep.run),
        )
        return [RouteRun.of(row) for row in rows]
