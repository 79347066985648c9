"""Refunds at an API of Stripe's shape: keys registered on arrival and kept 24 h, metadata that only we write.

What follows from the contract. An unknown outcome is read on the list, the search and the events, where our metadata
names the operation; the lookup by id can be asked only when an acknowledgement brought the id. Nothing bounds a late
arrival and no list declares a total, so `absent` is never concluded. Instead the same key is sent again inside its
retention (minus a margin): the answer to that is the evidence. After the retention the operation is held.

Requests are JSON here; the real API takes form-encoded bodies, which changes `send` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from actonce.contracts.contract import Answers, Contract, KeyHonoured, Keys, Timing, WritePath
from actonce.contracts.errors import PayloadError, RouteUnavailable, Unknown
from actonce.contracts.payload import business_fields, payload_digest
from actonce.contracts.verdict import Page, Receipt, Row
from actonce.destinations.base import Call, Destination, Lookup
from actonce.destinations.http import Answer, accept, http_send
from actonce.destinations.rest import FOUND_OR_NOT, RestApi, own_route

NAME, ACTION = "stripe_like", "refund"
UNDECIDED = frozenset({"request_in_progress", "idempotency_key_in_use", "idempotency_key_reused"})


def stripe_like_contract(account: str, timing: Timing | None = None, **changes: Any) -> Contract:
    """Return the contract; `changes` override fields (a shorter retention in a drill, another lag)."""

    declared: dict[str, Any] = {
        "name": NAME,
        "version": 1,
        "actions": frozenset({ACTION}),
        "account": account,
        "object_kind": "refund",
        "business_fields": ("charge", "amount", "reason?"),
        "late_arrival": KeyHonoured(),
        "keys": Keys(registered="arrival", retention_s=86_400.0, margin_s=3_600.0, replays_stored_errors=True),
        "completion": "receipt",
        "write": WritePath(network=f"{NAME}.write", store=f"{NAME}.primary", credential=f"{account}/write"),
        "routes": (
            own_route(NAME, account, "by_id", "by_id", 2.0),
            own_route(NAME, account, "list", "list", 2.0),
            own_route(NAME, account, "search", "search", 60.0),
            own_route(NAME, account, "events", "log", 10.0),
        ),
        "answers": Answers(
            applied=frozenset({200, 201}), refused=frozenset({400, 402, 404}), not_accepted=frozenset({401, 403, 429})
        ),
        "timing": timing or Timing(),
    }
    return Contract.model_validate(declared | changes)


@dataclass(frozen=True)
class StripeLike:
    """The adapter. Its API needs the uses write, by_id, list, search and events."""

    contract: Contract
    api: RestApi
    principal: str

    def destination(self) -> Destination:
        routes = {"by_id": self.by_id, "list": self.listing, "search": self.search, "events": self.events}
        listing = frozenset({"list", "events"})
        return Destination(self.contract, send=self.send, routes=routes, lists_all=listing)

    async def send(self, call: Call) -> Receipt:
        fields = business_fields(call.payload, self.contract.business_fields)
        metadata = {"operation_id": call.operation_id, "key": call.key, "digest": call.digest}
        answer = await http_send(
            self.api.client,
            call,
            self.contract,
            "POST",
            self.api.url("write", "refunds"),
            json={**fields, "metadata": metadata},
            headers=self.api.bearer("write"),
        )
        body = accept(answer, self.contract, call, unknown_codes=UNDECIDED)
        if self._digest(body) != call.digest or not isinstance(body.get("id"), str):
            raise Unknown(
                f"Outcome of {call.operation_id} is unknown: the answer shows another refund ({body.get('id')}). "
                "Reconcile; do not resend."
            )
        at = datetime.fromtimestamp(body["created"], UTC)
        return Receipt(object_id=body["id"], digest=call.digest, at=at, detail={"replayed": answer.replayed})

    async def by_id(self, lookup: Lookup, cursor: str | None) -> Page:
        if lookup.object_id is None:
            raise RouteUnavailable("by_id can only be asked for an id that an acknowledgement brought; there is none")
        answer = await self.api.read("by_id", lookup, "refunds", lookup.object_id, ok=FOUND_OR_NOT)
        items = [answer.json] if answer.status == 200 else []
        return Page(rows=self._rows(items, lookup), rows_received=len(items))

    async def listing(self, lookup: Lookup, cursor: str | None) -> Page:
        answer = await self.api.read("list", lookup, "refunds", params=_after(cursor))
        return self._page(answer, answer.json["data"], lookup)

    async def search(self, lookup: Lookup, cursor: str | None) -> Page:
        items: list[Any] = []
        for marker in lookup.markers:
            query = [("query", f'metadata["key"]:"{marker}"')]
            items += (await self.api.read("search", lookup, "refunds", "search", params=query)).json["data"]
        return Page(rows=self._rows(items, lookup), rows_received=len(items))

    async def events(self, lookup: Lookup, cursor: str | None) -> Page:
        answer = await self.api.read("events", lookup, "events", params=_after(cursor))
        items = [e["data"]["object"] for e in answer.json["data"] if e["type"] == "refund.created"]
        return self._page(answer, items, lookup)

    def _page(self, answer: Answer, items: list[Any], lookup: Lookup) -> Page:
        received = answer.json["data"]
        following = received[-1]["id"] if answer.json["has_more"] and received else None
        return Page(rows=self._rows(items, lookup), rows_received=len(received), next_cursor=following)

    def _rows(self, items: list[Any], lookup: Lookup) -> tuple[Row, ...]:
        ours = [(item, self._marker(item)) for item in items]
        return tuple(self._row(item) for item, m in ours if m in lookup.markers or (m and lookup.everything))

    def _marker(self, item: Mapping[str, Any]) -> str | None:
        value = (item.get("metadata") or {}).get("key")
        return value if isinstance(value, str) else None

    def _row(self, item: Mapping[str, Any]) -> Row:
        return Row(
            object_id=str(item["id"]),
            kind=str(item["object"]),
            account=self.contract.account,
            marker=str(self._marker(item)),
            own_field=True,
            by_us=item.get("created_by") == self.principal,
            digest=self._digest(item),
            state=item.get("status"),
            committed_at=datetime.fromtimestamp(item["created"], UTC),
        )

    def _digest(self, item: Mapping[str, Any]) -> str | None:
        """Recomputed from what the API holds."""
        try:
            return payload_digest(
                tool=f"{NAME}.{ACTION}",
                destination=NAME,
                action=ACTION,
                account=self.contract.account,
                fields=business_fields(item, self.contract.business_fields),
            )
        except PayloadError:
            return None


def _after(cursor: str | None) -> list[tuple[str, str]]:
    return [("limit", "100"), *([("starting_after", cursor)] if cursor else [])]
