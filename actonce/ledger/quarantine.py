"""The way out of a restore's quarantine: tasks by group, each let go by a person; and the end of the restore.

    settled     all that it did is established, and nothing of it is left to do but to say so
    resumable   nothing of it is in doubt; it may go on (or begin)
    held        something of it waits for a decision, which it still needs after its release

Which group a task is in is asked at the moment of the release. Refused before the sweep is done, and for another epoch
than the ledger's. The first release ends the quarantine of the ledger; tasks that are not released stay refused in the
permit's transaction, one by one. Until the restore is closed, what is issued for the first time is reconciled first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal, LiteralString, get_args

from pydantic_core import to_jsonable_python

from actonce.contracts.errors import RestoreRefused
from actonce.ledger import pages, restoring
from actonce.ledger.restoring import Restore
from actonce.ledger.store import Connection, Ledger, many, one
from actonce.ledger.sweeping import Sweep

Group = Literal["settled", "resumable", "held"]
GROUPS: tuple[Group, ...] = get_args(Group)
_AT_ONCE = 100  # tasks of one transaction: each is a few statements, and a ledger's transaction has four seconds


@dataclass(frozen=True)
class Release:
    """A person's act. `tasks`: that it let go; `again`: this press had been recorded before."""

    release_id: int
    epoch: int
    what: str
    name: str
    reason: str
    at: datetime
    tasks: int
    done_at: datetime | None  # all that were in the group then went
    again: bool = False

    @staticmethod
    def of(row: Mapping[str, Any], *, again: bool = False) -> Release:
        names = [name for name in Release.__dataclass_fields__ if name != "again"]
        return Release(**{name: row[name] for name in names}, again=again)


@dataclass(frozen=True)
class Gone:
    """A task that was permitted to send in the lost interval, by the journal, and that this ledger does not know."""

    task_id: str
    tenant: str
    operations: int
    shown: int  # of them that a destination shows


@dataclass(frozen=True)
class Standing:
    """How the last restore stands; `restore` None: there never was one."""

    epoch: int  # the ledger's
    quarantined: bool
    restore: Restore | None = None
    sweep: Sweep | None = None
    waiting: Mapping[str, int] | None = None  # group → tasks that wait for a release
    unsettled: int = 0  # operations that may have been sent in the lost interval, and are neither established nor held
    listed: tuple[str, ...] = ()  # destinations that would have shown everything that was sent
    not_listed: tuple[str, ...] = ()
    releases: tuple[Release, ...] = ()
    gone: tuple[Gone, ...] = ()

    @property
    def why_not(self) -> str | None:
        """Why nothing can be released now."""
        if self.restore is None or self.restore.closed_at is not None:
            return "no restore is open"
        if self.restore.swept_at is None:
            return "the sweep is not done: `python worker.py restore sweep`"
        return None


_GROUP_OF: LiteralString = """
SELECT t.task_id, CASE
    WHEN EXISTS (SELECT 1 FROM actonce.hold h WHERE h.task_id = t.task_id AND h.closed_at IS NULL)
        OR EXISTS (SELECT 1 FROM actonce.operation o WHERE o.task_id = t.task_id
            AND o.state IN ('held', 'dispatched', 'unknown', 'acknowledged')) THEN 'held'
    WHEN EXISTS (SELECT 1 FROM actonce.operation o WHERE o.task_id = t.task_id)
        AND NOT EXISTS (SELECT 1 FROM actonce.operation o WHERE o.task_id = t.task_id AND o.state = 'ready')
        THEN 'settled'
    ELSE 'resumable' END AS what
FROM actonce.task t WHERE t.quarantined_epoch IS NOT NULL AND t.state NOT IN ('complete', 'failed', 'cancelled')
"""


async def waiting(connection: Connection) -> dict[str, int]:
    """How many tasks of each group wait."""
    rows = await many(connection, f"SELECT what, count(*) AS n FROM ({_GROUP_OF}) g GROUP BY 1")
    return dict.fromkeys(GROUPS, 0) | {row["what"]: row["n"] for row in rows}


async def waiting_tasks(ledger: Ledger, group: str, limit: int = 100) -> list[str]:
    """The ids of tasks of a group that wait, at most `limit`."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection, f"SELECT task_id FROM ({_GROUP_OF}) g WHERE what = %s ORDER BY 1 LIMIT %s", (group, limit)
        )
        return [row["task_id"] for row in rows]


async def release(
    ledger: Ledger, group: Group, *, expected_epoch: int, name: str, reason: str, press: str | None = None
) -> Release:
    """Let the tasks of a group go; recorded before it has an effect. The same `press` again is the same release.

    Raises RestoreRefused: no_restore, stale, not_swept, press_reused.
    """
    async with ledger.transaction() as connection:
        restore = await _open(connection, expected_epoch)
        made = await _made(connection, restore, group, name, reason, press)
        if made is None:
            made = await _record(connection, restore, group, name, reason, press)
    while made.done_at is None:
        made = replace(await _let_some_go(ledger, made), again=made.again)
    return made


async def _open(connection: Connection, expected_epoch: int) -> Restore:
    identity = await one(connection, "SELECT restore_epoch FROM actonce.identity FOR UPDATE")
    assert identity is not None, "actonce.identity is empty"
    if identity["restore_epoch"] != expected_epoch:
        raise RestoreRefused(
            "stale",
            f"the ledger is in epoch {identity['restore_epoch']}, you decided on epoch {expected_epoch}; it was "
            "restored again: read how it stands now",
        )
    restore = await restoring.open_restore(connection)
    if restore is None:
        raise RestoreRefused("no_restore", f"no restore is open in epoch {expected_epoch}; nothing waits for a release")
    return restore


async def _made(
    connection: Connection, restore: Restore, group: str, name: str, reason: str, press: str | None
) -> Release | None:
    """What this press made before."""
    if press is None:
        return None
    row = await one(
        connection,
        "SELECT * FROM actonce.restore_release WHERE epoch = %s AND press = %s",
        (restore.epoch, press),
    )
    if row is None:
        return None
    if (row["what"], row["name"], row["reason"]) != (group, name, reason):
        raise RestoreRefused(
            "press_reused",
            f"this press released {row['what']} by {row['name']} ({row['reason']}); another release needs a press of "
            "its own",
        )
    return Release.of(row, again=True)


async def _record(
    connection: Connection, restore: Restore, group: str, name: str, reason: str, press: str | None
) -> Release:
    if restore.swept_at is None:
        raise RestoreRefused(
            "not_swept",
            f"the sweep of epoch {restore.epoch} is not done: what was sent since the backup is not known; run "
            "`python worker.py restore sweep`, then release",
        )
    row = await one(
        connection,
        "INSERT INTO actonce.restore_release (epoch, what, name, reason, press) VALUES (%s, %s, %s, %s, %s)"
        " RETURNING *",
        (restore.epoch, group, name, reason, press),
    )
    assert row is not None
    await connection.execute("UPDATE actonce.identity SET quarantined = false WHERE quarantined")
    await connection.execute(
        "UPDATE actonce.restore SET released_at = clock_timestamp(), released_by = %s WHERE epoch = %s"
        " AND released_at IS NULL",
        (name, restore.epoch),
    )
    return Release.of(row)


async def _let_some_go(ledger: Ledger, made: Release) -> Release:
    """One transaction's worth of the group. Whoever dies in between is followed by the same press."""
    async with ledger.transaction() as connection:
        # what this release was decided on: tasks of the restores up to its epoch
        rows = await many(
            connection,
            f"SELECT t.task_id FROM actonce.task t JOIN ({_GROUP_OF}) g USING (task_id) WHERE g.what = %s"
            " AND t.quarantined_epoch <= %s ORDER BY t.task_id LIMIT %s FOR UPDATE OF t",
            (made.what, made.epoch, _AT_ONCE),
        )
        went = await restoring.let_go(connection, [row["task_id"] for row in rows]) if rows else 0
        row = await one(
            connection,
            "UPDATE actonce.restore_release SET tasks = tasks + %(went)s, done_at = CASE WHEN %(went)s = 0"
            " THEN clock_timestamp() END WHERE release_id = %(id)s RETURNING *",
            {"went": went, "id": made.release_id},
        )
        assert row is not None
        return Release.of(row)


async def close(ledger: Ledger, *, expected_epoch: int, name: str, reason: str) -> Restore:
    """End the restore: from here on a first send needs no reading before it. Again by the same name: as it stands.

    Raises RestoreRefused: no_restore, stale, not_swept, quarantined (tasks wait for a release).
    """
    async with ledger.transaction() as connection:
        before = await one(connection, "SELECT * FROM actonce.restore WHERE epoch = %s", (expected_epoch,))
        if before is not None and (before["closed_by"], before["close_reason"]) == (name, reason):
            return Restore.of(before)
        restore = await _open(connection, expected_epoch)
        if restore.swept_at is None:
            raise RestoreRefused("not_swept", f"the sweep of epoch {restore.epoch} is not done; it cannot be closed")
        left = await waiting(connection)
        if any(left.values()):
            words = ", ".join(f"{n} {group}" for group, n in left.items() if n)
            raise RestoreRefused("quarantined", f"tasks still wait for their release ({words}); release them first")
        row = await one(
            connection,
            # an earlier restore that nobody closed ends with it: its tasks are released, too
            "UPDATE actonce.restore SET closed_at = clock_timestamp(), closed_by = %s, close_reason = %s,"
            " close_risk = %s WHERE closed_at IS NULL AND epoch <= %s RETURNING *",
            (name, reason, await _risk(connection, restore), restore.epoch),
        )
        assert row is not None
        await connection.execute("UPDATE actonce.identity SET open_restore = NULL, quarantined = false")
        await pages.close_page(connection, restore.incident)
        row = await one(connection, "SELECT * FROM actonce.restore WHERE epoch = %s", (restore.epoch,))
        assert row is not None
        return Restore.of(row)


async def _risk(connection: Connection, restore: Restore) -> str:
    """What is not known when it is closed, in words."""
    _, missing = await _listed(connection, restore)
    if restore.journal_complete or not missing:
        return "none known"
    return (
        f"not listed completely: {', '.join(missing)}; what was sent there in the lost interval by operations that "
        "this ledger has no record of is not known, and they would be sent again without being reconciled first"
    )


async def _listed(connection: Connection, restore: Restore) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(Destinations that would have shown everything, all others)."""
    rows = await many(
        connection,
        "SELECT DISTINCT c.name, l.destination IS NOT NULL AS listed FROM actonce.contract c"
        " LEFT JOIN actonce.restore_listed l ON l.destination = c.name AND l.epoch = %s ORDER BY 1",
        (restore.epoch,),
    )
    return tuple(r["name"] for r in rows if r["listed"]), tuple(r["name"] for r in rows if not r["listed"])


async def standing(ledger: Ledger) -> Standing:
    """How the last restore of this ledger stands, in one snapshot."""
    async with ledger.transaction() as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        identity = await one(connection, "SELECT restore_epoch, quarantined FROM actonce.identity")
        assert identity is not None, "actonce.identity is empty"
        now = Standing(identity["restore_epoch"], identity["quarantined"])
        row = await one(connection, "SELECT * FROM actonce.restore ORDER BY epoch DESC LIMIT 1")
        if row is None:
            return now
        restore = Restore.of(row)
        run = await one(
            connection, "SELECT * FROM actonce.sweep WHERE epoch = %s ORDER BY run DESC LIMIT 1", (restore.epoch,)
        )
        left = await one(
            connection,
            "SELECT count(*) AS n FROM actonce.operation o WHERE o.state IN ('dispatched', 'unknown', 'acknowledged')"
            " AND EXISTS (SELECT 1 FROM actonce.attempt a WHERE (a.tenant, a.destination, a.action, a.operation_id) ="
            " (o.tenant, o.destination, o.action, o.operation_id) AND a.outcome = 'lost_interval')",
        )
        releases = await many(
            connection, "SELECT * FROM actonce.restore_release WHERE epoch = %s ORDER BY release_id", (restore.epoch,)
        )
        listed, not_listed = await _listed(connection, restore)
        assert left is not None
        return Standing(
            epoch=now.epoch,
            quarantined=now.quarantined,
            restore=restore,
            sweep=Sweep.of(run) if run is not None else None,
            waiting=await waiting(connection),
            unsettled=left["n"],
            listed=listed,
            not_listed=not_listed,
            releases=tuple(Release.of(r) for r in releases),
            gone=await _gone(connection, restore),
        )


async def _gone(connection: Connection, restore: Restore) -> tuple[Gone, ...]:
    rows = await many(
        connection,
        "SELECT p.task_id, p.tenant, count(*) AS operations, count(e.operation_id) AS shown"
        " FROM actonce.restore_permitted p LEFT JOIN LATERAL (SELECT e.operation_id FROM actonce.restore_effect e"
        " WHERE e.destination = p.destination AND e.operation_id = p.operation_id AND e.epoch = p.epoch LIMIT 1) e"
        " ON true"
        " WHERE p.epoch = %s AND NOT EXISTS (SELECT 1 FROM actonce.task t WHERE t.task_id = p.task_id)"
        " GROUP BY 1, 2 ORDER BY 1 LIMIT 1000",
        (restore.epoch,),
    )
    return tuple(Gone(**row) for row in rows)


def told(now: Standing) -> dict[str, Any]:
    """The same as JSON, for whoever asks by a command."""
    body: dict[str, Any] = to_jsonable_python(asdict(now))
    return {**body, "why_not": now.why_not}
