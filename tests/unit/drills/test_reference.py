"""The reference function against cells worked out by hand from SPEC §2 and PROTOCOL; each names its sentence."""

from __future__ import annotations

import pytest

from drills.cells import Axes
from drills.cover import every_allowed
from drills.reference import expected

COMMITTED = {"committed"}


def cell(text: str) -> Axes:
    return Axes(*text.split())


@pytest.mark.parametrize(
    ("axes", "settled", "effects", "pages"),
    [
        # §2.4 committed: "exactly one match … A denial by another route never contradicts a match"
        ("closed commit_then_drop none none healthy bounded", COMMITTED, (1, 1), False),
        ("reset commit_then_drop SIGKILL temporal canonical_denies none", COMMITTED, (1, 1), False),
        ("gateway_503 commit_then_drop none ledger list_short_by_one key_at_commit", COMMITTED, (1, 1), False),
        ("silent commit_then_drop SIGSTOP none all_but_one_down deadline_at_commit", COMMITTED, (1, 1), False),
        # §2.4 ambiguous: stale readings are too_early before the last bound; "Page at the bound"
        ("closed commit_then_drop none none stale bounded", {"held:not_fresh", "held:not_visible"}, (1, 1), True),
        ("closed commit_then_drop none none all_down bounded", {"held:route_unavailable"}, (1, 1), True),
        # §2.4 absent, §2.5 "absent: one new permit, same operation_id"
        ("closed drop_before_commit none none healthy bounded", COMMITTED, (1, 1), False),
        ("truncated drop_before_commit SIGTERM all healthy deadline_on_arrival", COMMITTED, (1, 1), False),
        # absent needs "a list whose declared total equals the rows received": d9 with the row nowhere
        (
            "closed drop_before_commit none none short_without_total bounded",
            {"held:route_incomplete", "held:not_fresh", "held:not_visible"},
            (0, 0),
            True,
        ),
        # absent needs "at least two independent routes"
        (
            "closed drop_before_commit none none all_but_one_down deadline_at_commit",
            {"held:route_unavailable", "held:route_incomplete"},
            (0, 0),
            True,
        ),
        # "key_honoured alone earns none", but §2.5 lets it be sent again; completion is read back by the one route
        ("silent drop_before_commit none none all_but_one_down key_on_arrival", COMMITTED, (1, 1), False),
        # R2: "With `none` the verdict is never `absent` but `ambiguous`, reason `late_commit_possible`"
        ("closed drop_before_commit none none healthy none", {"held:late_commit_possible"}, (0, 0), True),
        ("closed drop_before_commit none none healthy key_at_commit", {"held:late_commit_possible"}, (0, 0), True),
        # PROTOCOL cell 3: held on the way past the verdict, then released
        ("held_released_late drop_before_commit none none healthy none", {"held:late_commit_possible"}, (1, 1), True),
        ("held_released_late drop_before_commit none none healthy bounded", COMMITTED, (1, 1), False),
        ("held_released_late drop_before_commit SIGKILL none healthy cancel_by_key", COMMITTED, (1, 1), False),
        # §2.4 "atomic cancel-by-key needs no routes and no times"; §2.7 read_back still needs one
        (
            "reset drop_before_commit none none all_down cancel_by_key",
            {"held:route_unavailable", "held:not_visible", "held:late_commit_possible"},
            (0, 1),
            True,
        ),
        # §1 "or a reference probe": what the cancel's answer named is shown by it, however stale the lists are
        (
            "reset commit_then_drop none none stale cancel_by_key",
            {"committed", "held:not_fresh", "held:not_visible", "held:late_commit_possible"},
            (1, 1),
            None,
        ),
        # case d3: committed, then the reading credential loses its scope: ambiguous and paged
        (
            "closed commit_then_drop none none masked deadline_at_commit",
            {"held:not_visible", "held:not_fresh", "held:route_unavailable"},
            (1, 1),
            True,
        ),
    ],
)
def test_a_cell_worked_out_by_hand(axes: str, settled: set[str], effects: tuple[int, int], pages: bool | None) -> None:
    found = expected(cell(axes))
    assert (set(found.settled), found.effects, found.pages) == (settled, effects, pages)


def test_every_cell_has_an_expectation_and_says_why() -> None:
    for axes in every_allowed():
        found = expected(axes)
        assert found.settled and found.settled <= found.final and found.why, axes


def test_no_cell_permits_a_second_effect() -> None:
    assert max(expected(axes).effects[1] for axes in every_allowed()) == 1


def test_what_happened_before_the_loss_is_never_undone() -> None:
    assert {expected(a).effects for a in every_allowed() if a.committed_first} == {(1, 1)}


def test_a_hold_is_always_paged_and_a_page_always_means_a_hold() -> None:
    for axes in every_allowed():
        found = expected(axes)
        held = {form.startswith("held:") for form in found.settled}
        assert found.pages is (None if len(held) == 2 else held.pop()), axes


def test_process_faults_and_cuts_change_nothing() -> None:
    by_rest: dict[tuple[str, ...], set[object]] = {}
    for axes in every_allowed():
        rest = (axes.fault, axes.twin, axes.routes, axes.late_arrival)
        by_rest.setdefault(rest, set()).add(expected(axes))
    assert all(len(endings) == 1 for endings in by_rest.values())
