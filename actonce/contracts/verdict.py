"""What was read, and what follows from it: rows, readings, facts, and the one verdict."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Outcome(StrEnum):
    COMMITTED = "committed"
    ABSENT = "absent"
    AMBIGUOUS = "ambiguous"


class Reason(StrEnum):
    """Why a verdict is ambiguous, or why an operation is held."""

    TOO_EARLY = "too_early"
    ROUTE_UNAVAILABLE = "route_unavailable"
    ROUTE_INCOMPLETE = "route_incomplete"
    NOT_VISIBLE = "not_visible"
    NOT_FRESH = "not_fresh"
    PAYLOAD_CONFLICT = "payload_conflict"
    MULTIPLE_MATCHES = "multiple_matches"
    LOOK_ALIKE = "look_alike"
    RETENTION_EXPIRED = "retention_expired"
    LATE_COMMIT_POSSIBLE = "late_commit_possible"
    NO_ROUTE = "no_route"
    NOT_INDEPENDENT = "not_independent"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    STORED_ERROR_REPLAYED = "stored_error_replayed"
    DUPLICATE_REFUSED = "duplicate_refused"
    POSSIBLE_DUPLICATE = "possible_duplicate"
    ORPHANED = "orphaned"  # nobody works on a task that has no outcome
    # A gate in the permit's transaction refused: nothing was sent under the permit that was asked for.
    APPROVAL_REQUIRED = "approval_required"
    APPROVAL_EXPIRED = "approval_expired"
    APPROVAL_CHANGED = "approval_changed"
    APPROVAL_WITHDRAWN = "approval_withdrawn"
    CREDENTIAL_EXPIRED = "credential_expired"
    CREDENTIAL_REVOKED = "credential_revoked"
    CREDENTIAL_UNAVAILABLE = "credential_unavailable"
    NOT_AUTHORISED = "not_authorised"
    NO_AUTHORITY = "no_authority"  # for this task type at this destination
    AUTHORITY_CAP = "authority_cap"
    DEADLINE_PASSED = "deadline_passed"
    # A task waits without an operation.
    APPROVAL_PENDING = "approval_pending"
    MEMORY_UNAVAILABLE = "memory_unavailable"
    STEP_FAILING = "step_failing"  # it fails again and again before anything of it is on record
    # The deployment is not well; nothing is held by these, a person is called.
    LEDGER_UNAVAILABLE = "ledger_unavailable"
    AUDIT_LAG = "audit_lag"
    AUDIT_GAP = "audit_gap"
    DEPENDENCY_DOWN = "dependency_down"
    ROUTE_UNHEALTHY = "route_unhealthy"
    CREDENTIAL_EXPIRING = "credential_expiring"
    WATCHER_STALLED = "watcher_stalled"
    NOBODY_ANSWERS = "nobody_answers"
    NOBODY_WORKS = "nobody_works"
    BACKLOG = "backlog"
    INCOMPATIBLE_WORKER = "incompatible_worker"
    LEDGER_RESTORED = "ledger_restored"


AT_ONCE = frozenset({Reason.PAYLOAD_CONFLICT, Reason.MULTIPLE_MATCHES, Reason.NO_ROUTE})
"""Reasons that page at once; `look_alike` joins them where `absent` can never be earned by time."""

MORE_THAN_ASKED = frozenset({Reason.POSSIBLE_DUPLICATE, Reason.MULTIPLE_MATCHES, Reason.PAYLOAD_CONFLICT})
"""The destination was seen to hold more, or something else, than was asked for. One object acknowledged or shown does
not explain that away: only a recorded decision ends such a hold."""


class Row(_Frozen):
    """One object a route showed that carries one of our markers (or is a beacon of ours)."""

    object_id: str
    kind: str
    account: str
    marker: str  # the key or beacon id it carries
    own_field: bool  # in a field only we can write (or a body marker by us with the right type and digest)
    by_us: bool  # its author is our principal
    digest: str | None  # recomputed from its business fields, or the embedded one
    state: str | None = None
    committed_at: AwareDatetime | None = None


class Page(_Frozen):
    """One page of a route. `rows` are all rows of the page that a route function could parse."""

    rows: tuple[Row, ...] = ()
    rows_received: int = 0  # all rows on this page, also those that carry no marker
    declared_total: int | None = None
    next_cursor: str | None = None
    as_of: AwareDatetime | None = None  # the route's own position: everything committed until then is in it


class Reading(_Frozen):
    """One whole reading of one route."""

    route: str
    status: str  # "read", "unavailable" (no answer, 5xx, 401/403), "looping"
    candidates: tuple[Row, ...] = ()
    rows_received: int = 0
    declared_total: int | None = None
    pages: int = 0
    complete: bool = False  # every page read, no loop, and the declared total (if any) equals the rows received
    beacon_at: datetime | None = None  # commit time of the newest beacon of ours that it shows
    as_of: datetime | None = None
    started_at: datetime
    finished_at: datetime
    error: str | None = None


class Receipt(_Frozen):
    """Bounded proof from the destination."""

    object_id: str
    digest: str | None = None
    at: AwareDatetime | None = None
    source: str = "acknowledgement"  # or "route:<name>", "operator"
    detail: dict[str, Any] = {}


class AttemptFact(_Frozen):
    """What the ledger knows of one consumed permit."""

    epoch: int
    attempt: int
    generation: int
    issued_at: datetime
    not_after: datetime
    provably_not_sent: bool = False  # fenced, or a typed not-sent / not-accepted record
    lost_interval: bool = (
        False  # presumed, not on record: a restore lost what was permitted; `issued_at` is its earliest
    )
    # What the contract promised when it was sent; a later version binds no request that is on its way.
    until: datetime | None = None  # T of this attempt
    unbounded: bool = False
    key_kept_until: datetime | None = None  # None: its key was not registered on arrival


class Facts(_Frozen):
    """What the verdict rule may know of an operation. No Temporal, no clock, no I/O."""

    operation_id: str
    keys: tuple[str, ...]  # every wire key used so far, of all generations
    digest: str
    account: str
    object_kind: str
    acknowledged_object_id: str | None
    attempts: tuple[AttemptFact, ...]
    probed: bool = False  # a reference probe on the acknowledged object succeeded: it exists
    sent_as: str | None = None  # account and kind it was sent as, where the contract that reads it names others
    key_cancelled: bool = False  # the destination confirmed the atomic cancel of every key that was sent


class Verdict(_Frozen):
    """Exactly one of committed / absent / ambiguous, and why in words."""

    outcome: Outcome
    reason: Reason | None = None
    words: str
    receipt: Receipt | None = None
    flagged: dict[str, str] = {}  # route -> what is wrong with it
    look_alikes: tuple[str, ...] = ()
    may_commit_until: datetime | None = None  # None with `unbounded` True: nothing bounds it
    unbounded: bool = False
    read_again_at: datetime | None = None
    page: bool = False  # hold and page now
