"""The ledger watcher (rules R10, R11): nothing is orphaned, with or without Temporal.

It works from the ledger alone: operations past their bound that nobody reads are reconciled or held; operations with
two or more permits are read again; decisions nobody consumed are consumed; held operations are read now and then, for
late evidence; operations whose task has no one working on it are held; approvals whose time is over expire.
One pass is `watch_once`; run it for ever in a process of its own. Each operation is the business of one task at a time;
several operations are looked at side by side, so that a route that hangs keeps no other operation from being held.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

from actonce.contracts.contract import Contract
from actonce.contracts.errors import ActonceError, ContractError, LedgerError, LedgerUnavailable
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import State
from actonce.contracts.verdict import Reading
from actonce.effects import combine as rule
from actonce.effects.decide import decide, decide_unread
from actonce.effects.reconcile import read_fresh, reconcile, settle_step, write_beacon
from actonce.effects.system import System, log
from actonce.ledger import approvals, pages, verdicts, watch
from actonce.ledger.store import Operation


@dataclass(frozen=True)
class WatchSettings:
    """All in seconds."""

    idle_s: float = 10.0  # nobody has read it for this long: nobody else is at work
    held_again_s: float = 30.0  # how often a held operation is read for late evidence
    orphaned_after_s: float = 120.0  # a ready operation with earlier permits, and nobody took the next one
    give_up_s: float = 60.0  # past its bound: what cannot even be read (a defect, no contract here) is held or paged
    at_once_max: int = 8  # operations looked at side by side; of one destination half of them
    pass_s: float = 5.0  # after this a pass begins with no further operation: what is due by then comes first next time


Act = Callable[[Operation], Awaitable[None]]


async def watch_once(system: System, settings: WatchSettings = WatchSettings()) -> dict[str, int]:
    """One pass. Returns how many operations each duty touched. Raises LedgerUnavailable."""
    ledger = system.ledger
    expired = await approvals.expire_due(ledger)
    duties: list[tuple[str, list[Operation], Act]] = [
        ("decisions", await watch.undecided(ledger, settings.idle_s), lambda o: _decide(system, o, settings)),
        (
            "unsettled",
            await watch.unsettled(ledger, settings.idle_s),
            lambda o: settle_or_hold(system, o, settings),
        ),
        ("recounts", await watch.due_recounts(ledger), lambda o: _recount_or_page(system, o, settings)),
        ("orphaned", await watch.orphaned(ledger, settings.orphaned_after_s), lambda o: _orphan(system, o)),
        ("held", await watch.held(ledger, settings.held_again_s), lambda o: _settle(system, o)),
    ]
    this_pass = _Pass(settings)
    taken: set[OperationKey] = set()
    begun: dict[str, list[Awaitable[bool]]] = {}
    for duty, operations, act in duties:  # the first duty that names an operation has it; the others come next time
        begun[duty] = [this_pass.look(o, act) for o in operations if o.key not in taken]
        taken |= {o.key for o in operations}
    done = await asyncio.gather(*(asyncio.gather(*looks) for looks in begun.values()))
    if this_pass.away is not None:
        raise this_pass.away
    return {"expired": expired, **{duty: sum(looks) for duty, looks in zip(begun, done, strict=True)}}


@dataclass
class _Pass:
    """What is shared by all who look at an operation in one pass."""

    settings: WatchSettings
    away: LedgerUnavailable | None = None  # nobody begins any more, and the pass fails with it
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        most = self.settings.at_once_max
        self._places = asyncio.Semaphore(most)
        self._at_destination: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(max(1, most // 2))  # one that hangs leaves places to all others
        )

    async def look(self, operation: Operation, act: Act) -> bool:
        """Do what its duty says. One that fails stops no other, and is tried again at the next pass.

        False when there was no place for it in this pass.
        """
        async with self._at_destination[operation.destination], self._places:
            if self.away is not None or time.monotonic() - self.began_s > self.settings.pass_s:
                return False
            try:
                await act(operation)
            except LedgerUnavailable as error:
                self.away = error
            except (ActonceError, TimeoutError, OSError) as error:
                log.warning("watcher: next pass again", operation_id=operation.operation_id, error=str(error))
            except Exception:
                log.exception("watcher: next pass again", operation_id=operation.operation_id)
            return True


async def _settle(system: System, operation: Operation) -> None:
    if operation.state is not State.HELD:
        await settle_step(system, operation.key)
        return
    try:
        await reconcile(system, operation.key)
    except ContractError as error:  # on record like a reading: it is seen by people, and not tried again at every pass
        await verdicts.record_unread(system.ledger, operation, str(error))


async def settle_or_hold(system: System, operation: Operation, settings: WatchSettings) -> None:
    """Whatever stops its reconciliation, a person hears of it."""
    try:
        await _settle(system, operation)
    except LedgerError:
        raise
    except Exception as error:
        words = f"it cannot be reconciled: {type(error).__name__}: {error}"[:1000]
        await watch.hold_unreadable(system.ledger, operation, words, settings.give_up_s)
        raise


async def _recount_or_page(system: System, operation: Operation, settings: WatchSettings) -> None:
    try:
        await _recount(system, operation)
    except LedgerError:
        raise
    except Exception as error:
        if await watch.recount_overdue(system.ledger, operation, settings.give_up_s):
            words = f"it cannot be read again: {type(error).__name__}: {error}"[:1000]
            await pages.report_blind_recount(system.ledger, operation, words)
            await watch.recounted(system.ledger, operation, None, 0, words)
        raise


async def _decide(system: System, operation: Operation, settings: WatchSettings) -> None:
    try:
        await decide(system, operation.key)
    except ContractError as error:
        await decide_unread(system, operation.key, str(error), settings.give_up_s)


async def _orphan(system: System, operation: Operation) -> None:
    await watch.hold_orphan(system.ledger, operation)


async def _recount(system: System, operation: Operation) -> None:
    """Rule R10: an operation with two or more permits shows one effect if committed, else none; or is an incident."""
    contract = system.destination(operation.destination, operation.action).contract
    expected = 1 if operation.state is State.COMMITTED else 0
    if not contract.routes:
        words = "the destination has no route; it cannot be read again"
        await watch.recounted(system.ledger, operation, None, expected, words)
        return
    case, _, readings = await read_fresh(system, operation.key)
    if contract.has_beacon and operation.recount_at is not None and not case.has_beacon_since(operation.recount_at):
        try:
            await write_beacon(system, operation.key)
            return  # counted at the next pass, when a route that is able to see shows the beacon
        except LedgerError:
            raise
        except Exception as error:  # counted all the same: what is shown tells, only what is not shown does not
            log.warning("watcher: no beacon for a recount", operation_id=operation.operation_id, error=str(error))
    count = len(rule.find(case.facts, readings).matches)
    blind = [r.route for r in readings if not _sees(contract, r, operation.recount_at)]
    words = f"read again after {operation.attempts} permits: {count} effects, expected {expected}"
    clear = count == expected and len(blind) < len(readings)
    if clear or count > expected:
        await watch.recounted(system.ledger, operation, count, expected, words)
    elif await watch.recount_overdue(system.ledger, operation, 10 * contract.timing.page_grace_s):
        words += f"; unread, incomplete or not fresh: {', '.join(blind) or 'none'}"
        if count == expected:  # nothing wrong was seen, and nothing could have been
            await pages.report_blind_recount(system.ledger, operation, words)
        await watch.recounted(system.ledger, operation, None if count == expected else count, expected, words)


def _sees(contract: Contract, reading: Reading, due_at: datetime | None) -> bool:
    """Would the route show a second effect? A complete reading of a stale index counts nothing."""
    if not reading.complete or due_at is None:
        return False
    if not contract.has_beacon and reading.as_of is None:
        return True  # it has no way to prove it: its declared lag, which `due_at` allows for, is believed
    return rule.is_fresh(contract, reading, due_at)
