"""What must hold beside the operation's own state when a permit is consumed, asked in the permit's transaction.

Each gate either lets the permit pass, perhaps for a shorter time, or refuses it with a reason: then the operation is
held, nothing is sent, and it is resumed only after its condition holds again (`unmet`). A gate that does not apply to
an operation costs it no query.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from actonce.contracts.contract import Contract
from actonce.contracts.verdict import Reason
from actonce.ledger.store import Connection, Operation, one, utc


@dataclass(frozen=True)
class Refusal:
    """Why no permit is given. Nothing was sent."""

    reason: Reason
    words: str


@dataclass(frozen=True)
class Pass:
    """The permit may be given. It must not outlive `latest` (None: nothing here limits it)."""

    latest: datetime | None = None


async def check(
    connection: Connection, operation: Operation, row: dict[str, Any], contract: Contract
) -> Pass | Refusal:
    """Ask every gate about a locked, ready operation. `row` is what the intent's statement returned."""
    deadline: datetime | None = row["task_deadline"]
    if deadline is not None and row["now"] >= deadline and not operation.retry_granted:
        return Refusal(Reason.DEADLINE_PASSED, f"the task's deadline was {utc(deadline)}; nothing was sent after it")
    return Pass(latest=deadline)


async def unmet(connection: Connection, operation: Operation) -> str | None:
    """Why a held operation may not be resumed yet, in words; None when its condition holds."""
    if operation.reason == Reason.DEADLINE_PASSED.value:
        row = await one(
            connection,
            "SELECT deadline <= clock_timestamp() AS over FROM actonce.task WHERE task_id = %s",
            (operation.task_id,),
        )
        if row is not None and row["over"]:
            return "its task's deadline is over; give the task a new deadline first, or end it with mark_absent"
    return None
