"""What the model knows of one operation: the rules in force, the assumptions, and one state of the world.

Time is an integer and relative to now: a limit counts down, an age counts up, both saturate once nothing
distinguishes them any more. That makes the state space finite without a horizon, so "for ever" can be checked.
One tick is the unit of every bound; bounds are as small as they can be and still differ from zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from actonce.contracts.lifecycle import State

NEVER = 99  # a limit that no tick brings closer
PROMISES = ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8")


@dataclass(frozen=True)
class Rules:
    """What the contract declares, what the world really does, and which protections are on.

    `*_real` differs from its declared twin only when that assumption is dropped.
    """

    kind: str = "bounded"  # bounded, none, key_honoured, cancel_by_key, deadline_at_commit, deadline_on_arrival
    kind_real: str = ""  # what the destination really does, if not what it declares
    keys: str = "none"  # none, arrival, commit: when the destination registers our key
    completion: str = "receipt"
    watch: frozenset[str] = frozenset(PROMISES)  # the promises that are checked
    permits_max: int = 2  # permits ever consumed, over all epochs

    life: int = 1
    transit: int = 1
    transit_real: int = 1
    processing: int = 1
    processing_real: int = 1
    lag: int = 1
    lag_real: int = 1
    skew: int = 0
    clocks: tuple[tuple[int, int, int], ...] = ((0, 0, 0),)  # offsets of sender, reader and destination
    reconcile_after: int = 2  # from the permit's issue; holds and pages begin here where nothing bounds T
    retention: int = 5
    retention_real: int = 5
    margin: int = 3
    liars: int = 1  # route groups (of two) that may hide an effect and look fresh
    rotated: bool = False  # our principal was: routes show our effects under another author
    refuses: bool = False
    operator: str = "honest"  # honest, lagging (sees what routes are sure to show), careless, away
    restore: bool = False
    gate: bool = False  # an approval or a lease may have ended when the next permit is asked for

    # Protections and assumptions that can be taken out one at a time.
    fence: bool = True
    timer: bool = True
    nonce: bool = True
    cas: bool = True
    decision_version: bool = True
    hold_voids: bool = True
    decision_waits: bool = True
    watched: frozenset[State] = frozenset({State.READY, State.DISPATCHED, State.UNKNOWN, State.ACKNOWLEDGED})
    late_ack: bool = True
    recount: bool = True
    own_field: bool = True
    own_field_blocks: bool = True  # what stands there and is not proven ours prevents `absent`
    accepted_is_ack: bool = False
    cancel_needs_absence: bool = True
    cancel_atomic: bool = True
    resume_gated_only: bool = True
    treat_key_as_arrival: bool = False
    retention_at_permit: bool = True
    beacon: str = "none"  # none: the declared lag is waited for; after, old: a control object replaces it
    restore_extends: bool = True
    restore_epoch: bool = True
    restore_journal: bool = True
    restore_presumes_sent: bool = True
    absent_when_unknown: bool = False  # ambiguous treated as absent

    @property
    def enforces(self) -> str:
        return self.kind_real or self.kind


class Exec(NamedTuple):
    """One execution of the issue activity, alive or frozen. A dead one is not in the world."""

    permit: int
    epoch: int
    attempt: int
    version: int
    generation: int
    phase: str  # permitted, fenced, sent, lost (has written "unknown", still listens), declined, turned (away)
    frozen: bool
    limit: int  # not_after, relative to now


class Request(NamedTuple):
    """One request that left: on the way, or being worked on."""

    permit: int
    generation: int
    phase: str  # way, work
    left: int  # ticks until it has arrived (been applied) or never will
    deadline: int  # what a deadline header carries


class Effect(NamedTuple):
    permit: int
    generation: int
    age: int


class Ledger(NamedTuple):
    """The operation's row."""

    state: State
    epoch: int
    attempt: int
    version: int
    permit: int  # whose nonce the last permit carries
    generation: int
    limits: tuple[tuple[int, int], ...]  # (permit, not_after) of every permit that is not provably unsent
    swept: bool  # False after a restore until it has been reconciled
    resend: bool  # ready because rule R3 allowed the same key again
    recounted: bool
    gated: bool = False  # held by a gate, before a permit


class World(NamedTuple):
    ledger: Ledger | None
    execs: tuple[Exec, ...]
    net: tuple[Request, ...]
    effects: tuple[Effect, ...]
    keys: tuple[tuple[int, int], ...]  # (generation, age) of registered keys
    cancelled: frozenset[int]
    pending: tuple[int, int, int, State] | None  # an `absent` on its way to the ledger: its token, what it had read
    clicked: bool  # a second click on "permit one retry" that carries no version
    snapshot: tuple[Ledger | None] | None
    restored: bool
    permits: int
    covered: int  # permits about which `absent` was concluded: 1..covered
    wrong: bool  # a person decided against the facts, or knowingly took the residual risk
    noticed: bool
    beacon: int | None  # age of the control object
    clocks: tuple[int, int, int]
    bad: str


def initial(rules: Rules) -> list[World]:
    """One world per combination of clock offsets; nothing has happened yet."""
    return [
        World(None, (), (), (), (), frozenset(), None, False, None, False, 0, 0, False, False, None, clocks, "")
        for clocks in rules.clocks
    ]
