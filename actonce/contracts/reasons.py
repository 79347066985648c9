"""The one table of reason codes: who owns it, how loud it is, what it means, what may be done, when tasks resume.

Every hold and every page names a reason; what a person may do about it, and what the pages, the client and the
console say, comes from here. Each reason has a procedure of the same name in `docs/operations/` (a test looks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from actonce.contracts.messages import DecisionAction
from actonce.contracts.verdict import Reason

Severity = Literal["page", "warning", "none"]
"""`page` calls a person at night, `warning` is shown and can wait for the day, `none` is never told to anyone."""

_OUTCOME: tuple[DecisionAction, ...] = ("mark_committed", "mark_absent", "permit_one_retry")
_GATE: tuple[DecisionAction, ...] = ("resume", "mark_absent")
_EVIDENCE = "a reading settles it (late acknowledgement, or a route shows the effect), or a decision is consumed"


@dataclass(frozen=True)
class Policy:
    """What holds for one reason code. `actions` is empty where nothing is held and nobody has to decide."""

    reason: Reason
    owner: str
    meaning: str
    resumes_when: str = _EVIDENCE
    actions: tuple[DecisionAction, ...] = _OUTCOME
    severity: Severity = "page"

    @property
    def procedure(self) -> str:
        """Path of its procedure in the repository."""
        return f"docs/operations/{self.reason.value}.md"

    @property
    def is_gate(self) -> bool:
        """Was it opened before a permit, so that nothing was sent under the permit that was asked for?"""
        return "resume" in self.actions


R = Reason
_ROWS: Sequence[Policy] = (
    Policy(
        R.TOO_EARLY,
        "nobody: the system reads again by itself",
        "the effect may still happen; nothing shows it yet",
        actions=(),
        severity="none",
    ),
    Policy(R.ROUTE_UNAVAILABLE, "operator of the destination's read routes", "a needed route gives no usable answer"),
    Policy(R.ROUTE_INCOMPLETE, "operator of the destination's read routes", "a route could not be read to its end"),
    Policy(R.NOT_VISIBLE, "operator of the destination's read routes", "a route cannot be shown to be able to see it"),
    Policy(
        R.NOT_FRESH,
        "operator of the destination's indexes and replicas",
        "a route's silence is older than the last moment at which the effect could have committed",
    ),
    Policy(
        R.PAYLOAD_CONFLICT,
        "owner of the task type that made the payload",
        "the same identity means two different things",
    ),
    Policy(
        R.MULTIPLE_MATCHES,
        "incident lead",
        "more than one object carries our key, account and digest",
        "a person has explained the duplicate by a decision",
    ),
    Policy(
        R.LOOK_ALIKE,
        "owner of the destination's contract",
        "something carries our operation_id and cannot be proven ours",
    ),
    Policy(R.RETENTION_EXPIRED, "operator", "the destination may have forgotten our key"),
    Policy(R.LATE_COMMIT_POSSIBLE, "operator", "nothing bounds how late the request may still take effect"),
    Policy(R.NO_ROUTE, "operator who can ask the receiver", "the destination cannot be read"),
    Policy(R.NOT_INDEPENDENT, "owner of the destination's contract", "the routes that say `nothing` count as one"),
    Policy(R.ATTEMPTS_EXHAUSTED, "operator", "every permit that the contract allows is used"),
    Policy(R.STORED_ERROR_REPLAYED, "owner of the destination's contract", "the destination replays a stored error"),
    Policy(
        R.DUPLICATE_REFUSED,
        "incident lead",
        "the destination has the same thing already",
        "the operation's own reconciliation settles it",
    ),
    Policy(
        R.POSSIBLE_DUPLICATE,
        "incident lead",
        "evidence contradicts what was concluded",
        "a person has explained it by a decision",
    ),
    Policy(
        R.ORPHANED,
        "operator of workers and Temporal",
        "nobody works on a task that has no outcome",
        "the task is started again by its key; an operation of it needs a decision too",
    ),
    Policy(
        R.STEP_FAILING,
        "owner of the task type",
        "a step fails again and again before anything of it is on record",
        "the step succeeds; it is tried again by itself",
        (),
    ),
    Policy(
        R.APPROVAL_PENDING,
        "approver",
        "a task asks whether it may do exactly this; nothing of it was sent",
        "enough people approve it before its deadline; a rejection ends the step",
        (),
        "warning",  # business as usual, and its deadline pages: nobody is woken to be asked
    ),
    Policy(
        R.APPROVAL_REQUIRED,
        "approver",
        "the policy wants an approval and none was given for exactly this",
        "an approval of exactly this is in force and the operation is resumed",
        _GATE,
    ),
    Policy(
        R.APPROVAL_EXPIRED,
        "approver",
        "the approval's time was over before anything was sent",
        "a new approval of exactly this is in force and the operation is resumed",
        _GATE,
    ),
    Policy(
        R.APPROVAL_CHANGED,
        "owner of the task type",
        "what would run is not what was approved",
        "a new approval of exactly what would run now is in force and the operation is resumed",
        _GATE,
    ),
    Policy(
        R.APPROVAL_WITHDRAWN,
        "approver",
        "the approval was withdrawn before anything was sent",
        "a new approval of exactly this is in force and the operation is resumed",
        _GATE,
    ),
    Policy(
        R.CREDENTIAL_EXPIRED,
        "owner of the credential",
        "the lease ended before anything was sent",
        "it was rotated, a new authorisation check passed, and the operation is resumed",
        _GATE,
    ),
    Policy(
        R.CREDENTIAL_REVOKED,
        "owner of the credential",
        "the lease or its parent was revoked",
        "it was rotated, a new authorisation check passed, and the operation is resumed",
        _GATE,
    ),
    Policy(
        R.CREDENTIAL_UNAVAILABLE,
        "operator of the credential broker",
        "no lease could be had",
        "the broker gives a lease, a new authorisation check passed, and the operation is resumed",
        _GATE,
    ),
    Policy(
        R.NOT_AUTHORISED,
        "owner of the access policy",
        "the principal may no longer do this",
        "the policy allows it again, a new authorisation check passed, and the operation is resumed",
        _GATE,
    ),
    Policy(
        R.NO_AUTHORITY,
        "whoever grants authority",
        "this task type has no authority at a destination that is no sandbox",
        "authority was granted on signed evidence and the operation is resumed",
        _GATE,
    ),
    Policy(
        R.AUTHORITY_CAP,
        "whoever grants authority",
        "one more operation would be beyond a cap of the task type's authority",
        "the cap allows it (an hour has passed, or it was raised) and the operation is resumed",
        _GATE,
    ),
    Policy(
        R.DEADLINE_PASSED,
        "owner of the task type",
        "the task's deadline was over before anything was sent",
        "a person resumes it in spite of the deadline, or ends it",
        _GATE,
    ),
    Policy(
        R.MEMORY_UNAVAILABLE,
        "operator of the memory store",
        "what is remembered could not be asked",
        "the memory is healthy again, proven by its canary",
        (),
    ),
    Policy(
        R.LEDGER_UNAVAILABLE,
        "operator of PostgreSQL",
        "the ledger takes no writes, so nothing can be sent",
        "the ledger takes writes again",
        (),
    ),
    Policy(
        R.AUDIT_LAG,
        "operator of the audit sink",
        "audit events wait to be shipped; none is lost",
        "the sink takes them again",
        (),
        "warning",
    ),
    Policy(
        R.AUDIT_GAP,
        "security officer",
        "the audit trail has a gap or was changed",
        "`actonce audit verify` finds nothing, or the finding is explained on record",
        (),
    ),
    Policy(
        R.DEPENDENCY_DOWN,
        "operator of what is down",
        "something that every task needs does not answer",
        "it answers again",
        (),
    ),
    Policy(
        R.ROUTE_UNHEALTHY,
        "operator of the destination's read routes",
        "a read route is down, lags or is incomplete; an operation whose answer is lost there would be held",
        "the route is read whole and as fresh as its contract declares",
        (),
        "warning",
    ),
    Policy(
        R.CREDENTIAL_EXPIRING,
        "owner of the credential",
        "a lease is in force and is not renewed as it should be",
        "the broker renews it again",
        (),
        "warning",
    ),
    Policy(
        R.WATCHER_STALLED,
        "operator of the watching process",
        "what looks after open operations, pages, readings or alerts does not come round",
        "every loop of a watching process comes round again",
        (),
    ),
    Policy(
        R.NOBODY_ANSWERS,
        "lead of the people on call",
        "pages reach nobody, or nobody acknowledges them",
        "a channel takes pages again, and every open page is acknowledged",
        (),
    ),
    Policy(
        R.NOBODY_WORKS,
        "operator of workers",
        "nobody asks for work on a task queue",
        "workers ask for work again; the release then follows its rate",
        (),
    ),
    Policy(
        R.BACKLOG,
        "operator of workers",
        "tasks wait longer, or more of them, than agreed",
        "the backlog is worked off",
        (),
        "warning",
    ),
    Policy(
        R.INCOMPATIBLE_WORKER,
        "owner of the deployment",
        "workers cannot continue a workflow's history",
        "a compatible worker is deployed",
        (),
    ),
    Policy(
        R.LEDGER_RESTORED,
        "incident lead",
        "the ledger was restored and is older than the world: nothing is sent until it has been compared with it",
        "the sweep of the restore is done and a person has released the task's group",
        (),
    ),
)
POLICIES: dict[Reason, Policy] = {row.reason: row for row in _ROWS}


def policy(reason: Reason | str) -> Policy:
    """The row of a reason code. Raises ValueError for one that does not exist."""
    return POLICIES[Reason(reason)]


def gates() -> frozenset[Reason]:
    """The reasons of holds that only a gate opens."""
    return frozenset(row.reason for row in _ROWS if row.is_gate)


assert set(POLICIES) == set(Reason), f"no policy for {set(Reason) - set(POLICIES)}"
assert {a for row in _ROWS for a in row.actions} <= set(get_args(DecisionAction))
