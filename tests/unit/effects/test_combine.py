"""The verdict rule: SPEC §2.4 row by row, then as properties over generated readings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actonce.contracts.contract import WritePath
from actonce.contracts.verdict import AttemptFact, Outcome, Reading, Reason, Verdict
from actonce.effects.combine import combine, witnesses
from tests.unit.effects.builders import (
    ABSENT_S,
    PAGE_S,
    UNTIL_S,
    at,
    contract,
    facts,
    key_honoured,
    reading,
    route,
    row,
    three,
    unbounded,
)

LATE_S = PAGE_S + 1
NAMES = ("by_id", "list", "search")


def judge(readings: list[Reading], now_s: float = ABSENT_S + 1, *, of: Any = None, known: Any = None) -> Verdict:
    return combine(of or contract(), known or facts(), readings, at(now_s))


def test_one_match_on_one_route_is_committed_even_when_every_other_route_denies_it() -> None:
    """Cases d9, d4: a denial never contradicts a match; it flags the route."""
    verdict = judge([reading("by_id"), reading("list"), reading("search", row())])
    assert verdict.outcome is Outcome.COMMITTED
    assert verdict.receipt is not None and verdict.receipt.object_id == "ref_1"
    assert set(verdict.flagged) == {"by_id", "list"}


def test_a_match_may_be_read_before_any_bound() -> None:
    assert judge([reading("list", row(), start_s=0.1)], now_s=0.2).outcome is Outcome.COMMITTED


def test_a_moved_state_is_still_the_match() -> None:
    assert judge([reading("list", row(state="archived"))]).outcome is Outcome.COMMITTED


def test_absent_when_the_whole_rule_is_met() -> None:
    assert judge(three()).outcome is Outcome.ABSENT


def spoiled(name: str, **more: Any) -> list[Reading]:
    return [reading(n, **more) if n == name else reading(n) for n in NAMES]


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        (spoiled("list", complete=False, declared_total=25, rows_received=24), Reason.ROUTE_INCOMPLETE),
        (spoiled("list", declared_total=None), Reason.NOT_INDEPENDENT),
        (spoiled("list", status="unavailable", complete=False, error="503"), Reason.ROUTE_UNAVAILABLE),
        (spoiled("list", status="looping", complete=False), Reason.ROUTE_INCOMPLETE),
        (spoiled("list", beacon_at=None), Reason.NOT_VISIBLE),
        (spoiled("list", beacon_at=at(4.0)), Reason.NOT_FRESH),
        ([], Reason.NOT_INDEPENDENT),
    ],
)
def test_a_spoiled_list_is_never_absent_and_pages_at_the_bound(readings: list[Reading], reason: Reason) -> None:
    early, late = judge(readings), judge(readings, LATE_S)
    assert (early.outcome, early.reason, early.page) == (Outcome.AMBIGUOUS, Reason.TOO_EARLY, False)
    assert (late.outcome, late.reason, late.page) == (Outcome.AMBIGUOUS, reason, True)


def test_two_good_routes_outweigh_a_third_that_is_down() -> None:
    assert judge(spoiled("search", status="unavailable", complete=False)).outcome is Outcome.ABSENT


def test_too_early_before_reconcile_after_and_before_t_plus_lag() -> None:
    """Trap 1 and case d1: transit, processing, lag and skew are all waited for."""
    assert judge(three(start_s=UNTIL_S + 0.1), now_s=ABSENT_S - 0.1).reason is Reason.TOO_EARLY
    read_before_lag = three(start_s=UNTIL_S + 0.4)
    assert judge(read_before_lag, now_s=LATE_S).outcome is Outcome.AMBIGUOUS


def test_the_bound_is_taken_over_all_attempts_and_epochs() -> None:
    later = AttemptFact(epoch=2, attempt=2, generation=0, issued_at=at(10), not_after=at(13))
    known = facts(attempts=(*facts().attempts, later))
    assert judge(three(), known=known).reason is Reason.TOO_EARLY


def test_an_attempt_that_provably_was_not_sent_bounds_nothing() -> None:
    only = facts().attempts[0].model_copy(update={"provably_not_sent": True})
    assert judge([], now_s=0.1, known=facts(attempts=(only,))).outcome is Outcome.ABSENT


def test_routes_that_share_a_store_count_as_one() -> None:
    """Case d5: their agreement is never absent."""
    shared = contract(
        routes=(
            route("by_id", "by_id", store="replica"),
            route("list", "list", store="replica", declares_total=True),
            route("search", "search", store="replica"),
        )
    )
    assert judge(three(), LATE_S, of=shared).reason is Reason.NOT_INDEPENDENT
    assert len(witnesses(shared, three(), at(UNTIL_S))) == 1


def test_a_route_that_shares_the_writes_path_is_no_witness() -> None:
    """The rail that lost the acknowledgement is not asked whether it lost it."""
    same_rail = contract(write=WritePath(network="net-list", store="primary", credential="cred-write"))
    assert judge(three(), LATE_S, of=same_rail).reason is Reason.NOT_INDEPENDENT


def test_nothing_bounds_it_so_it_is_never_absent() -> None:
    """Rule R2."""
    verdict = judge(three(), LATE_S, of=contract(**unbounded()))
    assert (verdict.reason, verdict.page, verdict.unbounded) == (Reason.LATE_COMMIT_POSSIBLE, True, True)


def test_expired_retention_is_said() -> None:
    """Case b3."""
    verdict = judge(three(), LATE_S, of=contract(**key_honoured(retention_s=5, margin_s=1)))
    assert verdict.reason is Reason.RETENTION_EXPIRED


def test_a_cancelled_key_is_absent_with_every_route_blind() -> None:
    """PROTOCOL, row P2."""
    assert judge([], now_s=0.1, known=facts(key_cancelled=True)).outcome is Outcome.ABSENT


def test_a_match_beats_a_cancelled_key() -> None:
    assert judge([reading("list", row())], known=facts(key_cancelled=True)).outcome is Outcome.COMMITTED


def test_an_acknowledged_object_is_never_absent() -> None:
    """Case d4: an id already received wins over every denial."""
    verdict = judge(three(), LATE_S, known=facts(acknowledged_object_id="ref_9"))
    assert (verdict.reason, verdict.page) == (Reason.NOT_VISIBLE, True)


def test_another_payload_under_our_key_pages_at_once() -> None:
    verdict = judge([reading("list", row(digest="d1:" + "b" * 64))], now_s=0.1)
    assert (verdict.reason, verdict.page) == (Reason.PAYLOAD_CONFLICT, True)


def test_two_objects_page_at_once() -> None:
    verdict = judge([reading("list", row(), row(object_id="ref_2"))], now_s=0.1)
    assert (verdict.reason, verdict.page) == (Reason.MULTIPLE_MATCHES, True)


@pytest.mark.parametrize("how", [{"own_field": False}, {"own_field": False, "by_us": False}])
def test_a_marker_that_anybody_could_have_written_is_no_match_and_blocks_nothing(how: dict[str, Any]) -> None:
    """Case d7: a comment, or a stranger's object, that quotes our operation_id."""
    readings = [reading("by_id"), reading("list", row(**how)), reading("search")]
    assert judge(readings).outcome is Outcome.ABSENT
    blocked = judge(readings, now_s=0.1, of=contract(**unbounded()))
    assert (blocked.reason, blocked.page) == (Reason.LOOK_ALIKE, True)


@pytest.mark.parametrize("how", [{"by_us": False}, {"kind": "dispute"}, {"account": "other"}, {"digest": None}])
def test_a_row_in_our_own_field_that_is_not_proven_ours_is_no_match_and_blocks_absent(how: dict[str, Any]) -> None:
    """Cases d7, d2: a rotated principal, a renamed account, an object turned into another look exactly like this."""
    readings = [reading("by_id"), reading("list", row(**how)), reading("search")]
    early, late = judge(readings), judge(readings, LATE_S)
    assert (early.outcome, early.reason, early.page) == (Outcome.AMBIGUOUS, Reason.TOO_EARLY, False)
    assert (late.outcome, late.reason, late.page) == (Outcome.AMBIGUOUS, Reason.LOOK_ALIKE, True)
    assert late.look_alikes == (f"{row(**how).kind} ref_1 on list",)


def test_a_row_in_our_own_field_is_not_explained_away_by_a_cancelled_key() -> None:
    verdict = judge([reading("list", row(by_us=False))], LATE_S, known=facts(key_cancelled=True))
    assert (verdict.outcome, verdict.reason) == (Outcome.AMBIGUOUS, Reason.LOOK_ALIKE)


def test_another_object_than_the_acknowledged_one_is_no_proof_but_a_second_effect() -> None:
    """Rule R7 from the other side: first the acknowledgement, then a route that shows another object under our key."""
    verdict = judge([reading("list", row(object_id="ref_2"))], known=facts(acknowledged_object_id="ref_1"))
    assert (verdict.reason, verdict.page) == (Reason.MULTIPLE_MATCHES, True)


@pytest.mark.parametrize("cancelled", [True, False])
def test_what_was_sent_as_something_else_is_not_absent_because_nobody_looks_for_it(cancelled: bool) -> None:
    verdict = judge(three(), LATE_S, known=facts(sent_as="refund in account old", key_cancelled=cancelled))
    assert (verdict.reason, verdict.page) == (Reason.NOT_VISIBLE, True)


def test_no_route_pages_at_once() -> None:
    """Case a8."""
    verdict = judge([], now_s=0.1, of=contract(routes=(), completion="receipt", has_beacon=False, **unbounded()))
    assert (verdict.reason, verdict.page) == (Reason.NO_ROUTE, True)


# Properties -----------------------------------------------------------------------------------------------------

times = st.one_of(st.none(), st.floats(0, 20).map(at))
rows = st.builds(
    row,
    object_id=st.sampled_from(["ref_1", "ref_2"]),
    kind=st.sampled_from(["refund", "comment"]),
    account=st.sampled_from(["acct", "other"]),
    own_field=st.booleans(),
    by_us=st.booleans(),
    digest=st.sampled_from([None, "d1:" + "a" * 64, "d1:" + "b" * 64]),
)


def readings_of(name: str) -> st.SearchStrategy[Reading]:
    return st.builds(
        lambda rows, **more: reading(name, *rows, **more),
        st.lists(rows, max_size=2),
        start_s=st.floats(0, 20),
        complete=st.booleans(),
        beacon_at=times,
        as_of=times,
        declared_total=st.one_of(st.none(), st.integers(0, 30)),
    )


sets_of_readings = st.tuples(*(readings_of(name) for name in NAMES)).map(list)
contracts = st.sampled_from([contract(), contract(**unbounded()), contract(**key_honoured())])


def is_ours(candidate: Any) -> bool:
    return bool(candidate.own_field and candidate.by_us and candidate.account == "acct" and candidate.kind == "refund")


@given(sets_of_readings, st.floats(0, 30), contracts)
def test_absent_needs_what_the_specification_says(readings: list[Reading], now_s: float, of: Any) -> None:
    verdict = combine(of, facts(), readings, at(now_s))
    if verdict.outcome is not Outcome.ABSENT:
        return
    assert of.late_arrival.kind == "bounded" and now_s >= ABSENT_S
    assert not any(c.own_field for r in readings for c in r.candidates)
    after = at(UNTIL_S - 0.1)
    good = [
        r
        for r in readings
        if r.complete
        and r.started_at >= at(UNTIL_S + 0.5)
        and any(t is not None and t >= after for t in (r.beacon_at, r.as_of))
    ]
    assert len(good) >= 2
    assert any(r.route == "list" and r.declared_total is not None for r in good)


@given(sets_of_readings, st.floats(0, 30), contracts)
def test_committed_exactly_when_one_object_is_proven_ours_and_nothing_conflicts(
    readings: list[Reading], now_s: float, of: Any
) -> None:
    ours = [c for r in readings for c in r.candidates if is_ours(c)]
    proven = {c.object_id for c in ours if c.digest == facts().digest}
    conflict = any(c.digest not in (None, facts().digest) for c in ours)
    verdict = combine(of, facts(), readings, at(now_s))
    assert (verdict.outcome is Outcome.COMMITTED) == (len(proven) == 1 and not conflict)


@given(sets_of_readings, st.floats(0, 30), contracts)
def test_ambiguous_always_has_a_reason_and_pages_after_the_bound(
    readings: list[Reading], now_s: float, of: Any
) -> None:
    verdict = combine(of, facts(), readings, at(now_s))
    if verdict.outcome is Outcome.AMBIGUOUS:
        assert verdict.reason is not None and verdict.words
        assert verdict.page or verdict.reason is Reason.TOO_EARLY
        if now_s >= PAGE_S:
            assert verdict.page
