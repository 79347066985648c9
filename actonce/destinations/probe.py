"""Probes for the dependency page: one page of each route, looked up for an operation that cannot exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime

from actonce.contracts.contract import Contract
from actonce.destinations.base import Destination, Lookup, RouteFn

NOBODY = "op1_" + "a" * 32  # derived from nothing: a digest of zero bits only
PROBE_DEADLINE_S = 3.0


def route_probes(destinations: Iterable[Destination]) -> dict[str, Callable[[], Awaitable[str]]]:
    """`destination.route` → a probe that reads one page. They raise what the route raises."""
    return {
        f"{destination.contract.name}.{name}": _probe(destination.contract, read)
        for destination in destinations
        for name, read in destination.routes.items()
    }


def _probe(contract: Contract, read: RouteFn) -> Callable[[], Awaitable[str]]:
    async def probe() -> str:
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
        )
        page = await read(lookup, None)
        total = "" if page.declared_total is None else f" of {page.declared_total} declared"
        return f"{page.rows_received} rows on its first page{total}"

    return probe
