"""One process's leases: got when first needed, renewed ahead of their end, never shared, never written down.

Promises: a lease is given out only while it is in force and on record in the ledger; refreshes that are wanted at the
same moment are one request to the manager, and a refresh that fails leaves a lease that still has time alone; a lease
that was revoked out of band, whose parent was, or whose manager restarted is noticed within one tick and ends its
credential (`revoked`); so does the end of the last lease while the manager gives no other (`expired`); neither is
opened again before a person has rotated. After a failure the manager is asked again at the next tick, not by every
caller: a task that holds does not spin.

Does not promise: that a destination learns of a revocation, or that another process has the same lease.
Retries: the tick asks again, for ever; a caller gets `NoLease` at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeVar

import structlog

from actonce.contracts import clocks
from actonce.contracts.credential import CredentialState, Lease, NoLease
from actonce.contracts.errors import ActonceError, CredentialError, LeaseDenied, LeaseGone, ManagerUnavailable
from actonce.contracts.verdict import Reason
from actonce.credentials.provider import Grant, Provider

log = structlog.get_logger("actonce.credentials")
T = TypeVar("T")
_ENDED: dict[CredentialState, Reason] = {
    "expired": Reason.CREDENTIAL_EXPIRED,
    "revoked": Reason.CREDENTIAL_REVOKED,
}
_RENEW_AT = 0.5  # of a lease's life left: two more tries fit before it ends
_SOON = 0.25  # of its life left: it should have been renewed by now


class Clock(Protocol):
    """The ledger's time, never later than it really is."""

    @property
    def at(self) -> datetime: ...


class Standing(Protocol):
    """A credential as the ledger has it."""

    @property
    def state(self) -> CredentialState: ...
    @property
    def generation(self) -> int: ...
    @property
    def why(self) -> str: ...
    @property
    def policy_version(self) -> int: ...
    @property
    def ended(self) -> dict[str, str]: ...


class LeaseBook(Protocol):
    """Where leases are recorded, each with its audit event (`actonce.ledger.leases.Leases`)."""

    async def now(self) -> Clock: ...
    async def standing(self, credential: str, lease_ids: Sequence[str] = ()) -> Standing: ...
    async def issued(self, lease: Lease, replaces: str | None) -> bool: ...
    async def checked(self, lease_id: str) -> None: ...
    async def renewed(self, lease_id: str, expires_at: datetime) -> None: ...
    async def ended(self, lease: Lease, why: str, credential_is: CredentialState | None = None) -> None: ...
    async def lapsed(self, credential: str, generation: int, why: str) -> None: ...


@dataclass(frozen=True)
class BrokerSettings:
    """In seconds."""

    tick_s: float = 5.0  # how soon a revocation, a restart, a rotation or a new policy is noticed
    deadline_s: float = 3.0  # one request to the lease manager


@dataclass(frozen=True)
class Health:
    """What the dependency page says of one credential."""

    state: Literal["up", "degraded", "down"]
    detail: str


@dataclass
class _Slot:
    """One credential in this process."""

    name: str
    lease: Lease | None = None
    secret: str = field(default="", repr=False)
    life_s: float = 0.0
    ends_s: float = 0.0  # by this host's boot-time clock, which is the ledger's carried on
    policy_version: int = -1
    lapsing: int | None = None  # the generation in which its last lease here ran out
    rejected: bool = False  # a destination refused its lease, and none was accepted since
    no_lease: NoLease | None = None
    asked_again_s: float = 0.0  # before then the manager is not asked again
    trouble: str = ""  # why the last renewal failed although the lease is still good
    refreshing: asyncio.Task[None] | None = None

    @property
    def left_s(self) -> float:
        return self.ends_s - clocks.now_s() if self.lease is not None else 0.0

    def drop(self) -> None:
        self.lease, self.secret, self.trouble = None, "", ""


def _ended(slot: _Slot, standing: Standing) -> NoLease:
    return NoLease(_ENDED[standing.state], f"{slot.name} is {standing.state}: {standing.why}")


class Broker:
    """See the module. `open` it on a ledger before the first lease; `close` it when the process stops."""

    def __init__(self, provider: Provider, settings: BrokerSettings = BrokerSettings()) -> None:
        self._provider = provider
        self._settings = settings
        self._slots: dict[str, _Slot] = {}
        self._book: LeaseBook | None = None
        self._loop: asyncio.Task[None] | None = None

    async def open(self, book: LeaseBook) -> None:
        """Record leases there from now on, and keep them renewed."""
        self._book = book
        self._loop = asyncio.create_task(self._for_ever(), name="renew leases")

    async def close(self) -> None:
        """Stop renewing. What is leased ends by itself: a request that is under way may still need it."""
        tasks = [t for t in (self._loop, *(s.refreshing for s in self._slots.values())) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._provider.close()

    # for whoever acts --------------------------------------------------------------------------------------------

    async def lease(self, credential: str, min_left_s: float = 0.0, instead_of: Lease | None = None) -> Lease | NoLease:
        """A lease with at least so much time left, or why there is none. `instead_of`: this one was found stale.

        Raises LedgerUnavailable: a lease that is not on record is none.
        """
        slot = self._slots.setdefault(credential, _Slot(credential))
        stale = instead_of is not None and slot.lease == instead_of
        if not stale and slot.lease is not None and slot.left_s > min_left_s:
            return slot.lease
        if slot.no_lease is not None and clocks.now_s() < slot.asked_again_s:
            await self._has_ended(slot, slot.no_lease.words)  # the manager is not asked; others' leases may be over now
            return slot.no_lease
        await self._refresh(slot)
        if slot.lease is not None and slot.left_s > min_left_s:
            return slot.lease
        return slot.no_lease or NoLease(
            Reason.CREDENTIAL_EXPIRED,
            f"the lease of {credential} has {max(slot.left_s, 0.0):.1f} s left and is not prolonged: {slot.trouble}",
        )

    def secret_of(self, lease: Lease) -> str:
        """The secret of a lease that was given out. Raises CredentialError when it is over by now."""
        slot = self._slots.get(lease.credential)
        if slot is None or slot.lease is None or slot.lease.lease_id != lease.lease_id or slot.left_s <= 0:
            raise CredentialError(f"lease {lease.lease_id} of {lease.credential} is over; ask for another one")
        return slot.secret

    def accepted(self, lease: Lease) -> None:
        """A destination took it."""
        slot = self._slots.get(lease.credential)
        if slot is not None and slot.lease is not None and slot.lease.lease_id == lease.lease_id:
            slot.rejected = False

    async def refused(self, lease: Lease, why: str) -> None:
        """A destination answered 401 to this lease. It is replaced once; a fresh one that is refused too ends the
        credential, so that nobody spins. Several that tell the same are one. Raises LedgerUnavailable."""
        slot = self._slots.get(lease.credential)
        if slot is None or slot.lease is None or slot.lease.lease_id != lease.lease_id:
            return  # it was replaced already: what is said about the old one must not hurt the new one
        twice, slot.rejected, ends_s = slot.rejected, True, slot.ends_s
        slot.drop()
        gone = await self._is_gone(slot, lease, ends_s)
        if gone or twice:
            await self._end(slot, lease, gone or f"{why}; so was the lease before it")
        else:
            await self._known_book.ended(lease, why)

    async def health(self, credential: str) -> Health:
        """Really ask for a lease. `degraded`: there is one, and it is not renewed as it should be."""
        found = await self.lease(credential)
        slot = self._slots[credential]
        if isinstance(found, NoLease):
            return Health("down", f"{found.reason.value}: {found.words}")
        words = f"lease {found.lease_id}, {slot.left_s:.0f} s left of {slot.life_s:.0f}"
        if slot.trouble or slot.left_s < _SOON * slot.life_s:
            return Health("degraded", f"{words}; not renewed: {slot.trouble or 'it ends soon'}")
        return Health("up", words)

    # keeping leases ----------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """One turn: notice what happened behind our back, renew what is due."""
        for slot in list(self._slots.values()):
            try:
                await self._look_after(slot)
            except ActonceError as error:
                log.warning("credential: next tick again", credential=slot.name, error=str(error))

    async def _for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_s)
            try:
                await self.tick()
            except Exception:
                log.exception("a renewal tick failed")

    async def _look_after(self, slot: _Slot) -> None:
        lease = slot.lease
        if lease is None or slot.left_s <= 0:
            await self._refresh(slot)
            return
        standing = await self._known_book.standing(slot.name, [lease.lease_id])
        if standing.state == "active" and lease.lease_id not in standing.ended:
            gone = await self._is_gone(slot, lease, slot.ends_s)
            if gone and slot.lease is lease:
                await self._end(slot, lease, gone)
                return
            if standing.policy_version != slot.policy_version:
                await self._known_book.checked(lease.lease_id)
                slot.policy_version = standing.policy_version
            if standing.generation == lease.generation and slot.left_s > _RENEW_AT * slot.life_s:
                return
        await self._refresh(slot)

    async def _is_gone(self, slot: _Slot, lease: Lease, ends_s: float) -> str:
        """Why the manager says that it is dead before its time; nothing when it says otherwise, or nothing."""
        try:
            await self._ask(lambda: self._provider.check(lease.lease_id))
        except LeaseGone as error:
            return str(error) if clocks.now_s() < ends_s else ""
        except (ManagerUnavailable, LeaseDenied) as error:
            slot.trouble = str(error)
        return ""

    async def _end(self, slot: _Slot, lease: Lease, why: str) -> None:
        slot.drop()
        slot.no_lease = NoLease(Reason.CREDENTIAL_REVOKED, f"{slot.name}: {why}")
        slot.asked_again_s = clocks.now_s() + self._settings.tick_s
        await self._known_book.ended(lease, why, "revoked")
        log.warning("credential revoked", credential=slot.name, lease_id=lease.lease_id, why=why)

    async def _refresh(self, slot: _Slot) -> None:
        """One refresh at a time for each credential: whoever comes meanwhile waits for the same one."""
        if slot.refreshing is None or slot.refreshing.done():
            slot.refreshing = asyncio.create_task(self._refresh_once(slot))
        await asyncio.shield(slot.refreshing)

    async def _refresh_once(self, slot: _Slot) -> None:
        old = slot.lease
        standing = await self._known_book.standing(slot.name, [old.lease_id] if old else [])
        if standing.state != "active":
            if old is not None:
                await self._let_go(old.lease_id)
            slot.drop()
            self._none(slot, _ended(slot, standing))
            return
        usable = old is not None and old.lease_id not in standing.ended and old.generation == standing.generation
        if slot.lapsing != standing.generation:
            slot.lapsing = None
        try:
            if old is not None and usable and slot.left_s > 0 and await self._prolong(slot, old):
                return
            await self._replace(slot, old, standing)
        except LeaseGone as error:
            assert old is not None
            await self._end(slot, old, str(error))
        except (ManagerUnavailable, LeaseDenied) as error:
            await self._without(slot, standing, str(error), usable=usable)

    async def _prolong(self, slot: _Slot, lease: Lease) -> bool:
        """True when it was; False when its longest life is reached and another lease is needed."""
        clock, asked_s = await self._known_book.now(), clocks.now_s()
        try:
            left_s = await self._ask(lambda: self._provider.renew(lease.lease_id))
        except LeaseDenied as error:
            log.info("lease not prolonged", credential=slot.name, lease_id=lease.lease_id, why=str(error))
            return False
        except LeaseGone:
            if slot.left_s > 0:
                raise
            return False  # it ran out while we asked
        await self._known_book.renewed(lease.lease_id, clock.at + timedelta(seconds=left_s))
        slot.ends_s, slot.trouble, slot.no_lease = asked_s + left_s, "", None
        return left_s > _RENEW_AT * slot.life_s  # a manager prolongs by less and less as the longest life comes near

    async def _replace(self, slot: _Slot, old: Lease | None, standing: Standing) -> None:
        """A new lease beside the old one, which is left to end by itself: it may be in use."""
        clock, asked_s = await self._known_book.now(), clocks.now_s()
        grant = await self._ask(lambda: self._provider.issue(slot.name))
        lease = _lease(slot.name, grant, clock.at, standing.generation)
        if not await self._known_book.issued(lease, old.lease_id if old else None):
            await self._let_go(grant.lease_id)
            raise ManagerUnavailable(f"{slot.name} was rotated or revoked while a lease was asked for")
        slot.lease, slot.secret = lease, grant.secret
        slot.life_s, slot.ends_s = grant.left_s, asked_s + grant.left_s
        slot.trouble, slot.no_lease, slot.lapsing = "", None, None
        slot.policy_version = standing.policy_version
        log.info("lease issued", credential=slot.name, lease_id=lease.lease_id, life_s=grant.left_s)

    async def _without(self, slot: _Slot, standing: Standing, why: str, *, usable: bool) -> None:
        """The manager gave nothing: what still has time is kept; with the end of the last lease the credential ends."""
        if usable and slot.left_s > 0:
            slot.trouble = why
            return
        if slot.lease is not None and usable:
            slot.lapsing = standing.generation
        slot.drop()
        self._none(slot, NoLease(Reason.CREDENTIAL_UNAVAILABLE, f"no lease of {slot.name}: {why}"))
        await self._has_ended(slot, why)

    async def _has_ended(self, slot: _Slot, why: str) -> None:
        """Where the last lease of this process ran out: was it the last one of all? Then the credential has ended.

        Whoever of the processes records it: each says what the ledger says.
        """
        if slot.lapsing is None or slot.no_lease is None or slot.no_lease.reason is not Reason.CREDENTIAL_UNAVAILABLE:
            return
        await self._known_book.lapsed(slot.name, slot.lapsing, why)
        standing = await self._known_book.standing(slot.name)
        if standing.state != "active":
            self._none(slot, _ended(slot, standing))

    def _none(self, slot: _Slot, no_lease: NoLease) -> None:
        if slot.no_lease is None or slot.no_lease.reason is not no_lease.reason:
            log.warning("no lease", credential=slot.name, reason=no_lease.reason.value, why=no_lease.words)
        slot.no_lease = no_lease
        slot.asked_again_s = clocks.now_s() + self._settings.tick_s

    async def _let_go(self, lease_id: str) -> None:
        """Best effort: it ends by itself in any case."""
        with contextlib.suppress(CredentialError):
            await self._ask(lambda: self._provider.revoke(lease_id))

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                return await ask()
        except CredentialError:
            raise
        except TimeoutError as error:
            raise ManagerUnavailable(
                f"the lease manager did not answer within {self._settings.deadline_s:g} s"
            ) from error
        except Exception as error:  # whatever a provider raises, it said nothing about the lease; no text: it may quote
            raise ManagerUnavailable(f"the lease manager could not be asked ({type(error).__name__})") from error

    @property
    def _known_book(self) -> LeaseBook:
        if self._book is None:
            raise CredentialError("the broker is not open: a lease that is not on record is none")
        return self._book


def _lease(name: str, grant: Grant, at: datetime, generation: int) -> Lease:
    return Lease(
        lease_id=grant.lease_id,
        credential=name,
        principal=grant.principal,
        scope=tuple(sorted(grant.scope)),
        issued_at=at,
        expires_at=at + timedelta(seconds=grant.left_s),
        generation=generation,
        parent=grant.parent,
    )
