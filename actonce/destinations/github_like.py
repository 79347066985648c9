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
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from actonce.contracts.contract import Answers, Contract, Timing, Unbounded, WritePath
from actonce.contracts.errors import PayloadError, RouteUnavailable, Unknown
from actonce.contracts.payload import business_fields
from actonce.contracts.verdict import Page, Receipt, Row
from actonce.destinations.base import Call, Destination, Lookup
from actonce.destinations.http import Answer, accept, http_send
from actonce.destinations.rest import FOUND_OR_NOT, RestApi, own_route

NAME, ACTION = "github_like", "open_issue"
MARKER = re.compile(r"<!-- actonce op=(?P<op>\S+) digest=(?P<digest>\S+) -->\s*$")
NEXT_PAGE = re.compile(r'<[^>]*[?&]page=(\d+)[^>]*>;\s*rel="next"')
SINCE_SLACK_S = 600.0  # the list is asked from before the intent: our clock and theirs differ


def github_like_contract(account: str, timing: Timing | None = None, **changes: Any) -> Contract:
    """Return the contract; `account` is owner and repository."""

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
        "routes": (
            own_route(NAME, account, "by_id", "by_id", 1.0),
            own_route(NAME, account, "list", "list", 5.0),
            own_route(NAME, account, "search", "search", 120.0),
        ),
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
    """The adapter. Its API needs the uses write, by_id, list and search."""

    contract: Contract
    api: RestApi
    principal: str  # the login that our token writes as

    def destination(self) -> Destination:
        routes = {"by_id": self.by_id, "list": self.listing, "search": self.search}
        return Destination(self.contract, send=self.send, routes=routes, lists_all=frozenset({"list"}))

    async def send(self, call: Call) -> Receipt:
        fields = business_fields(call.payload, self.contract.business_fields)
        if MARKER.search(str(fields["body"])):
            raise PayloadError(f"{call.operation_id}: the body already ends in a marker; nothing was sent")
        body = f"{fields['body']}\n\n<!-- actonce op={call.key} digest={call.digest} -->"
        answer = await http_send(
            self.api.client,
            call,
            self.contract,
            "POST",
            self.api.url("write", "issues"),
            json={"title": fields["title"], "body": body},
            headers=self.api.bearer("write"),
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
        answer = await self.api.read("by_id", lookup, "issues", lookup.object_id, ok=FOUND_OR_NOT)
        items = [answer.json] if answer.status == 200 else []
        return Page(rows=self._rows(items, lookup), rows_received=len(items))

    async def listing(self, lookup: Lookup, cursor: str | None) -> Page:
        """Oldest first, so that what is opened while we read comes at the end and moves nothing."""
        since = (lookup.since - timedelta(seconds=SINCE_SLACK_S)).isoformat()
        params = [("state", "all"), ("sort", "created"), ("direction", "asc"), ("per_page", "100"), ("since", since)]
        answer = await self.api.read("list", lookup, "issues", params=[*params, ("page", cursor or "1")])
        following = NEXT_PAGE.search(answer.headers.get("link", ""))
        return Page(
            rows=self._rows(answer.json, lookup),
            rows_received=len(answer.json),
            next_cursor=following[1] if following else None,
        )

    async def search(self, lookup: Lookup, cursor: str | None) -> Page:
        items: list[Any] = []
        for marker in lookup.markers:
            answer = await self.api.read("search", lookup, "search", params=[("q", f'"{marker}"')])
            if answer.json["incomplete_results"]:
                raise RouteUnavailable("the search says that its results are incomplete")
            items += answer.json["items"]
        return Page(rows=self._rows(items, lookup), rows_received=len(items))

    def _rows(self, items: list[Any], lookup: Lookup) -> tuple[Row, ...]:
        if lookup.everything:
            marked = [(item, MARKER.search(str(item["body"]))) for item in items]
            return tuple(self._row(item, found["op"]) for item, found in marked if found is not None)
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
