"""The payload digest: the same for the same business facts, however they are written down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter

from actonce.contracts.errors import PayloadError
from actonce.contracts.payload import PAYLOAD_BYTES_MAX, business_fields, payload_digest

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
scalars = st.none() | st.booleans() | st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1) | text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)
fields = st.dictionaries(text, values, max_size=5)


def digest(given_fields: Mapping[str, Any], **changes: str) -> str:
    names = {"tool": "refund", "destination": "payments", "action": "refund", "account": "acct_1"}
    return payload_digest(**{**names, **changes}, fields=given_fields)


def shuffled(value: Any) -> Any:
    """The same value with the keys of every map in reverse order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(list(value))}
    if isinstance(value, list):
        return [shuffled(item) for item in value]
    return value


def as_jsonb(value: Any) -> Any:
    """What JSONB keeps: keys ordered by length and bytes, no white space, no duplicates."""
    if isinstance(value, dict):
        ordered = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return {key: as_jsonb(value[key]) for key in ordered}
    if isinstance(value, list):
        return [as_jsonb(item) for item in value]
    return value


@given(fields)
def test_key_order_and_white_space_do_not_matter(given_fields: dict[str, Any]) -> None:
    """case b2, case e1: reordered keys or white space are the same facts."""
    first = digest(given_fields)
    assert first == digest(shuffled(given_fields))
    assert first == digest(json.loads(json.dumps(given_fields, indent=3)))
    assert first == digest(json.loads(json.dumps(given_fields, ensure_ascii=True, separators=(",", ":"))))
    assert first.startswith("d1:") and len(first) == 3 + 64


@given(fields)
def test_temporals_converters_do_not_change_the_digest(given_fields: dict[str, Any]) -> None:
    for converter in (DataConverter.default, pydantic_data_converter):
        payloads = converter.payload_converter.to_payloads([given_fields])
        (back,) = converter.payload_converter.from_payloads(payloads, [dict[str, Any]])
        assert digest(back) == digest(given_fields)


@given(fields)
def test_jsonb_does_not_change_the_digest(given_fields: dict[str, Any]) -> None:
    assert digest(as_jsonb(json.loads(json.dumps(given_fields)))) == digest(given_fields)


@given(fields, fields)
def test_other_facts_have_another_digest(one: dict[str, Any], other: dict[str, Any]) -> None:
    assume(json.dumps(as_jsonb(one)) != json.dumps(as_jsonb(other)))
    assert digest(one) != digest(other)


@pytest.mark.parametrize("changed", ["tool", "destination", "action", "account"])
def test_who_acts_where_is_part_of_the_digest(changed: str) -> None:
    facts = {"amount_minor": 100}
    assert digest(facts) != digest(facts, **{changed: "other"})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {"a": False}),
        ({"a": 1}, {"a": "1"}),
        ({"a": None}, {}),
        ({"a": []}, {"a": {}}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": "\u00e9"}, {"a": "e\u0301"}),
    ],
)
def test_what_looks_alike_is_not_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert digest(one) != digest(other)


def test_a_tuple_is_the_list_that_json_makes_of_it() -> None:
    assert digest({"a": (1, 2)}) == digest({"a": [1, 2]})


def test_the_digest_of_one_payload_is_pinned() -> None:
    """A change of the digest would make every operation in flight a conflict."""
    assert digest({"amount_minor": 100, "currency": "EUR"}) == (
        "d1:b868ea48a1b43c319642f66f5bb644bc7d6a9d1e702f5e00bcfb624d7120575d"
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.0, "is a float"),
        (float("nan"), "is a float"),
        (float("inf"), "is a float"),
        (-0.0, "is a float"),
        (2**53, "beyond"),
        (-(2**53), "beyond"),
        ("a\x00b", "NUL"),
        ("\ud800", "no canonical form"),
        (b"bytes", "is a bytes"),
        ({1: "a"}, "not text"),
        ({"a\x00": 1}, "NUL"),
        ({1, 2}, "is a set"),
        (object(), "is a object"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda v: {"f": v}, lambda v: {"f": [{"g": v}]}], ids=["flat", "nested"])
def test_what_has_no_stable_form_is_refused(value: object, words: str, wrap: Any) -> None:
    with pytest.raises(PayloadError, match=words):
        digest(wrap(value))


def test_a_payload_of_more_than_its_bound_is_refused() -> None:
    digest({"f": "x" * (PAYLOAD_BYTES_MAX - 200)})
    with pytest.raises(PayloadError, match="pass a reference"):
        digest({"f": "x" * PAYLOAD_BYTES_MAX})


def test_a_payload_that_is_nested_too_deep_is_refused() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(PayloadError, match="nested deeper"):
        digest({"f": deep})


def test_only_the_declared_fields_count() -> None:
    """case b2: a new timestamp or nonce is the same operation with the same digest."""
    declared = ("amount_minor", "reason?")
    first = business_fields({"amount_minor": 5, "rendered_at": "10:00", "nonce": "a"}, declared)
    second = business_fields({"nonce": "b", "amount_minor": 5, "rendered_at": "10:07"}, declared)
    assert first == second == {"amount_minor": 5}
    assert business_fields({"amount_minor": 5, "reason": None}, declared) == {"amount_minor": 5, "reason": None}


def test_a_missing_business_field_is_refused() -> None:
    with pytest.raises(PayloadError, match="'amount_minor' is missing"):
        business_fields({"reason": "x"}, ("amount_minor", "reason?"))
