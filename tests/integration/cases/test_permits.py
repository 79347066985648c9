"""One permit, one send: rules R5 to R8 and cells 4, 5, 7, 9 and 11 of the protocol, case b6."""

from __future__ import annotations

import asyncio

import pytest

from actonce.contracts.errors import LedgerUnavailable, NotSent
from actonce.contracts.messages import IssueResult, OperationRequest
from actonce.effects.fence import FENCE_FRESH_S
from actonce.effects.perform import perform
from actonce.effects.reconcile import reconcile
from actonce.effects.system import System
from actonce.ledger import tasks
from tests.integration.cases.gates import Gate, before_fence
from tests.integration.cases.kit import QUICK, Bench, Lab, key_of, settle, side_by_side

# A destination that cannot be read holds at once: the quickest honest way into a hold.
NO_ROUTES = {"payments": {"routes": [], "has_beacon": False}}


# An owner whose own clock does not end its wait: the permit's life is the same, only the record comes late.
PATIENT = QUICK | {"send_deadline_s": 20.0, "activity_timeout_s": 25.0, "reconcile_after_s": 30.0}


async def perform_at_gate(
    bench: Bench, gate: Gate, request: OperationRequest, instead: Exception | None = None
) -> tuple[System, asyncio.Task[IssueResult]]:
    """Start an owner and return when it stands before its fence."""
    owner = await bench.system(change=before_fence(gate, instead), timing=PATIENT)
    task = asyncio.ensure_future(perform(owner, request))
    await asyncio.wait_for(gate.reached.wait(), 10)
    await asyncio.sleep(FENCE_FRESH_S)  # until then the permit's own commit is its fence
    return owner, task


@side_by_side
async def test_answer_to_the_permit_transaction_is_lost_and_the_owner_knows_its_own_row(lab: Lab) -> None:
    """cell 4, R5: the COMMIT is done, the connection is cut before its answer: own nonce, so it goes on."""
    async with lab.bench() as bench:
        proxy = await bench.pg_proxy()
        system = await bench.system(dsn=proxy.dsn)
        proxy.at_next_commit("cut_after")
        result = await perform(system, bench.request())
        assert proxy.struck.is_set()
        assert (result.status, result.attempt) == ("committed", 1)
        assert len(bench.requests()) == len(bench.effects()) == len(await bench.rows("attempt")) == 1


@side_by_side
async def test_permit_transaction_that_never_committed_sends_nothing(lab: Lab) -> None:
    """cell 4: cut before the COMMIT: no intent, no send; the next execution starts afresh."""
    async with lab.bench() as bench:
        proxy = await bench.pg_proxy()
        system = await bench.system(dsn=proxy.dsn)
        proxy.at_next_commit("cut_before")
        with pytest.raises(LedgerUnavailable):
            await perform(system, bench.request())
        assert proxy.struck.is_set()
        assert bench.requests() == [] and await bench.rows("operation") == []
        seen = await reconcile(system, key_of(bench.request()))
        assert (seen.verdict, seen.next) == ("absent", "issue")
        assert (await perform(system, bench.request())).status == "committed"
        assert len(bench.effects()) == 1


@side_by_side
async def test_worker_that_retries_after_a_lost_permit_answer_reconciles(lab: Lab) -> None:
    """cell 4, R5: another execution (fresh nonce) finds `dispatched`: it never sends."""
    async with lab.bench() as bench:
        gate = Gate()
        _, owner = await perform_at_gate(bench, gate, bench.request())
        retry = await perform(await bench.system(), bench.request())
        assert (retry.status, retry.how) == ("unknown", "not sent: it is dispatched")
        assert bench.requests() == []
        gate.go.set()
        assert (await owner).status == "committed"
        assert len(bench.requests()) == len(bench.effects()) == 1


@side_by_side
async def test_permit_whose_answer_comes_after_its_life_is_fenced(lab: Lab) -> None:
    """c1: the owner wakes up past `not_after`: fenced right before its send, and provably not sent."""
    async with lab.bench() as bench:
        proxy = await bench.pg_proxy()
        system = await bench.system(dsn=proxy.dsn)
        proxy.at_next_commit("hold_answer")
        owner = asyncio.ensure_future(perform(system, bench.request()))
        await asyncio.wait_for(proxy.struck.wait(), 10)
        await asyncio.sleep(bench.settings.timing["permit_lifetime_s"] + 0.2)  # the life of the permit, to its end
        proxy.release.set()
        result = await owner
        assert (result.status, result.how) == ("ready", "not_sent")
        assert bench.requests() == []
        (attempt,) = await bench.rows("attempt")
        assert attempt["outcome"] == "not_sent"


@side_by_side
async def test_hold_entered_while_the_owner_waits_for_its_permits_answer(lab: Lab) -> None:
    """cell 9, P8: the permit is older than it looks to its owner. Once the hold is recorded, no fence passes."""
    async with lab.bench(contracts=NO_ROUTES) as bench:
        proxy = await bench.pg_proxy()
        system = await bench.system(dsn=proxy.dsn)
        proxy.at_next_commit("hold_answer")
        owner = asyncio.ensure_future(perform(system, bench.request()))
        await asyncio.wait_for(proxy.struck.wait(), 10)
        seen = await reconcile(await bench.system(), key_of(bench.request()))
        assert (seen.next, seen.reason) == ("hold", "no_route")
        proxy.release.set()
        assert (await owner).status == "held"
        assert bench.requests() == []


@side_by_side
async def test_hold_entered_while_the_owner_stands_before_its_fence(lab: Lab) -> None:
    """cell 9, R8: the hold voids the unused permit in its own transaction."""
    async with lab.bench(contracts=NO_ROUTES) as bench:
        gate = Gate()
        _, owner = await perform_at_gate(bench, gate, bench.request())
        seen = await reconcile(await bench.system(), key_of(bench.request()))
        assert (seen.next, seen.reason) == ("hold", "no_route")
        gate.go.set()
        assert (await owner).status == "held"
        assert bench.requests() == []
        assert len(await bench.rows("page")) == 1


@side_by_side
async def test_zombie_before_its_permit_transaction_finds_the_successors_outcome(lab: Lab) -> None:
    """cell 5: the successor takes the permit first."""
    async with lab.bench() as bench:
        proxy = await bench.pg_proxy()
        slow = await bench.system(dsn=proxy.dsn)
        await slow.ledger.identity()  # connected
        proxy.open.clear()
        zombie = asyncio.ensure_future(perform(slow, bench.request()))
        await asyncio.wait_for(proxy.waiting.wait(), 10)
        assert (await perform(await bench.system(), bench.request())).status == "committed"
        proxy.open.set()
        late = await zombie
        assert (late.status, late.how) == ("committed", "not sent: it is committed")
        assert len(bench.requests()) == len(bench.effects()) == 1


@side_by_side
async def test_zombie_takes_the_permit_first_and_never_sends(lab: Lab) -> None:
    """cell 5 reversed, b6: inside `not_after` nobody else sends; past it the owner cannot send any more."""
    async with lab.bench() as bench:
        gate, request = Gate(), bench.request()
        _, owner = await perform_at_gate(bench, gate, request)
        system = await bench.system()
        assert (await perform(system, request)).how == "not sent: it is dispatched"
        seen = await settle(system, request)
        assert (seen.verdict, seen.next) == ("absent", "issue")
        assert bench.requests() == []
        gate.go.set()
        assert (await owner).status == "ready"  # fenced; its record changed nothing
        assert bench.requests() == []
        assert (await perform(system, request)).status == "committed"
        assert len(bench.requests()) == len(bench.effects()) == 1


@pytest.mark.parametrize("instead", [NotSent("late word"), ConnectionResetError("late word")], ids=["not", "unknown"])
@side_by_side
async def test_late_record_after_a_hold_does_not_pull_it_out(lab: Lab, instead: Exception) -> None:
    """cell 7, R6."""
    async with lab.bench(contracts=NO_ROUTES) as bench:
        gate = Gate()
        _, owner = await perform_at_gate(bench, gate, bench.request(), instead)
        await reconcile(await bench.system(), key_of(bench.request()))
        before = await bench.operation()
        gate.go.set()
        assert (await owner).status == "held"
        assert await bench.operation() == before


@pytest.mark.parametrize("instead", [NotSent("late word"), ConnectionResetError("late word")], ids=["not", "unknown"])
@side_by_side
async def test_late_record_about_attempt_one_leaves_attempt_two_alone(lab: Lab, instead: Exception) -> None:
    """cell 7, R6."""
    async with lab.bench() as bench:
        gate, request = Gate(), bench.request()
        owner_system, owner = await perform_at_gate(bench, gate, request, instead)
        system = await bench.system()
        assert (await settle(system, request)).next == "issue"
        latch = await lab.world.latch(bench.account, "committed")
        second = asyncio.ensure_future(perform(system, request))
        await lab.world.wait_latch(bench.account, latch)
        before = await bench.operation()
        assert (before["state"], before["attempt"]) == ("dispatched", 2)
        gate.go.set()
        await owner
        after = await bench.operation()
        assert {k: after[k] for k in before} == before
        await lab.world.release(bench.account, latch)
        assert (await second).status == "committed"
        assert len(bench.effects()) == 1
        assert not owner_system.in_flight


@side_by_side
async def test_cancel_before_the_zombies_permit_transaction(lab: Lab) -> None:
    """cell 11: cancelled, "not done" is told, and the frozen activity gets no permit."""
    async with lab.bench() as bench:
        proxy = await bench.pg_proxy()
        slow, system = await bench.system(dsn=proxy.dsn), await bench.system()
        task = bench.task()
        await tasks.accept(system.ledger, task.tenant, task.task_type, task.task_key, task.payload)
        await slow.ledger.identity()
        proxy.open.clear()
        zombie = asyncio.ensure_future(perform(slow, bench.request()))
        await asyncio.wait_for(proxy.waiting.wait(), 10)
        _, in_flight = await tasks.cancel(system.ledger, task.task_id)
        assert in_flight == []
        proxy.open.set()
        assert (await zombie).status == "closed"
        assert bench.requests() == [] and await bench.rows("attempt") == []


@side_by_side
async def test_cancel_while_the_owner_stands_before_its_fence(lab: Lab) -> None:
    """cell 11, R8: the cancel says what may have been sent, and voids what was not."""
    async with lab.bench() as bench:
        system, task, gate = await bench.system(), bench.task(), Gate()
        await tasks.accept(system.ledger, task.tenant, task.task_type, task.task_key, task.payload)
        _, owner = await perform_at_gate(bench, gate, bench.request())
        _, in_flight = await tasks.cancel(system.ledger, task.task_id)
        assert [o.operation_id for o in in_flight] == [key_of(bench.request()).operation_id]
        gate.go.set()
        assert (await owner).how == "not_sent"
        assert (await perform(system, bench.request())).status == "closed"
        assert bench.requests() == []
