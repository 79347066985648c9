"""An event that cannot be written takes the change with it: case f1, for every required event that code writes."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from actonce.contracts.approval import ApprovalAct, ApprovalTerms, ApprovalVote, Proposal
from actonce.contracts.credential import AccessPolicy, Lease
from actonce.contracts.errors import ApprovalRefused
from actonce.contracts.identity import OperationKey
from actonce.contracts.verdict import Reason
from actonce.ledger import alerts, approvals, leases, memory_use, release, tasks, watch
from actonce.ledger.alerts import Seen
from actonce.ledger.audit_facts import REQUIRED, check_facts
from actonce.ledger.authorising import Use
from actonce.ledger.leases import Leases
from actonce.ledger.store import Ledger, many

NAME = "acct/write"
SEEN = Seen("X", {}, Reason.BACKLOG, 1.0, 0.0, "s", "d")
PROPOSAL = Proposal(
    tenant="default",
    tool="payments.refund",
    destination="payments",
    action="refund",
    account="acct",
    principal="svc",
    payload={"amount_minor": 100},
    resolved={},
    terms=ApprovalTerms(valid_s=600),
    requested_by="ada",
)
RULE = {"principal": "agent", "destination": "payments", "actions": ["refund"], "scope": "payments:write"}


@dataclass
class Desk:
    """What the acts need of each other."""

    ledger: Ledger
    lease: Lease
    book: Leases
    approval_id: str = ""

    async def propose(self) -> None:
        key = OperationKey("default", "payments", "refund", "op1_three")
        asked = await approvals.propose(self.ledger, key, "default/single/next", "three", PROPOSAL)
        self.approval_id = asked.approval_id

    async def approve(self) -> None:
        given = ApprovalVote(name="olga", note="looked", digest=PROPOSAL.digest)
        await approvals.vote(self.ledger, self.approval_id, "approve", given)

    async def click_late(self) -> None:
        given = ApprovalVote(name="ben", note="me too", digest=PROPOSAL.digest)
        with contextlib.suppress(ApprovalRefused):  # it decides nothing any more, and is on record as a click
            await approvals.vote(self.ledger, self.approval_id, "approve", given)

    async def withdraw(self) -> None:
        await approvals.withdraw(self.ledger, self.approval_id, ApprovalAct(name="olga", note="changed my mind"))

    async def set_policy(self) -> None:
        policy = AccessPolicy.model_validate({"version": 1, "rules": [RULE]})
        await leases.set_policy(self.ledger, policy, "sam", "agreed")

    async def release_one(self) -> None:
        await release.turn(self.ledger, "single", "q", limit=1)

    async def pause(self) -> None:
        now = await release.control(self.ledger, "single", "q")
        await release.change(
            self.ledger, "single", "q", name="sam", why="w", evidence="e", expected_version=now.version, paused=True
        )

    async def set_deadline(self) -> None:
        at = self.lease.expires_at
        await release.set_deadline(self.ledger, "default/single/next", name="s", why="w", deadline=at, expected=None)


# kind → the table whose rows it tells of, and the act. In this order each finds what it needs.
ACTS: dict[str, tuple[LiteralString, Callable[[Desk], Awaitable[Any]]]] = {
    "approval.proposed": ("approval", Desk.propose),
    "approval.approved": ("approval", Desk.approve),
    "approval.click": ("approval_vote", Desk.click_late),
    "approval.withdrawn": ("approval", Desk.withdraw),
    "access_policy.set": ("access_policy", Desk.set_policy),
    "lease.issued": ("lease", lambda desk: desk.book.issued(desk.lease, None)),
    "authorisation.checked": ("authorisation", lambda desk: desk.book.checked(desk.lease.lease_id)),
    "lease.ended": ("lease", lambda desk: desk.book.ended(desk.lease, "refused")),
    "credential.rotated": ("credential", lambda desk: leases.rotate(desk.ledger, NAME, 1, "olga", "planned")),
    "credential.revoked": ("credential", lambda desk: leases.revoke(desk.ledger, NAME, 2, "olga", "leaked")),
    "task.released": ("task", Desk.release_one),
    "release.changed": ("release", Desk.pause),
    "task.deadline_changed": ("task", Desk.set_deadline),
    "memory.adopted": (
        "memory_pin",
        lambda desk: memory_use.adopt(desk.ledger, str(uuid.UUID(int=1)), "olga", "moved"),
    ),
    "alert.firing": ("alert", lambda desk: alerts.record(desk.ledger, [SEEN])),
    "page.opened": ("page", lambda desk: alerts.record(desk.ledger, [SEEN, replace(SEEN, name="Y")])),
    "alert.resolved": ("alert", lambda desk: alerts.record(desk.ledger, [])),
}


@asynccontextmanager
async def refused(superuser: psycopg.AsyncConnection, kind: str) -> AsyncIterator[None]:
    """The durable store takes no event of this kind."""
    await superuser.execute(
        sql.SQL(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.kind = {} THEN RAISE EXCEPTION 'no room for %', NEW.kind; END IF; RETURN NEW; END $$"
        ).format(kind)
    )
    await superuser.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON actonce.audit FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    try:
        yield
    finally:
        await superuser.execute("DROP TRIGGER refuse ON actonce.audit")


async def rows(ledger: Ledger, table: LiteralString) -> list[Any]:
    async with ledger.transaction() as connection:
        found = await many(connection, f"SELECT to_jsonb(t) AS row FROM actonce.{table} t ORDER BY 1")
        return [row["row"] for row in found]


async def kinds(ledger: Ledger) -> list[str]:
    async with ledger.transaction() as connection:
        return [row["kind"] for row in await many(connection, "SELECT kind FROM actonce.audit")]


async def findings(ledger: Ledger) -> list[Any]:
    async with ledger.transaction() as connection:
        return [finding async for finding in check_facts(connection)]


async def test_without_its_event_nothing_changes(ledger: Ledger, superuser: psycopg.AsyncConnection) -> None:
    book = Leases(ledger, [Use(NAME, "payments", "refund", "payments:write")], "host:1:1")
    await book.standing(NAME)
    at: datetime = (await book.now()).at
    lease = Lease("lease-1", NAME, "agent", ("payments:write",), at, at + timedelta(hours=1), 1)
    for key in ("next", "later"):  # the first is asked about, and so no longer queued
        await tasks.accept(ledger, "default", "single", key, {"n": 4})
    await watch.set_dependency(ledger, name="pollers:q", kind="pollers", state="up", how="asked Temporal")
    desk = Desk(ledger, lease, book)
    for kind, (table, act) in ACTS.items():
        before = await rows(ledger, table)
        if kind == "authorisation.checked":  # made with the lease; a newer policy makes another one
            policy = AccessPolicy.model_validate({"version": 2, "rules": [RULE]})
            await leases.set_policy(ledger, policy, "sam", "agreed")
        async with refused(superuser, kind):
            try:
                await act(desk)
            except psycopg.errors.RaiseException as error:
                assert f"no room for {kind}" in str(error)
            else:
                raise AssertionError(f"{kind} is not written, or not by this act")
        assert await rows(ledger, table) == before, f"{kind}: the change was made without its event"
        await act(desk)
        assert kind in await kinds(ledger)
        assert await rows(ledger, table) != before
        assert await findings(ledger) == []


def test_every_required_event_without_a_trigger_is_among_them() -> None:
    assert {r.kind for r in REQUIRED if r.trigger is None} <= set(ACTS)
