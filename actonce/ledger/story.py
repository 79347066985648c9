"""The story of one task: what happened, in order, from every table that knows of it. Reads only, one snapshot.

An entry is a fact of the ledger with its time by the ledger's clock; nothing is concluded here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

from actonce.ledger.records import Row, snapshot
from actonce.ledger.store import Ledger, many, utc

PART_MAX = 500  # rows of one kind that are told of one task; the oldest


@dataclass(frozen=True)
class Entry:
    """One thing that happened. `look` is (domain, word) of how it is shown; the ids lead to more."""

    at: datetime
    what: str
    words: str = ""
    who: str | None = None
    look: tuple[str, str] | None = None
    operation_id: str | None = None
    approval_id: str | None = None
    page_id: int | None = None


async def story(ledger: Ledger, task_id: str) -> list[Entry]:
    """Oldest first. Empty for a task that is not in this ledger."""
    entries: list[Entry] = []
    async with snapshot(ledger) as connection:
        for part, query in _PARTS.items():
            told = _TELLERS[part]
            for row in await many(connection, query, {"task_id": task_id, "max": PART_MAX}):
                entries += told(row)
    return sorted(entries, key=lambda entry: entry.at)


_OF_ITS_OPERATIONS: LiteralString = (
    "JOIN actonce.operation o ON o.task_id = %(task_id)s AND o.tenant = x.tenant AND o.destination = x.destination"
    " AND o.action = x.action AND o.operation_id = x.operation_id"
)
_PARTS: dict[str, LiteralString] = {
    "task": "SELECT * FROM actonce.task WHERE task_id = %(task_id)s",
    "plan": "SELECT * FROM actonce.plan WHERE task_id = %(task_id)s",
    "memory": "SELECT * FROM actonce.memory_use WHERE task_id = %(task_id)s ORDER BY since LIMIT %(max)s",
    "approval": "SELECT * FROM actonce.approval WHERE task_id = %(task_id)s ORDER BY proposed_at LIMIT %(max)s",
    "vote": "SELECT v.*, a.operation_id, a.step FROM actonce.approval_vote v JOIN actonce.approval a"
    " USING (approval_id) WHERE a.task_id = %(task_id)s ORDER BY v.vote_id LIMIT %(max)s",
    "operation": "SELECT * FROM actonce.operation WHERE task_id = %(task_id)s ORDER BY created_at LIMIT %(max)s",
    "attempt": f"SELECT x.*, o.step FROM actonce.attempt x {_OF_ITS_OPERATIONS} ORDER BY x.issued_at LIMIT %(max)s",
    "acknowledgement": f"SELECT x.*, o.step FROM actonce.acknowledgement x {_OF_ITS_OPERATIONS}"
    " ORDER BY x.ack_id LIMIT %(max)s",
    # Of verdicts that say the same again and again, the first: the others are on the operation's page.
    "verdict": "SELECT * FROM (SELECT x.*, o.step, lag(x.outcome || coalesce(x.reason, '')) OVER (PARTITION BY"
    f" x.operation_id, x.destination, x.action ORDER BY x.verdict_id) AS before FROM actonce.verdict x"
    f" {_OF_ITS_OPERATIONS}) v WHERE before IS DISTINCT FROM outcome || coalesce(reason, '')"
    " ORDER BY verdict_id LIMIT %(max)s",
    "hold": "SELECT * FROM actonce.hold WHERE task_id = %(task_id)s ORDER BY hold_id LIMIT %(max)s",
    "decision": f"SELECT x.*, o.step FROM actonce.decision x {_OF_ITS_OPERATIONS} ORDER BY x.decision_id LIMIT %(max)s",
    "page": "SELECT * FROM actonce.page WHERE task_id = %(task_id)s ORDER BY page_id LIMIT %(max)s",
    "event": "SELECT * FROM actonce.audit WHERE task_id = %(task_id)s AND kind IN ('task.cancel_requested',"
    " 'task.deadline_changed', 'task.complete', 'task.failed', 'task.cancelled') ORDER BY audit_id LIMIT %(max)s",
}


def _task(row: Row) -> Iterator[Entry]:
    yield Entry(row["created_at"], "Request accepted", f"{row['task_type']} with key {row['task_key']}")
    if row["released_at"] is not None:
        yield Entry(row["released_at"], "Released to Temporal", "it left the backlog")


def _plan(row: Row) -> Iterator[Entry]:
    steps = row["body"].get("steps") if isinstance(row["body"], dict) else None
    named = [str(one.get("step", "")) for one in steps if isinstance(one, dict)] if isinstance(steps, list) else []
    yield Entry(row["created_at"], "Plan made durable", ", ".join(filter(None, named)))


def _memory(row: Row) -> Iterator[Entry]:
    words = {
        "found": f"{row['items']} found",
        "empty": "nothing, by a healthy index that was proven",
        "remembered": "kept",
        "unavailable": f"{row['trouble']}: {row['words']}; "
        + ("the task waits for it" if row["waits"] else "the task went on without"),
    }
    verb = "asked" if row["kind"] == "recall" else "told"
    yield Entry(
        row["at"], f"Memory {verb} at {row['step']}", words.get(row["status"], ""), look=("memory", row["status"])
    )


def _approval(row: Row) -> Iterator[Entry]:
    of: dict[str, Any] = {"operation_id": row["operation_id"], "approval_id": row["approval_id"]}
    yield Entry(
        row["proposed_at"],
        f"Approval asked for: {row['step']}",
        f"{row['action']} at {row['destination']}, until {utc(row['expires_at'])}",
        row["requested_by"],
        ("approval", "pending"),
        **of,
    )
    if row["consumed_at"] is not None:
        yield Entry(row["consumed_at"], f"Approval consumed: {row['step']}", "by the permit", **of)
    if row["ended_at"] is not None:
        look = ("approval", row["state"])
        yield Entry(
            row["ended_at"],
            f"Approval {row['state']}: {row['step']}",
            row["ended_why"] or "",
            row["ended_by"],
            look,
            **of,
        )


def _vote(row: Row) -> Iterator[Entry]:
    counted = row["effect"] == "counted"
    words = row["note"] if counted else f"it changed nothing: {row['effect'].replace('_', ' ')}. {row['note']}"
    verbs = {"approve": "Approved", "reject": "Rejected", "withdraw": "Withdrawn"}
    look = ("approval", {"approve": "approved", "reject": "rejected"}.get(row["decision"], "withdrawn"))
    yield Entry(
        row["at"],
        f"{verbs[row['decision']]}: {row['step']}" if counted else f"Pressed {row['decision']}: {row['step']}",
        words,
        row["name"],
        look if counted else None,
        row["operation_id"],
        row["approval_id"],
    )


def _operation(row: Row) -> Iterator[Entry]:
    of = {"operation_id": row["operation_id"]}
    yield Entry(row["created_at"], f"Intent recorded: {row['step']}", f"{row['action']} at {row['destination']}", **of)
    if row["committed_at"] is not None and row["state"] == "committed":
        by = {"read_back": "a route shows it", "receipt": "acknowledged as applied", "handover": "handed over"}
        how = by.get(row["completion"], row["completion"] or "no evidence on record")
        yield Entry(
            row["committed_at"],
            f"Effect committed: {row['step']}",
            f"{row['object_id'] or 'no object id'}; {how}",
            look=("operation", "committed"),
            **of,
        )


def _attempt(row: Row) -> Iterator[Entry]:
    of = {"operation_id": row["operation_id"]}
    yield Entry(
        row["issued_at"],
        f"Permit consumed: {row['step']}",
        f"attempt {row['attempt']}; may send until {utc(row['not_after'])}",
        look=("operation", "dispatched"),
        **of,
    )
    told = _OUTCOMES.get(row["outcome"] or "")
    if row["outcome_at"] is not None and told is not None:
        look = ("operation", {"unknown": "unknown", "refused": "refused"}.get(row["outcome"], "ready"))
        yield Entry(row["outcome_at"], f"{told}: {row['step']}", row["detail"] or "", look=look, **of)


_OUTCOMES = {  # an acknowledgement is told by its own row
    "not_sent": "Provably not sent",
    "not_accepted": "Provably not processed",
    "refused": "Declined by the destination",
    "unknown": "Outcome unknown",
}


def _acknowledgement(row: Row) -> Iterator[Entry]:
    odd = "; it contradicts what was concluded before" if row["contradicts"] else ""
    yield Entry(
        row["at"],
        f"Acknowledgement received: {row['step']}",
        f"{row['object_id']}{odd}",
        look=("operation", "held" if row["contradicts"] else "acknowledged"),
        operation_id=row["operation_id"],
    )


def _verdict(row: Row) -> Iterator[Entry]:
    yield Entry(
        row["at"],
        f"Read back, {row['outcome']}: {row['step']}",
        row["words"],
        look=("verdict", row["outcome"]),
        operation_id=row["operation_id"],
    )


def _hold(row: Row) -> Iterator[Entry]:
    of = {"operation_id": row["operation_id"]}
    yield Entry(row["opened_at"], f"Held: {row['reason']}", row["words"], look=("operation", "held"), **of)
    if row["closed_at"] is not None:
        yield Entry(row["closed_at"], f"Hold over: {row['reason']}", f"by {row['closed_by']}", **of)


def _decision(row: Row) -> Iterator[Entry]:
    of = {"operation_id": row["operation_id"]}
    seen = f" Evidence: {row['evidence']}" if row["evidence"] else ""
    yield Entry(row["created_at"], f"Decided: {row['decision']}", f"{row['reason']}.{seen}", row["name"], **of)
    if row["second_at"] is not None:
        verb = "Agreed to" if row["second_agrees"] else "Declined"
        yield Entry(row["second_at"], f"{verb}: {row['decision']}", row["second_why"] or "", row["second_name"], **of)
    if row["consumed_at"] is not None:
        yield Entry(row["consumed_at"], f"Decision {row['result'].replace('_', ' ')}: {row['decision']}", **of)


def _page(row: Row) -> Iterator[Entry]:
    of: dict[str, Any] = {"operation_id": row["operation_id"], "page_id": row["page_id"]}
    yield Entry(row["opened_at"], f"Page {row['page_id']} opened", row["title"], **of)
    if row["acknowledged_at"] is not None:
        yield Entry(row["acknowledged_at"], f"Page {row['page_id']} seen", "", row["acknowledged_by"], **of)
    if row["closed_at"] is not None:
        yield Entry(row["closed_at"], f"Page {row['page_id']} closed", **of)


def _event(row: Row) -> Iterator[Entry]:
    body, kind = row["body"], row["kind"].partition(".")[2]
    if kind == "cancel_requested":
        yield Entry(row["at"], "Cancellation asked for", body.get("cancel_why") or "", body.get("cancel_by"))
    elif kind == "deadline_changed":
        yield Entry(row["at"], "Deadline changed", str(body.get("why", "")), body.get("name"))
    else:
        yield Entry(row["at"], f"Task reported {kind}", body.get("detail") or "", look=("task", kind))


_TELLERS: dict[str, Callable[[Row], Iterator[Entry]]] = {
    "task": _task,
    "plan": _plan,
    "memory": _memory,
    "approval": _approval,
    "vote": _vote,
    "operation": _operation,
    "attempt": _attempt,
    "acknowledgement": _acknowledgement,
    "verdict": _verdict,
    "hold": _hold,
    "decision": _decision,
    "page": _page,
    "event": _event,
}
