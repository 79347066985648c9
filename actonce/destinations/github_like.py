"""Issues at an API of GitHub's shape: no keys, and a marker in the body that anybody may quote.

The marker is the last line of the body, `<!-- actonce op=… digest=… -->`. It counts as our own field only in an issue
(no pull request, no comment) that our own account wrote. The digest is the embedded one, because titles and labels are
edited by others: a closed or renamed issue is still the one.

What follows from the contract. A marker found means `committed`. Nothing bounds a late arrival and the list declares no
total (the search's `total_count` is of its own index), so `absent` is never concluded: not found means held, and a
person decides. Nothing is ever sent again by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx

from actonce.contracts.contract import Answers, Contract, Route, Timing, Unbounded, WritePath
from actonce.contracts.errors import PayloadError, RouteUnavailable, Unknown
from actonce.contracts.payload import business_fields
from actonce.contracts.verdict import Page, Receipt, Row
from actonce.destinations.base import Call, Destination, Lookup
from actonce.destinations.http import Answer, accept, http_read, http_send

NAME, ACTION = "github_like", "open_issue"
MARKER = re.compile(r"<!-- actonce op=(?P<op>\S+) digest=(?P<digest>\S+) -->\s*$")
NEXT_PAGE = re.compile(r'<[^>]*[?&]page=(\d+)[^>]*>;\s*rel="next"')
SINCE_SLACK_S = 600.0  # the list is asked from before the intent: our clock and theirs differ


def github_like_contract(account: str, timing: Timing | None = None, **changes: Any) -> Contract:
    """Return the contract; `account` is owner and repository."""

    def route(name: str, kind: str, lag_s: float) -> Route:
        declared = {"name": name, "kind": kind, "network": f"{NAME}.{name}", "store": f"{NAME}.{name}-store"}
        return Route.model_validate(declared | {"credential": f"{account}/{name}", "lag_s": lag_s})

    declared: dict[str, Any] = {
        "name": NAME,
        "version": 1,
        "actions": frozenset({ACTION}),
        "account": account,
        "object_kind": "issue",
        "business_fields": ("title", "body"),
        "late_arrival": Unbounded(),
        "completion": "read_back",
        "write": WritePath(network=f"{NAME}.write", store=f"{NAME}.primary", credential=f"{account}/write"),
        "routes": (route("by_id", "by_id", 1.0), route("list", "list", 5.0), route("search", "search", 120.0)),
        "answers": Answers(
            applied=frozenset({201}),
            refused=frozenset({410, 422}),
            not_accepted=frozenset({401, 403, 404, 429}),  # lost scope looks like 404; rate limits like 403
        ),
        "timing": timing or Timing(),
    }
    return Contract.model_validate(declared | changes)


@dataclass(frozen=True)
class GithubLike:
    """The adapter. `urls` names the base of write, by_id, list and search; `bearer` is asked at every use."""

    contract: Contract
    urls: Mapping[str, str]
    bearer: Callable[[str], Mapping[str, str]]
    principal: str  # the login that our token writes as
    client: httpx.AsyncClient = field(repr=False)

    def destination(self) -> Destination:
        routes = {"by_id": self.by_id, "list": self.listing, "search": self.search}
        return Destination(self.contract, send=self.send, routes=routes)

    async def send(self, call: Call) -> Receipt:
        fields = business_fields(call.payload, self.contract.business_fields)
        if MARKER.search(str(fields["body"])):
            raise PayloadError(f"{call.operation_id}: the body already ends in a marker; nothing was sent")
        body = f"{fields['body']}\n\n<!-- actonce op={call.key} digest={call.digest} -->"
        answer = await http_send(
            self.client,
            call,
            self.contract,
            "POST",
            self._url("write", "issues"),
            json={"title": fields["title"], "body": body},
            headers=self.bearer("write"),
        )
        issue = accept(answer, self.contract, call, recognises=_own_words)
        found = MARKER.search(str(issue.get("body", "")))
        if found is None or (found["op"], found["digest"]) != (call.key, call.digest):
            raise Unknown(
                f"Outcome of {call.operation_id} is unknown: the answer shows an issue without our marker. "
                "Reconcile; do not resend."
            )
        return Receipt(
            object_id=str(issue["number"]), digest=call.digest, at=datetime.fromisoformat(issue["created_at"])
        )

    async def by_id(self, lookup: Lookup, cursor: str | None) -> Page:
        if lookup.object_id is None:
            raise RouteUnavailable(
                "by_id can only be asked for a number that an acknowledgement brought; there is none"
            )
        url = self._url("by_id", "issues", lookup.object_id)
        answer = await self._read("by_id", url, lookup, ok=frozenset({200, 404}))
        items = [answer.json] if answer.status == 200 else []
        return Page(rows=self._rows(items, lookup), rows_received=len(items))

    async def listing(self, lookup: Lookup, cursor: str | None) -> Page:
        """Oldest first, so that what is opened while we read comes at the end and moves nothing."""
        since = (lookup.since - timedelta(seconds=SINCE_SLACK_S)).isoformat()
        params = [("state", "all"), ("sort", "created"), ("direction", "asc"), ("per_page", "100"), ("since", since)]
        answer = await self._read("list", self._url("list", "issues"), lookup, [*params, ("page", cursor or "1")])
        following = NEXT_PAGE.search(answer.headers.get("link", ""))
        return Page(
            rows=self._rows(answer.json, lookup),
            rows_received=len(answer.json),
            next_cursor=following[1] if following else None,
        )

    async def search(self, lookup: Lookup, cursor: str | None) -> Page:
        items: list[Any] = []
        for marker in lookup.markers:
            answer = await self._read("search", self._url("search", "search"), lookup, [("q", f'"{marker}"')])
            if answer.json["incomplete_results"]:
                raise RouteUnavailable("the search says that its results are incomplete")
            items += answer.json["items"]
        return Page(rows=self._rows(items, lookup), rows_received=len(items))

    def _url(self, which: str, *parts: str) -> str:
        path = "/".join(quote(p, safe="") for p in ("v1", self.contract.account, *parts))
        return f"{self.urls[which]}/{path}"

    async def _read(
        self,
        which: str,
        url: str,
        lookup: Lookup,
        params: list[tuple[str, str]] | None = None,
        ok: frozenset[int] = frozenset({200}),
    ) -> Answer:
        headers = self.bearer(which)
        return await http_read(self.client, url, headers=headers, deadline_s=lookup.deadline_s, params=params, ok=ok)

    def _rows(self, items: list[Any], lookup: Lookup) -> tuple[Row, ...]:
        rows = [self._row(item, marker) for item in items for marker in lookup.markers if marker in str(item["body"])]
        return tuple(rows)

    def _row(self, item: Mapping[str, Any], marker: str) -> Row:
        """An issue whose body mentions a marker. Ours is only what ends in it, by our login, with a digest."""
        found = MARKER.search(str(item["body"]))
        by_us = item.get("user", {}).get("login") == self.principal
        ends_in_it = found is not None and found["op"] == marker
        return Row(
            object_id=str(item["number"]),
            kind="pull_request" if "pull_request" in item else "issue",
            account=self.contract.account,
            marker=marker,
            own_field=by_us and ends_in_it,
            by_us=by_us,
            digest=found["digest"] if found is not None and ends_in_it else None,
            state=item.get("state"),
            committed_at=datetime.fromisoformat(item["created_at"]),
        )


def _own_words(answer: Answer) -> bool:
    """A refusal of this API carries a message and a link to its documentation."""
    return isinstance(answer.json, dict) and "documentation_url" in answer.json
