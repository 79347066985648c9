"""What travels between workflow and activities, and between callers and the entry service.

Small, versioned by the activity name, free of secrets: everything here ends up in Temporal's history.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from actonce.contracts.approval import ApprovalRule, ApprovalTerms


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore")  # an older worker reads a newer message


class OperationRequest(_Message):
    """One side effect a workflow wants done once."""

    tenant: str
    task_id: str
    step: str
    iteration: int = 0
    destination: str
    action: str
    payload: dict[str, Any]
    natural_key: str | None = None
    reverses: str | None = None  # operation_id of the committed original, for an undo
    failed_before: int = 0  # how often in a row its issue failed before its intent was on record
    last_failure: str = ""  # how, the last time
    approval: ApprovalTerms | None = None  # asked for by the task, beside what the contract demands
    requested_by: str | None = None  # who asks for it, as approvers are told


class OperationRef(_Message):
    """Names an operation for the activities that work on it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tenant: str
    destination: str
    action: str
    operation_id: str


IssueStatus = Literal["committed", "acknowledged", "refused", "ready", "unknown", "held", "closed"]


class IssueResult(_Message):
    """How one issue activity ended; the state the ledger holds now."""

    operation_id: str
    status: IssueStatus
    how: str  # "acknowledged", "adopted", "not_sent", "not_accepted", "unknown", ...
    attempt: int = 0
    version: int = 0
    object_id: str | None = None
    completion: str | None = None
    reason: str | None = None
    detail: str = ""
    retry_in_s: float | None = None
    quarantined: bool = False  # nothing may be sent before a person has released it; its task waits for that


class ReconcileResult(_Message):
    """What one reconciliation concluded and what the workflow does next."""

    operation_id: str
    verdict: Literal["committed", "absent", "ambiguous"]
    reason: str | None = None
    words: str = ""
    state: str  # the operation's state after the verdict was recorded
    next: Literal["done", "issue", "wait", "beacon", "probe", "cancel_key", "hold"]
    wait_s: float = 0.0
    wait_max_s: float = 0.0  # a longer pause would oversleep a moment at which reading tells more
    object_id: str | None = None
    completion: str | None = None
    may_commit_until: str | None = None
    attempt: int = 0
    version: int = 0
    decided: str | None = None  # of a decide activity: the decision and how it ended


class ApprovalSeen(_Message):
    """Where the newest approval of an operation stands."""

    approval_id: str
    state: str
    words: str
    decided_by: str | None = None
    issued: bool = False  # an intent is on record: it is settled or held, whatever people say


class OperationResult(_Message):
    """What a workflow gets back for one operation: final, with its evidence."""

    operation_id: str
    state: Literal["committed", "refused", "closed"]
    object_id: str | None = None
    completion: str | None = (
        None  # "receipt", "read_back", "handover" (handed over, not delivered), "operator_attested"
    )
    how: str = ""
    attempts: int = 0
    detail: str = ""


class TaskInput(_Message):
    """Input of every task workflow."""

    tenant: str
    task_id: str
    task_type: str
    task_key: str
    payload: dict[str, Any]
    operations: dict[str, Any] = Field(default_factory=dict)  # options; nothing of it enters an operation_id


class Times(_Message):
    """What the workflow needs of a contract's timing, in seconds."""

    activity_timeout_s: float
    heartbeat_timeout_s: float
    read_again_s: float
    attempts_max: int


class PlanRequest(_Message):
    """Asks for the durable plan of a task; `proposal` (if any) is used only when there is none yet."""

    task: TaskInput
    proposal: dict[str, Any] | None = None


class PlanResult(_Message):
    """The durable plan, and the timing of every registered destination."""

    plan: dict[str, Any]
    times: dict[str, Times]
    approvals: dict[str, list[ApprovalRule]] = Field(default_factory=dict)  # by destination, where there are any


class TaskReport(_Message):
    """Completion of a task with the evidence of each operation."""

    task_id: str
    state: Literal["complete", "failed", "cancelled"]
    summary: str
    operations: list[OperationResult] = Field(default_factory=list)


DecisionAction = Literal["mark_committed", "mark_absent", "permit_one_retry", "resume"]


class DecisionRequest(_Message):
    """An operator's decision, as it is recorded before anything acts on it."""

    action: DecisionAction
    name: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    evidence: str = ""
    object_id: str | None = None
    expected_epoch: int = Field(ge=0, lt=2**31)
    expected_version: int = Field(ge=0, lt=2**63)
    expires_in_s: float = Field(default=3600.0, gt=0, le=7 * 86400)
