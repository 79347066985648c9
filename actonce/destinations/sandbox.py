"""The sandbox destinations (payments, reversals, tickets, mail): full contracts and adapters.

The addresses come from a JSON file (`load_sandbox`), one listener per network path, so that a proxy can stand in
front of each. Every route has its own path, store and credential. Nothing here is a default for production use; it
is the worked example of a contract for every kind of late arrival.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, ConfigDict

from actonce.contracts.contract import (
    Answers,
    Bounded,
    CancelByKey,
    Contract,
    DeadlineAtCommit,
    DeadlineOnArrival,
    KeyHonoured,
    Keys,
    LateArrival,
    Route,
    Timing,
    Unbounded,
    WritePath,
)
from actonce.contracts.credential import NoLease
from actonce.contracts.errors import ContractError, PayloadError, RouteUnavailable, Unknown
from actonce.contracts.payload import business_fields, payload_digest
from actonce.contracts.verdict import Page, Receipt, Row
from actonce.destinations.base import Call, Credentials, Destination, Lookup, RouteFn, Secret
from actonce.destinations.http import accept, http_client, http_read, http_send
from actonce.destinations.smtp import SmtpSettings, mail_contract, mail_destination

LateArrivalKind = Literal[
    "key_on_arrival",
    "key_at_commit",
    "cancel_by_key",
    "deadline_at_commit",
    "deadline_on_arrival",
    "bounded",
    "none",
]
ROUTE_NAMES: tuple[Literal["by_id", "list", "search", "log"], ...] = ("by_id", "list", "search", "log")
TRANSIT_S = 1.5  # the ingress allows 1.0 s from accept to the last byte; the rest is for a late accept
ENFORCER = "the sandbox's ingress: it drops a request that is not complete 1.0 s after its connection was accepted"

# Short, so that drills are quick, yet each has room for a slow two-core machine. Units are seconds.
DRILL_TIMING: dict[str, float] = {
    "connect_timeout_s": 1.5,
    "write_timeout_s": 1.5,
    "permit_lifetime_s": 3.0,
    "send_deadline_s": 3.0,
    "activity_timeout_s": 5.0,
    "reconcile_after_s": 6.0,
    "read_deadline_s": 1.5,
    "read_again_s": 0.5,
    "page_grace_s": 3.0,
}
# Decide nothing although 4xx: a request under this key is in progress, or the key was used with another payload.
UNDECIDED = frozenset({"request_in_progress", "idempotency_key_reused", "key_cancelled"})


class SandboxSettings(BaseModel):
    """The JSON file that ACTONCE_WORLD names."""

    model_config = ConfigDict(extra="ignore")  # the world's own file has more in it
    listeners: dict[str, str]
    account: str = "main"  # the world needs not be told of an account beforehand
    late_arrival: LateArrivalKind = "bounded"  # of payments
    destinations: tuple[str, ...] = ("payments", "reversals", "tickets", "mail")
    completion: Literal["receipt", "read_back"] = "read_back"
    natural_key: bool = False  # payments: one refund per payment and reason, as the destination's mode of that name
    timing: dict[str, float] = {}
    contracts: dict[str, dict[str, Any]] = {}  # destination → contract fields to override
    key_retention_s: float = 86_400.0
    key_margin_s: float = 10.0
    lag_s: float = 0.5
    processing_bound_s: float = 0.5
    clock_skew_s: float = 0.1
    keep_alive: bool = False  # a fresh connection per request makes every fault hit exactly one request

    def url(self, listener: str) -> str:
        try:
            return self.listeners[listener]
        except KeyError:
            raise ContractError(
                f"the world file names no listener {listener!r}, only {sorted(self.listeners)}"
            ) from None

    def path(self, listener: str, *parts: str) -> str:
        """Return the URL of a path under this account; a part may contain a slash."""
        tail = "/".join(quote(part, safe="") for part in ("v1", self.account, *parts))
        return f"{self.url(listener)}/{tail}"

    def bearer(self, purpose: str) -> dict[str, str]:
        """The sandbox's credentials are derivable and worth nothing."""
        return {"Authorization": f"Bearer tok-{self.account}-{purpose}"}


def late_arrival(kind: LateArrivalKind, settings: SandboxSettings) -> tuple[LateArrival, Keys | None]:
    """Return what the contract declares for each kind, and how keys are treated."""
    retention, margin = settings.key_retention_s, settings.key_margin_s
    on_commit = Keys(registered="commit", retention_s=retention, margin_s=margin)
    match kind:
        case "key_on_arrival":
            return KeyHonoured(), Keys(registered="arrival", retention_s=retention, margin_s=margin)
        case "key_at_commit":
            return KeyHonoured(), on_commit
        case "cancel_by_key":
            return CancelByKey(), on_commit
        case "deadline_at_commit":
            return DeadlineAtCommit(), None
        case "deadline_on_arrival":
            return DeadlineOnArrival(), None
        case "bounded":
            return Bounded(transit_s=TRANSIT_S, enforced_by=ENFORCER), None
        case "none":
            return Unbounded(), None


class _Shape(BaseModel):
    """What differs between the sandbox's HTTP destinations."""

    name: str
    action: str
    server: str  # whose listeners it uses
    collection: str
    kind: str
    fields: tuple[str, ...]
    natural: tuple[str, ...] = ()
    undoes: bool = False


PAYMENTS = _Shape(
    name="payments",
    action="refund",
    server="payments",
    collection="refunds",
    kind="refund",
    fields=("payment_id", "amount_minor", "currency", "reason"),
    natural=("payment_id", "reason"),
)
REVERSALS = _Shape(
    name="reversals",
    action="reverse",
    server="payments",
    collection="refunds",
    kind="reversal",
    fields=("reverses", "reason"),
    undoes=True,
)
TICKETS = _Shape(
    name="tickets",
    action="open",
    server="tickets",
    collection="tickets",
    kind="ticket",
    fields=("subject", "body", "reference", "priority?"),
)


def sandbox_contract(shape: _Shape, kind: LateArrivalKind, settings: SandboxSettings) -> Contract:
    """Build the contract of one sandbox destination."""
    late, keys = late_arrival(kind, settings)
    answers = Answers(
        applied=frozenset({200, 201}),
        refused=frozenset({400, 402, 403, 404, 422}),
        not_accepted=frozenset({401, 412, 429}),  # 412: refused by its deadline, nothing was done
        duplicate=frozenset({409}),
    )
    routes = tuple(
        Route(
            name=name,
            kind=name,
            network=f"{shape.server}.{name}",
            store=f"{shape.server}.{name}-store",
            credential=f"{settings.account}/{name}",
            lag_s=settings.lag_s,
            declares_total=name == "list",
            claims_independence=True,
        )
        for name in ROUTE_NAMES
    )
    declared: dict[str, Any] = {
        "name": shape.name,
        "version": 2,
        "actions": frozenset({shape.action}),
        "account": settings.account,
        "object_kind": shape.kind,
        "business_fields": shape.fields,
        "natural_keys": {shape.action: shape.natural} if settings.natural_key and shape.natural else {},
        "reversals": frozenset({shape.action}) if shape.undoes else frozenset(),
        "late_arrival": late,
        "keys": keys,
        "completion": settings.completion,
        "write": WritePath(
            network=f"{shape.server}.write", store=f"{shape.server}.truth", credential=f"{settings.account}/write"
        ),
        "routes": routes,
        "answers": answers,
        "timing": Timing.model_validate(DRILL_TIMING | settings.timing),
        "processing_bound_s": settings.processing_bound_s,
        "clock_skew_s": settings.clock_skew_s,
        "has_beacon": True,
        "sandbox": True,
    }
    return Contract.model_validate(declared | settings.contracts.get(shape.name, {}))


class SandboxAdapter:
    """Sends and reads for one HTTP destination of the sandbox. `client` is shared, and closed by who made it."""

    def __init__(
        self,
        shape: _Shape,
        contract: Contract,
        settings: SandboxSettings,
        client: httpx.AsyncClient,
        credentials: Credentials | None = None,
    ) -> None:
        self._shape = shape
        self._credentials = credentials
        self._contract = contract
        self._settings = settings
        self._client = client

    def destination(self) -> Destination:
        routes: dict[str, RouteFn] = {
            "by_id": self.by_id,
            "list": self.listing,
            "search": self.search,
            "log": self.log,
        }
        names = {r.name for r in self._contract.routes}
        return Destination(
            self._contract,
            send=self.send,
            routes={name: fn for name, fn in routes.items() if name in names},
            beacon=self.beacon if self._contract.has_beacon else None,
            cancel_key=self.cancel_key if self._contract.late_arrival.kind == "cancel_by_key" else None,
            probe=self.probe,
            credentials=self._credentials,
            lists_all=frozenset({"list", "log"} & names),
        )

    def _bearer(self, purpose: str, secret: Secret) -> dict[str, str]:
        """The header of one request: a lease's secret where the contract names one, else the derivable one."""
        if self._contract.credential(f"{self._settings.account}/{purpose}") is None:
            return self._settings.bearer(purpose)
        return {"Authorization": f"Bearer {secret()}"}

    async def _leased(self, purpose: str) -> dict[str, str]:
        """The same for a journaled step, which is handed no lease."""
        use = self._contract.credential(f"{self._settings.account}/{purpose}")
        if use is None or self._credentials is None:
            return self._settings.bearer(purpose)
        lease = await self._credentials.lease(use.name, use.min_left_s)
        if isinstance(lease, NoLease):
            raise RouteUnavailable(f"no lease for this {purpose}: {lease.words}")
        return {"Authorization": f"Bearer {self._credentials.secret_of(lease)}"}

    async def send(self, call: Call) -> Receipt:
        """One POST. The marker, the key and the digest travel in `metadata`, which only we can write."""
        fields = business_fields(call.payload, self._contract.business_fields)
        metadata = {"operation_id": call.operation_id, "key": call.key, "digest": call.digest}
        answer = await http_send(
            self._client,
            call,
            self._contract,
            "POST",
            self._write_url(fields),
            json={**fields, "metadata": metadata},
            headers=self._bearer("write", call.secret),
        )
        body = accept(answer, self._contract, call, unknown_codes=UNDECIDED)
        marked = body.get("metadata")
        if not isinstance(marked, dict) or marked.get("key") != call.key or self._digest(body) != call.digest:
            raise Unknown(
                f"Outcome of {call.operation_id} is unknown: the answer shows an object that is not what was asked "
                f"for ({body.get('id')}). Reconcile; do not resend."
            )
        return Receipt(
            object_id=str(body["id"]),
            digest=call.digest,
            at=_moment(body.get("created_at")),
            detail={"status": answer.status, "replayed": answer.replayed},
        )

    def _write_url(self, fields: Mapping[str, Any]) -> str:
        listener, collection = f"{self._shape.server}.write", self._shape.collection
        if self._shape.action == "reverse":
            return self._settings.path(listener, collection, str(fields["reverses"]), "reverse")
        return self._settings.path(listener, collection)

    # routes -----------------------------------------------------------------------------------------------------

    async def by_id(self, lookup: Lookup, cursor: str | None) -> Page:
        """One marker per page: the cursor counts through `lookup.markers`."""
        index = int(cursor or 0)
        if index >= len(lookup.markers):
            return Page()
        url = self._read_url("by_id", self._shape.collection, "by-key", lookup.markers[index])
        answer = await self._read("by_id", url, lookup, ok=frozenset({200, 404}))
        rows = answer.get("data", [])
        following = str(index + 1) if index + 1 < len(lookup.markers) else None
        return Page(rows=self._rows(rows, lookup), rows_received=len(rows), next_cursor=following)

    async def listing(self, lookup: Lookup, cursor: str | None) -> Page:
        params = [("cursor", cursor)] if cursor else []
        answer = await self._read("list", self._read_url("list", self._shape.collection), lookup, params)
        rows = answer.get("data", [])
        return Page(
            rows=self._rows(rows, lookup),
            rows_received=len(rows),
            declared_total=answer.get("total"),
            next_cursor=answer.get("next") if answer.get("has_more") else None,
        )

    async def search(self, lookup: Lookup, cursor: str | None) -> Page:
        params = [("marker", marker) for marker in lookup.markers]
        answer = await self._read("search", self._read_url("search", "search"), lookup, params)
        rows = answer.get("data", [])
        return Page(rows=self._rows(rows, lookup), rows_received=len(rows))

    async def log(self, lookup: Lookup, cursor: str | None) -> Page:
        params = [("cursor", cursor)] if cursor else []
        answer = await self._read("log", self._read_url("log", "log"), lookup, params)
        entries = answer.get("entries", [])
        rows = [e["object"] for e in entries if str(e.get("type", "")).endswith(".created")]
        return Page(
            rows=self._rows(rows, lookup),
            rows_received=len(entries),
            next_cursor=answer.get("next"),
            as_of=_moment(answer.get("as_of")),
        )

    def _read_url(self, route: str, *parts: str) -> str:
        return self._settings.path(f"{self._shape.server}.{route}", *parts)

    async def _read(
        self,
        route: str,
        url: str,
        lookup: Lookup,
        params: list[tuple[str, str]] | None = None,
        ok: frozenset[int] = frozenset({200}),
    ) -> dict[str, Any]:
        headers = self._bearer(route, lookup.secret)
        answer = await http_read(
            self._client, url, headers=headers, deadline_s=lookup.deadline_s, params=params or None, ok=ok
        )
        body: dict[str, Any] = answer.json
        return body

    # beacon, probe, cancel --------------------------------------------------------------------------------------

    async def beacon(self, beacon_id: str, deadline_s: float) -> datetime:
        answer = await http_read(
            self._client,
            self._settings.path(f"{self._shape.server}.beacon", "beacons"),
            method="POST",
            json={"beacon_id": beacon_id},
            headers=await self._leased("beacon"),
            deadline_s=deadline_s,
            ok=frozenset({200, 201}),
        )
        return datetime.fromisoformat(answer.json["committed_at"])

    async def cancel_key(self, key: str, deadline_s: float) -> str | None:
        answer = await http_read(
            self._client,
            self._settings.path(f"{self._shape.server}.cancel", "keys", key, "cancel"),
            method="POST",
            json={},
            headers=await self._leased("cancel"),
            deadline_s=deadline_s,
        )
        return None if answer.json.get("cancelled") is True else str(answer.json["object_id"])

    async def probe(self, object_id: str, deadline_s: float) -> bool:
        """Post a harmless note, which only succeeds on an object that exists."""
        answer = await http_read(
            self._client,
            self._settings.path(f"{self._shape.server}.probe", self._shape.collection, object_id, "notes"),
            method="POST",
            json={"text": "reference probe"},
            headers=await self._leased("probe"),
            deadline_s=deadline_s,
            ok=frozenset({201, 404}),
        )
        return answer.status == 201

    # rows -------------------------------------------------------------------------------------------------------

    def _rows(self, objects: list[Any], lookup: Lookup) -> tuple[Row, ...]:
        rows = [self._row(item, lookup) for item in objects if isinstance(item, dict)]
        return tuple(row for row in rows if row is not None)

    def _row(self, item: dict[str, Any], lookup: Lookup) -> Row | None:
        """Return the row if it carries a marker of ours, in whatever place."""
        found = _marker(item, lookup)
        if found is None:
            return None
        marker, own_field = found
        return Row(
            object_id=str(item.get("id")),
            kind=str(item.get("object")),
            account=str(item.get("account")),
            marker=marker,
            own_field=own_field,
            by_us=item.get("author") == f"prn-{self._settings.account}",
            digest=self._digest(item) if item.get("object") == self._shape.kind else None,
            state=item.get("state"),
            committed_at=_moment(item.get("created_at")),
        )

    def _digest(self, item: Mapping[str, Any]) -> str | None:
        """Recompute the digest from what the destination holds, not from what we once told it."""
        try:
            fields = business_fields(item, self._contract.business_fields)
            return payload_digest(
                tool=f"{self._shape.name}.{self._shape.action}",
                destination=self._shape.name,
                action=self._shape.action,
                account=str(item.get("account")),
                fields=fields,
            )
        except PayloadError:
            return None


def _marker(item: Mapping[str, Any], lookup: Lookup) -> tuple[str, bool] | None:
    """Return (marker, whether it is in the field that only we can write)."""
    metadata = item.get("metadata")
    own: Mapping[str, Any] = metadata if isinstance(metadata, dict) else {}
    for name in ("key", "beacon_id", "operation_id"):
        value = own.get(name)
        if lookup.everything and isinstance(value, str) and value:
            return value, True
        if value in lookup.markers or (name == "operation_id" and value == lookup.operation_id):
            return str(value), True
    for name, value in item.items():
        for marker in lookup.markers:  # none where everything is asked for: words that anybody writes are no effect
            if name != "metadata" and isinstance(value, str) and marker in value:
                return marker, False
    return None


def _moment(raw: Any) -> datetime | None:
    return datetime.fromisoformat(raw) if isinstance(raw, str) else None


def build_sandbox(
    settings: SandboxSettings, client: httpx.AsyncClient | None = None, credentials: Credentials | None = None
) -> list[Destination]:
    """Build the destinations that the settings name. `credentials`: for contracts that declare leased ones."""
    client = client or http_client(keep_alive=settings.keep_alive)
    built: list[Destination] = []
    for shape in (PAYMENTS, REVERSALS, TICKETS):
        if shape.name in settings.destinations:
            # Tickets ignore keys: what bounds a late request there is the ingress.
            kind: LateArrivalKind = "bounded" if shape is TICKETS else settings.late_arrival
            contract = sandbox_contract(shape, kind, settings)
            built.append(SandboxAdapter(shape, contract, settings, client, credentials).destination())
    if "mail" in settings.destinations:
        built.append(_mail(settings))
    return built


def _mail(settings: SandboxSettings) -> Destination:
    parts = urlsplit(settings.url("mail"))
    if parts.scheme != "smtp" or parts.hostname is None or parts.port is None:
        raise ContractError(f"listener mail must be smtp://host:port, got {settings.url('mail')!r}")
    timing = Timing.model_validate(DRILL_TIMING | settings.timing)
    changes = {"version": 2, "sandbox": True} | settings.contracts.get("mail", {})
    contract = mail_contract("mail", settings.account, timing, **changes)
    smtp = SmtpSettings(parts.hostname, parts.port, sender=f"{settings.account}@sandbox.invalid")
    return mail_destination(contract, smtp)


def load_sandbox(path: Path | str, credentials: Credentials | None = None) -> list[Destination]:
    """Build the destinations from the JSON file that ACTONCE_WORLD names. Raises ContractError."""
    settings = SandboxSettings.model_validate(json.loads(Path(path).read_text(encoding="utf-8")))
    return build_sandbox(settings, credentials=credentials)
