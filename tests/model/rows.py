"""Writes to the operation's row: every change of state goes through the library's transition table.

With compare-and-set a write whose token is not the row's is refused. Without it the writer puts the state that
follows from the state it once read, which is what a lost update is.
"""

from __future__ import annotations

from typing import NamedTuple

from actonce.contracts.lifecycle import Event, IllegalTransition, State, next_state
from tests.model.world import Ledger, Rules, World

LEAVES_HOLD = frozenset(
    {
        Event.VERDICT_COMMITTED,
        Event.ACK_COMPLETE,
        Event.ACK_READ_BACK,
        Event.ACK_CONTRADICTS,
        Event.MARK_COMMITTED,
        Event.MARK_ABSENT,
        Event.PERMIT_ONE_RETRY,
        Event.RESUME,
    }
)


class Token(NamedTuple):
    """What a writer remembers of the row it acts on."""

    epoch: int
    attempt: int
    version: int
    state: State


def token(row: Ledger) -> Token:
    return Token(row.epoch, row.attempt, row.version, row.state)


def flag(rules: Rules, world: World, promise: str) -> World:
    """Note a broken promise, if it is one that is being checked."""
    if world.bad or promise not in rules.watch:
        return world
    return world._replace(bad=promise)


EXERCISED: set[tuple[State, Event]] = set()
"""Which lines of the transition table were used since it was last cleared."""


def follow(state: State, event: Event) -> State:
    """Ask the library's table and keep what was asked. Raises IllegalTransition."""
    after = next_state(state, event)
    EXERCISED.add((state, event))
    return after


def write(rules: Rules, world: World, event: Event, held: Token, **columns: object) -> World | None:
    """Apply one event to the row. None: refused, by compare-and-set or by the transition table."""
    row = world.ledger
    assert row is not None
    if rules.cas:
        if held.attempt != row.attempt or held.version != row.version:
            return None
        if held.epoch != row.epoch:
            return None
    try:
        state = follow(row.state if rules.cas else held.state, event)
    except IllegalTransition:
        return None
    changed = row._replace(**{"gated": False, **columns}, state=state, version=row.version + 1)  # type: ignore[arg-type]
    after = world._replace(ledger=changed)
    left_hold = row.state is State.HELD and state is not State.HELD
    if left_hold and (event not in LEAVES_HOLD or held.state is not State.HELD):
        after = flag(rules, after, "P5")
    if state is State.COMMITTED and row.state is not State.COMMITTED and not after.effects and not after.wrong:
        after = flag(rules, after, "P3")
    return after


def write_now(rules: Rules, world: World, event: Event, **columns: object) -> World | None:
    """Apply one event by someone who reads the row in the same transaction."""
    assert world.ledger is not None
    return write(rules, world, event, token(world.ledger), **columns)
