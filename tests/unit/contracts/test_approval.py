"""What exactly is approved: the digest, the strictest terms, the differences that people are shown."""

from __future__ import annotations

from typing import Any

import pytest

from actonce.contracts.approval import (
    ApprovalRule,
    ApprovalTerms,
    Proposal,
    approval_id_of,
    differences,
    terms_of,
)
from actonce.contracts.errors import PayloadError
from actonce.contracts.identity import OperationKey

PAYLOAD = {"payment_id": "pay_1", "amount_minor": 1250, "currency": "EUR", "invoice": "invoices/7.pdf"}


def proposal(**change: Any) -> Proposal:
    values: dict[str, Any] = {
        "tenant": "default",
        "tool": "payments.refund",
        "destination": "payments",
        "action": "refund",
        "account": "main",
        "principal": "svc-refunds",
        "payload": PAYLOAD,
        "resolved": {"invoice": "sha256:aa", "account": "acct_9"},
        "terms": ApprovalTerms(),
        "requested_by": "ada",
    }
    return Proposal.model_validate(values | change)


@pytest.mark.parametrize(
    "change",
    [
        {"tool": "payments.reverse"},
        {"account": "other"},
        {"principal": "svc-admin"},
        {"tenant": "acme"},
        {"payload": PAYLOAD | {"amount_minor": 1251}},
        {"payload": PAYLOAD | {"memo": "new"}},
        {"resolved": {"invoice": "sha256:bb", "account": "acct_9"}},
        {"resolved": {"invoice": "sha256:aa", "account": "acct_10"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_content_is_another_digest(change: dict[str, Any]) -> None:
    """Case e1: a changed file, or a changed account behind an alias, is not what was approved."""
    assert proposal(**change).digest != proposal().digest


def test_reordered_keys_and_other_terms_are_the_same_digest() -> None:
    """Case e1: rendering is no content; who asks and how many must approve is no part of what runs."""
    turned = dict(reversed(PAYLOAD.items()))
    other = proposal(payload=turned, terms=ApprovalTerms(approvers=3), requested_by="bo")
    assert list(turned) != list(PAYLOAD) and other.digest == proposal().digest


def test_what_has_no_canonical_form_is_not_shown_to_anybody() -> None:
    with pytest.raises(PayloadError, match="canonical form"):
        _ = proposal(payload={"n": 2**60}).digest


def test_the_strictest_of_every_rule_and_of_what_the_caller_asks_counts() -> None:
    rules = [
        ApprovalRule(action="refund", over_minor=1000, valid_s=600, requester_may_approve=True),
        ApprovalRule(action="refund", over_minor=100_000, approvers=2, valid_s=900),
        ApprovalRule(action="reverse"),
    ]
    assert terms_of(rules, "refund", {"amount_minor": 1000}) is None
    assert terms_of(rules, "refund", {"amount_minor": 1001}) == ApprovalTerms(valid_s=600, requester_may_approve=True)
    assert terms_of(rules, "refund", {"amount_minor": 100_001}) == ApprovalTerms(approvers=2, valid_s=600)
    asked = ApprovalTerms(approvers=3, valid_s=60, requester_may_approve=True)
    assert terms_of([], "refund", {}, asked) == asked
    assert terms_of([], "refund", {}) is None


@pytest.mark.parametrize("amount", [None, "5", 5.0, True, {}])
def test_an_amount_that_cannot_be_read_is_not_known_to_be_small(amount: object) -> None:
    payload = {} if amount is None else {"amount_minor": amount}
    assert terms_of([ApprovalRule(action="refund", over_minor=10**9)], "refund", payload) is not None


def test_an_approval_id_names_one_round_of_one_operation() -> None:
    key = OperationKey("default", "payments", "refund", "op1_x")
    other = OperationKey("default", "payments", "reverse", "op1_x")
    ids = {approval_id_of(key, 1), approval_id_of(key, 2), approval_id_of(other, 1)}
    assert len(ids) == 3 and approval_id_of(key, 1) == approval_id_of(key, 1)


def test_differences_name_the_place_and_both_values() -> None:
    now = proposal(payload=PAYLOAD | {"amount_minor": 9}, resolved={"invoice": "sha256:bb", "account": "acct_9"})
    assert differences(proposal().what, now.what) == [
        {"where": "payload.amount_minor", "approved": 1250, "found": 9},
        {"where": "resolved.invoice", "approved": "sha256:aa", "found": "sha256:bb"},
    ]
