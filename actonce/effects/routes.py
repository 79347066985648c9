"""Read one route to its end: every page, no loop, declared total against rows received.

Only reads. An error of a route is a reading too ("unavailable"), never an answer: a 401, 403 or 404 that an adapter
raises says nothing about the effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from actonce.contracts.contract import Route
from actonce.contracts.credential import Lease, NoLease
from actonce.contracts.errors import LedgerError, RouteUnavailable
from actonce.contracts.verdict import Page, Reading, Row
from actonce.destinations.base import Destination, Lookup, RouteFn, Secret
from actonce.effects.combine import find
from actonce.effects.system import log
from actonce.ledger.store import LedgerClock
from actonce.ledger.verdicts import Case

_PAGES_MAX = 10_000  # one million rows at 100 a page; a longer list has no place in a recovery path
_READING_S = 40.0  # one route to its end; a list without an end must not outlast the activity that reads it
_ONE_BY_ONE = ("by_id", "search")  # asked for each marker; lists and logs show all of them in one pass


def lookup_of(destination: Destination, case: Case) -> Lookup:
    """What routes may use to look for the operation of a case."""
    operation, facts = case.operation, case.facts
    return Lookup(
        tenant=operation.tenant,
        destination=operation.destination,
        action=operation.action,
        operation_id=operation.operation_id,
        markers=(*facts.keys, *case.beacon_ids),
        digest=facts.digest,
        account=facts.account,
        object_id=facts.acknowledged_object_id,
        since=min([operation.created_at, *(a.issued_at for a in facts.attempts)]),  # a restored ledger has it later
        not_after=operation.not_after or operation.created_at,
        deadline_s=destination.contract.timing.read_deadline_s,
    )


async def read_all(destination: Destination, case: Case, clock: LedgerClock) -> list[Reading]:
    """Read every declared route, side by side, each on its own deadline."""
    lookup = lookup_of(destination, case)
    reads = [read_route(destination, route, lookup, case, clock) for route in destination.contract.routes]
    return list(await asyncio.gather(*reads))


async def read_back(destination: Destination, case: Case, clock: LedgerClock) -> list[Reading]:
    """For an operation that was acknowledged after its only permit: one route that shows it is enough (SPEC §2.7).

    Routes that answer a single question come first; only when they do not show it, the rest are read to their end.
    """
    lookup = lookup_of(destination, case)
    readings: list[Reading] = []
    for route in destination.contract.routes:
        if route.kind in _ONE_BY_ONE:
            readings.append(await read_route(destination, route, lookup, case, clock))
            if find(case.facts, readings).matches:
                return readings
    others = [route for route in destination.contract.routes if route.kind not in _ONE_BY_ONE]
    reads = [read_route(destination, route, lookup, case, clock) for route in others]
    return [*readings, *await asyncio.gather(*reads)]


async def read_route(destination: Destination, route: Route, lookup: Lookup, case: Case, clock: LedgerClock) -> Reading:
    """Read one route to its end, under a lease where the contract names one for it."""
    started_at = clock.now()
    read, lease, secret = destination.routes[route.name], None, Secret()
    questions = [replace(lookup, markers=(m,)) for m in lookup.markers] if route.kind in _ONE_BY_ONE else [lookup]
    pages: list[Page] = []
    ended = True
    error: str | None = None
    try:
        async with asyncio.timeout(_READING_S):
            lease = await destination.lease(route.credential)
            if isinstance(lease, NoLease):
                raise RouteUnavailable(f"no lease to read it with: {lease.words}")
            secret = destination.secret_of(lease)
            questions = [replace(question, secret=secret) for question in questions]
            for question in questions:
                got, ended_here = await _read_pages(read, question)
                pages += got
                ended = ended and ended_here
    except Exception as problem:  # whatever a route function raises, the route gave no answer
        error = secret.scrub(f"{type(problem).__name__}: {problem}")[:500]
        if isinstance(problem, RouteUnavailable) and problem.status == 401:
            await tell_refused(destination, lease, f"route {route.name} answered 401")
    else:
        if destination.credentials is not None and isinstance(lease, Lease):
            destination.credentials.accepted(lease)
    status = "unavailable" if error else "read" if ended else "looping"
    return _reading(route, pages, case, status=status, error=error, started_at=started_at, finished_at=clock.now())


async def tell_refused(destination: Destination, lease: Lease | NoLease | None, why: str) -> None:
    """Have a lease that the destination does not accept replaced. What follows is the next one's business."""
    if destination.credentials is None or not isinstance(lease, Lease):
        return
    try:
        await destination.credentials.refused(lease, why)
    except LedgerError as error:
        log.warning("a refused lease is not on record yet", lease_id=lease.lease_id, error=str(error))


async def _read_pages(read: RouteFn, lookup: Lookup) -> tuple[list[Page], bool]:
    """Return (pages, came to an end). A cursor that comes back is a loop."""
    pages: list[Page] = []
    cursor: str | None = None
    seen: set[str] = set()
    while len(pages) < _PAGES_MAX:
        async with asyncio.timeout(lookup.deadline_s):
            page = await read(lookup, cursor)
        pages.append(page)
        cursor = page.next_cursor
        if cursor is None:
            return pages, True
        if cursor in seen:
            return pages, False
        seen.add(cursor)
    return pages, False


def _reading(
    route: Route,
    pages: Sequence[Page],
    case: Case,
    *,
    status: str,
    error: str | None,
    started_at: datetime,
    finished_at: datetime,
) -> Reading:
    rows = [row for page in pages for row in page.rows]
    received = sum(page.rows_received for page in pages)
    totals = {page.declared_total for page in pages if page.declared_total is not None}
    declared = max(totals) if totals else None
    agrees = len(totals) <= 1 and (declared is None or declared == received)
    as_of = [page.as_of for page in pages if page.as_of is not None]
    return Reading(
        route=route.name,
        status=status,
        candidates=tuple(_candidates(rows, case)),
        rows_received=received,
        declared_total=declared,
        pages=len(pages),
        complete=status == "read" and agrees and (declared is not None or not route.declares_total),
        beacon_at=_newest_beacon(rows, case),
        as_of=min(as_of) if as_of else None,
        started_at=started_at,
        finished_at=finished_at,
        error=error,
    )


def _candidates(rows: Sequence[Row], case: Case) -> list[Row]:
    """Rows that carry a key of ours, or are the object an acknowledgement named; each object once."""
    keys, object_id = set(case.facts.keys), case.facts.acknowledged_object_id
    found = {(r.object_id, r.kind): r for r in rows if r.marker in keys or (object_id and r.object_id == object_id)}
    return list(found.values())


def _newest_beacon(rows: Sequence[Row], case: Case) -> datetime | None:
    times = [r.committed_at for r in rows if r.marker in case.beacon_ids and r.by_us and r.committed_at is not None]
    return max(times, default=None)
