"""The operator and the restore: what people do to an operation.

An honest operator sees what is committed at the moment of the decision (rule R9: a fresh read in the same action);
a lagging one sees only what the routes are sure to show; a careless one decides anything; one who is away decides
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from actonce.contracts.lifecycle import FINAL, Event, State
from tests.model import bounds
from tests.model.reader import sure
from tests.model.rows import Token, flag, follow, write, write_now
from tests.model.world import NEVER, Ledger, Rules, World

Steps = Iterator[tuple[str, World]]


def steps(rules: Rules, world: World) -> Steps:
    row = world.ledger
    if row is not None and row.state is State.HELD and rules.operator != "away":
        yield from _decide(rules, world, row)
    if row is not None and world.clicked:
        yield from _second_click(rules, world, row)
    if row is not None and row.state is State.READY:
        yield from _cancel(rules, world, row)
    if rules.restore and not world.restored and world.permits:
        yield _restore(rules, world)


def _decide(rules: Rules, world: World, row: Ledger) -> Steps:
    if rules.gate and (row.gated or not rules.resume_gated_only):
        after = write_now(rules, world, Event.RESUME)
        if after is not None:
            yield "the gate's condition holds again and the operator decides `resume`", after
    seen = sure(rules, world) if rules.operator == "lagging" else len(world.effects)
    careless = rules.operator == "careless"
    if seen or careless:
        wrong = world.wrong or not world.effects
        after = write_now(rules, world._replace(wrong=wrong), Event.MARK_COMMITTED)
        if after is not None:
            yield "the operator decides `mark_committed`", after
    if seen and not careless:
        return
    limit = bounds.may_commit_until(rules, row.limits)
    unbounded = limit >= NEVER
    gate = bounds.reconcile_at(rules, row.limits) if unbounded else limit
    if rules.decision_waits and world.clocks[1] <= gate:  # what may still commit at T has its own tick
        return
    risk = unbounded and rules.decision_waits
    decided = world._replace(wrong=world.wrong or risk or (careless and bool(world.effects)))
    after = write_now(rules, decided, Event.MARK_ABSENT)
    if after is not None:
        yield "the operator sees no effect and decides `mark_absent`", after
    if world.permits < rules.permits_max:
        after = write_now(rules, decided, Event.PERMIT_ONE_RETRY, swept=True, resend=False)
        if after is not None:
            yield (
                "the operator sees no effect and decides `permit_one_retry`",
                after._replace(clicked=not rules.decision_version),
            )


def _cancel(rules: Rules, world: World, row: Ledger) -> Steps:
    """A cancelled task is reported as not done, so it needs what `absent` needs: a same-key resend is no proof."""
    nothing_out = not row.limits or world.covered >= world.permits
    if rules.cancel_needs_absence and not (nothing_out and row.swept):
        return
    after = write_now(rules, world, Event.CANCEL)
    if after is None:
        return
    after = after._replace(covered=world.permits)
    if world.effects:
        after = flag(rules, after, "P2")
    yield "the task is cancelled and reported as not done", after


def _second_click(rules: Rules, world: World, row: Ledger) -> Steps:
    """A decision that names no version is applied to whatever is there now."""
    seen_then = Token(row.epoch, row.attempt, row.version, State.HELD)
    after = write(replace(rules, cas=False), world._replace(clicked=False), Event.PERMIT_ONE_RETRY, seen_then)
    if after is not None:
        yield "the second click of `permit_one_retry` is applied", after


def _restore(rules: Rules, world: World) -> tuple[str, World]:
    """Rules R12 to R14: new epoch, extended limits, presumed sent; holds and decisions come from the journal."""
    assert world.ledger is not None
    (saved,) = world.snapshot or (world.ledger,)  # the newest backup possible is the row as it is
    base = saved or Ledger(State.READY, 0, 0, 0, 0, 0, (), True, False, False)
    limits = base.limits
    if rules.restore_extends:
        limits = ((0, rules.life), *((permit, max(limit, rules.life)) for permit, limit in limits))
    state, current = base.state, world.ledger.state
    if rules.restore_presumes_sent and state not in FINAL:
        state = follow(state, Event.RESTORED)
        base = base._replace(attempt=base.attempt + 1, version=base.version + 1)
    if rules.restore_journal and current in (State.HELD, State.CLOSED):
        state = current
    settled = state in FINAL or state is State.HELD
    row = base._replace(
        state=state, epoch=base.epoch + (1 if rules.restore_epoch else 0), limits=limits, swept=settled, recounted=False
    )
    after = world._replace(ledger=row, restored=True, snapshot=None)
    if current is State.HELD and state is not State.HELD:
        after = flag(rules, after, "P5")
    older = "before the operation existed" if saved is None else f"from when it was `{saved.state}`"
    return f"the ledger is restored to a backup {older}", after
