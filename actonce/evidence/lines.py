"""The kinds of lines of record.jsonl: one model per (source, kind).

Here are those of the wire, of processes, of the drill and of its views; a destination's are in `lines_destination`, the
system's own in `lines_caller`. What all of them promise: `line`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from actonce.evidence.line import Line
from actonce.evidence.lines_caller import (
    CallerApproval,
    CallerAttempt,
    CallerAudit,
    CallerContract,
    CallerHold,
    CallerMemory,
    CallerOperation,
    CallerReading,
    CallerRelease,
    CallerTask,
    CallerVerdict,
)
from actonce.evidence.lines_destination import (
    AnswerBegun,
    AnswerFailed,
    AnswerReplaced,
    Beacon,
    Challenge,
    Connection,
    Dropped,
    Effect,
    JournalEnd,
    JournalNote,
    KeyCancelled,
    Latch,
    LeaseEvent,
    ProbeNote,
    Refused,
    Request,
    RequestIncomplete,
    Reversed,
)
from actonce.evidence.record import EvidenceError, Strict, first_error

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
    door: Literal["browser", "console", "client"] = "client"


class EarlyResumeAccepted(EarlyResumeRefused):
    """A resume before its condition was tried and let through: always a finding."""

    of_kind: ClassVar[str] = "early_resume_accepted"


class Decision(Line):
    """An operator's decision, taken by a fresh process that was given only pages and procedure. `door`: through which
    it went: the console in a `browser`, the `console`'s forms without one, or the command-line `client`."""

    of_source: ClassVar[str] = "drill"
    of_kind: ClassVar[str] = "decision"
    operation_id: str
    action: str
    by: str
    door: Literal["browser", "console", "client"] = "client"


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


class ConsoleSaid(Line):
    """What a page of the console said to somebody without a browser: the state at its head, the reason of the hold,
    and the decisions that it had a button for."""

    of_source: ClassVar[str] = "view"
    of_kind: ClassVar[str] = "console_said"
    moment: Literal["hold", "after"]
    page: Literal["task", "operation"]
    path: str
    status: int
    said: str
    reason: str | None = None
    offered: list[str] = Field(default_factory=list)
    task_id: str
    operation_id: str | None = None


class Picture(Line):
    """A picture of what people saw, in the folder as `file`; or why there is none. `of`: the cell that it stands for.
    `path`: of the page, on its own site; it holds no secret."""

    of_source: ClassVar[str] = "view"
    of_kind: ClassVar[str] = "picture"
    of: str
    moment: Literal["hold", "after"]
    page: str = Field(min_length=1)
    path: str
    file: str | None = None
    sha256: str | None = None
    missing: str | None = None
    task_id: str | None = None
    operation_id: str | None = None

    @model_validator(mode="after")
    def _taken_or_missing(self) -> Picture:
        if (self.file is None) != (self.sha256 is None) or (self.file is None) == (not self.missing):
            raise ValueError("a picture has a file and its sha256, or says why it is missing")
        return self


_LINES: tuple[type[Line], ...] = (
    Request, Effect, AnswerBegun, AnswerFailed, AnswerReplaced, Dropped, Refused, Reversed, Latch,
    Challenge, Connection, RequestIncomplete, Beacon, ProbeNote, KeyCancelled, LeaseEvent, JournalNote, JournalEnd,
    ToxicAdded, ToxicRemoved, ProxyDisabled, ProxyEnabled, CallerConnection, Started, Signalled,
    ProcessState, Exited, Observation, Page, Note, SelfTest, EarlyResumeRefused, EarlyResumeAccepted, Decision,
    Authority, ProbeOperation, Quiet, End, CallerOperation, CallerAttempt, CallerReading, CallerVerdict, CallerHold,
    CallerMemory,
    CallerTask, CallerContract, CallerRelease, CallerAudit, AuditCopy, View, ConsoleSaid, Picture, ApprovalShown,
    CallerApproval,
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
