"""Required audit events: which there are and when they are written, and the check that every fact has its event.

    operation.<event>      by a trigger: every event of the lifecycle table, with the version and state it led to
    those with a trigger   as well (`actonce.audit_fact`): the row's own columns at that moment
    those without one      by the ledger function that changes the row (`store.audit`)
    everything else        by `store.audit`: acts that change no row of their own (a beacon wanted, a recount, …)

All in the transaction of what they describe. `check_facts` reads one snapshot and compares both ways: a fact without
its event, an event without its fact, an event that says something else, a trigger that is missing or switched off.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, LiteralString

from psycopg import sql

from actonce.contracts.audit import Finding
from actonce.contracts.lifecycle import Event, IllegalTransition, State, next_state
from actonce.ledger.store import Connection, many

FINDINGS_MAX = 100  # of each kind of event; a trail that is broken everywhere is not listed row by row
_BEGINS = {("intent", State.READY.value), ("adopted", State.COMMITTED.value)}  # asked for here; found by a sweep


@dataclass(frozen=True)
class Required:
    """A kind of event and the rows that must have one each. `same`: columns that no later change may alter."""

    kind: str
    trigger: str | None
    table: str
    key: tuple[str, ...]
    when: str
    has: LiteralString | None = "true"  # of the row `t`; None: only the change itself tells that it happened
    same: tuple[str, ...] = ()
    again: bool = False  # it may happen again, and what it told of may be undone: at least one, others are no finding


@dataclass(frozen=True)
class Standing:
    """A table whose rows have a state: the last event of `kinds` about a row names the state that it has."""

    table: str
    key: str  # column of the table
    told: str  # the same in an event's body
    kinds: tuple[str, ...]  # `<table>.<state>`
    first: str  # the state of a row that has had no such event, or only `begins`
    begins: str = ""
    has: LiteralString = "true"  # of the row `t`: it has had such a state


REQUIRED: Sequence[Required] = (
    Required(
        "task.accepted", "audit_task_accepted", "task", ("task_id",), "a task is accepted", same=("payload_digest",)
    ),
    Required("task.<state>", "audit_task_state", "task", ("task_id",), "a task's state or its reason changes", None),
    Required(
        "task.cancel_requested",
        "audit_task_cancel",
        "task",
        ("task_id",),
        "its cancellation is asked for",
        "t.cancel_requested",
    ),
    Required(
        "task.archived",
        "audit_task_archived",
        "task",
        ("task_id",),
        "the payload of a task that ended long ago goes",
        "t.archived_at IS NOT NULL",
    ),
    Required(
        "operation.archived",
        "audit_operation_archived",
        "operation",
        ("operation_id", "destination", "action", "tenant"),
        "the payload of an operation of such a task goes",
        "t.archived_at IS NOT NULL",
    ),
    Required("task.planned", "audit_plan", "plan", ("task_id",), "a plan is made durable", same=("digest",)),
    Required(
        "contract.registered",
        "audit_contract",
        "contract",
        ("name", "digest"),
        "a worker brings a destination's contract",
        same=("version",),
    ),
    Required(
        "acknowledgement.received",
        "audit_acknowledgement",
        "acknowledgement",
        ("ack_id",),
        "an acknowledgement is received, in whatever state",
        same=("destination", "action", "epoch", "attempt", "object_id", "contradicts"),
    ),
    Required("hold.opened", "audit_hold_opened", "hold", ("hold_id",), "an operation or a step is held"),
    Required(
        "hold.reason", "audit_hold_reason", "hold", ("hold_id",), "the reason of a hold, or what it says, changes", None
    ),
    Required(
        "hold.closed",
        "audit_hold_closed",
        "hold",
        ("hold_id",),
        "a hold is closed, by evidence or a decision",
        "t.closed_at IS NOT NULL",
        ("closed_by",),
    ),
    Required(
        "decision.recorded",
        "audit_decision_recorded",
        "decision",
        ("decision_id",),
        "an operator's decision is recorded",
        same=("decision", "name", "reason", "evidence", "object_id"),
    ),
    Required(
        "decision.consumed",
        "audit_decision_consumed",
        "decision",
        ("decision_id",),
        "a decision takes effect, or expires, or is overtaken",
        "t.result IS NOT NULL",
        ("result",),
    ),
    Required(
        "decision.second_person",
        "audit_decision_second",
        "decision",
        ("decision_id",),
        "a second person confirms or declines a decision",
        "t.second_at IS NOT NULL",
        ("name", "second_name", "second_agrees"),
    ),
    Required("person.added", "audit_person_added", "person", ("name",), "somebody may sign in from now on"),
    Required(
        "person.changed",
        "audit_person_changed",
        "person",
        ("name",),
        "a person's roles or password change, or they are disabled",
        None,
    ),
    Required(
        "session.began", "audit_session_began", "session", ("session_id",), "a person signs in", same=("person", "how")
    ),
    Required(
        "session.ended",
        "audit_session_ended",
        "session",
        ("session_id",),
        "a person signs out, or is signed out",
        "t.ended_at IS NOT NULL",
        ("person", "ended_why"),
    ),
    Required(
        "token.created",
        "audit_token_created",
        "token",
        ("token_id",),
        "a token is created",
        same=("label", "scopes", "person", "created_by"),
    ),
    Required(
        "token.revoked",
        "audit_token_revoked",
        "token",
        ("token_id",),
        "a token is revoked",
        "t.revoked_at IS NOT NULL",
        ("revoked_by",),
    ),
    Required("page.opened", "audit_page_opened", "page", ("page_id",), "a person is called", same=("incident",)),
    Required("page.changed", "audit_page_changed", "page", ("page_id",), "a page's reason or severity changes", None),
    Required(
        "page.acknowledged",
        "audit_page_acknowledged",
        "page",
        ("page_id",),
        "a person says that they have seen it",
        "t.acknowledged_at IS NOT NULL",
        again=True,
    ),
    Required(
        "page.closed", "audit_page_closed", "page", ("page_id",), "what was wrong is over", "t.closed_at IS NOT NULL"
    ),
    Required(
        "alert.firing",
        "audit_alert_firing",
        "alert",
        ("incident",),
        "a rule has found something wrong for as long as it takes",
        "t.firings > 0",
        again=True,
    ),
    Required(
        "alert.resolved",
        "audit_alert_resolved",
        "alert",
        ("incident",),
        "what an alert told of is over",
        "t.firings > 0 AND t.state <> 'firing'",
        again=True,
    ),
    Required("approval.proposed", None, "approval", ("approval_id",), "people are asked", same=("digest",)),
    Required(
        "approval.click",
        None,
        "approval_vote",
        ("vote_id",),
        "a person presses a button about it, counted or not",
        same=("approval_id", "decision", "name", "effect"),
    ),
    Required(
        "access_policy.set", None, "access_policy", ("version",), "a person sets the access policy", same=("name",)
    ),
    Required("lease.issued", None, "lease", ("lease_id",), "a lease is had", same=("credential", "principal", "scope")),
    Required("lease.ended", None, "lease", ("lease_id",), "a lease is revoked", "t.revoked_at IS NOT NULL"),
    Required(
        "authorisation.checked",
        None,
        "authorisation",
        ("lease_id", "destination", "action", "scope", "policy_version"),
        "a lease is checked against the access policy",
        same=("allowed", "principal"),
    ),
    Required(
        "release.changed",
        None,
        "release",
        ("task_type", "version"),
        "a person changes the release of a task type",
        "t.version > 1",
        again=True,
    ),
    Required(
        "authority.granted",
        "audit_authority_granted",
        "authority",
        ("authority_id",),
        "a task type is given authority at a destination, with caps",
        same=("destination", "task_type", "granted_by", "evidence_digest"),
    ),
    Required(
        "authority.ended",
        "audit_authority_ended",
        "authority",
        ("authority_id",),
        "an authority is withdrawn, replaced, or found expired",
        "t.ended_at IS NOT NULL",
        ("ended_by", "ended_why"),
    ),
    Required(
        "ledger.epoch", "audit_identity", "identity", ("ledger_id",), "a restore, or the end of a quarantine", None
    ),
    Required(
        "restore.began",
        "audit_restore",
        "restore",
        ("epoch",),
        "a restored ledger enters quarantine",
        same=("kind", "boundary_at", "manifest_digest"),
    ),
    Required(
        "restore.closed",
        "audit_restore_closed",
        "restore",
        ("epoch",),
        "a person closes a restore",
        "t.closed_at IS NOT NULL",
        ("closed_by",),
    ),
    Required(
        "restore.swept",
        "audit_swept",
        "sweep",
        ("epoch", "run"),
        "a restored ledger was compared with its destinations",
        "t.done_at IS NOT NULL",
        ("totals", "not_swept"),
    ),
    Required(
        "restore.released",
        "audit_restore_released",
        "restore_release",
        ("release_id",),
        "a person lets a group of quarantined tasks go",
        same=("epoch", "what", "name", "reason"),
    ),
)
_OTHER_TRIGGERS = {
    ("audit_intent", "operation"),
    ("audit_change", "operation"),
    ("task_stays_quarantined", "task"),
    ("audit_is_append_only", "audit"),
    ("nothing_is_deleted", "audit"),
}


async def check_facts(connection: Connection) -> AsyncIterator[Finding]:
    """Compare the ledger's rows with its events, in the snapshot of the caller's transaction."""
    for finding in await _triggers(connection):
        yield finding
    async for finding in _operations(connection):
        yield finding
    for standing in _STANDINGS:
        for finding in await _standing(connection, standing):
            yield finding
    for required in REQUIRED:
        if required.has is not None:
            for finding in await _rows(connection, required, required.has):
                yield finding


async def _triggers(connection: Connection) -> list[Finding]:
    rows = await many(
        connection,
        "SELECT t.tgname AS name, c.relname AS of_table, t.tgenabled::text AS enabled FROM pg_trigger t JOIN pg_class c"
        " ON c.oid = t.tgrelid WHERE c.relnamespace = 'actonce'::regnamespace AND NOT t.tgisinternal",
    )
    there = {(row["name"], row["of_table"]): row["enabled"] for row in rows}
    wanted = {(r.trigger, r.table) for r in REQUIRED if r.trigger is not None} | _OTHER_TRIGGERS
    return [
        Finding(
            "trigger_off", f"trigger {name} of {table} is {'switched off' if (name, table) in there else 'missing'}"
        )
        for name, table in sorted(wanted)
        if there.get((name, table)) not in ("O", "A")
    ]


async def _rows(connection: Connection, required: Required, has: LiteralString) -> list[Finding]:
    """Rows and events of one kind, matched by key, both ways."""
    key = sql.SQL(", ").join(
        sql.SQL("coalesce(a.body ->> {0}, to_jsonb(a) ->> {0}) AS {1}").format(name, sql.Identifier(f"k_{name}"))
        for name in required.key
    )
    match = sql.SQL(" AND ").join(
        sql.SQL("e.{} = to_jsonb(t) ->> {}").format(sql.Identifier(f"k_{name}"), name) for name in required.key
    )
    changed = "(e.body ? {0} AND e.body -> {0} IS DISTINCT FROM to_jsonb(t) -> {0})"
    differs = sql.SQL(" OR ").join([sql.SQL("false"), *(sql.SQL(changed).format(name) for name in required.same)])
    shown = sql.SQL(" || ' ' || ").join(
        sql.SQL("coalesce(to_jsonb(t) ->> {0}, e.{1})").format(name, sql.Identifier(f"k_{name}"))
        for name in required.key
    )
    query = sql.SQL(
        "SELECT {shown} AS what, t.here IS NOT NULL AS fact, min(e.seq) AS seq, min(e.audit_id) AS audit_id,"
        " count(e.audit_id) AS events, bool_or({differs}) AS differs"
        " FROM (SELECT true AS here, t.* FROM actonce.{table} t WHERE {has}) t FULL JOIN"
        " (SELECT a.audit_id, a.seq, a.body, {key} FROM actonce.audit a WHERE a.kind = {kind}) e ON {match}"
        " GROUP BY 1, 2 HAVING CASE WHEN {again} THEN t.here IS NOT NULL AND count(e.audit_id) = 0 ELSE"
        " count(e.audit_id) <> 1 OR NOT (t.here IS NOT NULL) OR bool_or({differs}) END LIMIT {limit}"
    ).format(
        shown=shown,
        differs=differs,
        table=sql.Identifier(required.table),
        has=sql.SQL(has),
        key=key,
        kind=required.kind,
        match=match,
        again=required.again,
        limit=FINDINGS_MAX,
    )
    rows = await (await connection.execute(query)).fetchall()
    return [_row_finding(required, row) for row in rows]


def _row_finding(required: Required, row: Mapping[str, Any]) -> Finding:
    what = f"{required.table} {row['what']}"
    at = f"audit_id {row['audit_id']}"
    if not row["fact"]:
        return Finding("event_without_fact", f"{required.kind} ({at}) tells of {what}, which is not so", row["seq"])
    if row["events"] == 0:
        return Finding("event_missing", f"{what} has no event {required.kind}")
    if row["events"] > 1:
        return Finding("event_twice", f"{what} has {row['events']} events {required.kind}, first {at}", row["seq"])
    return Finding("event_differs", f"{required.kind} ({at}) of {what} says something else than the row", row["seq"])


_TASK = ("queued", "running", "waiting_for_approval", "held", "quarantined", "failed", "cancelled", "complete")
_APPROVAL = ("approved", "consumed", "rejected", "expired", "withdrawn", "changed", "superseded")
_STANDINGS = (
    Standing("task", "task_id", "task_id", _TASK, "queued"),
    Standing("approval", "approval_id", "approval_id", _APPROVAL, "pending"),
    Standing("alert", "incident", "incident", ("firing",), "pending", "alert.resolved", "t.firings > 0"),
    Standing("credential", "name", "credential", ("expired", "revoked"), "active", "credential.rotated"),
)


async def _standing(connection: Connection, of: Standing) -> list[Finding]:
    """Rows whose last event of state names another state."""
    query = sql.SQL(
        "SELECT t.{key} AS what, t.state, e.kind, e.seq FROM actonce.{table} t LEFT JOIN (SELECT DISTINCT ON (about)"
        " coalesce(body ->> {told}, to_jsonb(a) ->> {told}) AS about, kind, seq FROM actonce.audit a"
        " WHERE kind = ANY({kinds}) ORDER BY about, audit_id DESC) e ON e.about = t.{key}"
        " WHERE {has} AND NOT (e.kind IS NOT DISTINCT FROM {prefix} || t.state"
        " OR (t.state = {first} AND coalesce(e.kind, {begins}) = {begins})) LIMIT {limit}"
    ).format(
        key=sql.Identifier(of.key),
        table=sql.Identifier(of.table),
        kinds=[*(f"{of.table}.{kind}" for kind in of.kinds), of.begins],
        told=of.told,
        first=of.first,
        begins=of.begins,
        has=sql.SQL(of.has),
        prefix=f"{of.table}.",
        limit=FINDINGS_MAX,
    )
    rows = await (await connection.execute(query)).fetchall()
    return [
        Finding(
            "event_differs", f"{of.table} {row['what']} is {row['state']}, its last event is {row['kind']}", row["seq"]
        )
        for row in rows
    ]


async def _operations(connection: Connection) -> AsyncIterator[Finding]:
    """Walk every operation's events through the lifecycle table and compare the end with its row."""
    key: LiteralString = "tenant, destination, action, operation_id"
    query: LiteralString = (
        f"SELECT {key}, 0 AS part, NULL::bigint AS audit_id, NULL::bigint AS seq, NULL AS kind, version,"
        " jsonb_build_object('state', state, 'reason', reason, 'epoch', epoch, 'attempt', attempt, 'digest',"
        " payload_digest, 'object_id', object_id, 'version', version) AS body FROM actonce.operation UNION ALL"
        " SELECT tenant, body ->> 'destination', body ->> 'action', operation_id, 1, audit_id, seq, kind,"
        " (body ->> 'version')::bigint, body FROM actonce.audit WHERE kind LIKE 'operation.%' AND body ? 'version'"
        f" ORDER BY {key}, part, version, audit_id"
    )
    rows: list[Mapping[str, Any]] = []
    async with connection.cursor("audit_operations") as cursor:
        await cursor.execute(query)
        async for row in cursor:
            if rows and _identity(rows[0]) != _identity(row):
                for finding in check_operation(rows):
                    yield finding
                rows = []
            rows.append(row)
    for finding in check_operation(rows) if rows else []:
        yield finding


def _identity(row: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("tenant", "destination", "action", "operation_id"))


def check_operation(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """One operation: its row (part 0, if there is one), then its events (part 1) by version."""
    parts = {part: list(group) for part, group in groupby(rows, key=lambda row: row["part"])}
    events = parts.get(1, [])
    name = f"operation {rows[0]['operation_id']}"
    if 0 not in parts:
        seq = events[0]["seq"]
        return [Finding("event_without_fact", f"{len(events)} events tell of {name}, which is not in the ledger", seq)]
    row = parts[0][0]
    findings: list[Finding] = []
    state: State | None = None
    for expected, event in enumerate(events, 1):
        if event["version"] != expected:
            code = "event_twice" if event["version"] < expected else "event_missing"
            words = f"{name}: version {event['version']} where {expected} was expected ({event['kind']})"
            return [*findings, Finding(code, words, event["seq"])]
        wrong = _illegal(state, event)
        if wrong:
            findings.append(Finding("event_differs", f"{name} version {expected}: {wrong}", event["seq"]))
        state = State(event["body"]["state"])
    if len(events) != row["version"]:
        findings.append(
            Finding("event_missing", f"{name} is at version {row['version']}, its events end at {len(events)}")
        )
    elif {k: events[-1]["body"].get(k) for k in row["body"]} != row["body"]:
        differs = sorted(k for k in row["body"] if events[-1]["body"].get(k) != row["body"][k])
        findings.append(
            Finding(
                "event_differs", f"{name}: its last event and its row differ in {', '.join(differs)}", events[-1]["seq"]
            )
        )
    return findings


def _illegal(state: State | None, event: Mapping[str, Any]) -> str:
    """Words when the lifecycle table does not allow this event to lead where it says."""
    happened, led_to = event["kind"].removeprefix("operation."), event["body"]["state"]
    if state is None:
        return "" if (happened, led_to) in _BEGINS else f"it begins with {happened} to {led_to}"
    try:
        allowed = next_state(state, Event(happened)).value
    except (IllegalTransition, ValueError):
        return f"{happened} is not allowed in state {state}"
    return "" if allowed == led_to else f"{happened} in state {state} leads to {allowed}, not to {led_to}"
