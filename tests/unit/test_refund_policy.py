"""When a refund is refused from what is remembered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from actonce.contracts.memory import Empty, Found, Item
from workflows.policy import REFUNDS_MAX, WINDOW_DAYS, why_refused

NOW = datetime(2030, 1, 31, tzinfo=UTC)
REQUEST = {"payment_id": "pay_9", "customer": "ada", "reason": "damaged"}


def item(number: int, *, days: float = 1, **facts: Any) -> Item:
    known = {"payment_id": f"pay_{number}", "task_id": f"t/refund/{number}", **facts}
    at = (NOW - timedelta(days=days)).isoformat()
    return Item(
        key=str(number), text="", facts={**known, "refunded_at": at}, distance=0.5, remembered_at=NOW.isoformat()
    )


def refused(*items: Item, complete: bool = True) -> str | None:
    said = Found(items=items, complete=complete, memory_id="m") if items else Empty(memory_id="m")
    return why_refused(REQUEST, said, "t/refund/own", NOW)


def test_nothing_remembered_refuses_nothing() -> None:
    assert refused() is None


def test_a_payment_that_was_refunded_before_is_refused() -> None:
    assert "pay_9 was refunded before, by task t/refund/1" in str(refused(item(1, payment_id="pay_9", days=400)))


def test_a_task_that_runs_again_is_not_refused_for_its_own_refund() -> None:
    assert refused(item(1, payment_id="pay_9", task_id="t/refund/own")) is None


@pytest.mark.parametrize(("count", "days", "refuses"), [(REFUNDS_MAX - 1, 1, False), (REFUNDS_MAX, 1, True)])
def test_so_many_refunds_within_the_window_are_the_limit(count: int, days: float, refuses: bool) -> None:
    assert (refused(*(item(n, days=days) for n in range(count))) is not None) is refuses


def test_older_refunds_do_not_count() -> None:
    assert refused(*(item(n, days=WINDOW_DAYS) for n in range(9))) is None


def test_more_than_could_be_looked_at_is_for_a_person() -> None:
    assert "a person decides" in str(refused(item(1, days=99), complete=False))
