"""The workers: two executions of the issue activity that take permits, freeze, thaw, send, listen and die.

A live execution between its permit and its send acts before the next tick; one that does not is frozen. A process
that is only slow is a frozen one that thaws.
"""

from __future__ import annotations

from collections.abc import Iterator

from actonce.contracts.lifecycle import Event, State
from tests.model.rows import Token, flag, follow, write, write_now
from tests.model.world import Exec, Ledger, Request, Rules, World

Steps = Iterator[tuple[str, World]]
EXECUTIONS_MAX = 2


def steps(rules: Rules, world: World) -> Steps:
    if len(world.execs) < EXECUTIONS_MAX:
        yield from _start(rules, world)
    previous = None
    for one in world.execs:
        if one == previous:
            continue  # two equal executions: the same steps
        previous = one
        rest = list(world.execs)
        rest.remove(one)
        yield f"the process of attempt {_name(one)} dies", _put(world, rest)
        if one.frozen:
            yield f"the process of attempt {_name(one)} thaws", _put(world, rest, one._replace(frozen=False))
        elif one.phase in ("permitted", "fenced"):
            yield from _before_send(rules, world, one, rest)
        else:
            yield from _after_send(rules, world, one, rest)


def _name(one: Exec) -> str:
    return f"{one.attempt}" if one.attempt == one.permit else f"{one.attempt} (permit {one.permit})"


def _put(world: World, rest: list[Exec], *more: Exec) -> World:
    return world._replace(execs=tuple(sorted([*rest, *more])))


def _start(rules: Rules, world: World) -> Steps:
    row = world.ledger
    if row is None:
        if world.permits == 0:
            fresh = Ledger(State.READY, 0, 0, 0, 0, 0, (), True, False, False)
            yield from _permit(rules, world, fresh, "a worker writes the intent and takes permit 1")
        return
    if row.state is State.READY and _may_dispatch(rules, world, row):
        words = f"a worker takes permit {world.permits + 1} (attempt {row.attempt + 1})"
        yield from _permit(rules, world, row, words)
        if rules.gate:
            after = write_now(rules, world, Event.HOLD, gated=True)
            assert after is not None
            yield "the gate refuses the next permit: hold", after
    if not rules.nonce and row.state is State.DISPATCHED and world.permits:
        limit = dict(row.limits).get(row.permit, 0)
        again = Exec(row.permit, row.epoch, row.attempt, row.version, row.generation, "permitted", False, limit)
        words = f"a second execution finds `dispatched`, takes attempt {row.attempt} for its own"
        yield words, _put(world, list(world.execs), again)


def _may_dispatch(rules: Rules, world: World, row: Ledger) -> bool:
    if world.permits >= rules.permits_max:
        return False
    if row.resend and rules.retention_at_permit:
        return inside_retention(rules, world, row)
    return True


def inside_retention(rules: Rules, world: World, row: Ledger) -> bool:
    """Rule R3: may the same key still be relied on, counted from the first permit's issue?"""
    if not row.limits:
        return True
    since_first = rules.life - min(limit for _, limit in row.limits)
    return since_first + world.clocks[1] <= rules.retention - rules.margin


def _permit(rules: Rules, world: World, row: Ledger, words: str) -> Steps:
    number = world.permits + 1
    taken = row._replace(
        state=follow(row.state, Event.PERMIT),
        attempt=row.attempt + 1,
        version=row.version + 1,
        permit=number,
        limits=(*row.limits, (number, rules.life)),
        resend=False,
        recounted=False,
    )
    owner = Exec(number, taken.epoch, taken.attempt, taken.version, taken.generation, "permitted", False, rules.life)
    after = _put(world, list(world.execs), owner)
    yield words, after._replace(ledger=taken, permits=number, beacon=None if rules.beacon == "after" else world.beacon)


def _before_send(rules: Rules, world: World, one: Exec, rest: list[Exec]) -> Steps:
    yield f"the process of attempt {_name(one)} freezes", _put(world, rest, one._replace(frozen=True))
    if one.phase == "permitted":
        yield from _fence(rules, world, one, rest)
        held = Token(one.epoch, one.attempt, one.version, State.DISPATCHED)
        assert world.ledger is not None
        after = write(rules, world, Event.NOT_SENT, held, limits=_without(world.ledger, one))
        if after is not None:
            yield f"attempt {_name(one)} writes `not sent`", _put(after, rest)
        return
    sent = one._replace(phase="sent")
    left = rules.transit_real
    deadline = one.limit if rules.enforces.startswith("deadline") else 0
    request = Request(one.permit, one.generation, "way", left, deadline)
    after = _put(world, rest, sent)._replace(net=tuple(sorted([*world.net, request])))
    yield f"attempt {_name(one)} sends its request", after


def _without(row: Ledger, one: Exec) -> tuple[tuple[int, int], ...]:
    return tuple(pair for pair in row.limits if pair[0] != one.permit)


def _fence(rules: Rules, world: World, one: Exec, rest: list[Exec]) -> Steps:
    """Passes only with the row still dispatched under this permit and the owner's clock not past `not_after`."""
    row = world.ledger
    assert row is not None
    if rules.fence:
        mine = one.epoch == row.epoch and one.permit == row.permit
        usable = row.state is State.DISPATCHED or (not rules.hold_voids and row.state is State.HELD)
        if not mine or not usable or world.clocks[0] > one.limit:
            return
    after = _put(world, rest, one._replace(phase="fenced"))
    if row.state is State.HELD:
        after = flag(rules, after, "P8")
    words = "passes its fence" if rules.fence else "goes on without a fence"
    yield f"attempt {_name(one)} {words}", after


def _after_send(rules: Rules, world: World, one: Exec, rest: list[Exec]) -> Steps:
    row = world.ledger
    assert row is not None
    held = Token(one.epoch, one.attempt, one.version, State.DISPATCHED)
    if one.phase == "declined":
        after = write(rules, world, Event.REFUSED, held)
        if after is not None:
            yield f"attempt {_name(one)} writes the destination's decline", _put(after, rest)
        return
    if one.phase == "turned":
        after = write(rules, world, Event.NOT_ACCEPTED, held, limits=_without(row, one))
        if after is not None:
            yield f"attempt {_name(one)} writes `not accepted`", _put(after, rest)
        return
    if one.phase == "sent":
        after = write(rules, world, Event.LOST, held)
        if after is not None:
            words = f"attempt {_name(one)} gives up waiting and writes `unknown`"
            yield words, _put(after, rest, one._replace(phase="lost"))
    same_key = rules.keys == "arrival" or rules.treat_key_as_arrival
    applied = any(e.permit == one.permit or (same_key and e.generation == one.generation) for e in world.effects)
    accepted = rules.accepted_is_ack and any(r.permit == one.permit and r.phase == "work" for r in world.net)
    if applied or accepted:
        yield from _acknowledge(rules, world, one, rest, "" if applied else " (a 202, taken for one)")


def _acknowledge(rules: Rules, world: World, one: Exec, rest: list[Exec], note: str) -> Steps:
    """Appended in every state (rule R6); rule R7 decides whether it contradicts."""
    row = world.ledger
    assert row is not None
    mine = (one.epoch, one.attempt) == (row.epoch, row.attempt)
    words = f"the acknowledgement of attempt {_name(one)}{note} arrives"
    if not rules.late_ack and not (mine and row.state is State.DISPATCHED):
        yield f"{words} late and is dropped", flag(rules, _put(world, rest), "P6")
        return
    settled = row.state in (State.CLOSED, State.REFUSED)
    later = row.permit > one.permit and rules.keys == "none"
    concluded = world.covered >= one.permit and row.state is State.READY
    contradicts = settled or later or concluded
    receipt = Event.ACK_COMPLETE if rules.completion == "receipt" else Event.ACK_READ_BACK
    event = Event.ACK_CONTRADICTS if contradicts else receipt
    now = Token(row.epoch, row.attempt, row.version, row.state)
    after = write(rules, world, event, now)
    if after is None:
        yield f"{words} and the ledger does not take it", flag(rules, _put(world, rest), "P6")
        return
    if contradicts:
        after = after._replace(noticed=True)
        words += f" and contradicts `{row.state}`"
    yield words, _put(after, rest)
