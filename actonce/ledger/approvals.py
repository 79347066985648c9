"""Approvals: one row for each time an operation was proposed, and what people said about it.

Promises: what a row is about and until when never changes; one winner, whoever clicks at the same moment (the row is
locked, and it is a row before any workflow hears of it); a click that came too late or second is on record as a click
and changes nothing; the permit's transaction consumes an approval once. Whoever waits looks here again: a nudge may
be lost. An approval is locked after its task (the order in `store`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, LiteralString

from psycopg.types.json import Jsonb

from actonce.contracts.approval import (
    ApprovalAct,
    ApprovalRenewal,
    ApprovalTerms,
    ApprovalVote,
    Proposal,
    approval_id_of,
    same_person,
)
from actonce.contracts.commands import CLIENT
from actonce.contracts.errors import ApprovalRefused
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import FINAL
from actonce.contracts.verdict import Reason
from actonce.ledger import pages
from actonce.ledger.store import (
    WHERE_KEY,
    Connection,
    Ledger,
    Operation,
    audit,
    identity_params,
    many,
    one,
    read_operation,
    utc,
)

ApprovalState = Literal["pending", "approved", "consumed", "rejected", "expired", "withdrawn", "changed", "superseded"]
Decision = Literal["approve", "reject"]
OPEN = ("pending", "approved")
BY_THE_CLOCK, BY_THE_TASK = "the clock", "its task"

# A row whose time is over is shown as expired from that moment on, whoever has or has not noticed yet.
SHOWN: LiteralString = (
    "SELECT a.*, CASE WHEN state IN ('pending', 'approved') AND expires_at <= clock_timestamp() THEN 'expired'"
    " ELSE state END AS shown, extract(epoch FROM expires_at - clock_timestamp())::float8 AS seconds_left,"
    " (SELECT count(*) FROM actonce.approval_vote v WHERE v.approval_id = a.approval_id AND effect = 'counted'"
    " AND decision = 'approve')::int AS approvals_given FROM actonce.approval a"
)


# Of a dispatched operation `o`: how its newest approval was taken back, NULL when it was not. The fence asks.
TAKEN_BACK: LiteralString = (
    "(SELECT CASE WHEN n.state = 'withdrawn' THEN concat('withdrawn by ', n.ended_by, ': ', n.ended_why) END"
    " FROM actonce.approval n WHERE (n.tenant, n.destination, n.action, n.operation_id)"
    " = (o.tenant, o.destination, o.action, o.operation_id) ORDER BY n.round DESC LIMIT 1)"
)


@dataclass(frozen=True)
class Approval:
    """One row of `actonce.approval`, as it is at this moment of the ledger's clock."""

    approval_id: str
    tenant: str
    destination: str
    action: str
    operation_id: str
    round: int
    task_id: str
    step: str
    proposal: Proposal
    digest: str
    requested_by: str
    approvers_needed: int
    approvals_given: int
    proposed_at: datetime
    expires_at: datetime
    seconds_left: float
    state: ApprovalState  # as it may be shown; the row may not know yet that its time is over
    decided_at: datetime | None
    decided_by: str | None
    consumed_at: datetime | None
    ended_at: datetime | None
    ended_by: str | None
    ended_why: str | None
    found: Proposal | None

    @property
    def key(self) -> OperationKey:
        return OperationKey(self.tenant, self.destination, self.action, self.operation_id)

    @property
    def incident(self) -> str:
        """Of its page: one per approval, for whoever is asked."""
        return f"approval:{self.approval_id}"

    @property
    def in_force(self) -> bool:
        """May a permit be given on it (again)?"""
        return self.state in ("approved", "consumed") and self.seconds_left > 0

    @staticmethod
    def of(row: dict[str, Any]) -> Approval:
        values = {name: row[name] for name in Approval.__dataclass_fields__}
        values["proposal"] = Proposal.model_validate(row["proposal"])
        values["found"] = Proposal.model_validate(row["found"]) if row["found"] else None
        return Approval(**{**values, "state": row["shown"]})


async def get(connection: Connection, approval_id: str, *, lock: bool = False) -> Approval | None:
    """Read one approval; with `lock`, its task's row and then its own are locked for this transaction."""
    if lock:
        await connection.execute(
            "SELECT 1 FROM actonce.task t JOIN actonce.approval a USING (task_id) WHERE a.approval_id = %s"
            " FOR NO KEY UPDATE OF t",
            (approval_id,),
        )
        await connection.execute("SELECT 1 FROM actonce.approval WHERE approval_id = %s FOR UPDATE", (approval_id,))
    row = await one(connection, f"{SHOWN} WHERE approval_id = %s", (approval_id,))
    return None if row is None else Approval.of(row)


async def latest(connection: Connection, key: OperationKey, *, lock_task: str | None = None) -> Approval | None:
    """The newest approval of an operation, whatever became of it; with the id of its task, both are locked."""
    params = identity_params(key)
    if lock_task is not None:
        await connection.execute("SELECT 1 FROM actonce.task WHERE task_id = %s FOR NO KEY UPDATE", (lock_task,))
        await connection.execute(f"SELECT 1 FROM actonce.approval WHERE {WHERE_KEY} FOR UPDATE", params)
    row = await one(connection, f"{SHOWN} WHERE {WHERE_KEY} ORDER BY round DESC LIMIT 1", params)
    return None if row is None else Approval.of(row)


async def propose(ledger: Ledger, key: OperationKey, task_id: str, step: str, proposal: Proposal) -> Approval:
    """Ask people, or find what was asked before: a restarted task asks nobody twice and moves no deadline.

    Only what nobody has decided yet is replaced where it is about something else by now. Whatever else there is is
    returned as it is: the permit's transaction compares.
    """
    async with ledger.transaction() as connection:
        before = await latest(connection, key, lock_task=task_id)
        if before is not None:
            if before.state != "pending" or before.digest == proposal.digest:
                return before
            await end(connection, before, "superseded", BY_THE_TASK, "what would run changed before anybody decided")
        return await ask(connection, key, task_id, step, proposal)


async def ask(connection: Connection, key: OperationKey, task_id: str, step: str, proposal: Proposal) -> Approval:
    """Open the next round for an operation: a row, its audit event, the task's state and the approvers' page."""
    row = await one(
        connection,
        f"SELECT coalesce(max(round), 0) + 1 AS round FROM actonce.approval WHERE {WHERE_KEY}",
        identity_params(key),
    )
    assert row is not None
    approval_id = approval_id_of(key, row["round"])
    inserted = await one(
        connection,
        "INSERT INTO actonce.approval (approval_id, tenant, destination, action, operation_id, round, task_id, step,"
        " proposal, digest, requested_by, approvers_needed, expires_at) VALUES (%(id)s, %(tenant)s, %(destination)s,"
        " %(action)s, %(operation_id)s, %(round)s, %(task_id)s, %(step)s, %(proposal)s, %(digest)s, %(by)s, %(needed)s,"
        " clock_timestamp() + make_interval(secs => %(valid_s)s)) ON CONFLICT DO NOTHING RETURNING 1",
        {
            **identity_params(key),
            "id": approval_id,
            "round": row["round"],
            "task_id": task_id,
            "step": step,
            "proposal": Jsonb(proposal.model_dump(mode="json")),
            "digest": proposal.digest,
            "by": proposal.requested_by,
            "needed": proposal.terms.approvers,
            "valid_s": proposal.terms.valid_s,
        },
    )
    asked = await get(connection, approval_id)
    assert asked is not None, "just inserted, or by somebody else at the same moment"
    if inserted is None:
        return asked
    await _record(connection, asked, "proposed", {"by": asked.requested_by, "expires_at": utc(asked.expires_at)})
    await pages.task_goes_on(connection, task_id)
    await pages.open_page(
        connection,
        incident=asked.incident,
        reason=Reason.APPROVAL_PENDING.value,
        title=f"{asked.action} at {asked.destination} waits for approval",
        body=f"Step {step} of task {task_id} asks to do {asked.action} at {asked.destination} (asked by "
        f"{asked.requested_by}). Nothing is sent before it is approved (by {asked.approvers_needed}), and never after "
        f"{utc(asked.expires_at)}.\nDo: {CLIENT} approvals {approval_id}   then   "
        f"{CLIENT} approve {approval_id} --digest {asked.digest} …   or   {CLIENT} reject …\n"
        "Procedure: docs/operations/approval_pending.md",
        task_id=task_id,
    )
    return asked


async def vote(ledger: Ledger, approval_id: str, decision: Decision, given: ApprovalVote) -> Approval:
    """Count one person's voice, or record the click that it was.

    A repeat of what was counted succeeds. Raises ApprovalRefused with a code: unknown_approval, changed (another
    digest), expired, already_decided, voted (the same person said otherwise), requester, not_open.
    """
    async with ledger.transaction() as connection:
        approval = await _locked(connection, approval_id)
        await _expire(connection, approval)
        me = same_person(given.name)
        voices = await _voices(connection, approval)
        mine = next((said for name, said in voices if same_person(name) == me), None)
        if given.digest == approval.digest and mine == decision and _stands(approval, decision):
            return approval
        asked_by_me = me in await _requesters(connection, approval)
        refusal = _refusal(approval, decision, given, mine, asked_by_me=asked_by_me)
        await _click(connection, approval, decision, given.name, given.note, refusal.code if refusal else "counted")
        if refusal is None:
            return await _counted(connection, approval, decision)
    raise refusal  # after the commit: the click stays on record


def _stands(approval: Approval, decision: Decision) -> bool:
    if approval.state == "pending":
        return True
    return approval.state in (("approved", "consumed") if decision == "approve" else ("rejected",))


async def _voices(connection: Connection, approval: Approval) -> list[tuple[str, str]]:
    """Who said what, as it was counted."""
    rows = await many(
        connection,
        "SELECT name, decision FROM actonce.approval_vote WHERE approval_id = %s AND effect = 'counted'"
        " AND decision <> 'withdraw' ORDER BY vote_id",
        (approval.approval_id,),
    )
    return [(row["name"], row["decision"]) for row in rows]


async def _requesters(connection: Connection, approval: Approval) -> set[str]:
    """Everybody who asked for this operation, in whatever round, and who started its task.

    Who asks again does not speak for who asked first, and who starts a task not by naming another in its payload.
    """
    rows = await many(
        connection,
        f"SELECT requested_by AS name FROM actonce.approval WHERE {WHERE_KEY} UNION SELECT submitted_by"
        " FROM actonce.task WHERE task_id = %(task_id)s AND submitted_by IS NOT NULL",
        {**identity_params(approval.key), "task_id": approval.task_id},
    )
    return {same_person(row["name"]) for row in rows}


async def satisfies(connection: Connection, approval: Approval, terms: ApprovalTerms) -> bool:
    """Would what was said be enough under these terms? Costs queries only where they are stricter than those asked."""
    was = approval.proposal.terms
    stricter_about_who = was.requester_may_approve and not terms.requester_may_approve
    if approval.approvers_needed >= terms.approvers and not stricter_about_who:
        return True
    voices = {same_person(name) for name, said in await _voices(connection, approval) if said == "approve"}
    if not terms.requester_may_approve:
        voices -= await _requesters(connection, approval)
    return len(voices) >= terms.approvers


def _refusal(
    approval: Approval, decision: Decision, given: ApprovalVote, mine: str | None, *, asked_by_me: bool
) -> ApprovalRefused | None:
    name = approval.approval_id
    if given.digest != approval.digest:
        return ApprovalRefused(
            f"{name} is about {approval.digest}, you decided about {given.digest}; read it again", code="changed"
        )
    if approval.state == "expired":
        words = f"{name} expired at {utc(approval.expires_at)}; your click is on record and changes nothing"
        return ApprovalRefused(f"{words}; ask for a new one with `{CLIENT} renew {name}`", code="expired")
    if approval.state in ("approved", "consumed", "rejected"):
        assert approval.decided_by is not None and approval.decided_at is not None
        kind = "rejected" if approval.state == "rejected" else "approved"
        return ApprovalRefused(
            f"{name} was {kind} by {approval.decided_by} at {utc(approval.decided_at)}; nothing is left to decide",
            code="already_decided",
            decided_by=approval.decided_by,
            decided_at=utc(approval.decided_at),
        )
    if approval.state != "pending":
        return ApprovalRefused(
            f"{name} was {approval.state} by {approval.ended_by}: {approval.ended_why}; nothing is left to decide",
            code="not_open",
            decided_by=approval.ended_by,
        )
    if mine is not None:
        return ApprovalRefused(f"{name}: {given.name} has said {mine} already; one person has one voice", code="voted")
    if decision == "approve" and asked_by_me and not approval.proposal.terms.requester_may_approve:
        return ApprovalRefused(f"{name} was asked for by {given.name}; somebody else has to approve", code="requester")
    return None


async def _click(connection: Connection, approval: Approval, decision: str, name: str, note: str, effect: str) -> None:
    clicked = await one(
        connection,
        "INSERT INTO actonce.approval_vote (approval_id, name, decision, effect, note) VALUES (%s, %s, %s, %s, %s)"
        " ON CONFLICT DO NOTHING RETURNING vote_id",
        (approval.approval_id, name, decision, effect, note),
    )
    if clicked is not None:  # the same click again adds nothing to the record
        body = {"vote_id": clicked["vote_id"], "decision": decision, "name": name, "effect": effect}
        await _record(connection, approval, "click", body)


async def _counted(connection: Connection, approval: Approval, decision: Decision) -> Approval:
    voices = await many(
        connection,
        "SELECT name FROM actonce.approval_vote WHERE approval_id = %s AND effect = 'counted' AND decision = %s"
        " ORDER BY vote_id",
        (approval.approval_id, decision),
    )
    if decision == "reject" or len(voices) >= approval.approvers_needed:
        state = "approved" if decision == "approve" else "rejected"
        by = ", ".join(row["name"] for row in voices)
        await connection.execute(
            "UPDATE actonce.approval SET state = %s, decided_by = %s, decided_at = clock_timestamp()"
            " WHERE approval_id = %s",
            (state, by, approval.approval_id),
        )
        await _record(connection, approval, state, {"by": by})
        await _is_over(connection, approval)
    after = await get(connection, approval.approval_id)
    assert after is not None
    return after


async def withdraw(ledger: Ledger, approval_id: str, act: ApprovalAct) -> Approval:
    """Take it back: no (further) permit is given on it. What was sent before cannot be called back.

    Raises ApprovalRefused: unknown_approval, not_open, operation_ended.
    """
    async with ledger.transaction() as connection:
        approval = await _locked(connection, approval_id)
        if approval.state == "withdrawn" and approval.ended_by == act.name:
            return approval
        operation = await read_operation(connection, approval.key)
        refusal = None
        if approval.state not in (*OPEN, "consumed"):
            words = f"{approval_id} is {approval.state}; there is nothing to withdraw"
            refusal = ApprovalRefused(words, code="not_open", decided_by=approval.ended_by or approval.decided_by)
        elif operation is not None and operation.state in FINAL:
            words = f"{approval_id}: its operation {operation.operation_id} is {operation.state} already"
            refusal = ApprovalRefused(words, code="operation_ended")
        effect = refusal.code if refusal else "counted"
        await _click(connection, approval, "withdraw", act.name, act.note, effect)
        if refusal is None:
            return await end(connection, approval, "withdrawn", act.name, act.note)
    raise refusal


async def renew(ledger: Ledger, approval_id: str, act: ApprovalRenewal) -> Approval:
    """Ask again for a held operation, with a new deadline: for what was found to run now, or as it was approved.

    Raises ApprovalRefused: unknown_approval, not_latest, still_open, not_held.
    """
    async with ledger.transaction() as connection:
        approval = await _locked(connection, approval_id)
        newest = await latest(connection, approval.key)
        operation = await read_operation(connection, approval.key)
        assert newest is not None
        if newest.approval_id != approval_id:
            if newest.round == approval.round + 1 and newest.requested_by == act.name:
                return newest  # the same request again
            raise ApprovalRefused(
                f"{approval_id} was followed by {newest.approval_id}, which is {newest.state}", code="not_latest"
            )
        if approval.state in OPEN or approval.in_force:
            raise ApprovalRefused(f"{approval_id} is {approval.state}; there is nothing to renew", code="still_open")
        if operation is None or operation.state != "held":
            state = operation.state if operation else "not there yet"
            raise ApprovalRefused(
                f"{approval_id}: its operation is {state}; only a held one is asked for again", code="not_held"
            )
        found = None if act.as_approved else approval.found
        proposal = (found or approval.proposal).model_copy(update={"requested_by": act.name})
        await pages.close_page(connection, approval.incident)
        asked = await ask(connection, approval.key, approval.task_id, approval.step, proposal)
        await _record(connection, asked, "renewed", {"after": approval_id, "by": act.name, "note": act.note})
        return asked


async def consume(connection: Connection, approval: Approval, operation: Operation) -> None:
    """Use it for a permit. Once: a later permit of the same operation finds it consumed and is checked all the same."""
    await mark_seen(connection, approval.key)
    if approval.state == "approved":
        await connection.execute(
            "UPDATE actonce.approval SET state = 'consumed', consumed_at = clock_timestamp()"
            " WHERE approval_id = %s AND state = 'approved'",
            (approval.approval_id,),
        )
        await _record(connection, approval, "consumed", {"attempt": operation.attempt + 1})


async def end(
    connection: Connection,
    approval: Approval,
    state: ApprovalState,
    by: str,
    why: str,
    found: Proposal | None = None,
) -> Approval:
    """Make a locked approval one that gives no (further) permit, and say why."""
    await connection.execute(
        "UPDATE actonce.approval SET state = %s, ended_at = clock_timestamp(), ended_by = %s, ended_why = %s,"
        " found = %s, found_digest = %s WHERE approval_id = %s",
        (
            state,
            by,
            why,
            Jsonb(found.model_dump(mode="json")) if found else None,
            found.digest if found else None,
            approval.approval_id,
        ),
    )
    body = {"by": by, "why": why} | ({"found_digest": found.digest} if found else {})
    await _record(connection, approval, state, body)
    await _is_over(connection, approval)
    after = await get(connection, approval.approval_id)
    assert after is not None
    return after


async def _is_over(connection: Connection, approval: Approval) -> None:
    await pages.close_page(connection, approval.incident)
    await pages.task_goes_on(connection, approval.task_id)


async def end_of_task(connection: Connection, task_id: str, why: str) -> None:
    """Nobody is to decide about a task that is over; the caller holds its row."""
    rows = await many(connection, f"{SHOWN} WHERE task_id = %s FOR UPDATE", (task_id,))
    for approval in map(Approval.of, rows):
        if approval.state in OPEN:
            await end(connection, approval, "withdrawn", BY_THE_TASK, why)
        else:
            await pages.close_page(connection, approval.incident)


async def expire_due(ledger: Ledger, limit: int = 200) -> int:
    """Mark what is over, and call a person where its task has not noticed. Returns how many there were."""
    async with ledger.transaction() as connection:
        due = await many(
            connection,
            "SELECT approval_id FROM actonce.approval WHERE state IN ('pending', 'approved')"
            " AND expires_at <= clock_timestamp() ORDER BY expires_at LIMIT %s",
            (limit,),
        )
    for row in due:
        async with ledger.transaction() as connection:
            approval = await _locked(connection, row["approval_id"])
            await _expire(connection, approval)
    return len(due)


async def _expire(connection: Connection, approval: Approval) -> None:
    """Note once that its time is over, and call a person: its task may not be able to say so itself."""
    if approval.state != "expired" or approval.ended_at is not None:
        return
    words = f"approved by {approval.decided_by}, not sent in time" if approval.decided_by else "nobody had decided"
    await end(connection, approval, "expired", BY_THE_CLOCK, words)
    await pages.open_page(
        connection,
        incident=approval.incident,
        reason=Reason.APPROVAL_EXPIRED.value,
        title=f"{approval.action} at {approval.destination}: its approval expired",
        body=f"Approval {approval.approval_id} of step {approval.step} of task {approval.task_id} expired at "
        f"{utc(approval.expires_at)} ({words}). Nothing is sent on it. Its operation {approval.operation_id} is held "
        "as soon as its task goes on; the page of that hold takes this one's place.\n"
        f"Do: {CLIENT} show {approval.task_id}\nProcedure: docs/operations/approval_expired.md",
        task_id=approval.task_id,
    )


async def seen(ledger: Ledger, key: OperationKey) -> tuple[Approval | None, bool]:
    """The newest approval of an operation, and whether its intent is on record. Who waits has seen what this tells."""
    async with ledger.transaction() as connection:
        approval = await latest(connection, key)
        if approval is not None and approval.state != "pending":
            approval = await get(connection, approval.approval_id, lock=True)
            await mark_seen(connection, key)
        return approval, await read_operation(connection, key) is not None


async def mark_seen(connection: Connection, key: OperationKey) -> None:
    """Whoever works on the operation knows that nothing of it is pending; its task no longer waits for people."""
    seen_now = await one(
        connection,
        f"UPDATE actonce.approval SET seen_at = clock_timestamp() WHERE {WHERE_KEY} AND state <> 'pending'"
        " AND seen_at IS NULL RETURNING task_id",
        identity_params(key),
    )
    if seen_now is not None:
        await pages.task_goes_on(connection, seen_now["task_id"])


async def approvals_to_do(connection: Connection, task_id: str) -> list[Approval]:
    """Of each operation of a task the newest approval, while it is pending or its workflow has not gone on."""
    rows = await many(
        connection,
        f"SELECT DISTINCT ON (destination, action, operation_id) * FROM ({SHOWN}) a WHERE task_id = %s"
        " AND (state = 'pending' OR seen_at IS NULL) ORDER BY destination, action, operation_id, round DESC",
        (task_id,),
    )
    return [Approval.of(row) for row in rows]


async def record(ledger: Ledger, approval_id: str) -> tuple[Approval, list[dict[str, Any]]]:
    """One approval, and every click about it, oldest first, with what it did. Raises ApprovalRefused."""
    async with ledger.transaction() as connection:
        approval = await get(connection, approval_id)
        if approval is None:
            raise _unknown(approval_id)
        clicks = await many(
            connection,
            "SELECT name, decision, effect, note, at FROM actonce.approval_vote WHERE approval_id = %s"
            " ORDER BY vote_id",
            (approval_id,),
        )
        return approval, list(clicks)


async def _locked(connection: Connection, approval_id: str) -> Approval:
    approval = await get(connection, approval_id, lock=True)
    if approval is None:
        raise _unknown(approval_id)
    return approval


def _unknown(approval_id: str) -> ApprovalRefused:
    return ApprovalRefused(f"{approval_id} is not in this ledger; check the id", code="unknown_approval")


async def _record(connection: Connection, approval: Approval, what: str, body: dict[str, Any]) -> None:
    facts = {"approval_id": approval.approval_id, "operation_id": approval.operation_id, "digest": approval.digest}
    await audit(connection, f"approval.{what}", None, facts | body, task_id=approval.task_id)
