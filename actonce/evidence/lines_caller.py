"""Lines from the system's own ledger, exported after a cell: what it says of itself."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from actonce.evidence.line import Line


class CallerOperation(Line):
    """The ledger's row of an operation, exported after the cell. The three facts are the three times."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "operation"
    operation_id: str
    destination: str
    contract_digest: str | None = None  # under which it was begun; see the `contract` lines
    state: str
    reason: str | None
    verdict: str | None
    version: int | None = None
    attempts: int = Field(ge=0)
    issued_at: str | None
    acknowledged_at: str | None
    committed_at: str | None
    completed_at: str | None  # when the ledger moved to a final state; committed_at may be the destination's time
    completion: str | None = None
    receipt: dict[str, Any] | None = None


class CallerContract(Line):
    """A contract that operations of this cell were begun under, as its worker registered it."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "contract"
    name: str
    digest: str
    body: dict[str, Any]


class CallerAttempt(Line):
    """One permit. `issued_at` is when it was taken with the move to dispatched (null: never), `fenced_at`
    when the fence passed, where the ledger keeps it. `outcome` and `error` are what was recorded first,
    before any reconciliation."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "attempt"
    operation_id: str
    epoch: int
    attempt: int
    nonce: str | None
    not_after: str | None
    issued_at: str | None
    fenced_at: str | None = None
    outcome: str | None
    error: str | None = None
    owner_pid: int | None = None


class CallerReading(Line):
    """One read of one route. `rows` and `declared_total` as the route gave them; `group` shared by routes
    that are not independent of each other."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "reading"
    operation_id: str
    route: str
    rows: int | None = None
    declared_total: int | None = None
    status: str
    reading_set: str | None = None
    group: str | None = None


class CallerVerdict(Line):
    """One verdict of one reconciliation. `reading_set` names the readings it was made from."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "verdict"
    operation_id: str
    verdict: Literal["committed", "absent", "ambiguous"]
    reason: str | None
    decided_at: str
    reading_set: str | None = None


class CallerHold(Line):
    """A hold, open while `resolved_at` is null. Of an operation, or of a task at a step that has none."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "hold"
    operation_id: str | None
    task_id: str | None = None
    step: str | None = None
    reason: str
    opened_at: str
    resolved_at: str | None
    resolution: str | None = None


class CallerMemory(Line):
    """The last thing a task was told at one step by its memory, from the system's own ledger (`told_at`)."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "memory"
    task_id: str
    step: str
    asked: Literal["recall", "remember"]
    status: str
    trouble: str | None = None
    begun_at: str
    told_at: str


class CallerTask(Line):
    """A task's final state as its owner would be told."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "task"
    task_id: str
    state: str
    reason: str | None = None
    outcome: Any = None


class CallerRelease(Line):
    """When a task was accepted and when it was let go, with the rate in force since `changed_at` (null: none)."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "release"
    task_id: str
    task_type: str = ""  # each has a release of its own
    accepted_at: str
    released_at: str | None
    rate_per_s: float | None = None
    changed_at: str | None = None


class CallerAudit(Line):
    """One audit event as the ledger has it. `at` is when it was written; `event_seq` its number in the chain."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "audit_event"
    event: str
    event_seq: int | None = None
    hash: str | None = None
    written_at: str
    operation_id: str | None = None
    state: str | None = None  # what an operation's event says that it led to


class CallerApproval(Line):
    """The ledger's row of an approval, exported after the cell."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "approval"
    approval_id: str
    operation_id: str
    digest: str
    state: str
    expires_at: str
    decided_at: str | None
    consumed_at: str | None
