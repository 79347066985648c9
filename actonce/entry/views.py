"""The shapes of the entry's answers. Times are ISO 8601 in UTC."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from actonce.contracts.messages import DecisionRequest
from actonce.entry.door import moment
from actonce.entry.starter import Run
from actonce.ledger.listing import TaskLine
from actonce.ledger.pages import may_commit_words
from actonce.ledger.readings import Working
from actonce.ledger.records import Allowed, OperationRecord, TaskRecord
from actonce.ledger.release import Control
from actonce.ledger.store import Operation
from actonce.ledger.tasks import TaskState
from actonce.ledger.words import operation_next, task_words, ui_link

Moment = Annotated[AwareDatetime, AfterValidator(moment)]


class Said(BaseModel):
    """What a person says, without the spaces around it: a name or a reason of spaces alone is none."""

    model_config = ConfigDict(str_strip_whitespace=True)


class Facts(BaseModel):
    """The three facts of an operation: each is a time, or null while it is not established."""

    issued: datetime | None = Field(description="a permit to send was consumed")
    committed: datetime | None = Field(description="evidence says that the effect happened")
    acknowledged: datetime | None = Field(description="an acknowledgement was received")


class Hold(BaseModel):
    reason: str
    words: str
    opened_at: datetime
    closed_at: datetime | None = None
    closed_by: str | None = Field(default=None, description="`evidence:…` or `decision:<id>`")


class OperationView(BaseModel):
    """One operation: where it stands, its three facts, and until when its effect may still happen."""

    operation_id: str
    tenant: str
    destination: str
    action: str
    task_id: str
    step: str
    iteration: int
    state: str
    reason: str | None
    words: str | None
    facts: Facts
    attempts: int = Field(description="permits consumed so far")
    epoch: int
    version: int
    object_id: str | None
    completion: str | None = Field(description="the evidence that completed it: receipt, read_back, handover, …")
    receipt: dict[str, Any] | None
    payload_digest: str
    natural_key: str | None
    created_at: datetime
    archived_at: datetime | None = Field(description="its payload is gone since then; what proves it stays")
    guarantee: str = Field(description="the destination's late_arrival, as declared when the intent was written")
    not_after: datetime | None = Field(description="when the last permit ends")
    reconcile_at: datetime | None = Field(description="when `absent`, holds and pages may begin")
    may_commit_until: datetime | None
    unbounded: bool = Field(description="nothing bounds how late the effect may still happen")
    may_commit: str = Field(description="the two above in words")
    hold: Hold | None = None


class OperationRecordView(OperationView):
    """An operation with every record about it."""

    payload: dict[str, Any]
    account: str
    reverses: str | None
    contract_version: int
    contract_digest: str
    updated_at: datetime
    attempt_records: list[dict[str, Any]]
    acknowledgements: list[dict[str, Any]]
    verdicts: list[dict[str, Any]] = Field(description="newest first, each with every route's reading and the words")
    holds: list[Hold]
    decisions: list[dict[str, Any]]
    beacons: list[dict[str, Any]]
    cancelled_keys: list[dict[str, Any]]
    decisions_now: list[dict[str, Any]] = Field(description="for each decision: would it be accepted now, and why not")
    what_to_do: list[str]


class OperationRecordsView(BaseModel):
    """Every record with this operation_id: one for each tenant, destination and action."""

    operation_id: str
    records: list[OperationRecordView]


class TaskSummary(BaseModel):
    """One line of the list: the ledger's word."""

    task_id: str
    tenant: str
    task_type: str
    task_key: str
    state: TaskState
    reason: str | None
    why: str | None
    since: datetime
    created_at: datetime
    shown: str = Field(
        description="the state as people may see it: a `complete` task whose operations show no evidence of a "
        "destination is `attested` (a person's word) or `unproven`"
    )
    operations: int = Field(description="how many it has")
    evidenced: int = Field(description="of them: committed, with evidence of the destination")
    attested: int = Field(description="of them: committed, by a person's word")
    open: int = Field(description="of them: without a final outcome")


class MemoryUse(BaseModel):
    """What a task asked its memory at one step, and what it was told."""

    step: str
    kind: Literal["recall", "remember"]
    status: Literal["found", "empty", "remembered", "unavailable"]
    items: int | None = Field(description="how many were found")
    trouble: str | None = Field(description="why it is unavailable")
    words: str | None
    waits: bool = Field(description="while it is unavailable: the task waits; false: it goes on without")
    looks: int
    since: datetime
    at: datetime


class Workflow(BaseModel):
    """What Temporal shows for the task. Its silence changes nothing about the task."""

    workflow_id: str
    run_id: str | None = None
    status: str
    ui: str | None = Field(default=None, description="its history in the Temporal UI")


class TaskView(BaseModel):
    """The truth about a task: its state, why, since when, what to do, and with what evidence."""

    task_id: str
    tenant: str
    task_type: str
    task_key: str
    state: TaskState
    reason: str | None
    why: str
    since: datetime
    working: Working = Field(description="is anyone working on its task queue, by the prober's last fresh reading")
    what_to_do: list[str]
    cancel_requested: bool
    cancel_by: str | None = Field(description="who asked for it, where they said so")
    cancel_why: str | None
    payload: dict[str, Any] = Field(description="empty once it is archived")
    payload_digest: str
    created_at: datetime
    archived_at: datetime | None = Field(description="its payload is gone since then; its outcome stays")
    submitted_by: str | None = Field(description="the person whose token started it; null: a deployment's own token")
    deadline: datetime | None = Field(description="nothing is sent for it afterwards")
    released_at: datetime | None = Field(description="when it left the backlog; null while it waits there")
    ahead: int = Field(description="tasks of its type before it in the backlog")
    outcome: dict[str, Any] | None = Field(description="stored once, kept after Temporal's retention")
    plan: dict[str, Any] | None
    operations: list[OperationView]
    memory: list[MemoryUse] = Field(description="what it asked its memory: found, a proven empty, or unavailable")
    workflow: Workflow


class DecisionBody(DecisionRequest):
    """A decision about a held operation. Tenant, destination and action are needed when the id is not unique."""

    model_config = ConfigDict(extra="ignore", str_strip_whitespace=True)  # as `Said`

    tenant: str | None = None
    destination: str | None = None
    operation_action: str | None = Field(default=None, description="the operation's action, e.g. `refund`")


class DecisionView(BaseModel):
    """The recorded decision. It takes effect after one fresh reading of the destination."""

    decision_id: int
    operation_id: str
    decision: str
    name: str
    expires_at: datetime
    residual_risk: str | None
    waits_for_second_person: bool = Field(description="it has no effect before somebody else has confirmed it")
    workflow_told: bool = Field(description="false: the ledger watcher tells it later; the decision stands")
    what_to_do: list[str]


class SecondBody(Said):
    """A second person's word. Tenant, destination and action are needed when the id is not unique."""

    agrees: bool = Field(description="false: the decision ends without effect")
    name: str = Field(min_length=1)
    why: str = Field(min_length=1)
    tenant: str | None = None
    destination: str | None = None
    operation_action: str | None = None


class CancelView(BaseModel):
    """A recorded cancellation. What may have been sent is reconciled, not forgotten."""

    task_id: str
    state: TaskState
    workflow_told: bool
    in_flight: list[str] = Field(description="operations that may have been sent and are being reconciled")


class CancelBody(Said):
    """Who asks for it, and why. Whoever asks again changes nothing: the first one stays on record."""

    name: str = Field(min_length=1)
    why: str = Field(min_length=1)


class DeadlineBody(Said):
    """Another deadline for a task, by whom and why. `expected_deadline` is the one that was seen (null: none)."""

    deadline: Moment
    expected_deadline: Moment | None
    name: str = Field(min_length=1)
    why: str = Field(min_length=1)


class ReleaseView(BaseModel):
    """The release of one task type: what waits, how it is let go, and what keeps it."""

    task_type: str
    paused: bool
    rate_per_s: float | None = Field(description="null: no limit")
    window_max: int = Field(description="released tasks that may wait for a worker at a time")
    version: int
    changed_at: datetime
    changed_by: str | None
    why: str | None
    backlog: int
    outstanding: int
    oldest_at: datetime | None
    nobody_works: bool = Field(description="by a fresh reading; then nothing is let go")
    why_not: str | None = Field(description="what keeps the backlog where it is; null while it is let go")


class ReleaseBody(Said):
    """A change of release. What is left out stays as it is; `rate_per_s` 0 takes the limit away."""

    expected_version: int
    name: str = Field(min_length=1)
    why: str = Field(min_length=1)
    evidence: str = ""
    paused: bool | None = None
    rate_per_s: float | None = Field(default=None, ge=0)
    window_max: int | None = Field(default=None, ge=1, le=100_000)


class PageView(BaseModel):
    page_id: int
    incident: str
    reason: str
    severity: str
    title: str
    body: str
    operation_id: str | None
    task_id: str | None
    opened_at: datetime
    seen_again: int
    sent_at: datetime | None
    sends: int
    delivery: dict[str, Any] = Field(description="channel → `ok` or its last error")
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    closed_at: datetime | None


class AcknowledgeBody(Said):
    name: str = Field(min_length=1, description="who has seen it")


class AcknowledgedView(AcknowledgeBody):
    """`name` said so now; who said so first stays on record."""

    acknowledged_by: str
    acknowledged_at: datetime


class Dependency(BaseModel):
    name: str
    kind: str
    state: Literal["up", "degraded", "down", "stale", "unknown"]
    last_reading: str | None = Field(default=None, description="what the last reading said, when it is stale")
    since: datetime | None
    checked_at: datetime | None
    age_s: float | None
    how: str
    detail: str | None
    blocks: str | None = Field(description="what cannot proceed while it is not up")
    nothing_to_ask: bool = Field(
        description="`unknown`, and nobody can know: a destination without a route, a channel not used yet"
    )


class Dependencies(BaseModel):
    """Readings by a prober that really reaches each part. Old readings are `stale`, never `up`."""

    state: Literal["up", "degraded", "down", "unknown"]
    at: datetime
    dependencies: list[Dependency]


class Health(BaseModel):
    """This process is there. It says nothing about what it needs: see /dependencies."""

    status: Literal["ok"]
    version: str
    run_id: str | None
    pid: int


def operation_view(operation: Operation, hold: dict[str, Any] | None = None) -> OperationView:
    return OperationView(**_operation(operation), hold=Hold(**_only(Hold, hold)) if hold else None)


def _operation(operation: Operation) -> dict[str, Any]:
    values = {name: getattr(operation, name) for name in OperationView.model_fields if hasattr(operation, name)}
    facts = Facts(issued=operation.issued_at, committed=operation.committed_at, acknowledged=operation.acknowledged_at)
    return {**values, "state": operation.state.value, "facts": facts, "may_commit": may_commit_words(operation)}


def _only(model: type[BaseModel], row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in model.model_fields}


_IDENTITY = {"tenant", "destination", "action", "operation_id"}


def record_view(record: OperationRecord) -> OperationRecordView:
    operation = record.operation
    own = {n: getattr(operation, n) for n in OperationRecordView.model_fields if hasattr(operation, n)}
    open_hold = next((h for h in record.holds if h["closed_at"] is None), None)

    def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k not in _IDENTITY} for row in rows]

    return OperationRecordView(
        **{**own, **_operation(operation)},
        hold=Hold(**_only(Hold, open_hold)) if open_hold else None,
        attempt_records=bare(record.attempts),
        acknowledgements=bare(record.acknowledgements),
        verdicts=bare(record.verdicts),
        holds=[Hold(**_only(Hold, h)) for h in record.holds],
        decisions=bare(record.decisions),
        beacons=bare(record.beacons),
        cancelled_keys=bare(record.cancelled_keys),
        decisions_now=[_allowed(a) for a in record.allowed],
        what_to_do=operation_next(operation, record.allowed),
    )


def _allowed(allowed: Allowed) -> dict[str, Any]:
    return {name: getattr(allowed, name) for name in Allowed.__dataclass_fields__}


def summary_view(line: TaskLine) -> TaskSummary:
    task = line.task
    values = {name: getattr(task, name) for name in TaskSummary.model_fields if hasattr(task, name)}
    counts = {name: getattr(line, name) for name in ("operations", "evidenced", "attested", "open")}
    return TaskSummary(**values, why=task.detail, shown=line.shown, **counts)


def task_view(
    record: TaskRecord,
    run: Run | None,
    working: Working,
    trouble: str | None,
    behind: Control | None,
    ui: tuple[str | None, str],
) -> TaskView:
    """Build the view. `run` None: Temporal was not asked; `behind`: the release of a task in the backlog; `ui`: (base
    URL, namespace)."""
    task = record.task
    state, why, steps = task_words(record, run.gone if run else None, working, trouble, behind)
    holds = {(h["destination"], h["action"], h["operation_id"]): h for h in record.holds}
    values = {name: getattr(task, name) for name in TaskView.model_fields if hasattr(task, name)}
    status = (run.status or run.why_not or "unknown") if run else "not asked"
    return TaskView(
        **{**values, "state": state, "why": why, "reason": task.reason or ("orphaned" if state == "held" else None)},
        working=working,
        ahead=record.ahead,
        what_to_do=steps,
        plan=record.plan["body"] if record.plan else None,
        operations=[operation_view(o, holds.get((o.destination, o.action, o.operation_id))) for o in record.operations],
        memory=[MemoryUse(**_only(MemoryUse, use)) for use in record.memory],
        workflow=Workflow(
            workflow_id=task.workflow_id,
            run_id=run.run_id if run else None,
            status=status,
            ui=ui_link(ui[0], ui[1], task.workflow_id, run.run_id if run else None),
        ),
    )
