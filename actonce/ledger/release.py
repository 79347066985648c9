"""Release: which accepted tasks go to Temporal now, oldest first, and what keeps the others in the backlog.

    accepted ──> backlog (released_at is NULL) ──turn──> released ──> Temporal ──> a worker takes it: running

A turn releases nothing while the type is paused or nobody asks for work on its task queue; else as many as the rate
allows and as fit into the window of tasks that were released and not yet taken. So consumers that are down leave at
most one window behind in Temporal, and what waits is let go at a rate that somebody chose. Approvals, leases and
deadlines are not looked at here: they are checked in the permit's transaction, at the moment of execution.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from actonce.contracts.errors import ReleaseRefused
from actonce.ledger.store import Connection, Ledger, audit, many, one
from actonce.ledger.tasks import Task

READING_FRESH_S = 30.0  # an older reading that nobody works is not believed: the window alone limits then


@dataclass(frozen=True)
class Control:
    """The release of one task type, and what waits behind it. `why_not` is None while tasks are let go."""

    task_type: str
    paused: bool
    rate_per_s: float | None
    window_max: int
    version: int
    changed_at: datetime
    changed_by: str | None
    why: str | None
    backlog: int  # accepted and not released
    outstanding: int  # released and not yet taken by a worker
    oldest_at: datetime | None  # when the first of the backlog was accepted
    nobody_works: bool  # by a fresh reading

    @property
    def why_not(self) -> str | None:
        """What keeps the backlog where it is, in words."""
        if self.paused:
            return f"the release of {self.task_type} is paused by {self.changed_by}: {self.why}"
        if self.nobody_works:
            return "nobody asks for work on its task queue"
        if self.outstanding >= self.window_max:
            return f"{self.outstanding} released tasks wait for a worker, the window is {self.window_max}"
        return None


_STANDING: LiteralString = """
SELECT r.*, (SELECT count(*) FROM actonce.task t
             WHERE t.task_type = r.task_type AND released_at IS NULL AND state = 'queued') AS backlog,
    (SELECT min(created_at) FROM actonce.task t
     WHERE t.task_type = r.task_type AND released_at IS NULL AND state = 'queued') AS oldest_at,
    (SELECT count(*) FROM actonce.task t
     WHERE t.task_type = r.task_type AND released_at IS NOT NULL AND state = 'queued') AS outstanding,
    EXISTS (SELECT 1 FROM actonce.dependency d WHERE d.name = 'pollers:' || %(queue)s AND d.state = 'down'
            AND d.checked_at > clock_timestamp() - make_interval(secs => %(fresh)s)) AS nobody_works
FROM actonce.release r WHERE task_type = %(type)s
"""
# With the defaults of the table: the first change, or the first turn, writes its row with them.
_NEVER: LiteralString = _STANDING.replace(
    "actonce.release r WHERE task_type = %(type)s",
    "(SELECT %(type)s::text AS task_type, false AS paused, NULL::float8 AS rate_per_s, 20 AS window_max,"
    " 1::bigint AS version, clock_timestamp() AS changed_at, NULL::text AS changed_by, NULL::text AS why) r",
)


async def _standing(connection: Connection, task_type: str, queue: str, *, lock: bool) -> tuple[Control, Any]:
    params = {"type": task_type, "queue": queue, "fresh": READING_FRESH_S}
    if lock:  # a statement of its own: what is counted in the statement that waits for a lock is from before the wait
        await connection.execute("SELECT 1 FROM actonce.release WHERE task_type = %s FOR UPDATE", (task_type,))
    row = await one(connection, _STANDING, params)
    if row is None:
        await connection.execute(
            "INSERT INTO actonce.release (task_type) VALUES (%s) ON CONFLICT DO NOTHING", (task_type,)
        )
        if lock:
            await connection.execute("SELECT 1 FROM actonce.release WHERE task_type = %s FOR UPDATE", (task_type,))
        row = await one(connection, _STANDING, params)
    assert row is not None
    return Control(**{name: row[name] for name in Control.__dataclass_fields__}), row


async def control(ledger: Ledger, task_type: str, queue: str) -> Control:
    """How the release of a task type stands now."""
    async with ledger.transaction() as connection:
        return (await _standing(connection, task_type, queue, lock=False))[0]


async def standing(ledger: Ledger, task_type: str, queue: str) -> Control:
    """The same, reading only: of a type that nothing was ever released of, what would hold."""
    params = {"type": task_type, "queue": queue, "fresh": READING_FRESH_S}
    async with ledger.transaction() as connection:
        row = await one(connection, _STANDING, params) or await one(connection, _NEVER, params)
    assert row is not None
    return Control(**{name: row[name] for name in Control.__dataclass_fields__})


async def turn(ledger: Ledger, task_type: str, queue: str, *, limit: int) -> list[Task]:
    """Release what may go now, at most `limit`, oldest first; the caller hands them to Temporal.

    One that dies after this commit leaves them released and not recorded: `tasks.unrecorded` finds them again.
    """
    async with ledger.transaction() as connection:
        now, row = await _standing(connection, task_type, queue, lock=True)
        if now.why_not is not None or now.backlog == 0:
            return []
        room = min(limit, now.window_max - now.outstanding)
        if now.rate_per_s is not None:
            room = min(room, await _tokens(connection, row))
        if room < 1:
            return []
        released = await many(
            connection,
            "UPDATE actonce.task SET released_at = statement_timestamp() WHERE task_id IN"
            " (SELECT task_id FROM actonce.task WHERE task_type = %s AND released_at IS NULL"
            " AND state = 'queued' AND NOT cancel_requested"
            " ORDER BY created_at, task_id LIMIT %s FOR UPDATE) RETURNING *",
            (task_type, room),
        )
        if now.rate_per_s is not None:
            await connection.execute(
                "UPDATE actonce.release SET tokens = tokens - %s WHERE task_type = %s", (len(released), task_type)
            )
        for task in released:
            await audit(connection, "task.released", None, {"backlog": now.backlog}, task_id=task["task_id"])
    return sorted((Task.of(row) for row in released), key=lambda task: task.created_at)


async def _tokens(connection: Connection, row: Any) -> int:
    """What the rate allows now. A bucket holds one second's worth, and at least one."""
    filled = await one(
        connection,
        "UPDATE actonce.release SET filled_at = clock_timestamp(), tokens = least(greatest(rate_per_s, 1), tokens"
        " + rate_per_s * extract(epoch FROM clock_timestamp() - filled_at)) WHERE task_type = %s RETURNING tokens",
        (row["task_type"],),
    )
    assert filled is not None
    return int(filled["tokens"])


async def change(
    ledger: Ledger,
    task_type: str,
    queue: str,
    *,
    name: str,
    why: str,
    evidence: str,
    expected_version: int,
    paused: bool | None = None,
    rate_per_s: float | None = None,
    no_rate: bool = False,
    window_max: int | None = None,
) -> Control:
    """Pause, resume, or set rate and window; recorded with who and why. What is not named stays as it is.

    The same change again is answered with how it stands (idempotent). Raises ReleaseRefused when the control has moved
    since `expected_version` was read.
    """
    async with ledger.transaction() as connection:
        before, _ = await _standing(connection, task_type, queue, lock=True)
        wanted = (
            before.paused if paused is None else paused,
            None if no_rate else before.rate_per_s if rate_per_s is None else rate_per_s,
            before.window_max if window_max is None else window_max,
        )
        same = wanted == (before.paused, before.rate_per_s, before.window_max)
        if same and before.version == expected_version + 1 and (before.changed_by, before.why) == (name, why):
            return before
        if before.version != expected_version:
            raise ReleaseRefused(
                f"the release of {task_type} is at version {before.version} (by {before.changed_by}: {before.why}), "
                f"you decided on version {expected_version}; read it again"
            )
        await connection.execute(
            "UPDATE actonce.release SET paused = %s, rate_per_s = %s, window_max = %s, version = version + 1,"
            " changed_at = clock_timestamp(), changed_by = %s, why = %s, tokens = 0, filled_at = clock_timestamp()"
            " WHERE task_type = %s",
            (*wanted, name, why, task_type),
        )
        body = {
            "task_type": task_type,
            "paused": wanted[0],
            "rate_per_s": wanted[1],
            "window_max": wanted[2],
            "name": name,
            "why": why,
            "evidence": evidence,
            "version": before.version + 1,
        }
        await audit(connection, "release.changed", None, body)
        return (await _standing(connection, task_type, queue, lock=False))[0]


async def waiting_types(ledger: Ledger) -> list[str]:
    """Task types with a backlog."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "SELECT DISTINCT task_type FROM actonce.task WHERE released_at IS NULL AND state = 'queued'"
            " AND NOT cancel_requested",
        )
        return sorted(row["task_type"] for row in rows)


async def ahead(connection: Connection, task: Task) -> int:
    """How many tasks of its type are before it in the backlog."""
    row = await one(
        connection,
        "SELECT count(*) AS n FROM actonce.task WHERE task_type = %s AND released_at IS NULL AND state = 'queued'"
        " AND (created_at, task_id) < (%s, %s)",
        (task.task_type, task.created_at, task.task_id),
    )
    assert row is not None
    return int(row["n"])


async def set_deadline(
    ledger: Ledger, task_id: str, *, name: str, why: str, deadline: datetime, expected: datetime | None
) -> Task | None:
    """Give a task another deadline, recorded; None when there is no such task. The same one again changes nothing.

    Raises ReleaseRefused when the task has an outcome, or another deadline than the `expected` one.
    """
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT * FROM actonce.task WHERE task_id = %s FOR UPDATE", (task_id,))
        if row is None or row["deadline"] == deadline:
            return None if row is None else Task.of(row)
        if row["outcome"] is not None:
            raise ReleaseRefused(f"task {task_id} is {row['state']}; a deadline changes nothing any more")
        if row["deadline"] != expected:
            raise ReleaseRefused(
                f"the deadline of task {task_id} is {row['deadline']}, you saw {expected}; read it again"
            )
        changed = await one(
            connection, "UPDATE actonce.task SET deadline = %s WHERE task_id = %s RETURNING *", (deadline, task_id)
        )
        assert changed is not None
        body = {"before": str(row["deadline"]), "after": str(deadline), "name": name, "why": why}
        await audit(connection, "task.deadline_changed", None, body, task_id=task_id)
        return Task.of(changed)
