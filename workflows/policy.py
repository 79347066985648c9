"""When a refund request is refused without asking anybody: pure, from what is remembered of this customer.

Not a lock: two tasks may recall before either remembers. That one payment is refunded once is the business of the
natural effect key, not of this.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.memory import K_MAX, Empty, Found, Item

REFUNDS_MAX = 3
WINDOW_DAYS = 30


def earlier_refunds(customer: str) -> dict[str, Any]:
    """The facts by which earlier refunds of a customer are asked for."""
    return {"kind": "refund", "customer": customer}


def why_refused(payload: dict[str, Any], said: Found | Empty, task_id: str, now: datetime) -> str | None:
    """Why policy refuses this refund; None when it may be made."""
    if isinstance(said, Empty):
        return None
    if not said.complete:
        return f"customer {payload['customer']} has more than {K_MAX} remembered refunds; a person decides"
    others = [item for item in said.items if item.facts.get("task_id") != task_id]  # this task may run a second time
    same = [item for item in others if item.facts.get("payment_id") == payload["payment_id"]]
    if same:
        return f"payment {payload['payment_id']} was refunded before, by task {same[0].facts.get('task_id')}"
    recent = [item for item in others if now - _at(item) < timedelta(days=WINDOW_DAYS)]
    if len(recent) >= REFUNDS_MAX:
        return (
            f"customer {payload['customer']} had {len(recent)} refunds within {WINDOW_DAYS} days, "
            f"{REFUNDS_MAX} are the limit"
        )
    return None


def _at(item: Item) -> datetime:
    return datetime.fromisoformat(str(item.facts["refunded_at"]))
