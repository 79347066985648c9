"""A chain shows every change, gap and swap; a line is exactly what was sealed."""

from __future__ import annotations

import hashlib
import json

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from actonce.contracts.audit import AuditDamaged, End, Sealed, Walk, parse, seal
from tests.unit.audit.builders import GENESIS, chain, event

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def codes(events: list[Sealed]) -> list[str]:
    walk = Walk(End(0, GENESIS))
    return [finding.code for one in events for finding in walk.step(one)]


def test_whole_chain_has_no_finding_and_its_hashes_can_be_computed_by_anyone() -> None:
    events = chain(4)
    assert codes(events) == []
    for one in events:
        content = json.loads(one.line)
        told = content.pop("hash")
        assert told == hashlib.sha256(rfc8785.dumps(content)).hexdigest() == one.hash


def test_missing_event_is_a_gap_that_names_its_number() -> None:
    events = chain(5)
    walk = Walk(End(0, GENESIS))
    findings = [f for one in events[:1] + events[3:] for f in walk.step(one)]
    assert [(f.code, f.seq, f.words) for f in findings] == [("gap", 2, "event 2 to 3 is missing before 4")]


def test_gap_that_a_restore_declared_is_told_apart_and_its_hashes_must_go_on() -> None:
    before = chain(2)
    after = seal(event(9), 1000, before[-1].hash)
    forged = seal(event(9), 1000, before[0].hash)
    walk = Walk(End(0, GENESIS), frozenset({1000}))
    assert [f for one in [*before, after] for f in walk.step(one)] == []
    assert walk.jumped == [(2, 1000)]
    for told, one in (({1000}, forged), ({999}, after)):
        walk = Walk(End(0, GENESIS), frozenset(told))
        assert [f.code for one in [*before, one] for f in walk.step(one)] == ["gap"]
        assert walk.jumped == []


def test_swapped_events_are_out_of_order() -> None:
    one, two, three = chain(3)
    assert codes([two, one, three]) == ["gap", "out_of_order", "gap"]


def test_event_of_another_chain_does_not_fit_even_with_the_right_number() -> None:
    ours, theirs = chain(3), chain(3, forged=True)
    assert codes([*ours[:2], theirs[2]]) == ["broken_link"]
    assert codes(chain(1, first_hash="0" * 64)) == ["broken_link"]


@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=5), VALUES, max_size=4))
def test_every_body_can_be_sealed_and_read_again(body: dict[str, object]) -> None:
    sealed = seal(event(7, **{f"x{k}": v for k, v in body.items()}), 1, GENESIS)
    assert parse(sealed.line) == sealed


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"seq": 1',
        chain(1)[0].line.replace('"version":3', '"version":4'),
        chain(1)[0].line.replace(",", ", ", 1),
        json.dumps({**json.loads(chain(1)[0].line), "hash": "0" * 64}),
    ],
)
def test_line_that_is_not_exactly_a_sealed_event_is_damaged(line: str) -> None:
    with pytest.raises(AuditDamaged):
        parse(line)
