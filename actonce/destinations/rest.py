"""What adapters for HTTP APIs share: addresses by route, credentials asked at every use, one way to read a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx

from actonce.contracts.contract import Route
from actonce.destinations.base import Lookup
from actonce.destinations.http import Answer, http_read

OK = frozenset({200})
FOUND_OR_NOT = frozenset({200, 404})  # of a lookup by id, where 404 is an answer


@dataclass(frozen=True)
class RestApi:
    """One account at one API. `urls` names a base for each use (write, list, …): each may be another network path."""

    account: str
    urls: Mapping[str, str]
    bearer: Callable[[str], Mapping[str, str]]  # headers for a use; asked every time, kept nowhere
    client: httpx.AsyncClient = field(repr=False)

    def url(self, use: str, *parts: str) -> str:
        """Return the URL of a path below `/v1/{account}`; a part may contain a slash."""
        path = "/".join(quote(part, safe="") for part in ("v1", self.account, *parts))
        return f"{self.urls[use]}/{path}"

    async def read(
        self,
        use: str,
        lookup: Lookup,
        *parts: str,
        params: Sequence[tuple[str, str]] | None = None,
        ok: frozenset[int] = OK,
    ) -> Answer:
        """Fetch one page within the lookup's deadline. Raises RouteUnavailable."""
        return await http_read(
            self.client,
            self.url(use, *parts),
            headers=self.bearer(use),
            deadline_s=lookup.deadline_s,
            params=params,
            ok=ok,
        )


def own_route(api: str, account: str, name: str, kind: str, lag_s: float) -> Route:
    """A route with a network path, a store and a credential of its own."""
    return Route.model_validate(
        {
            "name": name,
            "kind": kind,
            "network": f"{api}.{name}",
            "store": f"{api}.{name}-store",
            "credential": f"{account}/{name}",
            "lag_s": lag_s,
        }
    )
