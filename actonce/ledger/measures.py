"""The numbers that metrics and alerts are made of, read from the ledger in one snapshot.

`now` is cheap however long the history is: each of its queries reads what is open, by an index of its own. `totals`
counts whole tables and is for whoever can wait a minute between two readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, LiteralString

from actonce.ledger.records import snapshot
from actonce.ledger.store import Connection, Ledger, many

Row = dict[str, Any]
Measures = dict[str, list[Row]]

_AGE: LiteralString = "extract(epoch FROM clock_timestamp() - min(%s))::float8"


def _age(column: LiteralString) -> LiteralString:
    return _AGE.replace("%s", column)


_NOW: dict[str, LiteralString] = {
    "backlog": f"SELECT task_type, count(*) AS n, {_age('created_at')} AS oldest_s FROM actonce.task"
    " WHERE released_at IS NULL AND state = 'queued' GROUP BY task_type",
    "released": f"SELECT task_type, count(*) AS n, {_age('released_at')} AS oldest_s FROM actonce.task"
    " WHERE released_at IS NOT NULL AND state = 'queued' GROUP BY task_type",
    "tasks": f"SELECT task_type, state, count(*) AS n, {_age('since')} AS oldest_s FROM actonce.task"
    " WHERE state = ANY('{queued,running,waiting_for_approval,held,quarantined}') GROUP BY task_type, state",
    "holds": f"SELECT reason, count(*) AS n, {_age('opened_at')} AS oldest_s FROM actonce.hold"
    " WHERE closed_at IS NULL GROUP BY reason",
    # A page about unanswered pages is no unanswered page: it would keep itself alive.
    "pages": "SELECT severity, count(*) AS n, count(*) FILTER (WHERE sent_at IS NULL) AS unsent,"
    " count(*) FILTER (WHERE acknowledged_at IS NULL) AS unacknowledged,"
    " coalesce(extract(epoch FROM clock_timestamp() - min(opened_at) FILTER (WHERE acknowledged_at IS NULL)), 0)"
    "::float8 AS oldest_s FROM actonce.page WHERE closed_at IS NULL AND reason <> 'nobody_answers' GROUP BY severity",
    "unresolved": f"SELECT destination, state, count(*) AS n, {_age('coalesce(issued_at, created_at)')} AS oldest_s"
    " FROM actonce.operation WHERE state NOT IN ('committed', 'refused', 'closed') GROUP BY destination, state",
    # Past the moment from which it should have been settled or held.
    "overdue": f"SELECT destination, count(*) AS n, {_age('coalesce(decide_at, reconcile_at)')} AS oldest_s"
    " FROM actonce.operation WHERE state IN ('dispatched', 'unknown', 'acknowledged')"
    " AND coalesce(decide_at, reconcile_at) < clock_timestamp() GROUP BY destination",
    "leases": "SELECT c.name AS credential,"
    " coalesce(extract(epoch FROM max(l.expires_at) - clock_timestamp()), 0)::float8 AS left_s"
    " FROM actonce.credential c LEFT JOIN actonce.lease l ON l.credential = c.name AND c.state = 'active'"
    " AND l.generation = c.generation AND l.revoked_at IS NULL AND l.expires_at > clock_timestamp() GROUP BY c.name",
    "unsealed": "SELECT count(*) AS n, coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)::float8 AS oldest_s"
    " FROM actonce.audit WHERE seq IS NULL",
    "sinks": "SELECT c.sink, greatest(0, (SELECT coalesce(max(seq), 0) FROM actonce.audit) - c.seq) AS n,"
    " coalesce((SELECT extract(epoch FROM clock_timestamp() - a.at) FROM actonce.audit a WHERE a.seq = c.seq + 1), 0)"
    "::float8 AS oldest_s FROM actonce.audit_cursor c",
    "audit_gaps": "SELECT count(*) AS n FROM actonce.page WHERE closed_at IS NULL AND reason = 'audit_gap'",
    "alerts": "SELECT severity, count(*) AS n FROM actonce.alert WHERE state = 'firing' GROUP BY severity",
    "dependencies": "SELECT name, kind, state, measures, detail,"
    " extract(epoch FROM clock_timestamp() - checked_at)::float8 AS age_s,"
    " extract(epoch FROM clock_timestamp() - since)::float8 AS since_s FROM actonce.dependency",
}
_TOTALS: dict[str, LiteralString] = {
    "ended_tasks": "SELECT task_type, state, count(*) AS n FROM actonce.task"
    " WHERE state = ANY('{complete,failed,cancelled}') GROUP BY task_type, state",
    "ended_operations": "SELECT destination, action, state, count(*) AS n FROM actonce.operation"
    " WHERE state IN ('committed', 'refused', 'closed') GROUP BY destination, action, state",
    "attempts": "SELECT destination, coalesce(outcome, 'none') AS outcome, count(*) AS n FROM actonce.attempt"
    " GROUP BY 1, 2",
    "permits": "SELECT destination, count(*) AS n FROM actonce.attempt GROUP BY destination",
    "acknowledgements": "SELECT destination, contradicts::text, count(*) AS n FROM actonce.acknowledgement"
    " GROUP BY destination, contradicts",
    "verdicts": "SELECT destination, outcome, count(*) AS n FROM actonce.verdict WHERE applied"
    " GROUP BY destination, outcome",
    "decisions": "SELECT decision, count(*) AS n FROM actonce.decision GROUP BY decision",
    "pages_opened": "SELECT count(*) AS n FROM actonce.page",
}


async def read(ledger: Ledger, part: Literal["now", "totals"]) -> Measures:
    """Rows by the name of their query. Raises LedgerUnavailable."""
    async with snapshot(ledger) as connection:
        return await read_now(connection) if part == "now" else await _read(connection, _TOTALS)


async def read_now(connection: Connection) -> Measures:
    """The part `now`, in a snapshot that is read for more."""
    return await _read(connection, _NOW)


async def _read(connection: Connection, queries: Mapping[str, LiteralString]) -> Measures:
    return {name: list(await many(connection, query)) for name, query in queries.items()}
