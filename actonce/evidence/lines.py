"""The lines of record.jsonl: one model per (source, kind).

Contract: a line of an unknown kind, or one that lacks a field the judge needs, is refused, both when it
is written and when it is read. Extra fields are kept and shown, never judged. Every line says when the
event happened on the system-wide monotonic clock, which all processes of a host share, so that lines of
different sources can be compared.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from actonce.evidence.record import EvidenceError, Source, Strict, first_error


class Line(BaseModel):
    """One line of record.jsonl. `order` counts from 1 without a gap; `mono_ns` is the system-wide
    monotonic clock at the event (not at the writing), `at` the same moment as ISO-8601 UTC. Subclasses
    add what the judge needs."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")
    of_source: ClassVar[str] = ""
    of_kind: ClassVar[str] = ""

    order: int = Field(ge=1)
    mono_ns: int = Field(ge=0)
    at: str = Field(min_length=10)
    source: Source
    cell: str | None
    kind: str


# -- destination: from the destination's own append-only journal -----------------------------------


class DestinationLine(Line):
    """`journal` names the append-only journal, `seq` is the line's own number in it, from 1 without a
    gap."""

    of_source: ClassVar[str] = "destination"
    destination: str
    account: str | None = None
    journal: str
    seq: int = Field(ge=1)


class Request(DestinationLine):
    """A request arrived. `role` tells a send of the effect from reads and journaled side acts."""

    of_kind: ClassVar[str] = "request"
    request_id: str
    key: str | None = None
    operation_id: str | None = None
    subject: str | None = None
    method: str
    path: str
    role: Literal["effect", "read", "beacon", "probe", "cancel", "reversal", "other"] = "effect"


class Effect(DestinationLine):
    """An effect was committed. Beacons, probes and reversals are not effects: they have their own kinds."""

    of_kind: ClassVar[str] = "effect"
    object_id: str
    request_id: str
    key: str | None = None
    operation_id: str | None = None
    subject: str | None = None
    digest: str | None = None
    amount_minor: int | None = None
    state: str


class OfRequest(DestinationLine):
    """What became of a request that arrived."""

    request_id: str


class AnswerBegun(OfRequest):
    """The destination began to write its answer."""

    of_kind: ClassVar[str] = "answer_begun"
    status: int


class AnswerFailed(OfRequest):
    """The destination could not write its answer."""

    of_kind: ClassVar[str] = "answer_failed"
    why: str = ""


class AnswerReplaced(OfRequest):
    """Something on the way (the sandbox's own gateway) answered in the destination's place."""

    of_kind: ClassVar[str] = "answer_replaced"
    status: int


class Dropped(OfRequest):
    """The request arrived and was thrown away before anything was committed."""

    of_kind: ClassVar[str] = "dropped"
    why: str = ""


class Refused(OfRequest):
    """The destination declined the request."""

    of_kind: ClassVar[str] = "refused"
    why: str


class Reversed(DestinationLine):
    """An effect was undone. It still counts as an effect: undoing a duplicate does not unmake it."""

    of_kind: ClassVar[str] = "reversed"
    object_id: str


class Latch(DestinationLine):
    """The destination stopped at a named point and told the drill."""

    of_kind: ClassVar[str] = "latch"
    name: str
    request_id: str


class Challenge(DestinationLine):
    """The destination answered this run's challenge: it is a controlled target."""

    of_kind: ClassVar[str] = "challenge"
    run_id: str


class Connection(DestinationLine):
    """Somebody connected; no request is known yet."""

    of_kind: ClassVar[str] = "connection"


class RequestIncomplete(DestinationLine):
    """A request began and never became complete (a slow or cut sender, an enforced read timeout)."""

    of_kind: ClassVar[str] = "request_incomplete"


class Beacon(DestinationLine):
    """A beacon object of ours was committed: no effect of an operation."""

    of_kind: ClassVar[str] = "beacon"


class ProbeNote(DestinationLine):
    """The reference probe's harmless note on an existing object: no effect of an operation."""

    of_kind: ClassVar[str] = "probe_note"


class KeyCancelled(DestinationLine):
    """A key was cancelled atomically: nothing can commit under it any more."""

    of_kind: ClassVar[str] = "key_cancelled"
    key: str


class LeaseEvent(DestinationLine):
    """What the lease manager did: `event` is issued, renewed, denied, ended, gone, refused, away or configured."""

    of_kind: ClassVar[str] = "lease"
    event: str
    purpose: str | None = None
    lease_id: str | None = None
    why: str | None = None


class JournalNote(DestinationLine):
    """Anything else the destination says about itself (mode changes, planted rows, latch releases)."""

    of_kind: ClassVar[str] = "note"
    text: str


class JournalEnd(Line):
    """The journal's own declared number of lines, read after the last cell: rows received must equal it."""

    of_source: ClassVar[str] = "destination"
    of_kind: ClassVar[str] = "journal_end"
    journal: str
    lines: int = Field(ge=0)


# -- wire and processes ----------------------------------------------------------------------------


class ToxicAdded(Line):
    """A toxic was installed and read back."""

    of_source: ClassVar[str] = "wire"
    of_kind: ClassVar[str] = "toxic_added"
    proxy: str
    toxic: str
    stream: Literal["upstream", "downstream"]


class ToxicRemoved(ToxicAdded):
    """A toxic was removed."""

    of_kind: ClassVar[str] = "toxic_removed"


class ProxyDisabled(Line):
    """A proxy was disabled (a cut)."""

    of_source: ClassVar[str] = "wire"
    of_kind: ClassVar[str] = "proxy_disabled"
    proxy: str


class ProxyEnabled(ProxyDisabled):
    """A proxy was enabled again."""

    of_kind: ClassVar[str] = "proxy_enabled"


class CallerConnection(Line):
    """Bytes seen on the caller's side of a proxy, by the proxy or a tap, never by the caller. `mono_ns`
    is when the caller's bytes were first seen. A null operation_id is only conclusive on a proxy that one
    cell alone uses."""

    of_source: ClassVar[str] = "wire"
    of_kind: ClassVar[str] = "caller_connection"
    proxy: str
    bytes_up: int = Field(ge=0)
    bytes_down: int = Field(ge=0)
    operation_id: str | None = None
    request_id: str | None = None


class ProcessLine(Line):
    """A process is known by pid and start time together: pids are reused."""

    of_source: ClassVar[str] = "process"
    pid: int = Field(gt=0)
    start_time: float | int | str
    role: str


class Started(ProcessLine):
    """A process was started by the drill or the stack."""

    of_kind: ClassVar[str] = "started"


class Signalled(ProcessLine):
    """A signal was sent to a process whose start time had been checked."""

    of_kind: ClassVar[str] = "signalled"
    signal: str


class ProcessState(ProcessLine):
    """The kernel's state letter of a process (T = stopped), as read by the drill."""

    of_kind: ClassVar[str] = "state"
    state: str


class Exited(ProcessLine):
    """A process ended. returncode is negative for a signal, as in subprocess."""

    of_kind: ClassVar[str] = "exited"
    returncode: int | None
    signal: str | None = None


class Observation(Line):
    """What a witness outside the system saw for itself: `name` says what is claimed of `target`, `facts` what was
    measured. `evidence.observations` decides whether the facts carry the claim."""

    of_source: ClassVar[str] = "witness"
    of_kind: ClassVar[str] = "observation"
    name: str
    target: str
    facts: dict[str, Any]


# -- pages, drill, caller, views -------------------------------------------------------------------


class Page(Line):
    """A page that reached the recording sink."""

    of_source: ClassVar[str] = "page"
    of_kind: ClassVar[str] = "page"
    incident: str
    reason: str
    operation_id: str | None = None
    task_id: str | None = None
    channel: str


class Note(Line):
    """Free text from the drill."""

    of_source: ClassVar[str] = "drill"
    of_kind: ClassVar[str] = "note"
    text: str


class SelfTest(Line):
    """A fault's own test on the wire, before the product is judged (case i1)."""

    of_source: ClassVar[str] = "drill"
    of_kind: ClassVar[str] = "self_test"
    name: str
    ok: bool
    observed: str


class EarlyResumeRefused(Line):
    """A resume before its condition was tried and refused."""

    of_source: ClassVar[str] = "drill"
    of_kind: ClassVar[str] = "early_resume_refused"
    operation_id: str
    answer: str


class EarlyResumeAccepted(EarlyResumeRefused):
    """A resume before its condition was tried and let through: always a finding."""

    of_kind: ClassVar[str] = "early_resume_accepted"


class Decision(Line):
    """An operator's decision, taken by a fresh process that was given only pages and procedure."""

    of_source: ClassVar[str] = "drill"
    of_kind: ClassVar[str] = "decision"
    operation_id: str
    action: str
    by: str


class Authority(Line):
    """From here on the access policy that the drill put in force allows the cell's effects, or it does not."""

    of_source: ClassVar[str] = "drill"
    of_kind: ClassVar[str] = "authority"
    allowed: bool
    policy_version: int


class ProbeOperation(Line):
    """An operation run after the faults were healed. `cell` null = once for the whole run."""

    of_source: ClassVar[str] = "drill"
    of_kind: ClassVar[str] = "probe"
    operation_id: str
    ok: bool


class Quiet(Line):
    """The quiet period after healing: how long, and what was still open when it ended."""

    of_source: ClassVar[str] = "drill"
    of_kind: ClassVar[str] = "quiet"
    seconds: float = Field(ge=0)
    still_open: list[str]


class End(Line):
    """Last line, written by the writer's close(): totals that the judge counts again."""

    of_source: ClassVar[str] = "drill"
    of_kind: ClassVar[str] = "end"
    lines: int
    cells: int
    histories: int


class CallerOperation(Line):
    """The ledger's row of an operation, exported after the cell. The three facts are the three times."""

    of_source: ClassVar[str] = "caller"
    of_kind: ClassVar[str] = "operation"
    operation_id: str
    destination: str
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


class AuditCopy(Line):
    """One line of a log destination, as the witness read it there; in the order in which it stands or arrived."""

    of_source: ClassVar[str] = "witness"
    of_kind: ClassVar[str] = "audit_copy"
    destination: str
    text: str


class Assertion(Strict):
    """One thing asserted about a view."""

    name: str
    ok: bool
    detail: str = ""


class View(Line):
    """One of the five views as captured. `body` is what was seen. `cell` null = for the whole run."""

    of_source: ClassVar[str] = "view"
    of_kind: ClassVar[str] = "view"
    name: Literal["user", "state", "alerts", "dependencies", "operator"]
    body: Any
    assertions: list[Assertion] = Field(min_length=1)


class ApprovalShown(Line):
    """One approval as people were shown it at a `phase` of the drill, through the public door."""

    of_source: ClassVar[str] = "view"
    of_kind: ClassVar[str] = "approval_shown"
    phase: Literal["before", "during", "after"]
    approval_id: str
    operation_id: str
    digest: str
    state: str
    expires_at: str


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


_LINES: tuple[type[Line], ...] = (
    Request, Effect, AnswerBegun, AnswerFailed, AnswerReplaced, Dropped, Refused, Reversed, Latch,
    Challenge, Connection, RequestIncomplete, Beacon, ProbeNote, KeyCancelled, LeaseEvent, JournalNote, JournalEnd,
    ToxicAdded, ToxicRemoved, ProxyDisabled, ProxyEnabled, CallerConnection, Started, Signalled,
    ProcessState, Exited, Observation, Page, Note, SelfTest, EarlyResumeRefused, EarlyResumeAccepted, Decision,
    Authority, ProbeOperation, Quiet, End, CallerOperation, CallerAttempt, CallerReading, CallerVerdict, CallerHold,
    CallerMemory,
    CallerTask, CallerRelease, CallerAudit, AuditCopy, View, ApprovalShown, CallerApproval,
)  # fmt: skip
KINDS: dict[tuple[str, str], type[Line]] = {(line.of_source, line.of_kind): line for line in _LINES}


def parse_line(data: dict[str, Any]) -> Line:
    """The typed line for a raw one. EvidenceError names the line and what is wrong with it."""
    where = f"record line order={data.get('order')} ({data.get('source')}.{data.get('kind')})"
    model = KINDS.get((str(data.get("source")), str(data.get("kind"))))
    if model is None:
        raise EvidenceError(f"{where}: unknown kind; see docs/reference/evidence.md for the known ones")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise EvidenceError(f"{where}: {first_error(error)}") from error
