"""What a person may decide about a held operation, and what happens in the world when they press the button.

Which ones there are comes from the table of reason codes; whether one would be accepted now, from the ledger's own
check; the words from here. A dangerous one is confirmed by typing the end of the operation_id: a hand that presses the
same button all night does not do that for the wrong operation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from actonce.contracts.reasons import policy
from actonce.ledger.records import Allowed, OperationRecord
from actonce.ledger.store import Operation

CONFIRM_CHARS = 6
DANGEROUS = frozenset({"permit_one_retry", "mark_committed"})
FIRST_READ = (
    "The destination is read once more before it takes effect; if that reading shows the effect, it wins over "
    "what you say here."
)
LAPSES = "It lapses when it is not consumed within an hour."


@dataclass(frozen=True)
class Words:
    """One decision in words: the button, what it does, and what goes wrong when it is not true."""

    label: str
    does: str
    if_wrong: str
    needs_object_id: bool = False


_WORDS = {
    "mark_committed": Words(
        "Mark as committed",
        "Records that the effect happened, as the object that you name. Nothing more is sent, and the task goes on. "
        "Where a route shows that object the operation is shown as read back, otherwise as attested by you.",
        "If it did not happen, it never will: what the task owes somebody is lost, and nobody is told again.",
        needs_object_id=True,
    ),
    "mark_absent": Words(
        "Mark as absent",
        "Records that the effect did not happen. The operation ends without another send; its task fails or plans "
        "anew.",
        "If it did happen, the task goes on as if it had not: what it plans next may do the same thing again.",
    ),
    "permit_one_retry": Words(
        "Permit one retry",
        "Gives one more permit: exactly one more request is sent, under the same operation_id.",
        "If an earlier request took effect unseen, this is a second effect, unless the destination knows its key.",
    ),
    "resume": Words(
        "Resume",
        "Lets the operation go on. Nothing was sent under the permit that was asked for; what stopped it is checked "
        "again when the next permit is taken.",
        "If the condition does not hold then, it is held again, and nothing is sent.",
    ),
}


@dataclass(frozen=True)
class Choice:
    """One button, or why there is none now."""

    action: str
    words: Words
    allowed: bool
    refused_because: str | None
    until: str | None
    risk: str | None
    confirm: bool  # typed
    second_person: bool  # has to agree before it takes effect


def choices(record: OperationRecord, second_person: Collection[str]) -> list[Choice]:
    """Everything that the hold's reason permits, in the table's order; nothing for an operation that is not held.

    `second_person`: what somebody else has to confirm here.
    """
    operation = record.operation
    if operation.state != "held":
        return []
    return [_choice(one, second_person) for one in record.allowed if one.action in _WORDS]


def _choice(one: Allowed, second_person: Collection[str]) -> Choice:
    return Choice(
        action=one.action,
        words=_WORDS[one.action],
        allowed=one.allowed,
        refused_because=one.refused_because,
        until=one.until,
        risk=one.residual_risk,
        confirm=one.action in DANGEROUS,
        second_person=one.action in second_person,
    )


def waiting(record: OperationRecord) -> list[dict[str, Any]]:
    """Decisions about it that wait for a second person."""
    return [d for d in record.decisions if d["second_person"] and d["second_at"] is None and d["result"] is None]


def procedure_of(operation: Operation) -> str | None:
    """The reason code whose procedure stands beside the buttons."""
    return policy(operation.reason).reason.value if operation.state == "held" and operation.reason else None


def confirmation(operation_id: str) -> str:
    """What is typed to confirm a dangerous decision about this operation."""
    return operation_id[-CONFIRM_CHARS:]


def is_confirmed(operation_id: str, typed: str) -> bool:
    """Case does not matter: ids are lower case, phones begin with a capital."""
    return typed.lower() == confirmation(operation_id)
