"""The watcher looks at several operations side by side, at each by one task; also where nothing can be read."""

from __future__ import annotations

import asyncio
from collections import Counter

from actonce.contracts.contract import Contract
from actonce.contracts.errors import RouteUnavailable
from actonce.contracts.messages import DecisionRequest
from actonce.contracts.verdict import Page
from actonce.destinations.base import Lookup
from actonce.effects.decide import decide
from actonce.effects.perform import perform
from actonce.effects.reconcile import reconcile
from actonce.effects.system import System
from actonce.effects.watcher import WatchSettings, watch_once
from actonce.ledger import decisions
from actonce.ledger.watch import find_operation
from actonce.testing.waiting import eventually
from tests.integration.odd_bench import TIMING, Deployment, contract, key_of, request

OPERATIONS = range(1, 7)
AT_ONCE = WatchSettings(idle_s=0, at_once_max=8, pass_s=600)
HANGS_S = 100.0  # far longer than all else here: a route that hangs, not one that is slow
# A permit lives three times as long as in the tests beside: here several are taken before anything is waited for.
LIVES_S = 3.0
TO_THE_PAGE_S = LIVES_S + 1.2


def patient() -> Contract:
    life = dict.fromkeys(("permit_lifetime_s", "send_deadline_s"), LIVES_S)
    after = {"activity_timeout_s": LIVES_S + 0.1, "reconcile_after_s": LIVES_S + 0.2, "read_deadline_s": HANGS_S}
    return contract(timing=TIMING.model_copy(update=life | after))


async def test_a_route_that_hangs_keeps_no_other_operation_from_being_held(deployment: Deployment) -> None:
    """The oldest operation's route answers only when all others are held: one after another they never would be."""
    oldest = key_of(request(OPERATIONS[0])).operation_id
    held_meanwhile: list[int] = []

    async def all_others_held() -> bool:
        states = Counter(row["state"] for row in await deployment.rows("operation"))
        return states == {"held": len(OPERATIONS) - 1, "unknown": 1}

    async def read(look: Lookup, _cursor: str | None) -> Page:
        if look.operation_id == oldest:
            await eventually(all_others_held, within_s=30, what="every other operation held")
            held_meanwhile.append(len(await deployment.rows("hold")))
        raise RouteUnavailable("nobody answers")

    system = await deployment.process(of=patient(), read=read)
    for number in OPERATIONS:
        await perform(system, request(number))
    await asyncio.sleep(TO_THE_PAGE_S)
    assert (await watch_once(system, AT_ONCE))["unsettled"] == len(OPERATIONS)
    assert held_meanwhile == [len(OPERATIONS) - 1]
    assert {row["state"] for row in await deployment.rows("operation")} == {"held"}


async def test_one_destination_takes_half_of_the_places_and_no_operation_two(deployment: Deployment) -> None:
    running: Counter[str] = Counter()
    most: list[int] = []
    half = asyncio.Event()

    async def read(look: Lookup, _cursor: str | None) -> Page:
        running[look.operation_id] += 1
        most.append(running.total())
        assert running[look.operation_id] == 1
        if running.total() == AT_ONCE.at_once_max // 2:
            half.set()
        await asyncio.wait_for(half.wait(), 30)
        running[look.operation_id] -= 1
        raise RouteUnavailable("nobody answers")

    system = await deployment.process(of=patient(), read=read)
    for number in OPERATIONS:
        await perform(system, request(number))
    await asyncio.sleep(TO_THE_PAGE_S)
    await watch_once(system, AT_ONCE)
    assert max(most) == AT_ONCE.at_once_max // 2 and len(most) == len(OPERATIONS)


async def test_a_pass_that_is_over_goes_on_where_it_ended(deployment: Deployment) -> None:
    """Each pass has room for one operation: the one that was not read for longest."""
    read_now: list[str] = []

    async def read(look: Lookup, _cursor: str | None) -> Page:
        read_now.append(look.operation_id)
        raise RouteUnavailable("nobody answers")

    system = await deployment.process(of=patient(), read=read)
    for number in OPERATIONS[:3]:
        await perform(system, request(number))
    await asyncio.sleep(TO_THE_PAGE_S)
    nothing = await watch_once(system, WatchSettings(idle_s=0, pass_s=-1.0))
    assert nothing["unsettled"] == 0 and read_now == []
    await watch_once(system, WatchSettings(idle_s=0, held_again_s=0, pass_s=600, at_once_max=1))
    first = list(read_now)
    await watch_once(system, WatchSettings(idle_s=0, held_again_s=0, pass_s=600, at_once_max=1))
    assert sorted(first) == sorted(read_now[len(first) :]) and len(set(first)) == 3
    assert read_now[len(first) :] == first, "held ones are read again in the order in which they were read"


async def decided(system: System, number: int, action: str) -> None:
    (operation,) = await find_operation(system.ledger, key_of(request(number)).operation_id)
    taken = {"action": action, "name": "Ada", "reason": "seen at the bank", "expected_epoch": operation.epoch}
    if action == "mark_committed":
        taken["object_id"] = "re_1"
    taken["expected_version"] = operation.version
    await decisions.record(system.ledger, operation.key, DecisionRequest.model_validate(taken))


async def test_an_operation_whose_contract_nobody_has_can_be_ended_and_is_never_sent(deployment: Deployment) -> None:
    """Its decision is taken unread, on record as that; one that would send waits for somebody who has the contract."""
    actions = {1: "mark_absent", 2: "mark_committed", 3: "permit_one_retry"}
    had = await deployment.process(of=patient())
    for number in actions:
        await perform(had, request(number))
    await asyncio.sleep(TO_THE_PAGE_S)
    gone = await deployment.process(of=contract(name="another"))
    await watch_once(gone, WatchSettings(idle_s=0, give_up_s=0))
    assert {row["state"] for row in await deployment.rows("operation")} == {"held"}
    for number, action in actions.items():
        await decided(gone, number, action)

    await watch_once(gone, WatchSettings(idle_s=0, give_up_s=3600))  # somebody who has it may still come first
    assert {row["result"] for row in await deployment.rows("decision")} == {None}
    await watch_once(gone, WatchSettings(idle_s=0, give_up_s=0))
    results = {row["decision"]: row["result"] for row in await deployment.rows("decision")}
    assert results == {"mark_absent": "applied", "mark_committed": "applied", "permit_one_retry": None}
    rows = {row["operation_id"]: row for row in await deployment.rows("operation")}
    absent, committed, waiting = (rows[key_of(request(number)).operation_id] for number in actions)
    assert [one["state"] for one in (absent, committed, waiting)] == ["closed", "committed", "held"]
    assert (committed["completion"], committed["object_id"]) == ("operator_attested", "re_1")
    unread = [row["words"] for row in await deployment.rows("verdict") if row["words"].startswith("nothing was read")]
    assert {words.rpartition("; ")[2] for words in unread} >= {
        f"{action} is taken as it is" for action in ("mark_absent", "mark_committed")
    }
    for number in (1, 2):  # a workflow whose workers have no contract of it either goes on all the same
        assert (await decide(gone, key_of(request(number))))[1] == "nothing_pending"
        assert (await reconcile(gone, key_of(request(number)))).next == "done"

    await watch_once(had, WatchSettings(idle_s=0))
    results = {row["decision"]: row["result"] for row in await deployment.rows("decision")}
    assert results["permit_one_retry"] == "applied"
    assert len(await deployment.rows("attempt")) == len(actions), "nothing was sent but by the first permits"
