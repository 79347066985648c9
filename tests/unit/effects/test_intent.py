"""What a contract demands of an operation is derived or refused before any call."""

from __future__ import annotations

from typing import Any

import pytest

from actonce.contracts.errors import PayloadError
from actonce.contracts.messages import OperationRequest
from actonce.contracts.payload import NATURAL_KEY_BYTES_MAX
from actonce.effects.perform import intent_of
from tests.unit.effects.builders import contract

REFUND = {"payment_id": "pay_1", "amount_minor": 5, "reason": "damaged"}
UNIQUE = contract(
    business_fields=("payment_id", "amount_minor", "reason"), natural_keys={"refund": ("payment_id", "reason")}
)
UNDO = contract(business_fields=("payment_id",), reversals=frozenset({"refund"}))


def request(**change: Any) -> OperationRequest:
    given: dict[str, Any] = {"tenant": "t", "task_id": "t/x/1", "step": "s", "destination": "payments"}
    return OperationRequest.model_validate(given | {"action": "refund", "payload": REFUND} | change)


def test_a_declared_natural_key_is_derived_from_the_payload_whatever_the_caller_forgot() -> None:
    first = intent_of(request(), UNIQUE)
    again = intent_of(request(task_id="t/x/2", payload=REFUND | {"amount_minor": 7, "note": "other"}), UNIQUE)
    other = intent_of(request(payload=REFUND | {"reason": "late"}), UNIQUE)
    assert first.natural_key == again.natural_key == '{"payment_id":"pay_1","reason":"damaged"}'
    assert other.natural_key != first.natural_key


def test_two_payloads_never_share_a_natural_key_by_the_way_it_is_written() -> None:
    pairs = [("a,b", "c"), ("a", "b,c"), ('a","reason":"b', "c"), ("a", "b"), ("", "ab")]
    keys = {intent_of(request(payload=REFUND | {"payment_id": p, "reason": r}), UNIQUE).natural_key for p, r in pairs}
    assert len(keys) == len(pairs)


def test_a_long_natural_key_is_carried_by_its_digest() -> None:
    long = [intent_of(request(payload=REFUND | {"reason": "x" * 5000 + end}), UNIQUE).natural_key for end in "ab"]
    assert all(key is not None and key.startswith("n1:") and len(key) == 67 for key in long)
    assert len(set(long)) == 2


def test_a_caller_that_names_another_natural_key_than_the_derived_one_is_refused() -> None:
    with pytest.raises(PayloadError, match="derives the natural effect key"):
        intent_of(request(natural_key="pay_1/something else"), UNIQUE)
    derived = intent_of(request(), UNIQUE).natural_key
    assert intent_of(request(natural_key=derived), UNIQUE).natural_key == derived


@pytest.mark.parametrize("key", ["", "x" * (NATURAL_KEY_BYTES_MAX + 1)])
def test_a_callers_own_natural_key_that_cannot_be_kept_is_refused(key: str) -> None:
    """An index carries no longer one: it would look like a ledger that is away, for ever."""
    with pytest.raises(PayloadError, match="1 to 512 bytes"):
        intent_of(request(natural_key=key), contract())


def test_without_a_declaration_the_callers_own_natural_key_stands() -> None:
    assert intent_of(request(natural_key="pay_1/damaged"), contract()).natural_key == "pay_1/damaged"
    assert intent_of(request(), contract()).natural_key is None


def test_a_missing_field_of_a_natural_key_is_refused() -> None:
    with pytest.raises(PayloadError, match="'reason' is missing"):
        intent_of(request(payload={"payment_id": "pay_1", "amount_minor": 5}), UNIQUE)


@pytest.mark.parametrize("reverses", [None, ""])
def test_a_reversal_that_names_no_original_is_refused(reverses: str | None) -> None:
    with pytest.raises(PayloadError, match="pass its operation_id as `reverses`"):
        intent_of(request(reverses=reverses), UNDO)


def test_a_reversal_that_names_its_original_passes() -> None:
    assert intent_of(request(reverses="op1_x"), UNDO).reverses == "op1_x"
