"""Probes for the dependency page: one page of each route, looked up for an operation that cannot exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime

from actonce.contracts.contract import Route
from actonce.contracts.credential import NoLease
from actonce.contracts.errors import RouteUnavailable
from actonce.destinations.base import Destination, Lookup

NOBODY = "op1_" + "a" * 32  # derived from nothing: a digest of zero bits only
PROBE_DEADLINE_S = 3.0


def route_probes(destinations: Iterable[Destination]) -> dict[str, Callable[[], Awaitable[str]]]:
    """`destination.route` → a probe that reads one page. They raise what the route raises."""
    return {
        f"{destination.contract.name}.{route.name}": _probe(destination, route)
        for destination in destinations
        for route in destination.contract.routes
    }


def _probe(destination: Destination, route: Route) -> Callable[[], Awaitable[str]]:
    contract, read = destination.contract, destination.routes[route.name]

    async def probe() -> str:
        lease = await destination.lease(route.credential)
        if isinstance(lease, NoLease):
            raise RouteUnavailable(f"no lease to read it with: {lease.words}")
        now = datetime.now(UTC)
        lookup = Lookup(
            tenant="actonce-probe",
            destination=contract.name,
            action=min(contract.actions),
            operation_id=NOBODY,
            markers=(NOBODY,),
            digest="d1:probe",
            account=contract.account,
            object_id=None,
            since=now,
            not_after=now,
            deadline_s=PROBE_DEADLINE_S,
            secret=destination.secret_of(lease),
        )
        page = await read(lookup, None)
        total = "" if page.declared_total is None else f" of {page.declared_total} declared"
        return f"{page.rows_received} rows on its first page{total}"

    return probe
