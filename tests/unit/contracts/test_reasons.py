"""The table of reason codes. Their procedures: tests/unit/entry/test_procedures.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from actonce.contracts.reasons import POLICIES, gates, policy
from actonce.contracts.verdict import Reason

ROOT = Path(__file__).parents[3]
# Codes that nothing in the code opens yet; they get their procedure with the part that opens them.
NOT_YET = {
    Reason.NOBODY_WORKS,
    Reason.BACKLOG,
}


@pytest.mark.parametrize("reason", sorted(NOT_YET))
def test_a_reason_without_a_procedure_is_opened_by_nothing(reason: Reason) -> None:
    apart = {ROOT / "actonce/contracts/verdict.py", ROOT / "actonce/contracts/reasons.py"}
    users = [
        path
        for path in (ROOT / "actonce").rglob("*.py")
        if path not in apart and re.search(rf"\bR(eason)?\.{reason.name}\b", path.read_text(encoding="utf-8"))
    ]
    assert not users, f"{reason} is opened by {users} and has no procedure: write it, and take it out of NOT_YET"


def test_every_reason_has_a_policy() -> None:
    assert set(POLICIES) == set(Reason)


def test_only_a_hold_that_nothing_was_sent_under_can_be_resumed() -> None:
    """`resume` gives a permit without proof of absence, so no reason about an unknown outcome may allow it."""
    assert gates() == {r for r in Reason if "resume" in policy(r).actions}
    assert not any("permit_one_retry" in policy(r).actions for r in gates())
