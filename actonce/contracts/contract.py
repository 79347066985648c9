"""What a destination promises, declared once and stamped on every operation.

A contract is data: how the destination treats keys, how long a request may still take effect, what its
answers mean, by which routes it can be read, and which evidence completes an operation. Validation refuses
what cannot be true (`ContractError`); it cannot check that a destination keeps its word, which
docs/concepts/guarantee.md lists as assumptions.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import rfc8785
from pydantic import BaseModel, ConfigDict, Field, model_validator

from actonce.contracts.approval import ApprovalRule
from actonce.contracts.credential import CredentialUse
from actonce.contracts.errors import ContractError
from actonce.contracts.identity import KeyFormat
from actonce.contracts.payload import business_fields, natural_key, payload_digest

_LATER = frozenset({"approvals", "principal", "credentials", "natural_keys", "reversals", "sandbox"})
# What a controlled stand-in must have of its own: that it is one, and as whom it is used.
_OF_A_STAND_IN = frozenset({"sandbox", "account", "principal"})


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KeyHonoured(_Frozen):
    """Late requests are answered by the key (see `Keys`). Earns a same-key resend, never `absent`."""

    kind: Literal["key_honoured"] = "key_honoured"


class CancelByKey(_Frozen):
    """The destination cancels a key atomically: afterwards it can never take effect. Earns `absent` at once."""

    kind: Literal["cancel_by_key"] = "cancel_by_key"


class DeadlineAtCommit(_Frozen):
    """The destination compares our deadline with its clock when it commits, and refuses what is late."""

    kind: Literal["deadline_at_commit"] = "deadline_at_commit"


class DeadlineOnArrival(_Frozen):
    """The destination compares our deadline with its clock when the request arrives; processing comes on top."""

    kind: Literal["deadline_on_arrival"] = "deadline_on_arrival"


class Bounded(_Frozen):
    """A request spends at most `transit_s` seconds on the way, and something named enforces that."""

    kind: Literal["bounded"] = "bounded"
    transit_s: float = Field(gt=0)
    enforced_by: str = Field(min_length=1)


class Unbounded(_Frozen):
    """Nothing bounds a late arrival: `absent` is never concluded, unknown outcomes are held."""

    kind: Literal["none"] = "none"


LateArrival = Annotated[
    KeyHonoured | CancelByKey | DeadlineAtCommit | DeadlineOnArrival | Bounded | Unbounded,
    Field(discriminator="kind"),
]


class Keys(_Frozen):
    """How the destination treats our idempotency key."""

    registered: Literal["arrival", "commit"]
    retention_s: float = Field(gt=0)
    margin_s: float = Field(gt=0)  # subtracted from the retention before we rely on it
    scope: str = "account"
    header: str = "Idempotency-Key"
    alphabet: str = string.ascii_lowercase + string.digits + "_/-"
    length_max: int = 255
    replays_stored_errors: bool = False

    @property
    def format(self) -> KeyFormat:
        return KeyFormat(self.alphabet, self.length_max)


class Route(_Frozen):
    """One way to read the destination, and what it shares with others."""

    name: str
    kind: Literal["by_id", "list", "search", "log"]
    network: str  # the path the bytes take
    store: str  # the serving store or index
    credential: str
    lag_s: float = Field(ge=0)  # how long after a commit it may still not show
    declares_total: bool = False
    claims_independence: bool = False  # checked at registration: a false claim is refused

    def shares_with(self, network: str, store: str, credential: str) -> list[str]:
        """Return the names of what this route shares with another path."""
        pairs = (
            ("network", self.network, network),
            ("store", self.store, store),
            ("credential", self.credential, credential),
        )
        return [name for name, mine, other in pairs if mine == other]


class WritePath(_Frozen):
    """What the write itself uses; a route that shares any of it is not independent of a lost answer."""

    network: str
    store: str
    credential: str


class Timing(_Frozen):
    """All in seconds from the moment before the permit is asked for."""

    connect_timeout_s: float = 2.0
    write_timeout_s: float = 2.0
    permit_lifetime_s: float = 10.0  # not_after = request of the permit + this
    send_deadline_s: float = 12.0  # the sender gives up waiting for the answer
    activity_timeout_s: float = 20.0
    reconcile_after_s: float = 25.0  # absent, holds and pages may begin
    heartbeat_timeout_s: float = 2.0
    read_deadline_s: float = 5.0  # one page of one route
    read_again_s: float = 1.0  # pause between two readings while it is too early
    page_grace_s: float = 10.0  # after the last finite bound, before a person is paged


class Answers(_Frozen):
    """What HTTP status codes mean. Everything not named here is unknown (5xx, 3xx, 408, 409, 202, ...)."""

    applied: frozenset[int] = frozenset({200, 201})
    refused: frozenset[int] = frozenset({400, 402, 403, 404, 422})
    not_accepted: frozenset[int] = frozenset({401, 429})
    duplicate: frozenset[int] = frozenset()  # "this exists already": reconciled and paged, never swallowed


class Contract(_Frozen):
    """The contract of one destination. `version` is stamped on every operation."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_.-]{0,62}$")
    version: int = Field(ge=1)
    actions: frozenset[str]
    account: str  # the acting account; part of the digest
    object_kind: str  # the type of object an effect is; others that carry our marker are no match
    business_fields: tuple[str, ...]  # of the payload; `name?` is optional
    natural_keys: dict[str, tuple[str, ...]] = {}  # action → business fields that are one effect across all tasks
    reversals: frozenset[str] = frozenset()  # actions that undo: each names the committed operation that it reverses
    late_arrival: LateArrival
    completion: Literal["receipt", "read_back", "handover"]
    write: WritePath
    routes: tuple[Route, ...] = ()
    credentials: tuple[CredentialUse, ...] = ()  # leased, by the labels of `write`, routes and journaled steps
    keys: Keys | None = None
    answers: Answers = Answers()
    timing: Timing = Timing()
    processing_bound_s: float = Field(default=5.0, ge=0)
    clock_skew_s: float = Field(default=1.0, ge=0)
    attempts_max: int = Field(default=3, ge=1, le=50)  # permits that may have been used
    unsent_max: int = Field(default=20, ge=1, le=200)  # permits that provably were not: an outage of minutes
    has_beacon: bool = False
    atomic_batch: bool = False  # one call that makes several objects is one operation only if this is true
    approvals: tuple[ApprovalRule, ...] = ()  # which actions people must approve first; the strictest rule counts
    principal: str | None = None  # as whom the destination sees us; None: as the account
    sandbox: bool = False  # a stand-in without effects in the world: it needs no authority, and drills may use it

    @model_validator(mode="after")
    def _true(self) -> Contract:
        check_contract(self)
        return self

    @cached_property
    def digest(self) -> str:
        """`c1:` + hex SHA-256 over the canonical form; a changed contract has another digest."""
        return f"c1:{hashlib.sha256(rfc8785.dumps(self._canonical())).hexdigest()}"

    @cached_property
    def promise_digest(self) -> str:
        """`s1:` + hex SHA-256 over what is promised: equal for a destination and a controlled stand-in of it.

        Left out is what the two cannot share: `sandbox`, and as whom each is used (`account`, `principal`). Of the
        labels of paths, stores and credentials only which of them are the same one counts, not what they are called.
        Everything else counts: times, bounds, keys, routes, answers, who must approve.
        """
        body = {k: v for k, v in self._canonical().items() if k not in _OF_A_STAND_IN}
        for label in ("network", "store", "credential"):
            seen: dict[str, int] = {}
            for path in (body["write"], *body["routes"]):
                path[label] = seen.setdefault(path[label], len(seen))
            if label == "credential":
                for use in body.get("credentials", ()):
                    use["name"] = seen.get(use["name"], use["name"])
        return f"s1:{hashlib.sha256(rfc8785.dumps(body)).hexdigest()}"

    def _canonical(self) -> dict[str, Any]:
        body = self.model_dump(mode="json")
        body["actions"], body["reversals"] = sorted(body["actions"]), sorted(body["reversals"])
        for name, codes in body["answers"].items():
            body["answers"][name] = sorted(codes)
        # Fields that came later and are not used leave the digest of a contract as it was.
        return {k: v for k, v in body.items() if v or k not in _LATER}

    def digest_of(self, action: str, fields: Mapping[str, Any], account: str | None = None) -> str:
        """The payload digest of business fields at this destination: of what is asked, or of what a route shows."""
        return payload_digest(
            tool=f"{self.name}.{action}",
            destination=self.name,
            action=action,
            account=self.account if account is None else account,
            fields=business_fields(fields, self.business_fields),
        )

    def natural_key_of(self, action: str, payload: Mapping[str, Any]) -> str | None:
        """The natural effect key of a payload; None where the contract declares none for this action.

        Readable where that is short enough to be looked up by, else its digest. Raises PayloadError.
        """
        names = self.natural_keys.get(action)
        return None if names is None else natural_key(business_fields(payload, names))

    def route(self, name: str) -> Route:
        for route in self.routes:
            if route.name == name:
                return route
        raise ContractError(f"{self.name} declares no route {name!r}; its routes are {[r.name for r in self.routes]}")

    def credential(self, label: str) -> CredentialUse | None:
        """The leased credential with this label; None when what carries the label uses none."""
        return next((use for use in self.credentials if use.name == label), None)

    @property
    def write_credential(self) -> CredentialUse | None:
        """The credential that a permit is checked against."""
        return self.credential(self.write.credential)

    @property
    def resends_same_key(self) -> bool:
        """Rule R3: keys are registered on arrival, so the same key may be sent again inside the retention."""
        return self.keys is not None and self.keys.registered == "arrival"

    def independent_groups(self) -> list[set[str]]:
        """Return groups of route names; routes in one group share something and count as one.

        Routes that share something with the write are in no group.
        """
        apart = [
            r for r in self.routes if not r.shares_with(self.write.network, self.write.store, self.write.credential)
        ]
        groups: list[list[Route]] = []
        for route in apart:
            joined = [g for g in groups if any(route.shares_with(o.network, o.store, o.credential) for o in g)]
            groups = [g for g in groups if g not in joined]
            groups.append([route, *(o for g in joined for o in g)])
        return [{r.name for r in g} for g in groups]


def check_contract(contract: Contract) -> None:
    """Refuse a contract that cannot be true. Raises ContractError with the fact and what to change."""
    where = f"contract {contract.name} v{contract.version}"
    t = contract.timing
    if (
        not max(t.connect_timeout_s, t.write_timeout_s)
        < t.permit_lifetime_s
        <= t.send_deadline_s
        < t.activity_timeout_s
        < t.reconcile_after_s
    ):
        raise ContractError(
            f"{where}: needs connect and write timeouts < permit_lifetime_s ≤ send_deadline_s < activity_timeout_s < "
            f"reconcile_after_s, got {t.connect_timeout_s}, {t.write_timeout_s} / {t.permit_lifetime_s} / "
            f"{t.send_deadline_s} / {t.activity_timeout_s} / {t.reconcile_after_s}"
        )
    if t.permit_lifetime_s + 2 * contract.clock_skew_s >= t.reconcile_after_s:
        raise ContractError(
            f"{where}: reconcile_after_s {t.reconcile_after_s} must be longer than a permit's life plus twice the "
            f"clock skew ({t.permit_lifetime_s} + 2 × {contract.clock_skew_s}): until then its owner may send"
        )
    if not contract.actions:
        raise ContractError(f"{where}: declares no action")
    codes = [code for group in contract.answers for code in group[1]]
    twice = sorted({code for code in codes if codes.count(code) > 1})
    if twice:
        raise ContractError(f"{where}: status {twice} means two things in `answers`; each code has one meaning")
    if not contract.business_fields:
        raise ContractError(f"{where}: declares no business field; a digest of nothing tells two payloads apart never")
    names = [r.name for r in contract.routes]
    if len(set(names)) != len(names):
        raise ContractError(f"{where}: two routes share a name in {names}")
    leased = [use.name for use in contract.credentials]
    if len(set(leased)) != len(leased):
        raise ContractError(f"{where}: a credential is declared twice in {leased}")
    _check_independence(contract, where)
    _check_actions(contract, where)
    kind = contract.late_arrival.kind
    if kind == "key_honoured" and contract.keys is None:
        raise ContractError(f"{where}: late_arrival key_honoured needs `keys`")
    if kind == "cancel_by_key" and contract.keys is None:
        raise ContractError(f"{where}: late_arrival cancel_by_key needs `keys`: a key is what is cancelled")
    if contract.keys is not None and contract.keys.margin_s >= contract.keys.retention_s:
        raise ContractError(f"{where}: keys.margin_s must be smaller than keys.retention_s")
    unknown = sorted({rule.action for rule in contract.approvals} - contract.actions)
    if unknown:
        raise ContractError(f"{where}: an approval is demanded for {unknown}, which are no actions of it")
    if contract.completion == "read_back" and not contract.routes:
        raise ContractError(f"{where}: completion read_back needs a route; use receipt or handover")


def _check_actions(contract: Contract, where: str) -> None:
    """What is demanded of an action must be one that can be kept."""
    unknown = sorted({*contract.natural_keys, *contract.reversals} - contract.actions)
    if unknown:
        raise ContractError(
            f"{where}: natural_keys or reversals name {unknown}; actions are {sorted(contract.actions)}"
        )
    for action, names in contract.natural_keys.items():
        other = [name for name in names if name not in contract.business_fields]
        if other or not names:
            raise ContractError(
                f"{where}: the natural key of {action} needs business fields that every payload has, got "
                f"{other or 'none'}; declare them without `?` among {list(contract.business_fields)}"
            )


def _check_independence(contract: Contract, where: str) -> None:
    claimed = [r for r in contract.routes if r.claims_independence]
    w = contract.write
    for route in claimed:
        shared = route.shares_with(w.network, w.store, w.credential)
        if shared:
            raise ContractError(f"{where}: route {route.name} claims independence but shares {shared} with the write")
    for i, route in enumerate(claimed):
        for other in claimed[i + 1 :]:
            shared = route.shares_with(other.network, other.store, other.credential)
            if shared:
                raise ContractError(
                    f"{where}: routes {route.name} and {other.name} claim independence but share {shared}; "
                    "declare them as sharing (claims_independence=False), they then count as one"
                )
