"""Probes for the dependency page: each route read for an operation that cannot exist, to its end where that is near."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime

from actonce.contracts.contract import Route
from actonce.contracts.credential import NoLease
from actonce.contracts.errors import RouteUnavailable
from actonce.contracts.verdict import Page, Reading
from actonce.destinations.base import Destination, Lookup, RouteFn

NOBODY = "op1_" + "a" * 32  # derived from nothing: a digest of zero bits only
PROBE_DEADLINE_S = 3.0
PROBE_PAGES_MAX = 5  # somebody pays for each; a longer list is not said to be complete


def route_probes(destinations: Iterable[Destination]) -> dict[str, Callable[[], Awaitable[Reading]]]:
    """`destination.route` → a probe that reads it. They raise what the route raises.

    The status is `read` when it came to the end, `looping` when a cursor came back, `sampled` when there was more.
    """
    return {
        f"{destination.contract.name}.{route.name}": _probe(destination, route)
        for destination in destinations
        for route in destination.contract.routes
    }


def _probe(destination: Destination, route: Route) -> Callable[[], Awaitable[Reading]]:
    contract, read = destination.contract, destination.routes[route.name]

    async def probe() -> Reading:
        lease = await destination.lease(route.credential)
        if isinstance(lease, NoLease):
            raise RouteUnavailable(f"no lease to read it with: {lease.words}")
        started_at = datetime.now(UTC)
        lookup = Lookup(
            tenant="actonce-probe",
            destination=contract.name,
            action=min(contract.actions),
            operation_id=NOBODY,
            markers=(NOBODY,),
            digest="d1:probe",
            account=contract.account,
            object_id=None,
            since=started_at,
            not_after=started_at,
            deadline_s=PROBE_DEADLINE_S,
            secret=destination.secret_of(lease),
        )
        pages, status = await _pages(read, lookup)
        return _reading(route, pages, status, started_at)

    return probe


async def _pages(read: RouteFn, lookup: Lookup) -> tuple[list[Page], str]:
    pages: list[Page] = []
    cursors: set[str] = set()
    cursor: str | None = None
    while len(pages) < PROBE_PAGES_MAX:
        page = await read(lookup, cursor)
        pages.append(page)
        cursor = page.next_cursor
        if cursor is None:
            return pages, "read"
        if cursor in cursors:
            return pages, "looping"
        cursors.add(cursor)
    return pages, "sampled"


def _reading(route: Route, pages: list[Page], status: str, started_at: datetime) -> Reading:
    received = sum(page.rows_received for page in pages)
    totals = {page.declared_total for page in pages if page.declared_total is not None}
    agrees = totals == {received} if totals else not route.declares_total
    as_of = [page.as_of for page in pages if page.as_of is not None]
    return Reading(
        route=route.name,
        status=status,
        rows_received=received,
        declared_total=max(totals, default=None),
        pages=len(pages),
        complete=status == "read" and agrees,
        as_of=min(as_of, default=None),
        started_at=started_at,
        finished_at=datetime.now(UTC),
    )
