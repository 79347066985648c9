"""Approvals and rights that are taken back, narrowed or renewed at a bad moment: nothing is sent on what is no more.

The effects of one process against a real ledger; the destination is a function of the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from actonce.contracts.approval import ApprovalAct, ApprovalRenewal, ApprovalVote
from actonce.contracts.contract import Contract
from actonce.contracts.credential import AccessPolicy
from actonce.contracts.errors import ApprovalRefused
from actonce.contracts.messages import OperationRequest
from actonce.contracts.verdict import Receipt
from actonce.credentials import Broker, BrokerSettings, MemoryProvider
from actonce.credentials.memory import Account
from actonce.destinations.base import Call
from actonce.effects.approve import propose
from actonce.effects.perform import perform
from actonce.effects.system import System
from actonce.ledger import approvals, gates, leases, listing, tasks
from actonce.ledger.approvals import Approval
from actonce.ledger.authorising import uses_of
from actonce.ledger.leases import Leases
from actonce.ledger.migrate import migrate
from actonce.testing.waiting import eventually
from tests.integration.test_odd_destinations import TIMING, Deployment, contract, key_of, request

PATIENT = TIMING.model_copy(
    update={"permit_lifetime_s": 20.0, "send_deadline_s": 20.0, "activity_timeout_s": 21.0, "reconcile_after_s": 22.0}
)
ASKED = {"action": "do"}
_BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def wanting(version: int = 1, **terms: Any) -> Contract:
    return contract(version=version, approvals=[{**ASKED, **terms}], timing=PATIENT)


class Owner:
    """Sends, and can be stopped before its fence until its permit's commit is no longer the fence itself."""

    def __init__(self, *, stops: bool = False) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.sent: list[Call] = []
        if not stops:
            self.go.set()

    async def send(self, call: Call) -> Receipt:
        self.reached.set()
        await self.go.wait()
        async with call.window():
            self.sent.append(call)
        return Receipt(object_id="x", digest=call.digest)

    async def let_go(self) -> None:
        await asyncio.sleep(0.1)
        self.go.set()


@pytest_asyncio.fixture
async def deployment(fresh_dsn: str) -> AsyncIterator[Deployment]:
    migrate(fresh_dsn)
    async with AsyncExitStack() as cleanup:
        yield Deployment(fresh_dsn, cleanup)


async def asked(system: System, of: OperationRequest) -> Approval:
    await tasks.accept(system.ledger, "t", "odd", of.task_id.rpartition("/")[2], {})
    await propose(system, of)
    (approval,) = await listing.approvals(system.ledger, state="pending")
    return approval


async def vote(system: System, approval: Approval, name: str = "olga", decision: Any = "approve") -> Approval:
    given = ApprovalVote(name=name, digest=approval.digest)
    return await approvals.vote(system.ledger, approval.approval_id, decision, given)


async def refused_as(system: System, approval: Approval, name: str) -> str:
    with pytest.raises(ApprovalRefused) as refused:
        await vote(system, approval, name)
    return refused.value.code


# who may approve --------------------------------------------------------------------------------------------------


async def test_who_asked_first_does_not_become_an_approver_because_another_asks_again(deployment: Deployment) -> None:
    owner = Owner()
    system = await deployment.process(owner.send, wanting())
    of = request(requested_by="ada")
    first = await asked(system, of)
    await vote(system, first, decision="reject")
    assert (await perform(system, of)).reason == "approval_required"
    again = await approvals.renew(system.ledger, first.approval_id, ApprovalRenewal(name="bo", note="still wanted"))
    assert await refused_as(system, again, "ada") == "requester"
    assert await refused_as(system, again, "bo") == "requester"


@pytest.mark.parametrize("asker", [" ada", "Ada\u200b", "\uff41da", "a\u00adda"])
async def test_another_spelling_of_a_name_is_no_other_person(deployment: Deployment, asker: str) -> None:
    system = await deployment.process(Owner().send, wanting(approvers=2))
    approval = await asked(system, request(requested_by=asker))
    assert await refused_as(system, approval, "ada") == "requester"
    await vote(system, approval, "Andr\u00e9 \u00c4nne")
    assert (await vote(system, approval, "andre\u0301  \u00e4nne")).approvals_given == 1
    assert (await vote(system, approval, "olga")).state == "approved"


async def test_an_approval_by_who_asked_is_not_enough_once_the_policy_forbids_it(deployment: Deployment) -> None:
    owner, of = Owner(), request(requested_by="ada")
    system = await deployment.process(owner.send, wanting(requester_may_approve=True))
    await vote(system, await asked(system, of), "ada")
    stricter = await deployment.process(owner.send, wanting(version=2))
    result = await perform(stricter, of)
    assert (result.status, result.reason) == ("held", "approval_required"), result
    assert "other than who asked" in result.detail and owner.sent == []


async def test_an_approval_by_others_is_enough_when_the_policy_forbids_the_requester(deployment: Deployment) -> None:
    owner, of = Owner(), request(requested_by="ada")
    system = await deployment.process(owner.send, wanting(requester_may_approve=True))
    await vote(system, await asked(system, of), "olga")
    stricter = await deployment.process(owner.send, wanting(version=2))
    assert (await perform(stricter, of)).status == "committed"


# what people said no to --------------------------------------------------------------------------------------------


async def test_an_approval_withdrawn_between_permit_and_fence_is_fenced(deployment: Deployment) -> None:
    owner = Owner(stops=True)
    system = await deployment.process(owner.send, wanting())
    approval = await asked(system, request())
    await vote(system, approval)
    going = asyncio.create_task(perform(system, request()))
    await owner.reached.wait()
    await approvals.withdraw(system.ledger, approval.approval_id, ApprovalAct(name="olga", note="wrong customer"))
    await owner.let_go()
    result = await going
    assert (result.status, result.how) == ("ready", "not_sent"), result
    assert "withdrawn by olga: wrong customer" in result.detail and owner.sent == []
    assert (await perform(system, request())).reason == "approval_withdrawn"


@pytest.mark.parametrize("said", ["rejected", "withdrawn"])
async def test_a_no_stands_though_nobody_needs_to_be_asked_any_more(deployment: Deployment, said: str) -> None:
    owner = Owner()
    system = await deployment.process(owner.send, wanting())
    approval = await asked(system, request())
    if said == "rejected":
        await vote(system, approval, decision="reject")
    else:
        await approvals.withdraw(system.ledger, approval.approval_id, ApprovalAct(name="olga", note="wrong"))
    looser = await deployment.process(owner.send, contract(version=2))
    result = await perform(looser, request())
    assert result.status == "held" and f"was {said} by olga" in result.detail, result
    assert owner.sent == []
    again = await approvals.renew(system.ledger, approval.approval_id, ApprovalRenewal(name="ada", note="put right"))
    await vote(system, again)
    async with system.ledger.transaction() as connection:
        operation = await approvals.read_operation(connection, key_of(request()))
        assert operation is not None and await gates.unmet(connection, operation) is None


# leases and the access policy --------------------------------------------------------------------------------------

LEASED = {"credentials": [{"name": "write", "scope": "w", "min_left_s": 0}], "timing": PATIENT}


def policy(version: int, action: str = "do") -> AccessPolicy:
    rule = {"principal": "agent", "destination": "odd", "actions": [action], "scope": "w"}
    return AccessPolicy.model_validate({"version": version, "rules": [rule]})


async def leasing(deployment: Deployment, owner: Owner) -> tuple[System, Broker, Leases]:
    """A process with a lease, and a policy that allows it."""
    broker = Broker(MemoryProvider({"write": Account("agent", ("w",))}), BrokerSettings(tick_s=600))
    declared = contract(**LEASED)
    system = await deployment.process(owner.send, declared, credentials=broker)
    book = Leases(system.ledger, uses_of([declared]), f"process-{id(broker)}")
    await broker.open(book)
    deployment._cleanup.push_async_callback(broker.close)
    await leases.set_policy(system.ledger, policy(1), "sam", "the first")
    return system, broker, book


async def blocked(deployment: Deployment, count: int) -> None:
    async with await psycopg.AsyncConnection.connect(deployment.dsn, autocommit=True) as link:

        async def enough() -> bool:
            row = await (await link.execute(_BLOCKED)).fetchone()
            return bool(row and row[0] >= count)

        await eventually(enough, within_s=3, what=f"{count} transactions wait for a lock")


async def test_a_policy_is_in_force_only_after_the_permits_that_were_being_taken(deployment: Deployment) -> None:
    """Else somebody is told that a right is gone, and a permit under it is committed afterwards."""
    system, broker, _ = await leasing(deployment, Owner())
    await broker.lease("write")
    async with await psycopg.AsyncConnection.connect(deployment.dsn) as link:
        await link.execute("LOCK TABLE actonce.attempt IN SHARE MODE")  # it has read the policy, and is not taken
        permit = asyncio.ensure_future(perform(system, request()))
        await blocked(deployment, 1)
        setting = asyncio.ensure_future(leases.set_policy(system.ledger, policy(2, "look"), "sam", "fewer rights"))
        waits = asyncio.ensure_future(blocked(deployment, 2))
        await asyncio.wait({setting, waits}, return_when=asyncio.FIRST_COMPLETED)
        early = setting.done()
        waits.cancel()
    assert not early
    assert (await permit).status == "committed"
    assert (await setting)["version"] == 2
    assert (await perform(system, request(2))).reason == "not_authorised"


@pytest.mark.parametrize("how", ["narrowed policy", "rotation", "revoked by another process"])
async def test_rights_that_end_between_permit_and_fence_are_fenced(deployment: Deployment, how: str) -> None:
    owner = Owner(stops=True)
    system, _, _ = await leasing(deployment, owner)
    going = asyncio.create_task(perform(system, request()))
    await owner.reached.wait()
    if how == "narrowed policy":
        await leases.set_policy(system.ledger, policy(2, "look"), "sam", "fewer rights")
    elif how == "rotation":
        await leases.rotate(system.ledger, "write", 1, "olga", "narrower")
    else:
        _, other, book = await leasing(deployment, Owner())
        theirs = await other.lease("write")
        await book.ended(theirs, "its parent was revoked", "revoked")  # type: ignore[arg-type]
    await owner.let_go()
    result = await going
    assert (result.status, result.how) == ("ready", "not_sent"), result
    assert owner.sent == []


async def test_a_policy_that_still_allows_it_costs_one_more_permit_and_no_hold(deployment: Deployment) -> None:
    owner = Owner(stops=True)
    system, _, _ = await leasing(deployment, owner)
    going = asyncio.create_task(perform(system, request()))
    await owner.reached.wait()
    await leases.set_policy(system.ledger, policy(2), "sam", "the same right")
    await owner.let_go()
    assert (await going).how == "not_sent"
    assert (await perform(system, request())).status == "committed"
    assert len(owner.sent) == 1
