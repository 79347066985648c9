"""operation_id and wire key: stable, injective, refused before any call when they cannot be carried."""

from __future__ import annotations

import string
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from actonce.contracts.errors import KeyNotMappable, PayloadError
from actonce.contracts.identity import (
    GENERATIONS_MAX,
    KeyFormat,
    OperationKey,
    derive_operation_id,
    operation_id_of,
    wire_key,
)

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
parts = st.tuples(names, names, names, st.integers(min_value=0, max_value=2**40))
generations = st.integers(min_value=0, max_value=GENERATIONS_MAX - 1)
_DIGITS = string.digits
FORMATS = {
    "header": KeyFormat(),
    "lower hex": KeyFormat("0123456789abcdef", 64),
    "decimal": KeyFormat(_DIGITS, 60),
    "alphanumeric, exactly 36": KeyFormat(string.ascii_letters + _DIGITS, 36, 36),
    "upper and digits": KeyFormat(string.ascii_uppercase + _DIGITS, 40),
    "no slash": KeyFormat(string.ascii_lowercase + _DIGITS + "_-", 255),
    "binary": KeyFormat("01", 200),
    "long minimum": KeyFormat(string.ascii_lowercase + _DIGITS + "_/", 255, 64),
}
formats = st.sampled_from(sorted(FORMATS))


@given(parts)
def test_the_same_four_parts_give_the_same_id(given_parts: tuple[str, str, str, int]) -> None:
    first, second = derive_operation_id(*given_parts), derive_operation_id(*given_parts)
    assert first == second
    assert first.startswith("op1_") and len(first) == 36
    assert set(first[4:]) <= set(string.ascii_lowercase + "234567")


@given(parts, parts)
def test_other_parts_give_another_id(one: tuple[str, str, str, int], other: tuple[str, str, str, int]) -> None:
    assume(one != other)
    assert derive_operation_id(*one) != derive_operation_id(*other)


def test_parts_are_not_run_together() -> None:
    """`a` + `bc` and `ab` + `c` are different operations, whatever separator a name contains."""
    ids = {
        derive_operation_id("a", "bc", "d", 0),
        derive_operation_id("ab", "c", "d", 0),
        derive_operation_id("a", 'b","c', "d", 0),
        derive_operation_id("a", "b", 'c","d', 0),
        derive_operation_id("a", "b/c", "d", 0),
        derive_operation_id("a/b", "c", "d", 0),
    }
    assert len(ids) == 6


def test_the_id_of_one_operation_is_pinned() -> None:
    """A change of the derivation would send everything that is in flight a second time."""
    assert derive_operation_id("acme", "acme/refund/R-1", "refund", 0) == "op1_dyu5skq2h6ejpurxpm6w4j2vzud3bso3"


PINNED_KEYS = {
    "header": "op1_dyu5skq2h6ejpurxpm6w4j2vzud3bso3/3",
    "lower hex": "031e29d92a1a3f8897d2377b3d6e2755cd07b0c9db",
    "decimal": "004556707883363360111568502629863909115871567595995",
    "alphanumeric, exactly 36": "aaaaaaaabZ22QnRTUB0aEGTJsivQU4dj6yPT",
    "upper and digits": "ACVIP2AS9YIBT21OO9KJFNRIE1NKKTAH5",
    "no slash": "aasp1t1w0lwhetgovbvt-agyb1udi6njr",
    "long minimum": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaasp1t1w0lwhetgovbvt/agyb1udi6njr",
}


@pytest.mark.parametrize("name", PINNED_KEYS)
def test_the_key_of_one_operation_is_pinned(name: str) -> None:
    """Two releases must send the same key: another one would be a second effect."""
    operation_id = derive_operation_id("acme", "acme/refund/R-1", "refund", 0)
    assert wire_key(operation_id, 3, FORMATS[name]) == PINNED_KEYS[name]


@given(parts, generations, formats)
def test_a_key_fits_its_format(given_parts: tuple[str, str, str, int], generation: int, name: str) -> None:
    form = FORMATS[name]
    key = wire_key(derive_operation_id(*given_parts), generation, form)
    assert set(key) <= set(form.alphabet)
    assert form.length_min <= len(key) <= form.length_max


@given(parts, generations, formats)
def test_a_key_tells_whose_it_is(given_parts: tuple[str, str, str, int], generation: int, name: str) -> None:
    form, operation_id = FORMATS[name], derive_operation_id(*given_parts)
    assert operation_id_of(wire_key(operation_id, generation, form), form) == operation_id


@pytest.mark.parametrize("key", ["", "op1_short", "op1_" + "a" * 32 + "/x", "beacon_1", "ünknown", "a" * 400])
def test_what_is_no_key_of_ours_tells_nothing(key: str) -> None:
    for form in FORMATS.values():
        assert operation_id_of(key, form) is None


@given(parts, parts, generations, generations, formats)
def test_two_operations_or_generations_never_share_a_key(
    one: tuple[str, str, str, int], other: tuple[str, str, str, int], left: int, right: int, name: str
) -> None:
    assume((one, left) != (other, right))
    form = FORMATS[name]
    assert wire_key(derive_operation_id(*one), left, form) != wire_key(derive_operation_id(*other), right, form)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_generation_of_one_operation_has_its_own_key(form: KeyFormat) -> None:
    """A cancelled key is spent: its successor must be another one."""
    operation_id = derive_operation_id("acme", "t", "s", 0)
    keys = [wire_key(operation_id, generation, form) for generation in range(GENERATIONS_MAX)]
    assert len(set(keys)) == GENERATIONS_MAX


@given(st.text(st.sampled_from("ab23457z"), min_size=32, max_size=32), formats)
def test_ids_that_differ_in_one_character_have_other_keys(body: str, name: str) -> None:
    form = FORMATS[name]
    for index in (0, 15, 31):
        other = body[:index] + ("c" if body[index] != "c" else "d") + body[index + 1 :]
        assert wire_key(f"op1_{body}", 0, form) != wire_key(f"op1_{other}", 0, form)


def test_a_key_can_be_read_as_the_operation_id_where_the_format_allows_it() -> None:
    operation_id = derive_operation_id("acme", "t", "s", 0)
    assert wire_key(operation_id, 0, KeyFormat()) == operation_id
    assert wire_key(operation_id, 2, KeyFormat()) == f"{operation_id}/2"


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (KeyFormat("0123456789abcdef", 32), "needs 42 characters"),
        (KeyFormat("a", 1000), "carries nothing"),
        (KeyFormat("aaaa", 1000), "carries nothing"),
        (KeyFormat("", 1000), "carries nothing"),
    ],
)
def test_a_format_that_is_too_small_is_refused(form: KeyFormat, words: str) -> None:
    with pytest.raises(KeyNotMappable, match=words):
        wire_key(derive_operation_id("acme", "t", "s", 0), 0, form)


@pytest.mark.parametrize("generation", [-1, GENERATIONS_MAX])
def test_a_generation_outside_its_range_is_refused(generation: int) -> None:
    with pytest.raises(KeyNotMappable, match="generation"):
        wire_key(derive_operation_id("acme", "t", "s", 0), generation, KeyFormat())


def test_an_id_that_was_not_derived_here_is_refused_where_it_must_be_encoded() -> None:
    with pytest.raises(KeyNotMappable, match="derive_operation_id"):
        wire_key("order-17", 0, FORMATS["lower hex"])


@pytest.mark.parametrize(
    ("tenant", "task", "step", "iteration", "words"),
    [
        ("", "t", "s", 0, "tenant"),
        ("a", "", "s", 0, "task_id"),
        ("a", "t", "", 0, "step"),
        ("a" * 401, "t", "s", 0, "tenant"),
        (7, "t", "s", 0, "tenant"),
        ("a", None, "s", 0, "task_id"),
        ("a", "t", "s", -1, "iteration"),
        ("a", "t", "s", True, "iteration"),
        ("a", "t", "s", 1.0, "iteration"),
        ("a", "t", "s\ud800", 0, "cannot be derived"),
    ],
)
def test_parts_that_cannot_name_an_operation_are_refused(
    tenant: object, task: object, step: object, iteration: object, words: str
) -> None:
    with pytest.raises(PayloadError, match=words):
        derive_operation_id(tenant, task, step, iteration)  # type: ignore[arg-type]


def test_one_id_at_two_destinations_or_actions_is_two_operations() -> None:
    """case b7"""
    operation_id = derive_operation_id("acme", "t", "s", 0)
    keys = [
        OperationKey("acme", "payments", "refund", operation_id),
        OperationKey("acme", "tickets", "refund", operation_id),
        OperationKey("acme", "payments", "void", operation_id),
        OperationKey("other", "payments", "refund", operation_id),
    ]
    assert all(a != b for a, b in combinations(keys, 2))
