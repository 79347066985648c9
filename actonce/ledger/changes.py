"""What has changed since somebody looked: for a person whose press came too late. Reads only, from the audit trail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import DictRow

from actonce.contracts.identity import OperationKey
from actonce.ledger.records import snapshot
from actonce.ledger.store import WHERE_KEY, Connection, Ledger, identity_params, many

CHANGES_MAX = 20  # the newest; nobody reads more at such a moment


@dataclass(frozen=True)
class Change:
    """One thing that happened since: when, what in words, and who did it (None: the system)."""

    at: datetime
    words: str
    who: str | None = None


async def of_operation(ledger: Ledger, key: OperationKey, version: int) -> list[Change]:
    """What happened to an operation after `version`, and what was decided on that version; oldest first."""
    params: dict[str, Any] = {**identity_params(key), "version": version, "limit": CHANGES_MAX}
    async with snapshot(ledger) as connection:
        events = await many(
            connection,
            "SELECT at, kind, body FROM actonce.audit WHERE operation_id = %(operation_id)s AND tenant = %(tenant)s"
            " AND kind LIKE 'operation.%%' AND body ->> 'destination' = %(destination)s"
            " AND body ->> 'action' = %(action)s AND (body ->> 'version')::bigint > %(version)s"
            " ORDER BY audit_id DESC LIMIT %(limit)s",
            params,
        )
        found = [_event(row) for row in events]
        found += await _decisions(connection, params)
    return sorted(found, key=lambda change: change.at)


def _event(row: dict[str, Any]) -> Change:
    body = row["body"]
    happened = row["kind"].removeprefix("operation.").replace("_", " ")
    why = f" ({body['reason']})" if body.get("reason") else ""
    return Change(row["at"], f"version {body['version']}: {happened}; it is {body['state']}{why}")


async def _decisions(connection: Connection, params: dict[str, Any]) -> list[Change]:
    rows = await many(
        connection,
        f"SELECT * FROM actonce.decision WHERE {WHERE_KEY} AND expected_version >= %(version)s"
        " ORDER BY decision_id DESC LIMIT %(limit)s",
        params,
    )
    found = [Change(row["created_at"], f"{row['decision']} was decided: {row['reason']}", row["name"]) for row in rows]
    ends = {"applied": "took effect", "expired": "lapsed", "stale": "came too late", "declined": "was declined"}
    ends["superseded_by_evidence"] = "was overtaken by evidence"
    return found + [
        Change(row["consumed_at"], f"{row['decision']} by {row['name']} {ends.get(row['result'], row['result'])}")
        for row in rows
        if row["result"] is not None
    ]


async def of_release(ledger: Ledger, task_type: str, version: int) -> list[Change]:
    """How the release of a task type was changed after `version`; oldest first."""
    rows = await _told_since(ledger, "release.changed", "task_type", task_type, version)
    return [_release(row["at"], row["body"]) for row in rows]


def _release(at: datetime, body: dict[str, Any]) -> Change:
    rate = "no rate limit" if body["rate_per_s"] is None else f"at most {body['rate_per_s']:g} a second"
    state = "paused" if body["paused"] else f"{rate}, window {body['window_max']}"
    return Change(at, f"version {body['version']}: {state}; {body['why']}", body["name"])


async def of_person(ledger: Ledger, name: str, version: int) -> list[Change]:
    """How a person was changed after `version`; oldest first. (Not by changes from before they had versions.)"""
    rows = await _told_since(ledger, "person.changed", "name", name, version)
    return [Change(row["at"], _person(row["body"]), row["body"]["changed_by"]) for row in rows]


async def _told_since(ledger: Ledger, kind: str, about: str, value: str, version: int) -> list[DictRow]:
    """The newest events of a kind whose body has this value and a later version; oldest first."""
    async with snapshot(ledger) as connection:
        rows = await many(
            connection,
            'SELECT at, body FROM actonce.audit WHERE kind COLLATE "C" = %s AND body ->> %s = %s'
            " AND (body ->> 'version')::bigint > %s ORDER BY audit_id DESC LIMIT %s",
            (kind, about, value, version, CHANGES_MAX),
        )
    return rows[::-1]


def _person(body: dict[str, Any]) -> str:
    now = ", ".join(sorted(body["roles"])) or "no role"
    said = {"roles": f"roles are {now}", "password": "another password"}
    return f"version {body['version']}: {said.get(body['changed_what'], body['changed_what'])}"


async def of_deadline(ledger: Ledger, task_id: str) -> list[Change]:
    """How a task's deadline was changed, oldest first."""
    async with snapshot(ledger) as connection:
        rows = await many(
            connection,
            "SELECT at, body FROM actonce.audit WHERE kind = 'task.deadline_changed' AND task_id = %s"
            " ORDER BY audit_id DESC LIMIT %s",
            (task_id, CHANGES_MAX),
        )
    return [
        Change(row["at"], f"{row['body']['before']} became {row['body']['after']}; {row['body']['why']}", who)
        for row in reversed(rows)
        for who in [row["body"]["name"]]
    ]
