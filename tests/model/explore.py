"""The explorer: breadth first over every state, so the first broken promise has a shortest trace."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from actonce.contracts.lifecycle import FINAL, Event, State
from tests.model import bounds, destination, people, reader, rows, sender
from tests.model.rows import flag
from tests.model.world import NEVER, Exec, Ledger, Rules, World, initial


@dataclass(frozen=True)
class Result:
    """What an exploration found. `trace` is empty when every checked promise holds in every state."""

    states: int
    promise: str
    trace: tuple[str, ...]
    used: frozenset[tuple[State, Event]]  # lines of the transition table that were followed
    reached: frozenset[str]  # states of the operation at rest: shows that the exploration was not vacuous


def successors(rules: Rules, world: World) -> Iterator[tuple[str, World]]:
    backed_up = not rules.restore or world.restored or world.snapshot is not None
    for part in (sender, destination, reader, people):
        for words, after in part.steps(rules, world):
            yield words, tidy(rules, after)
            if not backed_up and after.ledger is not world.ledger and not after.restored:
                # A backup is only worth telling apart from the row once the row changes.
                yield f"a backup is taken, then {words}", tidy(rules, after._replace(snapshot=(world.ledger,)))
    if _may_tick(world):
        yield TICK, tidy(rules, tick(rules, world))


TICK = "(time passes)"


def _may_tick(world: World) -> bool:
    return all(e.frozen or e.phase not in ("permitted", "fenced") for e in world.execs)


def tick(rules: Rules, world: World) -> World:
    """Let one tick pass: limits come closer, ages grow, what was not in time is lost, timers fire."""
    low, deadlines = bounds.floor(rules), rules.enforces.startswith("deadline")
    execs = []
    for e in world.execs:
        if e.phase not in ("permitted", "fenced"):
            execs.append(e)
        elif e.phase == "permitted" or not rules.timer or world.clocks[0] <= e.limit - 1:
            execs.append(e._replace(limit=max(e.limit - 1, low)))
        # else: the timer armed before the fence has fired; the process dies when it thaws
    net = []
    for r in world.net:
        if r.left > 0:
            left = r.left if r.left >= NEVER else r.left - 1
            net.append(r._replace(left=left, deadline=max(r.deadline - 1, low) if deadlines else 0))
    return world._replace(
        ledger=_tick_row(world.ledger, low),
        execs=tuple(sorted(execs)),
        net=tuple(sorted(net)),
        effects=tuple(e._replace(age=min(e.age + 1, rules.lag_real)) for e in world.effects),
        keys=_tick_keys(rules, world.keys),
        snapshot=None if world.snapshot is None else (_tick_row(world.snapshot[0], low),),
        beacon=None if world.beacon is None else min(world.beacon + 1, rules.lag_real),
    )


def _tick_keys(rules: Rules, keys: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    if rules.retention_real >= NEVER:
        return keys
    return tuple((generation, age + 1) for generation, age in keys if age + 1 < rules.retention_real)


def _tick_row(row: Ledger | None, low: int) -> Ledger | None:
    if row is None or not row.limits:
        return row
    return row._replace(limits=tuple((permit, max(limit - 1, low)) for permit, limit in row.limits))


def tidy(rules: Rules, world: World) -> World:
    """Merge states that nothing can tell apart: versions become "current" or "stale", idle listeners go."""
    row = world.ledger
    if row is None:
        return world
    if world.net and (net := tuple(r for r in world.net if destination.can_commit(rules, world, r))) != world.net:
        world = world._replace(net=net)
    renumber = rules.restore_epoch
    execs = tuple(sorted(kept for e in world.execs if (kept := _tidy_exec(rules, world, row, e)) is not None))
    if execs != world.execs:
        world = world._replace(execs=execs)
    if world.pending is not None and rules.cas:
        stale = world.pending[:3] != (row.epoch, row.attempt, row.version)
        pending = None if stale else (row.epoch, row.attempt, 1 if renumber else row.version, world.pending[3])
        if pending != world.pending:
            world = world._replace(pending=pending)
    if renumber and row.version != 1:
        world = world._replace(ledger=row._replace(version=1))
    return world


def _tidy_exec(rules: Rules, world: World, row: Ledger, one: Exec) -> Exec | None:
    """None for an execution that can do nothing any more; whether it is dead, nobody can tell."""
    version = one.version if not rules.restore_epoch else 1 if one.version == row.version else 0
    stale = (
        rules.cas
        and rules.restore_epoch
        and (one.epoch, one.attempt, one.version) != (row.epoch, row.attempt, row.version)
    )
    phase = one.phase
    if stale:
        if phase in ("declined", "turned") or (phase == "permitted" and rules.fence and rules.hold_voids):
            return None
        if phase == "sent":
            phase = "lost"  # its "unknown" would be refused
    if phase == "lost" and not _may_hear(rules, world, one):
        return None
    limit = one.limit if phase in ("permitted", "fenced") else 0
    if (version, phase, limit) == (one.version, one.phase, one.limit):
        return one
    return one._replace(version=version, phase=phase, limit=limit)


def _may_hear(rules: Rules, world: World, one: Exec) -> bool:
    if any(r.permit == one.permit for r in world.net) or any(e.permit == one.permit for e in world.effects):
        return True
    return rules.keys != "none" and bool(world.net or world.effects)


def at_rest(rules: Rules, world: World) -> bool:
    """Nothing but chance can still change this: time has passed every bound."""
    return _may_tick(world) and tidy(rules, tick(rules, world)) == world


def judge_rest(rules: Rules, world: World) -> World:
    """Check P4 and P7 where time has passed every bound: what fair parts still do has been done or is due now."""
    row = world.ledger
    if row is None:
        return world
    if row.state not in FINAL and row.state is not State.HELD:
        return world if row.state in rules.watched else flag(rules, world, "P4")
    if len(world.effects) > 1 and not world.noticed and not reader.recount_due(rules, world):
        return flag(rules, world, "P7")
    return world


@cache
def explore(rules: Rules) -> Result:
    """Visit every reachable state; stop at the first broken promise."""
    collecting = gc.isenabled()
    gc.disable()  # millions of tuples and not one cycle: collecting doubles the time
    try:
        return _explore(rules)
    finally:
        if collecting:
            gc.enable()


def _explore(rules: Rules) -> Result:
    rows.EXERCISED.clear()
    seen: Seen = {}
    queue: list[World] = []
    for world in initial(rules):
        seen[world] = None
        queue.append(world)
    reached: set[str] = set()
    for world in queue:  # grows while it is walked: breadth first
        if at_rest(rules, world):
            if world.ledger is not None:
                reached.add(f"{world.ledger.state} with {len(world.effects)}")
            judged = judge_rest(rules, world)
            if judged.bad:
                return _result(seen, world, judged.bad, reached)
        for words, after in successors(rules, world):
            if after in seen:
                continue
            seen[after] = (world, words)
            if after.bad:
                return _result(seen, after, after.bad, reached)
            queue.append(after)
    return _result(seen, None, "", reached)


Seen = dict[World, tuple[World, str] | None]


def _result(seen: Seen, last: World | None, promise: str, reached: set[str]) -> Result:
    trace = _trace(seen, last) if last is not None else ()
    return Result(len(seen), promise, trace, frozenset(rows.EXERCISED), frozenset(reached))


def _trace(seen: Seen, last: World) -> tuple[str, ...]:
    steps: list[str] = []
    at: World | None = last
    while at is not None:
        came = seen[at]
        if came is not None:
            steps.append(came[1])
        at = came[0] if came is not None else None
    steps.reverse()
    time, lines = 0, []
    for step in steps:
        if step == TICK:
            time += 1
        else:
            lines.append(f"t={time}: {step}")
    offsets = last.clocks
    if any(offsets):
        names = ("sender's", "reader's", "destination's")
        lines.insert(0, "clocks: " + ", ".join(f"the {n} is {o:+d}" for n, o in zip(names, offsets, strict=True) if o))
    return tuple(lines)
