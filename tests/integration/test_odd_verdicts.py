"""Readings, contracts and decisions that nearly fit: nothing is concluded from what was not established.

The effects of one process against a real ledger; the destination is a function of the test.
"""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime
from typing import Any

import pytest

from actonce.contracts.contract import Bounded
from actonce.contracts.errors import PayloadError, Refused, Unknown
from actonce.contracts.messages import DecisionRequest
from actonce.contracts.verdict import Page, Receipt, Row
from actonce.destinations.base import Call, Lookup
from actonce.effects.decide import decide
from actonce.effects.perform import perform
from actonce.effects.reconcile import reconcile, settle_step
from actonce.ledger import decisions
from tests.integration.odd_bench import TIMING, TO_THE_PAGE_S, Deployment, contract, key_of, ours, request, take
from tests.integration.test_odd_destinations import BY_CANCEL, BY_KEY, SOON, is_cancelled


async def test_reading_that_began_before_the_decision_is_not_the_one_it_triggers(deployment: Deployment) -> None:
    """Rule R9: the effect shows while a reading that was begun earlier is still going on, and then a person decides."""
    ready, begun = asyncio.Event(), asyncio.Event()
    ready.set()
    shown: list[str] = []

    async def read(look: Lookup, _cursor: str | None) -> Page:
        rows = tuple(ours(look, object_id=o) for o in shown)
        begun.set()
        await ready.wait()
        return Page(rows=rows, rows_received=len(rows))

    of = contract(timing=TIMING.model_copy(update={"read_deadline_s": 10}))
    system = await deployment.process(of=of, read=read)
    await perform(system, request())
    await asyncio.sleep(TO_THE_PAGE_S)
    held = await settle_step(system, key_of(request()))
    ready.clear(), begun.clear()
    looking = asyncio.create_task(decide(system, key_of(request())))
    await begun.wait()
    shown.append("late")
    taken = {"action": "permit_one_retry", "name": "n", "reason": "r", "expected_epoch": 1}
    given = DecisionRequest.model_validate(taken | {"expected_version": held.version})
    await decisions.record(system.ledger, key_of(request()), given)
    ready.set()
    assert (await looking)[1] == "nothing_pending"
    operation, ended = await decide(system, key_of(request()))
    assert (operation.state, ended) == ("committed", "permit_one_retry: superseded_by_evidence")


@pytest.mark.parametrize(("replayed", "then"), [(False, "unknown"), (True, "refused")])
async def test_refused_resend_ends_the_operation_only_with_the_keys_stored_answer(
    deployment: Deployment, replayed: bool, then: str
) -> None:
    """case e4's kin: a lost scope is a 404 before anybody looks at the key; our first request may have taken effect."""
    answers = iter([Unknown("the answer was lost"), Refused("no such account", status=404, replayed=replayed)])

    async def send(call: Call) -> Receipt:
        async with call.window():
            pass
        raise next(answers)

    system = await deployment.process(send, contract(**BY_KEY))
    await perform(system, request())
    await asyncio.sleep(TO_THE_PAGE_S)
    assert (await settle_step(system, key_of(request()))).next == "issue"
    assert (await perform(system, request())).status == then


async def test_permitted_retry_is_no_verdict_of_absence(deployment: Deployment) -> None:
    system = await deployment.process()
    await perform(system, request())
    await asyncio.sleep(TO_THE_PAGE_S)
    held = await settle_step(system, key_of(request()))
    await take(system, request(), "permit_one_retry", held.version)
    seen = await reconcile(system, key_of(request()))
    assert (seen.next, seen.verdict) == ("issue", "ambiguous")


async def test_another_object_than_the_acknowledged_one_is_held(deployment: Deployment) -> None:
    """Something on the way sent our request twice: one object is acknowledged, a route shows the other."""

    async def send(call: Call) -> Receipt:
        async with call.window():
            pass
        return Receipt(object_id="first", digest=call.digest)

    async def read(look: Lookup, _cursor: str | None) -> Page:
        return Page(rows=(ours(look, object_id="second"),), rows_received=1)

    system = await deployment.process(send, contract(completion="read_back"), read)
    await perform(system, request())
    seen = await settle_step(system, key_of(request()))
    assert (seen.next, seen.reason) == ("hold", "multiple_matches")


@pytest.mark.parametrize("change", [{"object_kind": "item"}, {"account": "another"}])
@pytest.mark.parametrize("by", ["time", "cancel", "key"])
async def test_contract_that_looks_for_something_else_proves_no_absence(
    deployment: Deployment, change: dict[str, Any], by: str
) -> None:
    """A new version names another kind of object, or another account: what was sent before is not where it looks."""
    declared = {"time": SOON, "cancel": BY_CANCEL, "key": BY_KEY}[by]
    functions: dict[str, Any] = {"cancel_key": is_cancelled} if by == "cancel" else {}

    async def read(look: Lookup, _cursor: str | None) -> Page:
        seen: tuple[Row, ...] = (ours(look),) if "object_kind" in change else ()
        return Page(rows=seen, rows_received=len(seen), declared_total=len(seen), as_of=datetime.now(UTC))

    old = await deployment.process(of=contract(**declared), **functions)
    new = await deployment.process(of=contract(version=2, **{**declared, **change}), read=read, **functions)
    await perform(old, request())
    await asyncio.sleep(TO_THE_PAGE_S)
    for _ in range(2):
        seen = await settle_step(new, key_of(request()))
    assert (seen.next, seen.verdict) == ("hold", "ambiguous")
    assert await deployment.rows("key_cancel") == []


async def test_row_of_ours_in_another_account_is_held(deployment: Deployment) -> None:
    async def read(look: Lookup, _cursor: str | None) -> Page:
        rows = (ours(look, account="where the alias pointed"),)
        return Page(rows=rows, rows_received=1, declared_total=1, as_of=datetime.now(UTC))

    soon = contract(**{**SOON, "late_arrival": Bounded(transit_s=0.1, enforced_by="the test")})
    system = await deployment.process(of=soon, read=read)
    await perform(system, request())
    await asyncio.sleep(TO_THE_PAGE_S)
    seen = await settle_step(system, key_of(request()))
    assert (seen.next, seen.reason) == ("hold", "look_alike")


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"deeper": found}
    return found


@pytest.mark.parametrize(
    "asked",
    [
        {"natural_key": secrets.token_hex(5_000)},
        {"natural_key": ""},
        {"iteration": 2**31},
        {"payload": {"amount": 1, "note": nested(100)}},
    ],
    ids=["longer than an index entry", "empty", "out of range", "too deep"],
)
async def test_what_the_ledger_cannot_keep_is_refused_for_good(deployment: Deployment, asked: dict[str, Any]) -> None:
    """Any other error would be tried again for ever, and nobody be told."""
    with pytest.raises(PayloadError):
        await perform(await deployment.process(), request(**asked))
    assert await deployment.rows("operation") == []
