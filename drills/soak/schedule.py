"""What happens in each window of a soak, from the seed and the window's number alone.

Contract: pure. The same seed gives the same windows on every machine, so that a soak that was stopped goes on with the
very window that would have come next. Faults are dealt like cards: each deck has every kind once, in a random order, so
that a short soak meets as many kinds as it has windows. Each window submits one task that is to be struck and a random
few beside it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from actonce.contracts.identity import derive_operation_id
from actonce.evidence import Expected, PlannedOperation
from drills.refunding import CUSTOMER, STEPS
from drills.script import Wanted
from drills.table import TENANT, refund_payload

KINDS = (
    "answer_lost:closed",
    "answer_lost:reset",
    "answer_lost:truncated",
    "answer_lost:silent",
    "request_lost:closed",
    "request_lost:silent",
    "worker:SIGKILL",
    "worker:SIGTERM",
    "worker:SIGSTOP",
    "cut:temporal",
    "cut:ledger",
    "cut:destination",
    "routes:stale",
    "routes:short_by_one",
    "routes:masked",
    "routes:down",
    "temporal:SIGKILL",
    "consumers_stopped:all",
    "memory:silent",
    "audit:full",
    "audit:hangs",
    "ledger:refuses",
    "credential:expired",
    "credential:narrower",
    "credential:turned_away",
)
OVER_MINOR = 50_000  # refunds above need an approval
BATCH = 3
BESIDE = (2, 4)  # tasks beside the one that is struck
WAITING = 6  # tasks accepted while nobody works
ENDS = ("complete", "held")
# What a credential that came back with too little scope leaves: a person ends what was to be sent under it. Where the
# strike came too late, it is as for any other.
NARROWER = Expected(outcomes=["closed", "committed", "held"], effects=(0, 1))
NARROWER_ENDS = ("failed", *ENDS)


@dataclass(frozen=True)
class Window:
    """One window: its fault, the task that it strikes, and the tasks beside it."""

    number: int
    kind: str
    struck: tuple[Wanted, ...]
    beside: tuple[Wanted, ...]

    @property
    def fault(self) -> str:
        return self.kind.partition(":")[0]

    @property
    def how(self) -> str:
        return self.kind.partition(":")[2]

    @property
    def name(self) -> str:
        return f"w{self.number:04}.{self.kind.replace(':', '.')}"

    @property
    def tasks(self) -> tuple[Wanted, ...]:
        return (*self.struck, *self.beside)

    @property
    def targets(self) -> list[str]:
        """The first operation of each task that is to be struck."""
        return [task.operations[0].operation_id for task in self.struck]


def window(seed: int, number: int, key: str, kinds: tuple[str, ...] = KINDS) -> Window:
    """The window of that number. `key` starts every task key of the soak."""
    deck, place = divmod(number, len(kinds))
    cards = list(kinds)
    random.Random(f"{seed}:deck:{deck}").shuffle(cards)
    kind = cards[place]
    chance = random.Random(f"{seed}:window:{number}")
    names = (f"{key}-w{number:04}-{n}" for n in range(100))
    if kind.startswith("memory"):
        struck = [refund(next(names))]
    elif kind.startswith("credential"):  # held as one operation, and looked at by one person
        wanted = single(next(names), amount(chance))
        struck = [ended_by_a_person(wanted) if kind.endswith("narrower") else wanted]
    elif kind.startswith("consumers"):
        struck = [single(next(names), amount(chance)) for _ in range(WAITING)]
    else:
        make = chance.choice((lambda name: single(name, amount(chance)), refund, batch))
        struck = [make(next(names))]
    beside = [_any(next(names), chance) for _ in range(chance.randint(*BESIDE))]
    return Window(number, kind, tuple(struck), tuple(beside))


def amount(chance: random.Random) -> int:
    """Below what needs an approval."""
    return chance.randint(100, OVER_MINOR - 1)


def _any(name: str, chance: random.Random) -> Wanted:
    kind = chance.choice(("single", "single", "batch", "refund", "approved"))
    if kind == "batch":
        return batch(name)
    if kind == "refund":
        return refund(name)
    return single(name, OVER_MINOR + chance.randint(1, 1000) if kind == "approved" else amount(chance))


def single(name: str, amount_minor: int) -> Wanted:
    """One refund."""
    payload = refund_payload(f"pay-{name}", amount_minor)
    body = {"destination": "payments", "action": "refund", "payload": payload}
    return _wanted("single", name, body, [("only", "payments", "refund", payload["payment_id"], amount_minor)])


def ended_by_a_person(task: Wanted) -> Wanted:
    """The same where a person may have to end it."""
    operations = tuple(o.model_copy(update={"expected": NARROWER}) for o in task.operations)
    return replace(task, operations=operations, ends=NARROWER_ENDS)


def batch(name: str) -> Wanted:
    """Several independent refunds."""
    steps = [
        {
            "step": f"s{n}",
            "destination": "payments",
            "action": "refund",
            "payload": refund_payload(f"pay-{name}-{n}", 200 + n),
        }
        for n in range(BATCH)
    ]
    planned = [(f"s{n}", "payments", "refund", f"pay-{name}-{n}", 200 + n) for n in range(BATCH)]
    return _wanted("batch", name, {"steps": steps}, planned)


def refund(name: str) -> Wanted:
    """A refund, a ticket and a mail, after the memory was asked for earlier refunds of this customer."""
    payment = refund_payload(f"pay-{name}", 700)
    body = {**payment, "customer": f"{name}.{CUSTOMER}"}
    subjects = {"payments": payment["payment_id"], "tickets": payment["payment_id"], "mail": None}
    planned = [
        (step, destination, action, subjects[destination], 700 if step == "refund" else None)
        for step, destination, action in STEPS
    ]
    return _wanted("refund", name, body, planned)


def _wanted(
    task_type: str,
    key: str,
    body: dict[str, Any],
    planned: Sequence[tuple[str, str, str, str | None, int | None]],
) -> Wanted:
    task_id = f"{TENANT}/{task_type}/{key}"
    operations = tuple(
        PlannedOperation(
            operation_id=derive_operation_id(TENANT, task_id, step, 0),
            tenant=TENANT,
            destination=destination,
            action=action,
            task_id=task_id,
            step=step,
            subject=subject,
            amount_minor=amount_minor,
        )
        for step, destination, action, subject, amount_minor in planned
    )
    return Wanted(task_type, key, body, operations, ENDS)
