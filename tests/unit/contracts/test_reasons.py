"""The table of reason codes. Their procedures: tests/unit/entry/test_procedures.py."""

from __future__ import annotations

from actonce.contracts.reasons import POLICIES, gates, policy
from actonce.contracts.verdict import Reason


def test_every_reason_has_a_policy() -> None:
    assert set(POLICIES) == set(Reason)


def test_only_a_hold_that_nothing_was_sent_under_can_be_resumed() -> None:
    """`resume` gives a permit without proof of absence, so no reason about an unknown outcome may allow it."""
    assert gates() == {r for r in Reason if "resume" in policy(r).actions}
    assert not any("permit_one_retry" in policy(r).actions for r in gates())
