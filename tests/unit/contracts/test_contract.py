"""A destination contract: everything that cannot be true is refused, each with its own words."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from actonce.contracts.contract import (
    Bounded,
    CancelByKey,
    Contract,
    DeadlineAtCommit,
    DeadlineOnArrival,
    KeyHonoured,
    Keys,
    Route,
    Timing,
    Unbounded,
    WritePath,
)
from actonce.contracts.errors import ContractError

BY_ID = Route(name="by_id", kind="by_id", network="n1", store="s1", credential="c1", lag_s=0)
LIST = Route(name="list", kind="list", network="n2", store="s2", credential="c2", lag_s=1, declares_total=True)
KEYS = Keys(registered="arrival", retention_s=60, margin_s=20)


def contract(**changes: Any) -> Contract:
    base: dict[str, Any] = {
        "name": "payments",
        "version": 1,
        "actions": frozenset({"refund"}),
        "account": "acct_1",
        "object_kind": "refund",
        "business_fields": ("amount_minor",),
        "late_arrival": Bounded(transit_s=5, enforced_by="the gateway's request timeout"),
        "completion": "read_back",
        "write": WritePath(network="n0", store="s0", credential="c0"),
        "routes": (BY_ID, LIST),
    }
    return Contract(**{**base, **changes})


def refused(words: str, **changes: Any) -> None:
    with pytest.raises((ContractError, ValidationError), match=words):
        contract(**changes)


def test_a_contract_that_can_be_true_is_accepted() -> None:
    assert contract().independent_groups() == [{"by_id"}, {"list"}]


TIMING = {
    "connect_timeout_s": 10.0,
    "write_timeout_s": 10.0,
    "permit_lifetime_s": 12.5,
    "activity_timeout_s": 12.0,
    "reconcile_after_s": 20.0,
}


@pytest.mark.parametrize("name", TIMING)
def test_each_link_of_the_chain_of_timeouts_is_checked(name: str) -> None:
    """connect and write timeouts < not_after <= send deadline < activity timeout < reconcile-after"""
    refused("needs connect and write timeouts", timing=Timing(**{name: TIMING[name]}))


def test_a_permit_may_live_exactly_as_long_as_its_sender_waits() -> None:
    contract(timing=Timing(permit_lifetime_s=12.0, send_deadline_s=12.0))


def test_reconcile_after_that_begins_while_a_skewed_owner_may_still_send_is_refused() -> None:
    refused("twice the clock skew", clock_skew_s=7.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actions": frozenset()}, "declares no action"),
        ({"business_fields": ()}, "declares no business field"),
        ({"routes": (BY_ID, BY_ID.model_copy(update={"network": "n9"}))}, "two routes share a name"),
        ({"late_arrival": KeyHonoured()}, "key_honoured needs `keys`"),
        ({"late_arrival": CancelByKey()}, "cancel_by_key needs `keys`"),
        ({"routes": ()}, "read_back needs a route"),
        ({"name": "Payments"}, "name"),
        ({"version": 0}, "version"),
        ({"attempts_max": 0}, "attempts_max"),
        ({"clock_skew_s": -1.0}, "clock_skew_s"),
        ({"processing_bound_s": -1.0}, "processing_bound_s"),
        ({"completion": "accepted"}, "completion"),
        ({"retries": 3}, "retries"),
        ({"natural_keys": {"void": ("payment_id",)}}, "name \\['void'\\]"),
        ({"reversals": frozenset({"void"})}, "name \\['void'\\]"),
        ({"natural_keys": {"refund": ("order",)}}, "needs business fields that every payload has"),
        ({"natural_keys": {"refund": ()}}, "needs business fields that every payload has"),
    ],
)
def test_a_contract_that_cannot_be_true_is_refused(changes: dict[str, Any], words: str) -> None:
    refused(words, **changes)


def test_a_margin_that_eats_the_whole_retention_is_refused() -> None:
    refused("margin_s must be smaller", keys=KEYS.model_copy(update={"margin_s": 60}))


@pytest.mark.parametrize("part", ["transit_s", "enforced_by"])
def test_a_bound_needs_a_length_and_someone_who_enforces_it(part: str) -> None:
    with pytest.raises(ValidationError, match=part):
        Bounded(**{"transit_s": 5, "enforced_by": "the gateway", part: 0 if part == "transit_s" else ""})


@pytest.mark.parametrize("shared", ["network", "store", "credential"])
def test_a_false_claim_of_independence_from_the_write_is_refused(shared: str) -> None:
    theirs = getattr(contract().write, shared)
    route = BY_ID.model_copy(update={shared: theirs, "claims_independence": True})
    refused(rf"shares \['{shared}'\] with the write", routes=(route, LIST))


@pytest.mark.parametrize("shared", ["network", "store", "credential"])
def test_a_false_claim_of_independence_from_each_other_is_refused(shared: str) -> None:
    """case d5"""
    one = BY_ID.model_copy(update={"claims_independence": True})
    other = LIST.model_copy(update={shared: getattr(one, shared), "claims_independence": True})
    refused(f"share \\['{shared}'\\]", routes=(one, other))


@pytest.mark.parametrize("shared", ["network", "store", "credential"])
def test_routes_that_share_something_count_as_one(shared: str) -> None:
    """case d5: declared as sharing they are accepted, and their agreement is one reading."""
    other = LIST.model_copy(update={shared: getattr(BY_ID, shared)})
    assert contract(routes=(BY_ID, other)).independent_groups() == [{"by_id", "list"}]


def test_a_route_between_two_groups_joins_them() -> None:
    search = Route(name="search", kind="search", network="n1", store="s2", credential="c3", lag_s=8)
    assert contract(routes=(BY_ID, LIST, search)).independent_groups() == [{"by_id", "list", "search"}]


@pytest.mark.parametrize("shared", ["network", "store", "credential"])
def test_a_route_that_the_lost_answer_travelled_on_is_in_no_group(shared: str) -> None:
    on_the_write = BY_ID.model_copy(update={shared: getattr(contract().write, shared)})
    assert contract(routes=(on_the_write, LIST)).independent_groups() == [{"list"}]


@pytest.mark.parametrize(
    "late",
    [
        KeyHonoured(),
        CancelByKey(),
        DeadlineAtCommit(),
        DeadlineOnArrival(),
        Bounded(transit_s=1, enforced_by="x"),
        Unbounded(),
    ],
    ids=lambda late: str(late.kind),
)
def test_a_contract_survives_being_written_down(late: Any) -> None:
    one = contract(late_arrival=late, keys=KEYS)
    again = Contract.model_validate_json(one.model_dump_json())
    assert again == one
    assert again.digest == one.digest


def test_a_changed_contract_has_another_digest() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"version": 2},
        {"actions": frozenset({"refund", "void"})},
        {"late_arrival": Unbounded()},
        {"routes": (BY_ID,)},
        {"keys": KEYS},
        {"clock_skew_s": 2.0},
        {"natural_keys": {"refund": ("amount_minor",)}},
        {"reversals": frozenset({"refund"})},
    ]
    assert len({contract(**change).digest for change in changes}) == len(changes)


def test_the_digest_does_not_depend_on_the_order_of_a_set() -> None:
    assert contract(actions=frozenset(["a", "b", "c"])).digest == contract(actions=frozenset(["c", "b", "a"])).digest


def test_only_a_key_that_is_registered_on_arrival_allows_a_same_key_resend() -> None:
    assert contract(keys=KEYS).resends_same_key
    assert not contract(keys=KEYS.model_copy(update={"registered": "commit"})).resends_same_key
    assert not contract().resends_same_key


def test_a_route_that_was_not_declared_is_named() -> None:
    with pytest.raises(ContractError, match="declares no route 'log'"):
        contract().route("log")
    assert contract().route("list") is LIST


def test_a_contract_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        contract().version = 2  # type: ignore[misc]


def test_contract_that_uses_nothing_new_keeps_the_digest_it_had() -> None:
    """A ledger refuses the same version with another digest, so a field that came later must not change it."""
    first_release = Contract(
        name="payments",
        version=1,
        actions=frozenset({"refund"}),
        account="acct",
        object_kind="refund",
        business_fields=("amount_minor",),
        late_arrival=Bounded(transit_s=60, enforced_by="the gateway"),
        completion="receipt",
        write=WritePath(network="n", store="s", credential="c"),
        clock_skew_s=0.1,
    )
    assert first_release.digest == "c1:40cb404cac256f4ff160550c7b800db8e3e61da86c33ff4e9f66c57d85736f81"


def stand_in(**changes: Any) -> Contract:
    """Of `contract()`: under other names, in another account."""
    renamed = {
        "write": WritePath(network="t0", store="t1", credential="t2"),
        "routes": tuple(
            r.model_copy(update={name: f"test-{getattr(r, name)}" for name in ("network", "store", "credential")})
            for r in (BY_ID, LIST)
        ),
    }
    return contract(sandbox=True, account="acct_test", principal="prn_test", **{**renamed, **changes})


def test_a_stand_in_makes_the_same_promises_whatever_its_account_and_paths_are_called() -> None:
    assert stand_in().promise_digest == contract().promise_digest
    assert stand_in().digest != contract().digest


@pytest.mark.parametrize(
    "changes",
    [
        {"late_arrival": Bounded(transit_s=4, enforced_by="the gateway's request timeout")},
        {"clock_skew_s": 0.5},
        {"business_fields": ("amount_minor", "reason")},
        {"attempts_max": 4},
        {"completion": "receipt"},
        {"version": 2},
        {"write": WritePath(network="t0", store="t1", credential="test-" + LIST.credential)},
    ],
    ids=str,
)
def test_another_promise_is_no_stand_in(changes: dict[str, Any]) -> None:
    """Also where a credential is shared that the real one does not share."""
    declared = {**changes}
    if "write" in changes:  # shared with the write, it cannot claim to be independent
        declared["routes"] = tuple(
            r.model_copy(update={"claims_independence": False, "credential": f"test-{r.credential}"})
            for r in (BY_ID, LIST)
        )
    assert stand_in(**declared).promise_digest != contract().promise_digest
