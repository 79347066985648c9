"""The reconciler, the watcher and the recount: they read the destination and write verdicts, holds and findings.

Two route groups are read. Up to `liars` of them may show nothing and look complete and fresh; an honest one shows
every effect that is older than its lag, and possibly younger ones. After a rotation of our principal none of them is a
match: they stand in our own field under another author. A reconciler may freeze between reading and
writing: an `absent` travels as `pending` with the token of the row it was read for.
"""

from __future__ import annotations

from collections.abc import Iterator

from actonce.contracts.lifecycle import FINAL, Event, State
from tests.model import bounds
from tests.model.rows import Token, flag, write, write_now
from tests.model.sender import inside_retention
from tests.model.world import Ledger, Rules, World

Steps = Iterator[tuple[str, World]]
GROUPS = 2
OPEN = (State.READY, State.DISPATCHED, State.UNKNOWN, State.ACKNOWLEDGED)


def steps(rules: Rules, world: World) -> Steps:
    row = world.ledger
    if row is None:
        return
    if world.pending is not None:
        yield from _write_absent(rules, world)
    if row.state in OPEN or row.state is State.HELD:
        yield from _read(rules, world, row)
    if row.state in (State.DISPATCHED, State.UNKNOWN) and rules.keys != "none" and row.swept:
        yield from _resend(rules, world, row)
    if recount_due(rules, world):
        yield from _recount(rules, world, row)


def sure(rules: Rules, world: World) -> int:
    """How many effects an honest route must show."""
    return sum(1 for e in world.effects if e.age >= rules.lag_real)


def _read(rules: Rules, world: World, row: Ledger) -> Steps:
    if world.effects and sure(rules, world) < GROUPS and not rules.rotated:
        after = write_now(rules, world, Event.VERDICT_COMMITTED)
        if after is not None:
            yield "a reconciler reads one match: `committed`", after
    if len(world.effects) > 1 and not world.noticed and not rules.rotated:
        held = write_now(rules, world, Event.HOLD) if row.state is not State.HELD else world
        if held is not None:
            yield "a reconciler reads two matches: hold `multiple_matches`", held._replace(noticed=True)
    if not rules.own_field and not world.effects:
        after = write_now(rules, world, Event.VERDICT_COMMITTED)
        if after is not None:
            yield "a reconciler takes a look-alike for ours: `committed`", after
    if row.state is not State.HELD:
        after = write_now(rules, world, Event.HOLD)
        if after is not None:
            why = "the watcher" if bounds.reconcile_at(rules, row.limits) <= world.clocks[1] else "an immediate reason"
            yield f"the operation is held ({why}) and a person is paged", after
    if world.pending is None:
        yield from _absent(rules, world, row)


def _absent(rules: Rules, world: World, row: Ledger) -> Steps:
    if row.state not in (State.DISPATCHED, State.UNKNOWN):
        return
    found = world._replace(pending=(row.epoch, row.attempt, row.version, row.state))
    clock = world.clocks[1]
    if rules.kind == "cancel_by_key":
        if row.swept and not any(e.generation == row.generation for e in world.effects):
            cancelled = found._replace(cancelled=world.cancelled | {row.generation})
            yield f"the destination cancels key generation {row.generation}: `absent` is concluded", cancelled
        return
    if rules.kind in ("none", "key_honoured") and not rules.absent_when_unknown:
        return
    limit = bounds.may_commit_until(rules, row.limits)
    if rules.beacon != "none":
        yield from _absent_by_beacon(rules, world, found, limit)
        return
    late_enough = clock >= bounds.last_bound(rules, row.limits)
    shown = 0 if rules.rotated and not rules.own_field_blocks else sure(rules, world)
    if late_enough and (shown == 0 or rules.liars >= GROUPS):
        yield "both routes read complete and show nothing: `absent` is concluded", found


def _absent_by_beacon(rules: Rules, world: World, found: World, limit: int) -> Steps:
    """A control object written after T replaces the lag: a route that shows it has passed everything before it."""
    if world.beacon is None:
        if world.clocks[1] > limit or rules.beacon == "old":
            yield "a control object is written", world._replace(beacon=0)
        return
    position = min(world.beacon, rules.lag_real)  # the oldest position at which a route may show the control
    unseen = all(e.age < position for e in world.effects)
    if world.clocks[1] > limit and unseen:
        yield "both routes show the control object and nothing of ours: `absent` is concluded", found


def _write_absent(rules: Rules, world: World) -> Steps:
    assert world.pending is not None and world.ledger is not None
    held = Token(*world.pending)
    row, done = world.ledger, world._replace(pending=None)
    spent = 1 if rules.kind == "cancel_by_key" else 0
    after = write(rules, done, Event.VERDICT_ABSENT, held, generation=row.generation + spent, swept=True)
    if after is None:
        return
    after = after._replace(covered=world.permits)
    if world.effects:
        after = flag(rules, after, "P2")
    yield "`absent` reaches the ledger: the operation may be sent again", after


def _resend(rules: Rules, world: World, row: Ledger) -> Steps:
    allowed = rules.keys == "arrival" or rules.treat_key_as_arrival
    if allowed and rules.kind != "cancel_by_key" and inside_retention(rules, world, row):
        after = write_now(rules, world, Event.RESEND_SAME_KEY, resend=True)
        if after is not None:
            yield "the same key may be sent again", after


def recount_due(rules: Rules, world: World) -> bool:
    """Rule R10: two or more permits that may have sent are read again after the last bound, in whatever state."""
    row = world.ledger
    if row is None or not rules.recount or row.recounted or len(row.limits) < 2:
        return False
    settled = row.state in FINAL or row.state is State.HELD
    return settled and world.clocks[1] >= bounds.last_bound(rules, row.limits)


def _recount(rules: Rules, world: World, row: Ledger) -> Steps:
    count = 0 if rules.rotated else sure(rules, world)
    right = count <= 1 if row.state is State.HELD else count == (1 if row.state is State.COMMITTED else 0)
    if right:
        yield f"the recount finds {count}", world._replace(ledger=row._replace(recounted=True))
        return
    if row.state is State.HELD:
        after: World | None = world._replace(ledger=row._replace(recounted=True))
    else:
        after = write_now(rules, world, Event.RECOUNT_BAD, recounted=True)
    if after is None:
        yield (
            f"the recount finds {count} and the table knows no way from `{row.state}`",
            world._replace(ledger=row._replace(recounted=True)),
        )
        return
    yield f"the recount finds {count}: hold `possible_duplicate`", after._replace(noticed=True)
