"""A `ready` row is a right to try again, not a proof that nothing happened: rules R3 and R8, found by the model.

The traces are in tests/model/traces.md: "a same-key resend checks the retention before, not in, its permit" and "a
cancel closes what was only allowed to be sent again".
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from actonce.contracts.messages import DecisionRequest
from actonce.contracts.verdict import Reason
from actonce.effects.decide import decide
from actonce.effects.perform import perform
from actonce.effects.system import System
from actonce.ledger import decisions, pages, tasks, verdicts
from actonce.ledger.store import lock_operation
from actonce.testing.waiting import eventually
from tests.integration.cases import kit
from tests.integration.cases.kit import Bench, Lab, key_of, settle, side_by_side

LOST_BEFORE = {"answer": {"kind": "close", "when": "before_commit", "times": 1}}
KEY_KEPT_S, MARGIN_S = 14.0, 1.0  # long enough to be granted a resend (T + life), short enough to wait for its end


async def clock_past(system: System, moment: Any) -> bool:
    return (await system.ledger.clock()).now() > moment


@side_by_side
async def test_same_key_resend_granted_in_time_and_taken_too_late_is_held(lab: Lab) -> None:
    """R3: the workers were away between the grant and its permit, and the destination has forgotten the key."""
    async with lab.bench(
        modes=LOST_BEFORE, late_arrival="key_on_arrival", key_retention_s=KEY_KEPT_S, key_margin_s=MARGIN_S
    ) as bench:
        system, request = await bench.system(), bench.request()
        await kit.lost(system, request)
        assert (await settle(system, request)).next == "issue"
        issued_at = (await bench.operation())["issued_at"]
        forgotten = issued_at + timedelta(seconds=KEY_KEPT_S - MARGIN_S)
        await eventually(lambda: clock_past(system, forgotten), within_s=30, what="the retention is over", every_s=0.2)
        assert (await perform(system, request)).status == "held"
        row = await bench.operation()
        assert (row["state"], row["reason"]) == ("held", "retention_expired")
        assert len(bench.requests()) == 1


@side_by_side
async def test_cancel_of_what_was_only_allowed_to_be_sent_again_is_held(lab: Lab) -> None:
    """R3: a same-key resend proves no absence, so it may not become "cancelled, not done"."""
    async with lab.bench(modes=LOST_BEFORE, late_arrival="key_on_arrival") as bench:
        system, request, task = await bench.system(), bench.request(), bench.task()
        await tasks.accept(system.ledger, task.tenant, task.task_type, task.task_key, task.payload)
        await kit.lost(system, request)
        assert (await settle(system, request)).next == "issue"
        _, in_flight = await tasks.cancel(system.ledger, task.task_id)
        assert [o.operation_id for o in in_flight] == [key_of(request).operation_id]
        row = await bench.operation()
        assert (row["state"], row["reason"]) == ("held", "late_commit_possible")
        assert (await perform(system, request)).status == "held"
        assert len(bench.requests()) == 1


@side_by_side
async def test_cancel_after_absent_closes(lab: Lab) -> None:
    """Where `absent` was earned nothing is left to hold."""
    async with lab.bench(modes=LOST_BEFORE) as bench:
        system, request, task = await bench.system(), bench.request(), bench.task()
        await tasks.accept(system.ledger, task.tenant, task.task_type, task.task_key, task.payload)
        await kit.lost(system, request)
        assert (await settle(system, request)).next == "issue"
        _, in_flight = await tasks.cancel(system.ledger, task.task_id)
        assert in_flight == []
        assert (await bench.operation())["state"] == "closed"


async def cancelled_then_held(bench: Bench, system: System, request: Any) -> dict[str, Any]:
    """The key is cancelled, and before that becomes a verdict the operation is held for another reason."""
    key = key_of(request)
    await bench.until_decidable()
    destination = system.destination(key.destination)
    assert destination.cancel_key is not None
    case = await verdicts.open_case(system.ledger, key, destination.contract)
    for wire_key in await verdicts.want_cancel(system.ledger, case.operation):
        await verdicts.key_cancelled(
            system.ledger, case.operation, wire_key, await destination.cancel_key(wire_key, 2.0)
        )
    async with system.ledger.transaction() as connection:
        operation = await lock_operation(connection, key)
        assert operation is not None
        await pages.hold(connection, operation, Reason.LOOK_ALIKE, "something else carries our key")
    return await bench.operation()


@pytest.mark.timeout(180)
@side_by_side
async def test_retry_that_a_person_permits_does_not_use_a_cancelled_key(lab: Lab) -> None:
    """A cancelled key is spent, whoever permits the next send."""
    async with lab.bench(modes=LOST_BEFORE, late_arrival="cancel_by_key") as bench:
        system, request = await bench.system(), bench.request()
        await kit.lost(system, request)
        row = await cancelled_then_held(bench, system, request)
        given = {"action": "permit_one_retry", "name": "ada", "reason": "asked the bank", "evidence": "ticket 7"}
        stamp = {"expected_epoch": row["epoch"], "expected_version": row["version"]}
        await decisions.record(system.ledger, key_of(request), DecisionRequest.model_validate(given | stamp))
        await decide(system, key_of(request))
        assert (await bench.operation())["state"] == "ready"
        assert (await perform(system, request)).status == "committed"
        keys = [a["wire_key"] for a in await bench.rows("attempt")]
        assert len(set(keys)) == 2
        assert len(bench.effects()) == 1
