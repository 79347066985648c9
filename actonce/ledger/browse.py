"""What people see first: what waits for them, what is open and how long, what is found by a name. Reads only.

Each answer is one snapshot. Lists in pages are in `listing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from actonce.contracts.errors import ForeignLedger
from actonce.ledger import measures
from actonce.ledger.listing import COUNTS, TaskLine, task_line
from actonce.ledger.records import Row, dependency_rows, snapshot
from actonce.ledger.store import Ledger, Operation, many, one

# Both conditions on the state: the first is that of the index.
_ASKED: LiteralString = (
    "(SELECT count(*) FROM actonce.approval WHERE state IN ('pending', 'approved') AND state = 'pending'"
    " AND expires_at > clock_timestamp())"
)
# Another word whenever something was recorded: every change of note is an audit event; readings of dependencies and
# alerts that are pending are none. Or when time alone changed what is shown: a reading grew old, an approval expired.
_PULSE: LiteralString = (
    "concat_ws('-', coalesce((SELECT max(audit_id) FROM actonce.audit), 0),"
    " (SELECT count(*) FROM actonce.audit WHERE seq IS NULL),"
    f" {_ASKED},"
    " left((SELECT md5(string_agg(concat(name, state, clock_timestamp() - checked_at > make_interval(secs =>"
    " %(stale_after_s)s + coalesce((measures ->> 'every_s')::float8, 0))), ',' ORDER BY name))"
    " FROM actonce.dependency), 8),"
    " left((SELECT md5(string_agg(incident || state, ',' ORDER BY incident)) FROM actonce.alert"
    " WHERE state <> 'resolved'), 8))"
)
_HEADING: LiteralString = (
    f"SELECT deployment, ledger_id::text, restore_epoch, quarantined, clock_timestamp() AS now, {_PULSE} AS pulse,"
    " (SELECT count(*) FROM actonce.hold WHERE closed_at IS NULL) AS holds,"
    " (SELECT count(*) FROM actonce.page WHERE closed_at IS NULL) AS pages,"
    f" {_ASKED} AS approvals FROM actonce.identity"
)


@dataclass(frozen=True)
class Heading:
    """What every page says of the deployment: whose it is, whether it is quarantined, what waits for people.

    `pulse` is the one of the same moment: whoever follows it from there misses no change of what the page shows.
    """

    deployment: str
    ledger_id: str
    restore_epoch: int
    quarantined: bool
    now: datetime
    pulse: str
    holds: int
    pages: int
    approvals: int


async def heading(ledger: Ledger, stale_after_s: float) -> Heading:
    """Cheap however long the history is: counts what is open, by indexes of its own.

    `stale_after_s`: a reading of a dependency that is older is not believed (`readings.believe`).
    """
    async with snapshot(ledger) as connection:
        row = await one(connection, _HEADING, {"stale_after_s": stale_after_s})
    if row is None:
        raise ForeignLedger("the ledger has no identity; it was emptied: restore it, do not start on it")
    if ledger.expected_id not in (None, row["ledger_id"]):
        raise ForeignLedger(f"this is ledger {row['ledger_id']}, this deployment's is {ledger.expected_id}")
    return Heading(**row)


async def pulse(ledger: Ledger, stale_after_s: float) -> str:
    """A word that is another one whenever something was recorded, or grew old, since it was read the last time."""
    async with snapshot(ledger) as connection:
        row = await one(connection, f"SELECT {_PULSE} AS pulse", {"stale_after_s": stale_after_s})
    assert row is not None
    return str(row["pulse"])


OLDEST_MAX = 8


@dataclass(frozen=True)
class Overview:
    """Everything that is open, counted and with its age in seconds; what has ended, counted."""

    tasks: dict[str, int]  # by state as people may see it: what is `complete` has evidence (see `listing.shown_state`)
    oldest_s: dict[str, float]  # by state of what is open: since when the oldest is in it
    backlog: list[Row]  # task_type, n, oldest_s
    unresolved: list[Row]  # destination, state, n, oldest_s
    overdue: int  # operations past the moment from which they should have been settled or held
    holds: list[Row]  # reason, n, oldest_s
    oldest_holds: list[Row]
    pages: list[Row]  # severity, n, unsent, unacknowledged
    alerts: list[Row]  # severity, n
    unsealed: Row  # n, oldest_s
    sinks: list[Row]  # sink, n, oldest_s
    audit_gaps: int
    readings: list[Row]  # as records.list_dependencies has them


_ENDED: LiteralString = """
SELECT state, count(*)::int AS n FROM actonce.task WHERE state IN ('complete', 'failed', 'cancelled') GROUP BY state
"""
_OLDEST: LiteralString = (
    "SELECT h.*, extract(epoch FROM clock_timestamp() - h.opened_at)::float8 AS age_s, t.task_type FROM actonce.hold h"
    " LEFT JOIN actonce.task t USING (task_id) WHERE h.closed_at IS NULL ORDER BY h.opened_at LIMIT %s"
)
# Also those that metrics leave out (`measures`): the list of pages has them, and the number beside it.
_PAGES: LiteralString = (
    "SELECT severity, count(*)::int AS n, count(*) FILTER (WHERE sent_at IS NULL)::int AS unsent,"
    " count(*) FILTER (WHERE acknowledged_at IS NULL)::int AS unacknowledged FROM actonce.page"
    " WHERE closed_at IS NULL GROUP BY severity ORDER BY severity"
)
_EVIDENCE: LiteralString = (
    f"SELECT count(*) FILTER (WHERE c.open > 0 OR coalesce(c.evidenced + c.attested, 0) = 0)::int"
    f" AS unproven, count(*) FILTER (WHERE c.open = 0 AND c.attested > 0)::int AS attested FROM actonce.task t"
    f" LEFT JOIN (SELECT task_id, {COUNTS} FROM actonce.operation GROUP BY task_id) c USING (task_id)"
    f" WHERE t.state = 'complete'"
)


async def overview(ledger: Ledger) -> Overview:
    """The first look. Counts of what is open read that alone, by indexes of their own."""
    async with snapshot(ledger) as connection:
        now = await measures.read_now(connection)
        ended = await many(connection, _ENDED)
        evidence = await one(connection, _EVIDENCE)
        oldest = await many(connection, _OLDEST, (OLDEST_MAX,))
        open_pages = await many(connection, _PAGES)
        readings = await dependency_rows(connection)
    assert evidence is not None
    counts: dict[str, int] = {row["state"]: row["n"] for row in ended}
    for name in ("unproven", "attested"):
        counts[name] = evidence[name]
        counts["complete"] = counts.get("complete", 0) - evidence[name]
    ages: dict[str, float] = {}
    for row in now["tasks"]:
        counts[row["state"]] = counts.get(row["state"], 0) + row["n"]
        ages[row["state"]] = max(ages.get(row["state"], 0.0), row["oldest_s"])
    return Overview(
        tasks=counts,
        oldest_s=ages,
        backlog=now["backlog"],
        unresolved=now["unresolved"],
        overdue=sum(row["n"] for row in now["overdue"]),
        holds=sorted(now["holds"], key=lambda row: -row["oldest_s"]),
        oldest_holds=list(oldest),
        pages=list(open_pages),
        alerts=now["alerts"],
        unsealed=now["unsealed"][0],
        sinks=now["sinks"],
        audit_gaps=now["audit_gaps"][0]["n"],
        readings=readings,
    )


CUSTOMER_FIELD = "customer"
FOUND_MAX = 50  # of each kind; a name that fits more is too short to be looked for


@dataclass(frozen=True)
class Found:
    """What a word names. `how` tells by what it was found."""

    how: str
    task: TaskLine | None = None
    operation: Operation | None = None
    approval_id: str | None = None


async def search(ledger: Ledger, word: str) -> list[Found]:
    """Whole names only: task id, task key, operation_id, approval id, the destination's object id, natural effect key,
    and the customer, where a task's payload has a field `customer` at its top. Newest first.
    """
    wanted = word.strip()
    if not wanted:
        return []
    async with snapshot(ledger) as connection:
        found: list[Found] = []
        params = {"word": wanted, "max": FOUND_MAX}
        for how, condition in _TASKS_BY.items():
            rows = await many(connection, f"{_TASK_LINES} WHERE {condition}{_NEWEST}", params)
            found += [Found(how, task=task_line(row)) for row in rows]
        for how, condition in _OPERATIONS_BY.items():
            rows = await many(connection, f"SELECT * FROM actonce.operation WHERE {condition}{_NEWEST}", params)
            found += [Found(how, operation=Operation.of(row)) for row in rows]
        row = await one(connection, "SELECT approval_id FROM actonce.approval WHERE approval_id = %s", (wanted,))
        return found + ([Found("approval id", approval_id=row["approval_id"])] if row else [])


_NEWEST: LiteralString = " ORDER BY created_at DESC LIMIT %(max)s"
_TASK_LINES: LiteralString = (
    f"SELECT t.*, c.* FROM actonce.task t, LATERAL (SELECT {COUNTS} FROM actonce.operation o"
    " WHERE o.task_id = t.task_id) c"
)
_TASKS_BY: dict[str, LiteralString] = {
    "task id": "t.task_id = %(word)s",
    "task key": "t.task_key = %(word)s",
    "customer": f"t.payload ->> '{CUSTOMER_FIELD}' = %(word)s",
}
_OPERATIONS_BY: dict[str, LiteralString] = {
    "operation_id": "operation_id = %(word)s",
    "object at the destination": "object_id = %(word)s",
    "object in an acknowledgement": (
        "operation_id IN (SELECT operation_id FROM actonce.acknowledgement WHERE object_id = %(word)s)"
        " AND object_id IS DISTINCT FROM %(word)s"
    ),
    "natural effect key": "natural_key = %(word)s",
}


async def destinations(ledger: Ledger) -> list[str]:
    """Every destination that a worker has brought a contract of."""
    async with snapshot(ledger) as connection:
        rows = await many(connection, "SELECT DISTINCT name FROM actonce.contract ORDER BY name")
    return [row["name"] for row in rows]


async def contract_of(ledger: Ledger, destination: str, digest: str) -> dict[str, Any] | None:
    """The contract that an operation was begun under, as its worker brought it; None where none was ever registered."""
    async with snapshot(ledger) as connection:
        row = await one(
            connection,
            "SELECT body FROM actonce.contract WHERE name = %s AND digest = %s",
            (destination, digest),
        )
    return dict(row["body"]) if row else None
