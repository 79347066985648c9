"""Cell 8, rules R6 and R7: an acknowledgement that comes late is recorded in every state, and says what it contradicts.

Each state is reached by the ledger's own functions; only the acknowledgement's lateness is arranged by calling it last.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from actonce.contracts.contract import Contract
from actonce.contracts.lifecycle import State
from actonce.contracts.messages import DecisionRequest
from actonce.contracts.verdict import Outcome, Reason, Receipt, Verdict
from actonce.effects.perform import intent_of, record_acknowledgement
from actonce.effects.system import System
from actonce.ledger import decisions, outcomes, permits, tasks, verdicts
from actonce.ledger.permits import NoPermit, Permit
from actonce.ledger.store import Operation, lock_operation
from tests.integration.cases.kit import Bench, Lab, side_by_side

OURS, OTHER = "ref_ours", "ref_other"
ABSENT = Verdict(outcome=Outcome.ABSENT, words="two routes say so")


@dataclass
class Life:
    """One operation whose first permit was used and whose acknowledgement has not come."""

    bench: Bench
    system: System
    contract: Contract
    first: Permit

    @classmethod
    async def begin(cls, bench: Bench) -> Life:
        system = await bench.system()
        life = cls(bench, system, system.destination("payments").contract, None)  # type: ignore[arg-type]
        life.first = await life.permit()
        return life

    async def permit(self) -> Permit:
        permit = await self.take()
        assert isinstance(permit, Permit), permit
        return permit

    async def take(self) -> Permit | NoPermit:
        intent = intent_of(self.bench.request(), self.contract)
        return await permits.take_permit(self.system.ledger, intent, self.contract, self.system.owner, uuid.uuid4())

    async def lose(self, permit: Permit, loss: outcomes.Loss = "unknown") -> None:
        await outcomes.record_loss(self.system.ledger, permit, loss, "for this case")

    async def verdict(self, verdict: Verdict) -> None:
        case = await verdicts.open_case(self.system.ledger, self.first.operation.key, self.contract)
        await verdicts.record_verdict(self.system.ledger, case, verdict, [], self.contract)

    async def hold(self, reason: Reason) -> None:
        await self.verdict(Verdict(outcome=Outcome.AMBIGUOUS, reason=reason, words="for this case", page=True))

    async def decide(self, action: str) -> None:
        now = await self.now()
        assert now.state is State.HELD
        request = DecisionRequest.model_validate(
            {
                "action": action,
                "name": "ada",
                "reason": "asked the bank",
                "expected_epoch": now.epoch,
                "expected_version": now.version,
            }
        )
        decision = await decisions.record(self.system.ledger, now.key, request)
        quiet = Verdict(outcome=Outcome.AMBIGUOUS, reason=Reason.LATE_COMMIT_POSSIBLE, words="nothing is seen")
        _, result = await decisions.consume(self.system.ledger, decision, quiet)
        assert result == "applied"

    async def now(self) -> Operation:
        async with self.system.ledger.transaction() as connection:
            found = await lock_operation(connection, self.first.operation.key)
            assert found is not None
            return found

    async def acknowledge(self, object_id: str = OURS, permit: Permit | None = None) -> Operation:
        permit = permit or self.first
        receipt = Receipt(object_id=object_id, digest=permit.operation.payload_digest, at=datetime.now(UTC))
        return await record_acknowledgement(self.system, permit, receipt, self.contract)


def committed(object_id: str) -> Verdict:
    receipt = Receipt(object_id=object_id, at=datetime.now(UTC), source="route:list")
    return Verdict(outcome=Outcome.COMMITTED, words="the list shows it", receipt=receipt)


async def dispatched(life: Life) -> None: ...


async def unknown(life: Life) -> None:
    await life.lose(life.first)


async def permit_ready_after_absent(life: Life) -> None:
    await life.lose(life.first)
    await life.verdict(ABSENT)


async def second_dispatched(life: Life) -> None:
    await permit_ready_after_absent(life)
    await life.permit()


async def second_unknown(life: Life) -> None:
    await permit_ready_after_absent(life)
    await life.lose(await life.permit())


async def second_absent(life: Life) -> None:
    await second_unknown(life)
    await life.verdict(ABSENT)


async def second_provably_not_sent(life: Life) -> None:
    await permit_ready_after_absent(life)
    await life.lose(await life.permit(), "not_sent")


async def second_refused(life: Life) -> None:
    await permit_ready_after_absent(life)
    await life.lose(await life.permit(), "refused")


async def held(life: Life) -> None:
    await life.lose(life.first)
    await life.hold(Reason.ROUTE_UNAVAILABLE)


async def held_with_two_objects(life: Life) -> None:
    await life.lose(life.first)
    await life.hold(Reason.MULTIPLE_MATCHES)


async def held_with_another_payload(life: Life) -> None:
    await life.lose(life.first)
    await life.hold(Reason.PAYLOAD_CONFLICT)


async def committed_same(life: Life) -> None:
    await life.lose(life.first)
    await life.verdict(committed(OURS))


async def committed_other(life: Life) -> None:
    await life.lose(life.first)
    await life.verdict(committed(OTHER))


async def acknowledged_other(life: Life) -> None:
    await second_dispatched(life)
    second = await life.bench.rows("attempt")
    assert len(second) == 2
    own = await permits.read_own(life.system.ledger, life.first.operation.key, second[1]["nonce"])
    assert isinstance(own, Permit)
    await life.acknowledge(OTHER, own)


async def marked_absent(life: Life) -> None:
    await held(life)
    await life.decide("mark_absent")


async def retry_permitted(life: Life) -> None:
    await held(life)
    await life.decide("permit_one_retry")


async def retry_sent(life: Life) -> None:
    await retry_permitted(life)
    await life.permit()


async def cancelled_after_absent(life: Life) -> None:
    await permit_ready_after_absent(life)
    task = life.bench.task()
    await tasks.accept(life.system.ledger, task.tenant, task.task_type, task.task_key, task.payload)
    await tasks.cancel(life.system.ledger, task.task_id)


SETTLES: list[Callable[[Life], Awaitable[None]]] = [
    dispatched,
    unknown,
    permit_ready_after_absent,
    second_provably_not_sent,
    held,
    committed_same,
    retry_permitted,
]
CONTRADICTS: list[Callable[[Life], Awaitable[None]]] = [
    second_dispatched,
    second_unknown,
    second_absent,
    second_refused,
    committed_other,
    acknowledged_other,
    marked_absent,
    retry_sent,
    cancelled_after_absent,
]
# A person was called because the destination holds more than, or something else than, was asked for.
EXPLAINS_NOTHING: list[Callable[[Life], Awaitable[None]]] = [held_with_two_objects, held_with_another_payload]
# Nothing bounds a late arrival here, so a decision may be recorded at once where the clock is not the point.
QUICK_DECISIONS = {"late_arrival": "none", "timing": {"reconcile_after_s": 3.6}}


async def lived(bench: Bench, reach: Callable[[Life], Awaitable[None]]) -> tuple[Life, Operation]:
    life = await Life.begin(bench)
    if reach in (marked_absent, retry_permitted, retry_sent):  # decisions are refused before T
        await held(life)
        await bench.until_decidable()
        if reach is marked_absent:
            await life.decide("mark_absent")
        else:
            await life.decide("permit_one_retry")
        if reach is retry_sent:
            await life.permit()
    else:
        await reach(life)
    return life, await life.now()


@pytest.mark.parametrize("reach", SETTLES, ids=lambda f: f.__name__)
@side_by_side
async def test_late_acknowledgement_settles(lab: Lab, reach: Callable[[Life], Awaitable[None]]) -> None:
    """cell 8: no other send happened, so it ends the matter: unused permits are dead, a hold is over."""
    async with lab.bench(**QUICK_DECISIONS) as bench:
        life, before = await lived(bench, reach)
        after = await life.acknowledge()
        assert after.state is State.COMMITTED and after.object_id == OURS
        assert after.version > before.version and after.acknowledged_at is not None
        assert isinstance(await life.take(), NoPermit)
        (recorded,) = await bench.rows("acknowledgement")
        assert (recorded["state_before"], recorded["contradicts"]) == (before.state.value, False)
        assert [h["closed_at"] is not None for h in await bench.rows("hold")] in ([], [True])
        (first,) = [a for a in await bench.rows("attempt") if a["attempt"] == 1]
        assert first["outcome"] == "acknowledged"


@pytest.mark.parametrize("reach", CONTRADICTS, ids=lambda f: f.__name__)
@side_by_side
async def test_late_acknowledgement_contradicts(lab: Lab, reach: Callable[[Life], Awaitable[None]]) -> None:
    """cell 8, R7: something was sent, concluded or decided on the strength of its absence: a person is paged."""
    async with lab.bench(**QUICK_DECISIONS) as bench:
        life, before = await lived(bench, reach)
        after = await life.acknowledge()
        assert (after.state, after.reason) == (State.HELD, "possible_duplicate"), after.words
        assert after.version > before.version and after.acknowledged_at is not None
        assert isinstance(await life.take(), NoPermit)
        recorded = (await bench.rows("acknowledgement"))[-1]
        assert (recorded["state_before"], recorded["contradicts"]) == (before.state.value, True)
        pages = [p for p in await bench.rows("page") if p["closed_at"] is None]
        assert [p["reason"] for p in pages] == ["possible_duplicate"]


@pytest.mark.parametrize("reach", EXPLAINS_NOTHING, ids=lambda f: f.__name__)
@side_by_side
async def test_late_acknowledgement_explains_no_duplicate_away(
    lab: Lab, reach: Callable[[Life], Awaitable[None]]
) -> None:
    """cell 8, P5, P7: recorded, but the hold goes on: one object acknowledged does not make the others vanish."""
    async with lab.bench() as bench:
        life, before = await lived(bench, reach)
        after = await life.acknowledge()
        assert (after.state, after.reason) == (State.HELD, before.reason)
        assert len(await bench.rows("acknowledgement")) == 1
        await life.verdict(committed(OURS))  # nor does a reading that shows only one of them
        assert ((await life.now()).state, (await life.now()).reason) == (State.HELD, before.reason)
        assert [p["closed_at"] for p in await bench.rows("page")] == [None]


@side_by_side
async def test_acknowledgement_of_another_payload_is_a_conflict(lab: Lab) -> None:
    """cell 8: matching means the digest too."""
    async with lab.bench() as bench:
        life = await Life.begin(bench)
        receipt = Receipt(object_id=OURS, digest="d1:" + "0" * 64)
        after = await record_acknowledgement(life.system, life.first, receipt, life.contract)
        assert (after.state, after.reason) == (State.HELD, "payload_conflict")
