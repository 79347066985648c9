"""The sweep of a restore, both ways: ledger → destination, then destination → ledger. It reads; nothing is sent.

    1. every operation that may have been sent in the lost interval is settled by the ordinary reconciliation, or held
    2. every destination is asked for all that is ours since a margin before the backup; what has no record is adopted
    3. the outcomes are counted, and the two sides must add up

It begins only after the restore's bounds have passed. It is free to be killed at any point and to be run again: the
next one goes on at the page where this one stood, and a run after one that is done reads everything anew. Memory
holds one page at a time. A destination that cannot list what is ours is named, with why, and not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta

from actonce.contracts import bounds
from actonce.contracts.contract import Contract, Route
from actonce.contracts.credential import NoLease
from actonce.contracts.errors import ActonceError, LedgerError, RestoreRefused, RouteUnavailable
from actonce.contracts.verdict import Page, Reading
from actonce.destinations.base import Destination, Lookup, Secret
from actonce.effects import combine as rule
from actonce.effects.system import System, log
from actonce.effects.watcher import WatchSettings, settle_or_hold
from actonce.ledger import sweep_totals, sweeping
from actonce.ledger.restoring import Restore
from actonce.ledger.store import Operation
from actonce.ledger.sweeping import RouteRun, Sweep

PAGES_MAX = 1_000_000  # a list longer than this has no end
AT_ONCE_MAX = 8  # operations settled side by side
LEDGER_DEADLINE_S = 120.0  # counting a hundred thousand effects takes longer than any statement of the hot path
_AGAIN_S = 1.0  # between two looks at operations that only time settles
Tell = Callable[[str], None]


async def sweep(system: System, *, without: Collection[str] = (), tell: Tell = lambda _words: None) -> Sweep:
    """Run it to its end. `without`: destinations that are left out on purpose, and named as not swept.

    Raises RestoreRefused: too early, nothing to sweep, a route that gave no answer (run it again), or sides that do not
    add up. Raises StaleWrite when another process sweeps at the same time.
    """
    restore, run = await sweeping.begin(system.ledger)
    tell(f"sweep of epoch {restore.epoch}, run {run.run}")
    not_swept = await _left_out(system, without)
    swept = [d for d in system.registry if d.contract.name not in not_swept]
    for destination in swept:
        await _write_beacon(system, run, destination)
    await _settle_all(system, restore, tell)
    for destination in swept:
        for name in sorted(destination.lists_all):
            await _read_route(system, restore, run, destination, destination.contract.route(name), tell)
        await sweeping.judge_again(system.ledger, run, destination.contract.name)
    runs = await sweeping.routes_of(system.ledger, run)
    names = {d.contract.name for d in swept}
    unread = [
        f"{r.destination} {r.route}: {r.error or r.status}" for r in runs if _unread(r) and r.destination in names
    ]
    if unread:
        raise RestoreRefused(
            "incomplete",
            f"not read to the end: {'; '.join(unread)}. Cure that and run the sweep again, it goes on where it stood; "
            "or leave the destination out with --without, then it is named as not swept",
        )
    listed = [d.contract.name for d in swept if _shows_everything(restore, d.contract, runs)]
    done = await sweep_totals.finish(system.ledger, run, sorted(names), listed, not_swept)
    tell(f"done: {len(done.totals)} destinations compared, {len(done.not_swept)} not")
    return done


async def _left_out(system: System, without: Collection[str]) -> dict[str, str]:
    """Destinations of which nothing can be listed, and why."""
    here = {d.contract.name: d for d in system.registry}
    found = {}
    for name in sorted({*here, *await sweeping.destinations_known(system.ledger)}):
        if name not in here:
            found[name] = "no contract of it is registered in this process"
        elif name in without:
            found[name] = "left out on purpose (--without)"
        elif not here[name].lists_all:
            found[name] = "no route of it can list what is ours"
    return found


# ledger → destination ---------------------------------------------------------------------------------------------


async def _settle_all(system: System, restore: Restore, tell: Tell) -> None:
    """Until everything that may have been sent in the lost interval is established, or held."""
    places = asyncio.Semaphore(AT_ONCE_MAX)

    async def settle(operation: Operation) -> None:
        async with places:
            try:
                await settle_or_hold(system, operation, WatchSettings())
            except LedgerError:
                raise
            except (ActonceError, TimeoutError, OSError) as error:
                log.warning("sweep: read again", operation_id=operation.operation_id, error=str(error))

    told = -1
    while left := await sweeping.unsettled(system.ledger, restore.epoch):
        if len(left) != told:
            told = len(left)
            tell(f"{told}{' or more' if told >= 200 else ''} operations are being reconciled")
        await asyncio.gather(*(settle(operation) for operation in left))
        if {o.stamp for o in await sweeping.unsettled(system.ledger, restore.epoch)} >= {o.stamp for o in left}:
            await asyncio.sleep(_AGAIN_S)  # only time changes anything


# destination → ledger ---------------------------------------------------------------------------------------------


async def _write_beacon(system: System, run: Sweep, destination: Destination) -> None:
    """An object of ours that a list able to see must show. Without it what a list does not show proves nothing."""
    if destination.beacon is None:
        return
    deadline_s = destination.contract.timing.read_deadline_s
    beacon_id = await sweeping.want_beacon(system.ledger, run, destination.contract)
    try:
        async with asyncio.timeout(deadline_s):
            await destination.beacon(beacon_id, deadline_s)
    except (ActonceError, TimeoutError, OSError) as error:
        log.warning("sweep: no beacon", destination=destination.contract.name, error=str(error))


async def _read_route(
    system: System, restore: Restore, run: Sweep, destination: Destination, route: Route, tell: Tell
) -> None:
    """Read one route from where this run stands to its end, page by page. What stops it is on record."""
    name, ledger = destination.contract.name, system.ledger
    at = await sweeping.route_run(ledger, run, name, route.name)
    if at.status == "looping":
        at = await sweeping.route_run(ledger, run, name, route.name, afresh=True)
    goes_on = at.cursor is not None  # where an earlier process stopped: its cursor may not hold any more
    seen: set[int] = set()
    while at.status != "read":
        try:
            page = await _page(destination, route, lookup_of(restore, run, destination), at.cursor)
        except LedgerError:
            raise
        except Exception as error:  # whatever a route function raises, the route gave no answer
            if goes_on:
                goes_on = False
                at = await sweeping.route_run(ledger, run, name, route.name, afresh=True)
                continue
            await sweeping.stop_route(ledger, run, at, "unavailable", f"{type(error).__name__}: {error}")
            return
        goes_on = False
        if page.next_cursor is not None and (hash(page.next_cursor) in seen or at.pages >= PAGES_MAX):
            await sweeping.stop_route(ledger, run, at, "looping", "its pages come again: the list has no end")
            return
        seen.add(hash(page.next_cursor))
        at = await sweeping.record_page(ledger, run, destination.contract, at, page)
        if at.pages % 100 == 0 or at.status == "read":
            tell(f"{name} {route.name}: {at.rows_received} rows on {at.pages} pages")


async def _page(destination: Destination, route: Route, lookup: Lookup, cursor: str | None) -> Page:
    """One page, under a lease where the contract names one. Whatever fails is said without the lease's secret."""
    secret = Secret()
    try:
        async with asyncio.timeout(lookup.deadline_s):
            lease = await destination.lease(route.credential)
            if isinstance(lease, NoLease):
                raise RouteUnavailable(f"no lease to read it with: {lease.words}")
            secret = destination.secret_of(lease)
            return await destination.routes[route.name](replace(lookup, secret=secret), cursor)
    except LedgerError:
        raise
    except Exception as error:
        raise RouteUnavailable(secret.scrub(f"{type(error).__name__}: {error}")[:500]) from None


def lookup_of(restore: Restore, run: Sweep, destination: Destination) -> Lookup:
    """The question for everything that is ours."""
    return Lookup(
        tenant="",
        destination=destination.contract.name,
        action="",
        operation_id="",
        markers=(),
        digest="",
        account=destination.contract.account,
        object_id=None,
        since=run.since,
        not_after=restore.not_after,
        deadline_s=destination.contract.timing.read_deadline_s,
    )


def _unread(at: RouteRun) -> bool:
    return at.status != "read" or not at.counted


def _shows_everything(restore: Restore, contract: Contract, runs: Collection[RouteRun]) -> bool:
    """Would its lists show whatever was sent in the lost interval? By the rule that `absent` is concluded with."""
    late_s = bounds.late_bound_s(contract)
    if late_s is None:
        return False
    readings = [_reading(at) for at in runs if at.destination == contract.name]
    return rule.would_show(contract, readings, restore.not_after + timedelta(seconds=late_s))


def _reading(at: RouteRun) -> Reading:
    return Reading(
        route=at.route,
        status=at.status,
        rows_received=at.rows_received,
        declared_total=at.declared_total,
        pages=at.pages,
        complete=not _unread(at),
        beacon_at=at.beacon_at,
        as_of=at.as_of,
        started_at=at.started_at,
        finished_at=at.finished_at or at.started_at,
    )
