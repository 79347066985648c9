"""The broker on a lease manager in memory and a book in memory: what the integration cases cannot time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from actonce.contracts.credential import CredentialState, Lease, NoLease
from actonce.contracts.errors import CredentialError, LeaseDenied, LeaseGone
from actonce.contracts.verdict import Reason
from actonce.credentials import Broker, BrokerSettings, MemoryProvider
from actonce.credentials.memory import Account
from actonce.testing.waiting import eventually

SECRET = "marked-secret-of-a-test"


@dataclass(frozen=True)
class Clock:
    at: datetime


@dataclass(frozen=True)
class Standing:
    state: CredentialState = "active"
    generation: int = 1
    why: str = ""
    policy_version: int = 1
    ended: dict[str, str] = field(default_factory=dict)


class Book:
    """What the ledger would keep."""

    def __init__(self) -> None:
        self.is_now = Standing()
        self.said: list[tuple[str, str]] = []
        self.others_in_force = False

    async def now(self) -> Clock:
        return Clock(datetime.now(UTC))

    async def standing(self, credential: str, lease_ids: Sequence[str] = ()) -> Standing:
        return self.is_now

    async def issued(self, lease: Lease, replaces: str | None) -> bool:
        if self.is_now.state != "active" or lease.generation != self.is_now.generation:
            return False
        self.said.append(("issued", lease.lease_id))
        return True

    async def checked(self, lease_id: str) -> None:
        self.said.append(("checked", lease_id))

    async def renewed(self, lease_id: str, expires_at: datetime) -> None:
        self.said.append(("renewed", lease_id))

    async def ended(self, lease: Lease, why: str, credential_is: CredentialState | None = None) -> None:
        self.said.append(("ended", why))
        if credential_is is not None:
            self.is_now = replace(self.is_now, state=credential_is, why=why)

    async def lapsed(self, credential: str, generation: int, why: str) -> None:
        if not self.others_in_force:
            self.is_now = replace(self.is_now, state="expired", why=why)


@dataclass
class Bench:
    provider: MemoryProvider
    book: Book
    broker: Broker

    async def lease(self, **options: Any) -> Lease:
        found = await self.broker.lease("c", **options)
        assert isinstance(found, Lease), found
        return found

    async def none(self) -> NoLease:
        found = await self.broker.lease("c")
        assert isinstance(found, NoLease), found
        return found

    def asked(self, kind: str) -> int:
        return self.provider.asked.get(kind, 0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    account = Account("agent", ("x:write",), life_s=0.6, secret=SECRET)
    provider, book = MemoryProvider({"c": account}), Book()
    broker = Broker(provider, BrokerSettings(tick_s=3600.0, deadline_s=0.5))  # turns are taken by hand
    await broker.open(book)
    yield Bench(provider, book, broker)
    await broker.close()


async def over(lease: Lease) -> None:
    await eventually(lambda: datetime.now(UTC) > lease.expires_at, within_s=5, what="the lease is over")


async def test_a_lease_is_given_out_again_without_asking_anybody(bench: Bench) -> None:
    assert await bench.lease() == await bench.lease()
    assert bench.provider.asked == {"issue": 1}


async def test_many_at_once_are_one_request(bench: Bench) -> None:
    leases = await asyncio.gather(*(bench.lease() for _ in range(50)))
    assert len(set(leases)) == 1 and bench.asked("issue") == 1


async def test_a_failure_is_shared_too_and_the_manager_is_not_asked_again_before_the_next_tick(bench: Bench) -> None:
    bench.provider.denying = {"issue"}
    found = await asyncio.gather(*(bench.none() for _ in range(50)))
    assert {f.reason for f in found} == {Reason.CREDENTIAL_UNAVAILABLE}
    await bench.none()
    assert bench.asked("issue") == 1
    bench.provider.denying = set()
    await bench.broker.tick()
    assert (await bench.lease()).credential == "c"


async def test_it_is_renewed_ahead_of_its_end_and_stays_the_same_lease(bench: Bench) -> None:
    lease = await bench.lease()
    slot = bench.broker._slots["c"]
    await eventually(lambda: slot.left_s < 0.25, within_s=5, what="half of its life is over")
    await bench.broker.tick()
    assert slot.left_s > 0.5 and await bench.lease() == lease
    assert bench.asked("issue") == 1 and bench.asked("renew") == 1


async def test_at_its_longest_life_another_lease_is_got_beside_it_and_the_old_one_is_left_alone(bench: Bench) -> None:
    bench.provider.accounts["c"].longest_s = 0.6
    first = await bench.lease()
    slot = bench.broker._slots["c"]
    await eventually(lambda: slot.left_s < 0.25, within_s=5, what="half of its life is over")
    await bench.broker.tick()
    second = await bench.lease()
    assert second != first
    assert bench.asked("revoke") == 0
    await bench.provider.check(first.lease_id)  # still good: it may be in use


async def test_a_refresh_that_fails_kills_no_good_lease(bench: Bench) -> None:
    lease = await bench.lease()
    bench.provider.away = True
    await bench.broker.tick()
    assert await bench.lease() == lease
    assert (await bench.broker.health("c")).state == "degraded"


async def test_the_end_of_the_last_lease_ends_the_credential(bench: Bench) -> None:
    lease = await bench.lease()
    bench.provider.denying = {"issue", "renew"}
    await over(lease)
    assert (await bench.none()).reason is Reason.CREDENTIAL_EXPIRED
    assert bench.book.is_now.state == "expired"
    bench.provider.denying = set()
    await bench.broker.tick()
    assert (await bench.none()).reason is Reason.CREDENTIAL_EXPIRED, "only a rotation opens it again"
    bench.book.is_now = Standing(generation=2)
    await bench.broker.tick()
    assert (await bench.lease()).generation == 2


async def test_the_end_of_one_lease_while_others_have_theirs_ends_no_credential(bench: Bench) -> None:
    bench.book.others_in_force = True
    lease = await bench.lease()
    bench.provider.denying = {"issue", "renew"}
    await over(lease)
    assert (await bench.none()).reason is Reason.CREDENTIAL_UNAVAILABLE
    assert bench.book.is_now.state == "active"
    bench.book.others_in_force = False  # theirs end too
    await bench.broker.tick()
    assert bench.book.is_now.state == "expired"


async def test_whoever_asks_after_the_last_lease_of_all_is_told_so_before_the_next_tick(bench: Bench) -> None:
    """Between two ticks the manager is not asked again, and the ledger is."""
    bench.book.others_in_force = True
    lease = await bench.lease()
    bench.provider.denying = {"issue", "renew"}
    await over(lease)
    assert (await bench.none()).reason is Reason.CREDENTIAL_UNAVAILABLE
    asked = bench.asked("issue")
    bench.book.others_in_force = False
    assert (await bench.none()).reason is Reason.CREDENTIAL_EXPIRED
    assert bench.asked("issue") == asked


async def test_who_records_the_end_second_says_the_same_as_who_was_first(bench: Bench) -> None:
    lease = await bench.lease()
    bench.provider.denying = {"issue", "renew"}
    await over(lease)
    real = bench.book.lapsed

    async def after_another(credential: str, generation: int, why: str) -> None:
        bench.book.is_now = replace(bench.book.is_now, state="expired", why="another process saw it")
        await real(credential, generation, why)

    bench.book.lapsed = after_another  # type: ignore[method-assign]
    assert (await bench.none()).reason is Reason.CREDENTIAL_EXPIRED


async def test_a_lease_that_ran_out_is_expired_and_not_revoked(bench: Bench) -> None:
    lease = await bench.lease()
    await over(lease)
    bench.provider.restart()  # what a manager says of an expired lease is what it says of one it never had
    await bench.broker.tick()
    assert bench.book.is_now.state == "active"
    assert (await bench.lease()) != lease


@pytest.mark.parametrize("happens", ["restart", "revoke_parent"])
async def test_what_dies_behind_our_back_is_noticed_at_the_next_tick(bench: Bench, happens: str) -> None:
    await bench.lease()
    getattr(bench.provider, happens)(*(["root"] if happens == "revoke_parent" else []))
    await bench.broker.tick()
    assert bench.book.is_now.state == "revoked"
    assert (await bench.none()).reason is Reason.CREDENTIAL_REVOKED


async def test_a_401_replaces_the_lease_once_and_then_ends_the_credential(bench: Bench) -> None:
    first = await bench.lease()
    await asyncio.gather(*(bench.broker.refused(first, "401") for _ in range(5)))
    assert bench.book.is_now.state == "active", "several about one lease are one"
    second = await bench.lease()
    await bench.broker.refused(first, "401")  # a late word about the old lease does not hurt the new one
    assert await bench.lease() == second
    await bench.broker.refused(second, "401")
    assert bench.book.is_now.state == "revoked"


async def test_an_accepted_lease_wipes_out_what_was_held_against_the_one_before(bench: Bench) -> None:
    await bench.broker.refused(await bench.lease(), "401")
    second = await bench.lease()
    bench.broker.accepted(second)
    await bench.broker.refused(second, "401")
    assert bench.book.is_now.state == "active"


async def test_a_rotation_that_comes_while_a_lease_is_asked_for_wins(bench: Bench) -> None:
    real = bench.provider.issue

    async def slow(credential: str) -> Any:
        grant = await real(credential)
        bench.book.is_now = Standing(generation=bench.book.is_now.generation + 1)
        return grant

    bench.provider.issue = slow  # type: ignore[method-assign]
    assert (await bench.none()).reason is Reason.CREDENTIAL_UNAVAILABLE
    assert bench.asked("revoke") == 1 and bench.book.said == []


async def test_a_new_policy_is_asked_about_a_lease_in_force_at_the_next_tick(bench: Bench) -> None:
    lease = await bench.lease()
    bench.book.is_now = replace(bench.book.is_now, policy_version=2)
    await bench.broker.tick()
    await bench.broker.tick()
    assert bench.book.said.count(("checked", lease.lease_id)) == 1


async def test_a_manager_that_hangs_is_unavailable_within_the_deadline(bench: Bench) -> None:
    async def hang(credential: str) -> Any:
        await asyncio.Event().wait()

    bench.provider.issue = hang  # type: ignore[method-assign]
    async with asyncio.timeout(2):
        assert "within 0.5 s" in (await bench.none()).words


async def test_whatever_a_provider_raises_is_told_without_its_text(bench: Bench) -> None:
    async def explode(credential: str) -> Any:
        raise RuntimeError(f"request with {SECRET} failed")

    bench.provider.issue = explode  # type: ignore[method-assign]
    words = (await bench.none()).words
    assert "RuntimeError" in words and SECRET not in words


async def test_the_secret_of_a_lease_that_is_over_is_not_given_out(bench: Bench) -> None:
    lease = await bench.lease()
    assert bench.broker.secret_of(lease) == SECRET
    await over(lease)
    with pytest.raises(CredentialError, match="is over"):
        bench.broker.secret_of(lease)


async def test_no_representation_shows_a_secret(bench: Bench) -> None:
    lease = await bench.lease()
    grant = await bench.provider.issue("c")
    shown = f"{lease!r} {grant!r} {bench.broker._slots!r} {bench.provider.accounts!r} {bench.book.said!r}"
    assert SECRET not in shown


async def test_a_broker_that_is_not_open_gives_nothing() -> None:
    broker = Broker(MemoryProvider({"c": Account("agent", ())}))
    with pytest.raises(CredentialError, match="not open"):
        await broker.lease("c")


async def test_the_manager_in_memory_tells_denied_from_gone() -> None:
    provider = MemoryProvider({"c": Account("agent", ("x",), life_s=10, longest_s=10)})
    grant = await provider.issue("c")
    with pytest.raises(LeaseDenied):
        await provider.renew(grant.lease_id)
    with pytest.raises(LeaseDenied):
        await provider.issue("unknown")
    await provider.revoke(grant.lease_id)
    with pytest.raises(LeaseGone):
        await provider.check(grant.lease_id)
