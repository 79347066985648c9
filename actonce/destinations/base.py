"""How a destination is registered: a contract, a function that sends once, and one function per route.

    payments = Destination(contract, send=send_refund, routes={"by_id": read_by_id, "list": read_list})
    registry = Registry([payments])

A contract that declares `credentials` gets their leases at the moment of use: `call.secret()` in a send function,
`lookup.secret()` in a route function.

`send(call)` performs exactly one wire request, inside `async with call.window():`, which is the fence, and
returns a `Receipt` only when the contract says the answer means applied. It raises `NotSent`, `NotAccepted` or
`Refused` for what it can prove; every other exception means unknown. It never retries and follows no redirect.
`actonce.destinations.http` does all of this for HTTP destinations.

A route function `read(lookup, cursor) -> Page` returns one page; the library reads to the end, detects loops and
compares totals. `by_id` and `search` routes are asked once for every marker in `lookup.markers`.

After a restore the library asks for everything of ours (`lookup.everything`): routes that a destination names
in `lists_all` answer that with every object that carries a key or beacon id of ours in our own field,
since `lookup.since`.

Beacon, probe and cancel functions have effects of their own (harmless ones); they run in separate, journaled
activities.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Never, Protocol

from actonce.contracts import clocks
from actonce.contracts.contract import Contract
from actonce.contracts.credential import Lease, NoLease
from actonce.contracts.errors import (
    ActonceError,
    ContractError,
    CredentialError,
    NotRegistered,
    NotSent,
    RouteUnavailable,
)
from actonce.contracts.verdict import Page, Reason, Receipt


class Credentials(Protocol):
    """Leases of this process, resolved at the moment of use (`actonce.credentials.Broker`)."""

    async def lease(self, credential: str, min_left_s: float = 0.0, instead_of: Lease | None = None) -> Lease | NoLease:
        """A lease, or why there is none. `instead_of`: that one was found stale."""
        ...

    def secret_of(self, lease: Lease) -> str:
        """Raises CredentialError when the lease is over."""
        ...

    def accepted(self, lease: Lease) -> None:
        """A destination took it."""
        ...

    async def refused(self, lease: Lease, why: str) -> None:
        """A destination answered 401 to it."""
        ...


class Secret:
    """Gives a lease's secret when it is called, and takes it out of a text that is going to be kept.

    Raises CredentialError when the lease is over by then, or when the contract leases nothing here.
    """

    def __init__(self, give: Callable[[], str] | None = None) -> None:
        self._give = give
        self._given: set[str] = set()

    def __call__(self) -> str:
        if self._give is None:
            raise CredentialError("the contract declares no leased credential here; add it to its `credentials`")
        secret = self._give()
        self._given.add(secret)
        return secret

    def scrub(self, text: str) -> str:
        """The text without the secret: what a tool raises may quote the headers that it sent."""
        for secret in self._given:
            text = text.replace(secret, "[secret]")
        return text


class Window(Protocol):
    """The armed window from the fence check to the last byte written."""

    def __call__(self) -> AbstractAsyncContextManager[None]: ...


@dataclass(frozen=True)
class Call:
    """One permit to send, as a tool sees it."""

    tenant: str
    destination: str
    action: str
    operation_id: str
    key: str  # the operation_id as this destination's key format carries it
    payload: Mapping[str, Any]
    digest: str
    account: str
    task_id: str
    epoch: int
    attempt: int
    not_after: datetime  # UTC; also what a deadline header carries
    window: Window  # enter it right before the first byte, leave it after the last
    time_left_s: Callable[[], float]  # until the sender's own deadline, by the monotonic clock
    resolved: Mapping[str, Any] = field(default_factory=dict)  # of `resolve`, where people approved it: send this
    secret: Secret = field(default_factory=Secret)  # of the lease that the permit was checked against: keep it nowhere


@dataclass(frozen=True)
class Lookup:
    """What a route may use to look for an operation."""

    tenant: str
    destination: str
    action: str
    operation_id: str
    markers: tuple[str, ...]  # every key that may have been sent, then the ids of our beacons
    digest: str
    account: str
    object_id: str | None  # if an acknowledgement brought one
    since: datetime  # when the intent was written
    not_after: datetime
    deadline_s: float  # for one page
    secret: Secret = field(default_factory=Secret)  # of the lease of this route's credential

    @property
    def everything(self) -> bool:
        """Is it asked for all that is ours, and not for one operation? Then there are no markers."""
        return not self.operation_id and not self.markers


SendFn = Callable[[Call], Awaitable[Receipt]]
RouteFn = Callable[[Lookup, str | None], Awaitable[Page]]
BeaconFn = Callable[[str, float], Awaitable[datetime]]
"""(beacon id, deadline in s) → commit time by the destination's clock. Idempotent by beacon id."""
CancelFn = Callable[[str, float], Awaitable[str | None]]
"""(key, deadline in s) → None when the key is now cancelled for ever, else the object id that it already made."""
ProbeFn = Callable[[str, float], Awaitable[bool]]
"""(object id, deadline in s) → did a harmless act that only succeeds on an existing object succeed?"""
ResolveFn = Callable[[str, Mapping[str, Any], float], Awaitable[Mapping[str, Any]]]
"""(action, payload, deadline in s) → what its references are now, as JSON: the digest of a file, the account behind an
alias. It only reads; it is asked at the proposal and again before each permit of what people approve."""


@dataclass(frozen=True)
class Destination:
    """A registered destination. Raises ContractError when functions and contract do not fit."""

    contract: Contract
    send: SendFn
    routes: Mapping[str, RouteFn] = field(default_factory=dict)
    beacon: BeaconFn | None = None
    cancel_key: CancelFn | None = None
    probe: ProbeFn | None = None
    resolve: ResolveFn | None = None
    credentials: Credentials | None = None  # where the contract's leased credentials come from
    lists_all: frozenset[str] = frozenset()  # routes that answer `lookup.everything`; without one it is never swept

    def __post_init__(self) -> None:
        c = self.contract
        if c.credentials and self.credentials is None:
            names = ", ".join(use.name for use in c.credentials)
            raise ContractError(f"{c.name}: its contract leases {names}; give the destination its `credentials`")
        declared, given = {r.name for r in c.routes}, set(self.routes)
        if declared != given:
            raise ContractError(
                f"{c.name}: routes declared {sorted(declared)}, functions given for {sorted(given)}; make them equal"
            )
        unable = sorted(n for n in self.lists_all if n not in declared or c.route(n).kind not in ("list", "log"))
        if unable:
            raise ContractError(f"{c.name}: lists_all names {unable}; only a declared list or log can show everything")
        if c.has_beacon != (self.beacon is not None):
            raise ContractError(f"{c.name}: has_beacon is {c.has_beacon}, a beacon function is needed exactly then")
        if (c.late_arrival.kind == "cancel_by_key") != (self.cancel_key is not None):
            raise ContractError(
                f"{c.name}: late_arrival is {c.late_arrival.kind}; cancel_key is needed for cancel_by_key only"
            )

    async def lease(self, label: str, instead_of: Lease | None = None) -> Lease | NoLease | None:
        """The lease of the credential with this label; None when the contract leases none. Raises LedgerUnavailable."""
        use = self.contract.credential(label)
        if use is None:
            return None
        assert self.credentials is not None  # seen to when it was made
        return await self.credentials.lease(use.name, use.min_left_s, instead_of)

    def secret_of(self, lease: Lease | NoLease | None) -> Secret:
        """What gives its secret at the moment of use."""
        credentials = self.credentials
        if credentials is None or not isinstance(lease, Lease):
            return Secret()
        return Secret(lambda: credentials.secret_of(lease))


class _NoLeases:
    """No lease of anything."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def lease(self, credential: str, min_left_s: float = 0.0, instead_of: Lease | None = None) -> Lease | NoLease:
        return NoLease(Reason.CREDENTIAL_UNAVAILABLE, f"no lease of {credential}: {self._why}")

    def secret_of(self, lease: Lease) -> str:
        raise CredentialError(self._why)

    def accepted(self, lease: Lease) -> None:
        """Nobody has one."""

    async def refused(self, lease: Lease, why: str) -> None:
        """Nobody has one."""


def _shut(destination: Destination, why: str) -> Destination:
    """The same destination without any way to it: nothing is sent, read, probed or leased."""

    async def unsent(call: Call) -> Receipt:
        raise NotSent(f"{call.operation_id}: {why}; nothing was sent")

    async def unreachable(*_: object) -> Never:
        raise RouteUnavailable(f"{destination.contract.name} is not reached: {why}")

    return replace(
        destination,
        send=unsent,
        routes=dict.fromkeys(destination.routes, unreachable),
        beacon=unreachable if destination.beacon is not None else None,
        cancel_key=unreachable if destination.cancel_key is not None else None,
        probe=unreachable if destination.probe is not None else None,
        resolve=unreachable if destination.resolve is not None else None,
        credentials=_NoLeases(why) if destination.contract.credentials else None,
    )


class Registry:
    """The destinations of one worker. A tool without a contract does not exist here."""

    def __init__(self, destinations: Iterable[Destination]) -> None:
        self._by_name: dict[str, Destination] = {}
        for destination in destinations:
            name = destination.contract.name
            if name in self._by_name:
                raise ContractError(f"destination {name} is registered twice")
            self._by_name[name] = destination

    def get(self, name: str, action: str | None = None) -> Destination:
        try:
            found = self._by_name[name]
        except KeyError:
            raise NotRegistered(
                f"no contract is registered for destination {name!r} (known: {sorted(self._by_name)}); "
                "a side effect without a contract is refused"
            ) from None
        if action is not None and action not in found.contract.actions:
            raise ContractError(
                f"destination {name} declares no action {action!r}, only {sorted(found.contract.actions)}"
            )
        return found

    def of_a_clone(self, of: str) -> Registry:
        """The same contracts for a copy of a deployment: only sandboxes can be reached."""
        why = f"this deployment is a clone of {of}"
        return Registry(one if one.contract.sandbox else _shut(one, why) for one in self)

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._by_name.values())


LATE_ANSWER_S = 2.0  # enough to read what the kernel holds already, on a busy machine too; nothing is sent in it
_WOKE_LATE_S = 0.1


@contextlib.asynccontextmanager
async def answer_deadline(seconds: float) -> AsyncIterator[None]:
    """`asyncio.timeout` for the wait for an answer: TimeoutError after `seconds`.

    A process that was frozen finds its deadline and the answer at the same moment. Then it reads what has arrived
    before it gives up: a late acknowledgement is recorded, not dropped (SPEC §2.3).
    """
    loop = asyncio.get_running_loop()
    ends_at_s = clocks.now_s() + max(seconds, 0.0)
    async with asyncio.timeout(None) as scope:

        def expire() -> None:
            woke_late = clocks.now_s() - ends_at_s > _WOKE_LATE_S
            scope.reschedule(loop.time() + (LATE_ANSWER_S if woke_late else 0.0))

        timer = loop.call_later(max(seconds, 0.0), expire)
        try:
            yield
        finally:
            timer.cancel()


_current: contextvars.ContextVar[Call | None] = contextvars.ContextVar("actonce_call", default=None)


def current_call() -> Call:
    """Return the call that is being performed. Raises ActonceError outside a tool."""
    call = _current.get()
    if call is None:
        raise ActonceError("no operation is being performed here; call this inside a destination's send function")
    return call


def current_operation_id() -> str:
    """Return the operation_id of the call that is being performed."""
    return current_call().operation_id
