"""Destinations, send functions and routes that misbehave: no second send, nothing lost, nothing stuck in silence.

The effects of one process against a real ledger; the destination is a function of the test.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql

from actonce.contracts.contract import (
    Bounded,
    CancelByKey,
    KeyHonoured,
    Keys,
)
from actonce.contracts.errors import NotAccepted, NotSent, PayloadError, Refused, RouteUnavailable, Unknown
from actonce.contracts.messages import OperationRequest
from actonce.contracts.verdict import Page, Receipt
from actonce.destinations.base import Call, Lookup
from actonce.effects import routes
from actonce.effects.perform import RETRY_IN_MAX_S, perform
from actonce.effects.reconcile import settle_step
from actonce.effects.system import System
from actonce.effects.watcher import WatchSettings, watch_once
from actonce.ledger import permits, tasks
from actonce.ledger.store import Operation
from tests.integration.odd_bench import (
    TIMING,
    TO_THE_PAGE_S,
    TWO_ROUTES,
    Deployment,
    contract,
    key_of,
    ours,
    request,
    take,
)

# a send function that misuses its window -------------------------------------------------------------------------


async def tries_twice(call: Call) -> None:
    async with call.window():
        pass
    async with call.window():
        raise AssertionError("the window opened twice")


async def tries_twice_and_finds_nobody_the_second_time(call: Call) -> None:
    async with call.window():
        pass
    raise NotSent("nobody listens any more")


@pytest.mark.parametrize("misuse", [tries_twice, tries_twice_and_finds_nobody_the_second_time])
async def test_what_a_second_try_proves_says_nothing_about_the_first(
    deployment: Deployment, misuse: Callable[[Call], Awaitable[None]]
) -> None:
    sends = itertools.count(1)

    async def send(call: Call) -> Receipt:
        next(sends)
        await misuse(call)
        raise AssertionError("not reached")

    system = await deployment.process(send)
    assert [(await perform(system, request())).status for _ in range(2)] == ["unknown", "unknown"]
    assert next(sends) == 2, "the first request may have had its effect, and another one was sent"


async def test_of_two_sends_side_by_side_one_is_refused(deployment: Deployment) -> None:
    inside: list[int] = []

    async def send(call: Call) -> Receipt:
        await asyncio.sleep(0.1)  # older than a fresh permit: the ledger is asked, which takes a moment

        async def one(number: int) -> None:
            async with call.window():
                inside.append(number)

        await asyncio.gather(one(1), one(2), return_exceptions=True)
        raise Unknown("the answer was lost")

    await perform(await deployment.process(send), request())
    assert len(inside) == 1


async def test_what_a_send_function_left_running_sends_nothing(deployment: Deployment) -> None:
    left: list[asyncio.Task[None]] = []
    inside: list[str] = []

    async def later(call: Call) -> None:
        await asyncio.sleep(0.01)
        async with call.window():
            inside.append("sent")

    async def send(call: Call) -> Receipt:
        left.append(asyncio.create_task(later(call)))
        raise NotSent("no connection")

    system = await deployment.process(send)
    assert (await perform(system, request())).status == "ready"
    await asyncio.gather(*left, return_exceptions=True)
    assert inside == []


async def test_retry_after_is_no_sleep_for_ever(deployment: Deployment) -> None:
    async def send(call: Call) -> Receipt:
        async with call.window():
            pass
        raise NotAccepted("too many", status=429, retry_after_s=float("inf"))

    assert (await perform(await deployment.process(send), request())).retry_in_s == RETRY_IN_MAX_S


async def test_refusal_speaks_for_no_other_request(deployment: Deployment) -> None:
    """A person permitted a retry, and the destination says that it was done already: perhaps by our first request."""
    answers = iter([Unknown("the answer was lost"), Refused("done already", status=422)])

    async def send(call: Call) -> Receipt:
        async with call.window():
            pass
        raise next(answers)

    system = await deployment.process(send)
    await perform(system, request())
    await asyncio.sleep(TO_THE_PAGE_S)
    held = await settle_step(system, key_of(request()))
    await take(system, request(), "permit_one_retry", held.version)
    assert (await perform(system, request())).status == "unknown"


async def test_payload_that_a_tool_cannot_render_is_refused(deployment: Deployment) -> None:
    async def send(call: Call) -> Receipt:
        raise PayloadError("not in this alphabet")

    assert (await perform(await deployment.process(send), request())).status == "refused"


# a contract that changes while an operation is under way --------------------------------------------------------

ON_ARRIVAL = Keys(registered="arrival", retention_s=86_400, margin_s=10)
BY_KEY = {"late_arrival": KeyHonoured(), "keys": ON_ARRIVAL}
OTHER_FORMAT = {**BY_KEY, "keys": Keys(registered="arrival", retention_s=86_400, margin_s=10, alphabet="0123456789")}
SHORT_KEPT = {**BY_KEY, "keys": Keys(registered="arrival", retention_s=1.5, margin_s=0.1)}
BY_CANCEL = {"late_arrival": CancelByKey(), "keys": Keys(registered="commit", retention_s=86_400, margin_s=10)}
SOON = {"late_arrival": Bounded(transit_s=0.1, enforced_by="the test"), "routes": TWO_ROUTES}
LATER = {"late_arrival": Bounded(transit_s=60, enforced_by="the test"), "routes": TWO_ROUTES}


async def shows_it_is_fresh(_look: Lookup, _cursor: str | None) -> Page:
    return Page(as_of=datetime.now(UTC), declared_total=0)


async def is_cancelled(_key: str, _deadline_s: float) -> None:
    return None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, BY_KEY),  # the request that is out carried no key
        (SHORT_KEPT, BY_KEY),  # its key was promised for a shorter time
        ({}, BY_CANCEL),  # there is no key to cancel
        ({"routes": TWO_ROUTES}, SOON),  # nothing bounded it when it was sent
        (LATER, SOON),
    ],
)
async def test_new_contract_binds_no_request_that_is_on_its_way(
    deployment: Deployment, before: dict[str, Any], after: dict[str, Any]
) -> None:
    old = await deployment.process(of=contract(**before), read=shows_it_is_fresh)
    cancel: dict[str, Any] = {"cancel_key": is_cancelled} if after is BY_CANCEL else {}
    new = await deployment.process(of=contract(version=2, **after), read=shows_it_is_fresh, **cancel)
    await perform(old, request())
    await asyncio.sleep(TO_THE_PAGE_S)
    for _ in range(2):
        seen = await settle_step(new, key_of(request()))
    assert seen.verdict == "ambiguous" and seen.state in ("held", "unknown"), seen


@pytest.mark.parametrize(("then", "status"), [(OTHER_FORMAT, "unknown"), ({}, "held")])
async def test_same_key_is_sent_again_or_nothing(deployment: Deployment, then: dict[str, Any], status: str) -> None:
    old = await deployment.process(of=contract(**BY_KEY))
    new = await deployment.process(of=contract(version=2, **then))
    await perform(old, request())
    await asyncio.sleep(TO_THE_PAGE_S)
    assert (await settle_step(old, key_of(request()))).next == "issue"
    assert (await perform(new, request())).status == status
    assert len({a["wire_key"] for a in await deployment.rows("attempt")}) == 1


# routes and the watcher ------------------------------------------------------------------------------------------

SEEN_AT_ONCE = WatchSettings(idle_s=0, give_up_s=0)


async def test_acknowledged_object_of_another_operation_is_no_match(deployment: Deployment) -> None:
    """Two tasks ask for the same; the second one got the first one's answer."""

    async def send(call: Call) -> Receipt:
        async with call.window():
            pass
        return Receipt(object_id="first", digest=call.digest)

    async def read(look: Lookup, _cursor: str | None) -> Page:
        return Page(rows=(ours(look, object_id="first", marker="op1_first"),), rows_received=1)

    system = await deployment.process(send, contract(completion="read_back"), read)
    assert (await perform(system, request())).status == "acknowledged"
    seen = await settle_step(system, key_of(request()))
    assert (seen.next, seen.reason) == ("hold", "payload_conflict")


async def test_list_without_an_end_is_no_reading(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_READING_S", 0.3)

    async def read(_look: Lookup, cursor: str | None) -> Page:
        await asyncio.sleep(0.01)
        return Page(next_cursor=str(int(cursor or 0) + 1))

    system = await deployment.process(read=read)
    await perform(system, request())
    async with asyncio.timeout(2):
        await settle_step(system, key_of(request()))


async def test_what_cannot_be_reconciled_is_held(deployment: Deployment) -> None:
    """No contract for it any more: the deployment that sent it is gone."""
    await perform(await deployment.process(), request())
    await asyncio.sleep(TO_THE_PAGE_S)
    gone = await deployment.process(of=contract(name="another"))
    await watch_once(gone, SEEN_AT_ONCE)
    (operation,), (page,) = await deployment.rows("operation"), await deployment.rows("page")
    assert (operation["state"], page["reason"]) == ("held", "route_unavailable")


async def test_beacon_before_the_bound_grew_is_written_again(deployment: Deployment) -> None:
    written: list[str] = []

    async def beacon(beacon_id: str, _deadline_s: float) -> datetime:
        written.append(beacon_id)
        return datetime.now(UTC)

    bounded = {"late_arrival": Bounded(transit_s=0.1, enforced_by="the test"), "has_beacon": True}
    longer = {"late_arrival": Bounded(transit_s=1.5, enforced_by="the test"), "has_beacon": True}
    old = await deployment.process(of=contract(**bounded), beacon=beacon)
    new = await deployment.process(of=contract(version=2, **longer), beacon=beacon)
    await perform(old, request())
    await asyncio.sleep(1.4)
    assert (await settle_step(old, key_of(request()))).next == "beacon"
    await asyncio.sleep(1.5)
    assert (await settle_step(new, key_of(request()))).next == "beacon"
    assert len(set(written)) == 2
    await asyncio.sleep(0.5)
    assert (await settle_step(new, key_of(request()))).next == "hold"


async def closed_after_two_permits(system: System, asked: OperationRequest) -> None:
    for decision in ("permit_one_retry", "mark_absent"):
        await perform(system, asked)
        await asyncio.sleep(TO_THE_PAGE_S)
        held = await settle_step(system, key_of(asked))
        assert held.next == "hold"
        await take(system, asked, decision, held.version)


async def test_second_effect_is_held_although_its_natural_key_has_a_new_owner(deployment: Deployment) -> None:
    shown: list[str] = []

    async def read(look: Lookup, _cursor: str | None) -> Page:
        return Page(rows=tuple(ours(look, object_id=o) for o in shown), rows_received=len(shown))

    first, second = request(natural_key="refund"), request(2, natural_key="refund")
    system = await deployment.process(read=read)
    await closed_after_two_permits(system, first)
    await perform(system, second)
    shown.append("late")
    await asyncio.sleep(0.5)
    await watch_once(system, SEEN_AT_ONCE)
    (operation,) = [o for o in await deployment.rows("operation") if o["operation_id"] == key_of(first).operation_id]
    assert (operation["state"], operation["reason"]) == ("held", "possible_duplicate")


@pytest.mark.parametrize(("late", "paged"), [(["late"], "held"), ([], "could not be read again")])
async def test_recount_without_a_beacon_counts_what_is_shown_and_pages_what_is_not(
    deployment: Deployment, late: list[str], paged: str
) -> None:
    shown: list[str] = []

    async def beacon(_beacon_id: str, _deadline_s: float) -> datetime:
        raise RouteUnavailable("no beacon today")

    async def read(look: Lookup, _cursor: str | None) -> Page:
        return Page(rows=tuple(ours(look, object_id=o) for o in shown), rows_received=len(shown))

    of = contract(has_beacon=True, timing=TIMING.model_copy(update={"page_grace_s": 0.05}))
    system = await deployment.process(of=of, read=read, beacon=beacon)
    await closed_after_two_permits(system, request())
    shown += late
    await asyncio.sleep(0.5)  # ten times the grace
    await watch_once(system, SEEN_AT_ONCE)
    assert any(paged in page["title"] for page in await deployment.rows("page") if page["closed_at"] is None)


async def test_cancel_tells_of_a_permit_that_is_being_taken(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel while the permit's transaction is open: it waits for it, or the permit is not given."""
    system, asked = await deployment.process(), request()
    task, _ = await tasks.accept(system.ledger, asked.tenant, "odd", "1", asked.payload)
    cancels: list[asyncio.Future[tuple[tasks.Task, list[Operation]]]] = []
    dispatch = permits._dispatch

    async def cancelled_meanwhile(*args: Any) -> permits.Permit:
        cancels.append(asyncio.ensure_future(tasks.cancel(system.ledger, task.task_id)))
        await asyncio.wait(cancels, timeout=0.3)
        return await dispatch(*args)

    monkeypatch.setattr(permits, "_dispatch", cancelled_meanwhile)
    assert (await perform(system, asked)).attempt == 1
    _, in_flight = await cancels[0]
    assert [o.operation_id for o in in_flight] == [key_of(asked).operation_id]


# what no ledger can keep -----------------------------------------------------------------------------------------

ODD = "a\x00b\ud800c"  # NUL, and half a surrogate pair: JSON may carry both


async def test_acknowledgement_is_recorded_whatever_it_is_made_of(deployment: Deployment) -> None:
    async def send(call: Call) -> Receipt:
        async with call.window():
            pass
        return Receipt(object_id=ODD, detail={ODD: [ODD, float("nan"), float("inf"), object()]})

    result = await perform(await deployment.process(send), request())
    assert (result.status, result.object_id) == ("committed", "a\ufffdb\ufffdc")
    assert [a["object_id"] for a in await deployment.rows("acknowledgement")] == ["a\ufffdb\ufffdc"]


async def test_loss_in_odd_words_is_recorded_and_an_odd_route_is_held(deployment: Deployment) -> None:
    async def send(call: Call) -> Receipt:
        async with call.window():
            pass
        raise Unknown(ODD)

    async def read(look: Lookup, _cursor: str | None) -> Page:
        raise RouteUnavailable(ODD)

    system = await deployment.process(send, read=read)
    assert (await perform(system, request())).status == "unknown"
    await asyncio.sleep(TO_THE_PAGE_S)
    assert (await settle_step(system, key_of(request()))).next == "hold"
    assert len(await deployment.rows("page")) == 1


@pytest.mark.parametrize(
    "asked",
    [{"payload": {"amount": 1, "note": ODD}}, {"payload": {"amount": 1, "note": float("nan")}}, {"natural_key": ODD}],
)
async def test_what_is_asked_is_kept_exactly_or_refused(deployment: Deployment, asked: dict[str, Any]) -> None:
    with pytest.raises(PayloadError):
        await perform(await deployment.process(), request(**asked))


async def test_route_with_times_of_no_zone_is_unavailable_and_held(deployment: Deployment) -> None:
    async def read(look: Lookup, _cursor: str | None) -> Page:
        return Page(as_of=datetime(2026, 1, 1))

    bounded = contract(late_arrival=Bounded(transit_s=0.1, enforced_by="the test"))
    system = await deployment.process(of=bounded, read=read)
    await perform(system, request())
    await asyncio.sleep(TO_THE_PAGE_S)
    seen = await settle_step(system, key_of(request()))
    assert (seen.next, seen.reason) == ("hold", "route_unavailable")


async def test_acknowledgement_outlasts_a_ledger_that_is_read_only(deployment: Deployment) -> None:
    """A failover: for a while the address leads to a server that refuses to write."""
    database = sql.Identifier(deployment.dsn.rsplit("/", 1)[1])

    async def read_only(value: str) -> None:
        async with await psycopg.AsyncConnection.connect(deployment.dsn, autocommit=True) as link:
            await link.execute("SET default_transaction_read_only = off")
            await link.execute(
                sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(database, sql.SQL(value))
            )
            await link.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    async def send(call: Call) -> Receipt:
        async with call.window():
            pass
        await read_only("on")
        return Receipt(object_id="x")

    performing = asyncio.create_task(perform(await deployment.process(send), request()))
    await asyncio.sleep(1.0)
    assert not performing.done()
    await read_only("off")
    assert (await performing).status == "committed"
