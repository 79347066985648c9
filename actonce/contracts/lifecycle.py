"""The state machine of one operation: the only table of what may follow what.

The ledger applies it (every state change goes through `next_state`), and the explicit-state model in the
tests explores the very same table, so the two cannot drift apart.

    ready ──permit──> dispatched ──lost──> unknown ──verdict_committed──> committed
      ^                  │  │                 │ ├────verdict_absent──────> ready
      └──not_sent────────┘  └──acknowledged── │ └────hold────────────────> held
                                │             │                             │ decisions
                                v             v                             v
                   committed | acknowledged   (read back) ──> committed     committed | closed | ready

After a restore whatever is not final counts as sent without an answer (`restored`): ready, dispatched and unknown
become unknown, acknowledged and held stay what they are.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where one operation stands. Values are stored in the ledger and shown to people."""

    READY = "ready"  # intent written; a permit may be taken; nothing is in flight
    DISPATCHED = "dispatched"  # a permit is consumed; its owner may send until not_after
    UNKNOWN = "unknown"  # a request may have left; nobody knows; reconcile
    ACKNOWLEDGED = "acknowledged"  # acknowledged, but the contract wants it read back
    HELD = "held"  # stopped, a person is paged
    COMMITTED = "committed"  # final: the effect happened, with evidence
    REFUSED = "refused"  # final: the destination's definite decline
    CLOSED = "closed"  # final: ended without another send (cancelled before a send, or mark_absent)


FINAL = frozenset({State.COMMITTED, State.REFUSED, State.CLOSED})


class Event(StrEnum):
    """What may happen to an operation."""

    PERMIT = "permit"
    NOT_SENT = "not_sent"
    NOT_ACCEPTED = "not_accepted"
    REFUSED = "refused"
    LOST = "lost"
    ACK_COMPLETE = "ack_complete"  # an acknowledgement that completes by itself (receipt, handover)
    ACK_READ_BACK = "ack_read_back"  # an acknowledgement that must be read back
    ACK_CONTRADICTS = "ack_contradicts"  # R7: it contradicts a later permit, verdict or decision
    VERDICT_COMMITTED = "verdict_committed"
    VERDICT_ABSENT = "verdict_absent"
    RESEND_SAME_KEY = "resend_same_key"  # R3: the destination registers keys on arrival
    HOLD = "hold"
    RECOUNT_BAD = "recount_bad"  # R10: two or more attempts and a count other than one
    MARK_COMMITTED = "mark_committed"
    MARK_ABSENT = "mark_absent"
    PERMIT_ONE_RETRY = "permit_one_retry"
    RESUME = "resume"  # the condition of a gate is met again; only a hold that a gate opened before a permit
    CANCEL = "cancel"  # only before anything was sent
    RESTORED = "restored"  # R12: the ledger was restored; a permit may have been used of which it knows nothing


S, E = State, Event

TRANSITIONS: dict[tuple[State, Event], State] = {
    (S.READY, E.PERMIT): S.DISPATCHED,
    (S.READY, E.HOLD): S.HELD,
    (S.READY, E.CANCEL): S.CLOSED,
    (S.READY, E.VERDICT_COMMITTED): S.COMMITTED,
    (S.DISPATCHED, E.NOT_SENT): S.READY,
    (S.DISPATCHED, E.NOT_ACCEPTED): S.READY,
    (S.DISPATCHED, E.REFUSED): S.REFUSED,
    (S.DISPATCHED, E.LOST): S.UNKNOWN,
    (S.DISPATCHED, E.VERDICT_COMMITTED): S.COMMITTED,
    (S.DISPATCHED, E.VERDICT_ABSENT): S.READY,
    (S.DISPATCHED, E.RESEND_SAME_KEY): S.READY,
    (S.DISPATCHED, E.HOLD): S.HELD,
    (S.UNKNOWN, E.VERDICT_COMMITTED): S.COMMITTED,
    (S.UNKNOWN, E.VERDICT_ABSENT): S.READY,
    (S.UNKNOWN, E.RESEND_SAME_KEY): S.READY,
    (S.UNKNOWN, E.HOLD): S.HELD,
    (S.ACKNOWLEDGED, E.VERDICT_COMMITTED): S.COMMITTED,
    (S.ACKNOWLEDGED, E.HOLD): S.HELD,
    (S.HELD, E.VERDICT_COMMITTED): S.COMMITTED,
    (S.HELD, E.MARK_COMMITTED): S.COMMITTED,
    (S.HELD, E.MARK_ABSENT): S.CLOSED,
    (S.HELD, E.PERMIT_ONE_RETRY): S.READY,
    (S.HELD, E.RESUME): S.READY,
    (S.COMMITTED, E.RECOUNT_BAD): S.HELD,
    (S.REFUSED, E.RECOUNT_BAD): S.HELD,  # R10 reads again whatever the ending was: two effects may hide behind it
    (S.CLOSED, E.RECOUNT_BAD): S.HELD,
}
for _state in (S.READY, S.DISPATCHED, S.UNKNOWN):
    TRANSITIONS[(_state, E.RESTORED)] = S.UNKNOWN
for _state in (S.ACKNOWLEDGED, S.HELD):
    TRANSITIONS[(_state, E.RESTORED)] = _state
# Acknowledgements are accepted in every state (rule R6); what they lead to depends on whether they contradict.
for _state in State:
    TRANSITIONS[(_state, E.ACK_CONTRADICTS)] = S.HELD
for _state in (S.READY, S.DISPATCHED, S.UNKNOWN, S.ACKNOWLEDGED, S.HELD, S.COMMITTED):
    TRANSITIONS[(_state, E.ACK_COMPLETE)] = S.COMMITTED
    TRANSITIONS[(_state, E.ACK_READ_BACK)] = S.COMMITTED if _state is S.COMMITTED else S.ACKNOWLEDGED


class IllegalTransition(Exception):
    """The event is not allowed in this state."""


def next_state(state: State, event: Event) -> State:
    """Return the state that follows, or raise `IllegalTransition`."""
    try:
        return TRANSITIONS[(state, event)]
    except KeyError:
        raise IllegalTransition(f"{event} is not allowed in state {state}") from None
