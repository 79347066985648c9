"""From an unknown outcome to its end without Temporal: rules R3 and R8 to R11, cells 6, 10 and 13, cases b3, a8."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actonce.contracts import bounds
from actonce.contracts.errors import DecisionRefused
from actonce.contracts.messages import DecisionRequest, OperationRequest
from actonce.effects.decide import decide
from actonce.effects.perform import perform
from actonce.effects.reconcile import reconcile, settle_step
from actonce.effects.system import System
from actonce.effects.watcher import WatchSettings, watch_once
from actonce.ledger import decisions, records, verdicts
from actonce.testing.waiting import eventually
from tests.integration.cases import kit
from tests.integration.cases.gates import Gate, after_reading
from tests.integration.cases.kit import Bench, Lab, key_of, settle, side_by_side

LOST_BEFORE = {"answer": {"kind": "close", "when": "before_commit", "times": 1}}
LOST_AFTER = {"answer": {"kind": "close", "when": "after_commit", "times": 1}}
WATCH = WatchSettings(idle_s=0.5, held_again_s=0.5, orphaned_after_s=3.0)


def order(row: dict[str, Any], action: str, **more: Any) -> DecisionRequest:
    values = {"action": action, "name": "ada", "reason": "asked the bank", "evidence": "ticket 7"}
    stamp = {"expected_epoch": row["epoch"], "expected_version": row["version"]}
    return DecisionRequest.model_validate(values | stamp | more)


async def watch_until(system: System, bench: Bench, *states: str) -> dict[str, Any]:
    """Watcher passes until the operation is in one of these states."""

    async def check() -> dict[str, Any] | None:
        await watch_once(system, WATCH)
        row = await bench.operation()
        return row if row["state"] in states else None

    return await eventually(check, within_s=40, what=f"{bench.account} {' or '.join(states)}", every_s=0.2)


async def lost(bench: Bench, request: OperationRequest) -> System:
    system = await bench.system()
    await kit.lost(system, request)
    return system


@side_by_side
async def test_reconciler_frozen_between_reading_and_verdict(lab: Lab) -> None:
    """cell 6, R6: its `absent` about attempt 1 comes while attempt 2 is out: kept on record, not applied."""
    # a second attempt that waits longer for its answer than what is done meanwhile takes on a busy machine
    patient = {"permit_lifetime_s": 8.0, "send_deadline_s": 8.0, "activity_timeout_s": 9.0, "reconcile_after_s": 10.0}
    async with lab.bench(modes=LOST_BEFORE, timing=patient) as bench:
        request, gate = bench.request(), Gate()
        system, frozen = await lost(bench, request), await bench.system(change=after_reading(gate))
        await eventually(lambda: _beacon_written(system, request), within_s=30, what="a beacon", every_s=0.1)
        lag_s = bench.settings.lag_s
        until = (await bench.operation())["may_commit_until"]
        await eventually(
            lambda: _past(system, until, lag_s), within_s=20, what="the last bound of attempt 1", every_s=0.05
        )
        late = asyncio.ensure_future(reconcile(frozen, key_of(request)))
        await asyncio.wait_for(gate.reached.wait(), 10)
        assert (await settle(system, request)).next == "issue"
        latch = await lab.world.latch(bench.account, "arrived")
        second = asyncio.ensure_future(perform(system, request))
        await lab.world.wait_latch(bench.account, latch)
        gate.go.set()
        seen = await late
        assert (seen.verdict, seen.next) == ("ambiguous", "wait")
        assert [v["outcome"] for v in await bench.rows("verdict") if not v["applied"]] == ["absent"]
        assert (await bench.operation())["state"] == "dispatched"
        await lab.world.release(bench.account, latch)
        assert (await second).status == "committed"
        assert (len(bench.requests()), len(bench.effects())) == (2, 1)


async def _beacon_written(system: System, request: OperationRequest) -> bool:
    return (await settle_step(system, key_of(request))).next == "beacon"


async def _past(system: System, moment: Any, more_s: float) -> bool:
    now = (await system.ledger.clock()).now()
    return bool((now - moment).total_seconds() > more_s)


@side_by_side
async def test_retry_is_refused_before_t_and_permitted_once(lab: Lab) -> None:
    """cell 10, R8: early, then twice. One retry, one more request."""
    async with lab.bench(modes=LOST_BEFORE, late_arrival="none", timing={"page_grace_s": 0.0}) as bench:
        request = bench.request()
        system = await lost(bench, request)
        row = await bench.operation()
        with pytest.raises(DecisionRefused, match="not held"):
            await decisions.record(system.ledger, key_of(request), order(row, "permit_one_retry"))
        seen = await settle(system, request)
        assert (seen.next, seen.reason, seen.may_commit_until) == ("hold", "late_commit_possible", "unbounded")
        row = await bench.operation()
        first = await decisions.record(system.ledger, key_of(request), order(row, "permit_one_retry"))
        assert first.residual_risk is not None and "second effect" in first.residual_risk
        with pytest.raises(DecisionRefused) as twice:
            await decisions.record(system.ledger, key_of(request), order(row, "permit_one_retry"))
        assert twice.value.code == "decided"
        racing = await asyncio.gather(decide(system, key_of(request)), decide(await bench.system(), key_of(request)))
        assert sorted(how.rpartition(": ")[2] for _, how in racing) in (
            ["applied", "applied"],
            ["applied", "nothing_pending"],
        )
        with pytest.raises(DecisionRefused) as stale:
            await decisions.record(system.ledger, key_of(request), order(row, "permit_one_retry"))
        assert stale.value.code in ("not_held", "stale")
        assert (await perform(system, request)).status == "committed"
        assert (len(bench.requests()), len(bench.effects())) == (2, 1)


@pytest.mark.parametrize("action", ["permit_one_retry", "mark_absent"])
@side_by_side
async def test_decision_before_t_is_refused_and_says_until_when(lab: Lab, action: str) -> None:
    """cell 10, R8, trap 8: an honest operator too early."""
    # held at once for a conflict, long before T
    async with lab.bench(modes=LOST_BEFORE, timing={"page_grace_s": 0.0}) as bench:
        request = bench.request()
        system = await bench.system()
        operation_id = key_of(request).operation_id
        marked = {"operation_id": operation_id, "key": operation_id}
        other = {**request.payload, "amount_minor": 9}
        await lab.world.plant(bench.account, "refund", fields=other, metadata=marked)
        await perform(system, request)
        seen = await reconcile(system, key_of(request))
        assert (seen.next, seen.reason) == ("hold", "payload_conflict")
        row = await bench.operation()
        with pytest.raises(DecisionRefused) as early:
            await decisions.record(system.ledger, key_of(request), order(row, action))
        assert early.value.code == "too_early" and early.value.may_commit_until is not None
        assert "may still commit until" in str(early.value)
        assert await bench.rows("decision") == []
        await bench.until_decidable()
        await decisions.record(system.ledger, key_of(request), order(row, action))


@side_by_side
async def test_retry_that_races_a_committed_verdict_sends_nothing(lab: Lab) -> None:
    """cell 10, R9: the decision triggers a fresh reading in the same action; evidence wins."""
    modes = {**LOST_AFTER, "routes": {"*": "down"}}
    async with lab.bench(modes=modes, timing={"page_grace_s": 0.0}) as bench:
        request = bench.request()
        system = await lost(bench, request)
        seen = await settle(system, request)
        assert (seen.next, seen.reason) == ("hold", "route_unavailable")
        await bench.until_decidable()
        await decisions.record(system.ledger, key_of(request), order(await bench.operation(), "permit_one_retry"))
        await bench.configure(routes={"*": "healthy"})
        operation, how = await decide(system, key_of(request))
        assert (operation.state, how) == ("committed", "permit_one_retry: superseded_by_evidence")
        assert (await perform(system, request)).status == "committed"
        assert len(bench.requests()) == len(bench.effects()) == 1
        (decision,) = await bench.rows("decision")
        assert decision["result"] == "superseded_by_evidence"


@side_by_side
async def test_retry_is_not_consumed_while_several_effects_are_shown(lab: Lab) -> None:
    """R9: a decision made on "nothing is there" falls to a reading that shows two."""
    modes = {**LOST_AFTER, "routes": {"*": "down"}}
    async with lab.bench(modes=modes, timing={"page_grace_s": 0.0}) as bench:
        request = bench.request()
        system = await lost(bench, request)
        await settle(system, request)
        await bench.until_decidable()
        key = key_of(request)
        await decisions.record(system.ledger, key, order(await bench.operation(), "permit_one_retry"))
        marked = {"operation_id": key.operation_id, "key": key.operation_id}
        await lab.world.plant(bench.account, "refund", fields=request.payload, metadata=marked)
        await bench.configure(routes={"*": "healthy"})
        operation, how = await decide(system, key)
        assert (operation.state, how) == ("held", "permit_one_retry: superseded_by_evidence")
        assert len(bench.requests()) == 1


@side_by_side
async def test_mark_committed_by_an_operator_is_shown_as_attested(lab: Lab) -> None:
    """SPEC 2.6: without a route that shows it, an object id is an operator's word."""
    contracts = {"payments": {"routes": [], "has_beacon": False}}
    async with lab.bench(modes=LOST_AFTER, contracts=contracts) as bench:
        request = bench.request()
        system = await lost(bench, request)
        assert (await reconcile(system, key_of(request))).reason == "no_route"
        row = await bench.operation()
        with pytest.raises(DecisionRefused) as missing:
            await decisions.record(system.ledger, key_of(request), order(row, "mark_committed"))
        assert missing.value.code == "object_id_missing"
        await decisions.record(system.ledger, key_of(request), order(row, "mark_committed", object_id="ref_9"))
        operation, how = await decide(system, key_of(request))
        assert (operation.state, how, operation.completion) == (
            "committed",
            "mark_committed: applied",
            "operator_attested",
        )
        assert len(bench.requests()) == 1


@side_by_side
async def test_key_on_arrival_is_sent_again_while_the_first_request_is_in_progress(lab: Lab) -> None:
    """cell 13, R3: same key inside its retention, never `absent`; the answer to it is the evidence."""
    async with lab.bench(late_arrival="key_on_arrival", timing={"reconcile_after_s": 3.6}) as bench:
        request = bench.request()
        latch = await lab.world.latch(bench.account, "processing")
        system = await lost(bench, request)
        assert (await settle(system, request)).next == "issue"
        again = await perform(system, request)
        assert (again.status, again.attempt) == ("unknown", 2)
        assert [r["why"] for r in bench.lines("refused")] == ["key_in_progress"]
        await lab.world.release(bench.account, latch)
        seen = await settle(system, request)
        assert (seen.verdict, seen.state) == ("committed", "committed")
        assert {v["outcome"] for v in await bench.rows("verdict")} == {"ambiguous", "committed"}
        assert len({r["key"] for r in bench.requests()}) == len(bench.effects()) == 1
        # rule R10: sent twice, so it is counted once more
        await eventually(lambda: _recounted(system, bench), within_s=30, what="recounted", every_s=0.3)
        assert (await bench.operation())["state"] == "committed"


async def _recounted(system: System, bench: Bench) -> bool:
    await watch_once(system, WATCH)
    return (await bench.operation())["recounted_at"] is not None


@side_by_side
async def test_key_that_is_forgotten_is_not_sent_again(lab: Lab) -> None:
    """case b3, cell 13: kept 2 s, and nothing else proves absence: held; a retry shows its residual risk."""
    async with lab.bench(
        modes={**LOST_BEFORE, "key_retention_s": 2.0},
        late_arrival="key_on_arrival",
        key_retention_s=2.0,
        key_margin_s=0.5,
        timing={"page_grace_s": 0.0},
    ) as bench:
        request = bench.request()
        system = await lost(bench, request)
        seen = await settle(system, request)
        assert (seen.next, seen.reason) == ("hold", "retention_expired")
        assert "the key's retention (2 s) has passed" in seen.words
        assert len(bench.requests()) == 1
        (record,) = await records.operation_records(system.ledger, key_of(request).operation_id)
        retry = next(a for a in record.allowed if a.action == "permit_one_retry")
        assert retry.allowed and retry.residual_risk is not None and "second effect" in retry.residual_risk
        assert "retention" in (record.operation.words or "")
        (page,) = await bench.rows("page")
        assert "the key's retention (2 s) has passed" in page["body"]


@side_by_side
async def test_watcher_settles_what_nobody_works_on(lab: Lab) -> None:
    """cell 11, R11: terminated and not restarted; the watcher works from the ledger alone."""
    async with lab.bench(modes=LOST_AFTER) as bench:
        system = await lost(bench, bench.request())
        row = await watch_until(system, bench, "committed")
        assert (row["completion"], len(bench.effects())) == ("read_back", 1)


@side_by_side
async def test_watcher_holds_what_cannot_be_told_and_pages_once(lab: Lab) -> None:
    """R11, P4: past its bound, held and paged; more sweeps find the same incident."""
    async with lab.bench(modes={**LOST_BEFORE, "routes": {"*": "down"}}) as bench:
        system = await lost(bench, bench.request())
        await watch_until(system, bench, "held")
        for _ in range(3):
            await watch_once(system, WatchSettings(idle_s=0.0, held_again_s=0.0))
        (page,) = await bench.rows("page")
        assert (page["reason"], page["closed_at"]) == ("route_unavailable", None)
        assert len(await bench.rows("hold")) == len(bench.requests()) == 1


@side_by_side
async def test_watcher_holds_an_operation_that_nobody_goes_on_with(lab: Lab) -> None:
    """R11, trap 12: judged absent, and its workflow is gone: an unused permit is no resting place."""
    async with lab.bench(modes=LOST_BEFORE) as bench:
        system = await lost(bench, bench.request())
        row = await watch_until(system, bench, "held")
        assert (row["reason"], len(bench.effects())) == ("orphaned", 0)


async def duplicated(lab: Lab, bench: Bench, request: OperationRequest) -> System:
    """A destination that breaks its processing bound: attempt 1 commits after attempt 2 was acknowledged."""
    latch = await lab.world.latch(bench.account, "processing")
    system = await lost(bench, request)
    assert (await settle(system, request)).next == "issue"
    assert (await perform(system, request)).status == "committed"
    await lab.world.release(bench.account, latch)
    await eventually(lambda: len(bench.effects()) == 2, within_s=5, what="the late commit")
    return system


@side_by_side
async def test_second_effect_that_comes_silently_is_counted(lab: Lab) -> None:
    """R10, P7, trap 11: two permits were used, so it is read again after the last bound."""
    async with lab.bench() as bench:
        system = await duplicated(lab, bench, bench.request())
        row = await watch_until(system, bench, "held")
        assert row["reason"] == "possible_duplicate" and "2 effects" in row["words"]
        assert [p["reason"] for p in await bench.rows("page")] == ["possible_duplicate"]


@side_by_side
async def test_count_on_routes_that_cannot_see_is_no_count(lab: Lab) -> None:
    """R10, P7: every route shows the state before the second effect; one row there proves nothing."""
    async with lab.bench() as bench:
        request = bench.request()
        latch = await lab.world.latch(bench.account, "processing")
        system = await lost(bench, request)
        assert (await settle(system, request)).next == "issue"
        assert (await perform(system, request)).status == "committed"
        await bench.configure(routes={"*": "stale"})
        await lab.world.release(bench.account, latch)
        await eventually(lambda: len(bench.effects()) == 2, within_s=5, what="the late commit")
        await eventually(lambda: _recount_is_due(system, bench), within_s=20, what="the recount is due", every_s=0.2)
        for _ in range(3):
            await watch_once(system, WATCH)
        assert (await bench.operation())["recounted_at"] is None
        await bench.configure(routes={"*": "healthy"})
        row = await watch_until(system, bench, "held")
        assert row["reason"] == "possible_duplicate"


async def _recount_is_due(system: System, bench: Bench) -> bool:
    return await _past(system, (await bench.operation())["recount_at"], 0.0)


@side_by_side
async def test_mail_with_a_lost_answer_is_one_incident(lab: Lab) -> None:
    """case a8: no route, no key: ambiguous, held, paged once, never sent again."""
    async with lab.bench() as bench:
        await bench.configure("mail", answer={"kind": "close", "times": 1})
        payload = {"to": "ada@customer.invalid", "subject": "Your refund", "text": "Done."}
        request = bench.request(destination="mail", action="send", payload=payload)
        system = await lost(bench, request)
        for _ in range(3):
            seen = await reconcile(system, key_of(request))
            assert (seen.verdict, seen.next, seen.reason) == ("ambiguous", "hold", "no_route")
            await watch_once(system, WatchSettings(idle_s=0.0, held_again_s=0.0))
        assert (await perform(system, request)).status == "held"
        assert len(bench.requests(destination="mail")) == len(bench.effects(destination="mail")) == 1
        (page,) = await bench.rows("page")
        assert (page["reason"], page["closed_at"], len(await bench.rows("hold"))) == ("no_route", None, 1)


@pytest.mark.parametrize("late_arrival", ["bounded", "cancel_by_key", "key_on_arrival", "deadline_at_commit"])
@side_by_side
async def test_first_reading_after_an_outage_makes_up_for_what_was_not_tried(lab: Lab, late_arrival: str) -> None:
    """Nobody worked until long after the paging bound: the beacon, cancel or resend comes before the page."""
    async with lab.bench(modes=LOST_BEFORE, late_arrival=late_arrival) as bench:
        request = bench.request()
        system = await lost(bench, request)
        await bench.until_decidable()
        await eventually(lambda: _page_is_due(system, request), within_s=30, what="the paging bound", every_s=0.1)
        seen = await settle(system, request)
        assert (seen.next, seen.state) == ("issue", "ready"), seen.words
        assert await bench.rows("page") == []
        assert (await perform(system, request)).status == "committed"
        assert len(bench.effects()) == 1


async def _page_is_due(system: System, request: OperationRequest) -> bool:
    contract = system.destination("payments").contract
    case = await verdicts.open_case(system.ledger, key_of(request), contract)
    bound = bounds.page_at(contract, case.facts.attempts)
    return bound is not None and (await system.ledger.clock()).now() > bound


@side_by_side
async def test_bound_is_extended_once(lab: Lab) -> None:
    """P4: with the beacon refused and the routes down, the page comes all the same."""
    modes = {**LOST_BEFORE, "routes": {"*": "down"}, "revoked": {"beacon": "403"}}
    async with lab.bench(modes=modes) as bench:
        request = bench.request()
        system = await lost(bench, request)
        await eventually(lambda: _page_is_due(system, request), within_s=30, what="the paging bound", every_s=0.1)
        row = await watch_until(system, bench, "held")
        assert row["reason"] == "route_unavailable"
