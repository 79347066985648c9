"""Alerts in the ledger: seen, firing, resolved. Whoever evaluates may die at any moment and be another next time.

An alert that has been seen for its `for` fires: in the same transaction its page is opened and its audit event written
(by a trigger, as of every state). One that is no longer seen is resolved and its page closed. The times are the
ledger's, so a restart of the evaluator delays no alert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from actonce.contracts.commands import CLIENT
from actonce.contracts.reasons import policy
from actonce.contracts.verdict import Reason
from actonce.ledger import pages
from actonce.ledger.records import snapshot
from actonce.ledger.store import Connection, Ledger, many, one

_ONE_EVALUATION_AT_A_TIME = 0x616C6572  # key of the advisory lock


@dataclass(frozen=True)
class Seen:
    """A condition of a rule that holds now, for one set of labels."""

    name: str
    labels: Mapping[str, str]
    reason: Reason
    value: float
    for_s: float
    summary: str
    description: str

    @property
    def incident(self) -> str:
        labels = ",".join(f"{name}={value}" for name, value in sorted(self.labels.items()))
        return f"alert:{self.name}:{labels}"


async def record(ledger: Ledger, seen: Sequence[Seen]) -> tuple[list[str], list[str]]:
    """Record one evaluation of all rules. Returns the incidents that fired and those that were resolved by it."""
    async with ledger.transaction() as connection:
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ONE_EVALUATION_AT_A_TIME,))
        fired = [one_.incident for one_ in seen if await _see(connection, one_)]
        resolved = await _resolve_others(connection, [one_.incident for one_ in seen])
        return fired, resolved


async def _see(connection: Connection, seen: Seen) -> bool:
    """True when it fires now and did not before."""
    row = await one(
        connection,
        "INSERT INTO actonce.alert AS a"
        " (incident, name, labels, reason, severity, state, since, seen_at, value, summary, description)"
        " VALUES (%(incident)s, %(name)s, %(labels)s, %(reason)s, %(severity)s, 'pending', clock_timestamp(),"
        " clock_timestamp(), %(value)s, %(summary)s, %(description)s)"
        " ON CONFLICT (incident) DO UPDATE SET reason = excluded.reason, severity = excluded.severity,"
        " value = excluded.value, summary = excluded.summary, description = excluded.description,"
        " seen_at = excluded.seen_at,"
        " since = CASE a.state WHEN 'resolved' THEN excluded.since ELSE a.since END,"
        " state = CASE a.state WHEN 'resolved' THEN 'pending' ELSE a.state END"
        " RETURNING state, since <= clock_timestamp() - make_interval(secs => %(for_s)s) AS long_enough",
        {
            "incident": seen.incident,
            "name": seen.name,
            "labels": Jsonb(dict(seen.labels)),
            "reason": seen.reason.value,
            "severity": policy(seen.reason).severity,
            "value": seen.value,
            "summary": seen.summary,
            "description": seen.description,
            "for_s": seen.for_s,
        },
    )
    assert row is not None
    if row["state"] == "firing" or not row["long_enough"]:
        return False
    await connection.execute(
        "UPDATE actonce.alert SET state = 'firing', fired_at = clock_timestamp(), resolved_at = NULL,"
        " firings = firings + 1 WHERE incident = %s",
        (seen.incident,),
    )
    await pages.open_page(
        connection,
        incident=seen.incident,
        reason=seen.reason.value,
        title=seen.summary,
        body=_page(seen),
    )
    return True


def _page(seen: Seen) -> str:
    row = policy(seen.reason)
    return (
        f"{seen.description}\n"
        f"Do: {CLIENT} alerts   then   {CLIENT} dependencies\n"
        f"It closes by itself when this is no longer seen. It is over when {row.resumes_when}.\n"
        f"Owner: {row.owner}. Procedure: {row.procedure}"
    )


async def _resolve_others(connection: Connection, incidents: list[str]) -> list[str]:
    rows = await many(
        connection,
        "UPDATE actonce.alert a SET state = 'resolved', resolved_at = clock_timestamp() FROM"
        " (SELECT incident, state AS before FROM actonce.alert WHERE state <> 'resolved'"
        " AND NOT incident = ANY(%s::text[]) FOR UPDATE) old"
        " WHERE a.incident = old.incident RETURNING a.incident, old.before",
        (incidents,),
    )
    resolved = sorted(row["incident"] for row in rows if row["before"] == "firing")
    for incident in resolved:
        await pages.close_page(connection, incident)
    return resolved


async def listing(ledger: Ledger, *, resolved: bool = False) -> list[dict[str, Any]]:
    """Firing ones first, then those that have not been seen for long enough; with `resolved` also what is over."""
    async with snapshot(ledger) as connection:
        return list(
            await many(
                connection,
                "SELECT * FROM actonce.alert WHERE state <> 'resolved' OR %s"
                " ORDER BY array_position(ARRAY['firing', 'pending', 'resolved'], state), since, incident",
                (resolved,),
            )
        )
