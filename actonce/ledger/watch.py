"""What the ledger watcher asks and keeps: open operations, due recounts, pages to deliver, readings of dependencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import Event, State
from actonce.contracts.verdict import Reason
from actonce.ledger import pages
from actonce.ledger.store import WHERE_KEY, Ledger, Operation, audit, identity_params, lock_operation, many, one
from actonce.ledger.tasks import Task

# Those that nobody has read for so many seconds, the longest unread first: a pass that had to stop is taken up by the
# next one.
_UNREAD: LiteralString = (
    "SELECT o.* FROM actonce.operation o CROSS JOIN LATERAL (SELECT max(v.at) AS at FROM actonce.verdict v"
    " WHERE v.tenant = o.tenant AND v.destination = o.destination AND v.action = o.action"
    " AND v.operation_id = o.operation_id) seen"
    " WHERE (seen.at IS NULL OR seen.at <= clock_timestamp() - make_interval(secs => %s))"
)
_LONGEST_UNREAD_FIRST: LiteralString = " ORDER BY seen.at NULLS FIRST, o.updated_at LIMIT %s"


async def _operations(ledger: Ledger, query: LiteralString, params: tuple[object, ...]) -> list[Operation]:
    """The operations that a query selects, in a transaction of its own."""
    async with ledger.transaction() as connection:
        return [Operation.of(row) for row in await many(connection, query, params)]


async def unsettled(ledger: Ledger, idle_s: float, limit: int = 200) -> list[Operation]:
    """Operations past reconcile-after that nobody has settled and nobody reads (rule R11)."""
    return await _operations(
        ledger,
        f"{_UNREAD} AND o.state IN ('dispatched', 'unknown', 'acknowledged') AND o.reconcile_at < clock_timestamp()"
        f"{_LONGEST_UNREAD_FIRST}",
        (idle_s, limit),
    )


async def held(ledger: Ledger, idle_s: float, limit: int = 200) -> list[Operation]:
    """Held operations that nobody has read for `idle_s`: late evidence may still resolve them."""
    return await _operations(ledger, f"{_UNREAD} AND o.state = 'held'{_LONGEST_UNREAD_FIRST}", (idle_s, limit))


async def undecided(ledger: Ledger, idle_s: float, limit: int = 200) -> list[Operation]:
    """Held operations with a recorded decision that no workflow has consumed for `idle_s`."""
    return await _operations(
        ledger,
        "SELECT o.* FROM actonce.operation o WHERE EXISTS (SELECT 1 FROM actonce.decision d"
        " WHERE d.tenant = o.tenant AND d.destination = o.destination AND d.action = o.action"
        " AND d.operation_id = o.operation_id AND d.consumed_at IS NULL"
        " AND (NOT d.second_person OR d.second_agrees OR d.expires_at < clock_timestamp())"
        " AND coalesce(d.second_at, d.created_at) < clock_timestamp() - make_interval(secs => %s)) LIMIT %s",
        (idle_s, limit),
    )


async def has_waited(ledger: Ledger, decision_id: int, for_s: float) -> bool:
    """True when a decision was recorded at least `for_s` ago."""
    async with ledger.transaction() as connection:
        row = await one(
            connection,
            "SELECT 1 FROM actonce.decision WHERE decision_id = %s"
            " AND coalesce(second_at, created_at) <= clock_timestamp() - make_interval(secs => %s)",
            (decision_id, for_s),
        )
        return row is not None


async def orphaned(ledger: Ledger, after_s: float, limit: int = 200) -> list[Operation]:
    """Ready operations with earlier permits whose next permit nobody has taken for `after_s`."""
    return await _operations(
        ledger,
        "SELECT o.* FROM actonce.operation o LEFT JOIN actonce.task t USING (task_id) WHERE o.state = 'ready'"
        " AND o.attempts > 0 AND t.outcome IS NULL"
        # nobody may take it while it is quarantined, and who may from now on gets the same time for it
        " AND t.quarantined_epoch IS NULL AND NOT (SELECT quarantined FROM actonce.identity)"
        " AND greatest(o.updated_at, t.since) < clock_timestamp() - make_interval(secs => %s)"
        " ORDER BY o.updated_at LIMIT %s",
        (after_s, limit),
    )


async def hold_orphan(ledger: Ledger, operation: Operation) -> Operation:
    """Hold a ready operation that nobody goes on with; its unused permit is void."""
    async with ledger.transaction() as connection:
        current = await lock_operation(connection, operation.key)
        assert current is not None, "operations are never deleted"
        if current.stamp != operation.stamp or current.state is not State.READY:
            return current
        words = f"nobody has taken its next permit since {current.updated_at}: its workflow is gone or cannot run"
        return await pages.hold(connection, current, Reason.ORPHANED, words)


async def open_tasks(ledger: Ledger, after: str, limit: int) -> list[Task]:
    """Tasks without an outcome that Temporal was given, by id, from the one that follows `after`.

    Not those in quarantine: a restored Temporal need not have them; they are started again when they are released.
    """
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "SELECT * FROM actonce.task WHERE task_id > %s AND outcome IS NULL AND recorded"
            " AND quarantined_epoch IS NULL ORDER BY task_id LIMIT %s",
            (after, limit),
        )
        return [Task.of(row) for row in rows]


_WORKFLOW = "workflow"  # the step of the hold of a task whose workflow is gone


async def hold_lost_task(ledger: Ledger, task_id: str, words: str) -> bool:
    """Hold and page a task whose workflow is gone, with or without an open operation. True when it is news."""
    async with ledger.transaction() as connection:
        row = await one(
            connection,
            "SELECT outcome IS NULL AND NOT EXISTS (SELECT 1 FROM actonce.hold h WHERE h.task_id = t.task_id"
            " AND h.step = %s AND h.operation_id IS NULL AND h.closed_at IS NULL) AS lost"
            " FROM actonce.task t WHERE task_id = %s FOR UPDATE",
            (_WORKFLOW, task_id),
        )
        if row is None or not row["lost"]:
            return False
        await pages.hold_task(connection, task_id, _WORKFLOW, Reason.ORPHANED, words)
        return True


async def release_found_task(ledger: Ledger, task_id: str) -> bool:
    """Its workflow runs (again). True when the task was held because it did not."""
    async with ledger.transaction() as connection:
        was_lost = await pages.close_task_hold(connection, task_id, _WORKFLOW, "evidence:its workflow runs")
        if was_lost:  # no worker had begun it
            await connection.execute(
                "UPDATE actonce.task t SET state = 'queued' WHERE task_id = %s AND state = 'running'"
                " AND NOT EXISTS (SELECT 1 FROM actonce.plan p WHERE p.task_id = t.task_id)",
                (task_id,),
            )
        return was_lost


async def hold_unreadable(ledger: Ledger, operation: Operation, words: str, after_s: float) -> None:
    """Hold an operation whose reconciliation itself fails, `after_s` after the moment from when a person may decide."""
    async with ledger.transaction() as connection:
        current = await lock_operation(connection, operation.key)
        late = await one(
            connection,
            "SELECT clock_timestamp() > %s + make_interval(secs => %s) AS late",
            (operation.decide_at or operation.reconcile_at, after_s),
        )
        if current is None or current.stamp != operation.stamp or not late or not late["late"]:
            return
        if current.state in (State.DISPATCHED, State.UNKNOWN):
            await pages.hold(connection, current, Reason.ROUTE_UNAVAILABLE, words)
        elif current.state is State.ACKNOWLEDGED:
            await pages.hold(connection, current, Reason.NOT_VISIBLE, words)


async def recount_overdue(ledger: Ledger, operation: Operation, after_s: float) -> bool:
    """True when a recount has been due for longer than `after_s` and still cannot be made."""
    async with ledger.transaction() as connection:
        row = await one(
            connection,
            "SELECT clock_timestamp() > %s + make_interval(secs => %s) AS overdue",
            (operation.recount_at, after_s),
        )
        return bool(row and row["overdue"])


async def due_recounts(ledger: Ledger, limit: int = 200) -> list[Operation]:
    """Ended operations with two or more permits that must be read again, however they ended (rule R10)."""
    return await _operations(
        ledger,
        "SELECT * FROM actonce.operation WHERE recount_at < clock_timestamp() AND recounted_at IS NULL"
        " AND state IN ('committed', 'refused', 'closed') ORDER BY recount_at LIMIT %s",
        (limit,),
    )


async def recounted(
    ledger: Ledger, operation: Operation, count: int | None, expected: int, words: str
) -> Operation | None:
    """Record a recount. Another count than expected opens a hold `possible_duplicate`; None: it has no route."""
    async with ledger.transaction() as connection:
        current = await lock_operation(connection, operation.key)
        if current is None or current.stamp != operation.stamp or not current.final:
            return current
        await audit(connection, "operation.recounted", current, {"count": count, "words": words})
        if count is None or count == expected:
            await connection.execute(
                f"UPDATE actonce.operation SET recounted_at = clock_timestamp() WHERE {WHERE_KEY}",
                identity_params(current.key),
            )
            return current
        held_now = await pages.hold(connection, current, Reason.POSSIBLE_DUPLICATE, words, event=Event.RECOUNT_BAD)
        await connection.execute(
            f"UPDATE actonce.operation SET recounted_at = clock_timestamp() WHERE {WHERE_KEY}",
            identity_params(current.key),
        )
        return held_now


async def find_operation(ledger: Ledger, operation_id: str) -> list[Operation]:
    """Every record with this operation_id (one per destination and action)."""
    return await _operations(ledger, "SELECT * FROM actonce.operation WHERE operation_id = %s", (operation_id,))


async def operations_of_task(ledger: Ledger, task_id: str) -> list[Operation]:
    async with ledger.transaction() as connection:
        rows = await many(
            connection, "SELECT * FROM actonce.operation WHERE task_id = %s ORDER BY created_at", (task_id,)
        )
        return [Operation.of(row) for row in rows]


async def workflows_to_nudge(ledger: Ledger, again_s: float, limit: int = 100) -> list[str]:
    """Workflows that wait on a hold which is closed, or on an approval that is decided; at most once in `again_s`."""
    async with ledger.transaction() as connection:
        decided = await many(
            connection,
            "UPDATE actonce.approval SET nudged_at = clock_timestamp() WHERE approval_id IN (SELECT approval_id"
            " FROM actonce.approval a JOIN actonce.task t USING (task_id) WHERE a.state <> 'pending'"
            " AND a.seen_at IS NULL AND t.outcome IS NULL AND NOT EXISTS (SELECT 1 FROM actonce.hold h"
            " WHERE h.operation_id = a.operation_id AND h.task_id = a.task_id AND h.closed_at IS NULL)"
            " AND (a.nudged_at IS NULL OR a.nudged_at < clock_timestamp() - make_interval(secs => %s))"
            " ORDER BY a.proposed_at LIMIT %s) RETURNING (SELECT workflow_id FROM actonce.task t"
            " WHERE t.task_id = approval.task_id)",
            (again_s, limit),
        )
        rows = await many(
            connection,
            "UPDATE actonce.hold h SET nudged_at = clock_timestamp() FROM actonce.task t WHERE t.task_id = h.task_id"
            " AND t.outcome IS NULL AND h.hold_id IN (SELECT hold_id FROM actonce.hold WHERE closed_at IS NOT NULL"
            " AND seen_at IS NULL AND (nudged_at IS NULL OR nudged_at < clock_timestamp() - make_interval(secs => %s))"
            " ORDER BY hold_id LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING t.workflow_id",
            (again_s, limit),
        )
        return sorted({row["workflow_id"] for row in [*rows, *decided]})


async def mark_seen(ledger: Ledger, key: OperationKey) -> None:
    """The workflow that waited has seen that the holds of this operation are closed."""
    async with ledger.transaction() as connection:
        await connection.execute(
            f"UPDATE actonce.hold SET seen_at = clock_timestamp() WHERE {WHERE_KEY} AND closed_at IS NOT NULL"
            " AND seen_at IS NULL",
            identity_params(key),
        )


async def undelivered_pages(
    ledger: Ledger, repeat_s: float, channels: Mapping[str, Sequence[str]] = {}, limit: int = 50
) -> list[dict[str, Any]]:
    """Pages somebody must still get: never sent, repetition due, or refused by a channel of its severity in `channels`.

    A warning that no channel wants is not due; a page without any channel is, for somebody has to hear that. What
    nobody has got yet comes first, so that a channel that refuses old pages keeps no new one from the others.
    `everywhere` in a row: all channels of its severity are meant, not only those without an `ok` in `delivery`.
    """
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "SELECT p.* FROM (SELECT *,"
            " sent_at IS NULL OR sent_at < clock_timestamp() - make_interval(secs => %(repeat)s) AS everywhere,"
            " CASE severity WHEN 'warning' THEN %(warning)s::text[] ELSE %(page)s::text[] END AS wanted"
            " FROM actonce.page) p WHERE (severity <> 'warning' OR cardinality(wanted) > 0) AND (sent_at IS NULL"
            " OR (closed_at IS NULL AND acknowledged_at IS NULL AND (everywhere"
            " OR EXISTS (SELECT 1 FROM unnest(wanted) c WHERE delivery->>c IS DISTINCT FROM 'ok'))))"
            " ORDER BY sent_at IS NULL DESC, everywhere DESC, opened_at LIMIT %(limit)s",
            {
                "repeat": repeat_s,
                "page": list(channels.get("page", ())),
                "warning": list(channels.get("warning", ())),
                "limit": limit,
            },
        )
        return [dict(row) for row in rows]


async def page_sent(ledger: Ledger, page_id: int, delivery: dict[str, str], *, reason: str | None = None) -> None:
    """Record deliveries: channel → `ok` or its error; they join what other channels said.

    Counts as sent when one channel took it. With `reason`: a page whose reason changed meanwhile stays unsent.
    """
    ok = any(state == "ok" for state in delivery.values())
    async with ledger.transaction() as connection:
        await connection.execute(
            "UPDATE actonce.page SET delivery = delivery || %(delivery)s, sends = sends + %(ok)s::int,"
            " sent_at = CASE WHEN %(ok)s AND (%(reason)s::text IS NULL OR reason = %(reason)s) THEN clock_timestamp()"
            " ELSE sent_at END WHERE page_id = %(page_id)s",
            {"delivery": Jsonb(delivery), "ok": ok, "reason": reason, "page_id": page_id},
        )


async def acknowledge_page(ledger: Ledger, page_id: int, name: str) -> Mapping[str, Any] | None:
    """A person has seen it: repetitions stop. Returns who said so first, and when; None: there is no such page."""
    async with ledger.transaction() as connection:
        return await one(
            connection,
            "UPDATE actonce.page SET acknowledged_at = coalesce(acknowledged_at, clock_timestamp()),"
            " acknowledged_by = coalesce(acknowledged_by, %s) WHERE page_id = %s"
            " RETURNING acknowledged_by, acknowledged_at",
            (name, page_id),
        )


async def prove_writable(ledger: Ledger) -> None:
    """Write something that needs new space. Raises LedgerUnavailable: away, read-only, or full.

    A reading that is written over an old one proves less: it may fit where the ledger has no room for an intent.
    """
    async with ledger.transaction() as connection:
        await connection.execute("TRUNCATE actonce.write_probe")
        await connection.execute("INSERT INTO actonce.write_probe VALUES (clock_timestamp())")


async def set_dependency(
    ledger: Ledger,
    *,
    name: str,
    kind: str,
    state: str,
    how: str,
    detail: str = "",
    blocks: str = "",
    measures: Mapping[str, float] = {},
) -> None:
    """Record one reading of a dependency; `since` moves only when the state changes."""
    async with ledger.transaction() as connection:
        await connection.execute(
            "INSERT INTO actonce.dependency (name, kind, state, how, detail, blocks, measures)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s)"
            " ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, state = excluded.state, how = excluded.how,"
            " detail = excluded.detail, blocks = excluded.blocks, measures = excluded.measures,"
            " checked_at = clock_timestamp(),"
            " since = CASE WHEN dependency.state = excluded.state THEN dependency.since ELSE clock_timestamp() END",
            (name, kind, state, how, detail[:2000], blocks, Jsonb(dict(measures))),
        )


async def forget_dependencies(ledger: Ledger, older_than_s: float) -> None:
    """Drop readings that nobody has renewed for so long: what they are about is not configured any more."""
    async with ledger.transaction() as connection:
        await connection.execute(
            "DELETE FROM actonce.dependency WHERE checked_at < clock_timestamp() - make_interval(secs => %s)",
            (older_than_s,),
        )
