"""docs/guides/contracts.md, executed: three shapes of destination, each with an answer lost after the commit and a
request lost before arrival. On both sides the caller sees the same; what follows is what the guide says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from actonce.contracts.contract import Timing
from actonce.contracts.errors import DecisionRefused
from actonce.contracts.identity import OperationKey
from actonce.contracts.messages import DecisionRequest, OperationRequest
from actonce.destinations import Destination, Registry
from actonce.destinations.github_like import GithubLike, github_like_contract
from actonce.destinations.http import http_client
from actonce.destinations.rest import RestApi
from actonce.destinations.sandbox import build_sandbox
from actonce.destinations.stripe_like import StripeLike, stripe_like_contract
from actonce.effects.decide import decide
from actonce.effects.perform import perform
from actonce.effects.reconcile import settle_step
from actonce.effects.system import System, register_contracts, this_process
from actonce.ledger import Ledger, Operation, decisions
from actonce.ledger.migrate import migrate
from actonce.ledger.store import read_operation
from drills.world.client import World
from tests.unit.world.helpers import effects, running_world, settings, writes

TIMES: dict[str, float] = {
    "connect_timeout_s": 0.5,
    "write_timeout_s": 0.5,
    "permit_lifetime_s": 1.5,
    "send_deadline_s": 1.5,
    "activity_timeout_s": 1.8,
    "reconcile_after_s": 2.0,
    "read_again_s": 0.2,
    "page_grace_s": 0.3,
    "read_deadline_s": 1.5,
}
PAYLOADS: dict[str, dict[str, Any]] = {
    "stripe_like": {"charge": "ch_1", "amount": 1250, "reason": "damaged"},
    "github_like": {"title": "Refund 1250", "body": "Please look."},
    "mail": {"to": "jo@example.org", "subject": "Your refund", "text": "Done."},
}
# Not by SIGALRM: the freeze timer needs that signal's default action, and refuses to send without it.
pytestmark = pytest.mark.timeout(120, method="thread")
STEPS_MAX = 60  # × read_again_s: far beyond every bound above


def bearer(which: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer tok-acct-{'log' if which == 'events' else which}"}


def build(world: World, shape: str) -> Destination:
    timing = Timing.model_validate(TIMES)
    client = http_client(keep_alive=False)
    if shape == "mail":
        skew = {"mail": {"clock_skew_s": 0.1}}
        (mail,) = build_sandbox(settings(world, "acct", destinations=("mail",), timing=TIMES, contracts=skew))
        return mail
    urls = {name: world.listeners[f"{shape}.{name}"] for name in ("write", "by_id", "list", "search")}
    if shape == "stripe_like":
        urls["events"] = world.listeners["stripe_like.log"]
        contract = stripe_like_contract("acct", timing, clock_skew_s=0.1, sandbox=True)
        return StripeLike(contract, RestApi("acct", urls, bearer, client), "prn-acct").destination()
    return GithubLike(
        github_like_contract("acct", timing, clock_skew_s=0.1, sandbox=True),
        RestApi("acct", urls, bearer, client),
        "prn-acct",
    ).destination()


class Walk:
    """One operation, driven as the guard in a workflow drives it."""

    def __init__(self, system: System, world: World, request: OperationRequest) -> None:
        self.system, self.world, self.request = system, world, request
        self.key: OperationKey
        self.story: list[str] = []

    async def go(self) -> Operation:
        """Issue, and read until it is settled or held; the story has one entry for each change."""
        for _ in range(STEPS_MAX):
            issued = await perform(self.system, self.request)
            self.key = OperationKey(
                self.request.tenant, self.request.destination, self.request.action, issued.operation_id
            )
            self._tell(f"issue: {issued.how}")
            operation = await self._settle()
            if operation is not None:
                return operation
        raise AssertionError(f"it never settled: {self.story}")

    async def _settle(self) -> Operation | None:
        for _ in range(STEPS_MAX):
            result = await settle_step(self.system, self.key)
            self._tell(f"read: {result.verdict} {result.reason or ''}".strip())
            if result.next == "issue":
                return None
            if result.next in ("done", "hold"):
                return await self.operation()
            await asyncio.sleep(result.wait_s)  # the pause that reconciliation itself asks for
        raise AssertionError(f"it never settled: {self.story}")

    def _tell(self, what: str) -> None:
        if not self.story or self.story[-1] != what:
            self.story.append(what)

    async def operation(self) -> Operation:
        async with self.system.ledger.transaction() as connection:
            found = await read_operation(connection, self.key)
        assert found is not None
        return found

    async def order(self, action: Any, **more: Any) -> str:
        """An operator's decision at the version that is shown; returns how it ended."""
        now = await self.operation()
        request = DecisionRequest(
            action=action, name="Ola", reason="test", expected_epoch=now.epoch, expected_version=now.version, **more
        )
        await decisions.record(self.system.ledger, self.key, request)
        _, result = await decide(self.system, self.key)
        return result


Start = Callable[[str, str], Any]


@pytest.fixture
async def walk(tmp_path: Path, fresh_dsn: str) -> AsyncIterator[Start]:
    """`await walk(shape, when)` loses one answer after, or one request before, the commit."""
    await asyncio.to_thread(migrate, fresh_dsn)

    @asynccontextmanager
    async def started(shape: str, when: str) -> AsyncIterator[Walk]:
        async with running_world(tmp_path / "world") as world, Ledger(fresh_dsn) as ledger:
            await world.configure("acct", shape, answer={"kind": "close", "when": when, "times": 1})
            destination = build(world, shape)
            system = System(ledger, Registry([destination]), this_process())
            await register_contracts(ledger, system.registry)
            (action,) = destination.contract.actions
            request = OperationRequest(
                tenant="t", task_id="t/x/1", step="s", destination=shape, action=action, payload=PAYLOADS[shape]
            )
            yield Walk(system, world, request)

    yield started


async def test_stripe_like_answer_lost_after_commit_is_adopted_without_another_send(walk: Start) -> None:
    async with walk("stripe_like", "after_commit") as it:
        operation = await it.go()
        assert it.story == ["issue: unknown", "read: committed"]
        assert (operation.state, operation.completion, operation.attempts) == ("committed", "read_back", 1)
        assert len(effects(it.world, "acct")) == len(writes(it.world, "acct")) == 1


async def test_stripe_like_request_lost_before_arrival_is_sent_again_under_the_same_key(walk: Start) -> None:
    async with walk("stripe_like", "before_commit") as it:
        operation = await it.go()
        assert (operation.state, operation.completion, operation.attempts) == ("committed", "receipt", 2)
        assert not any("absent" in step for step in it.story)
        first, second = writes(it.world, "acct")
        assert first["key"] == second["key"] == operation.operation_id
        assert len(effects(it.world, "acct")) == 1


async def test_stripe_like_stored_error_is_held_and_not_sent_a_third_time(walk: Start) -> None:
    async with walk("stripe_like", "after_commit") as it:
        await it.world.configure("acct", "stripe_like", answer=None, processing_error={"status": 500})
        operation = await it.go()
        assert (operation.state, operation.reason) == ("held", "stored_error_replayed")
        assert len(writes(it.world, "acct")) == 2 and effects(it.world, "acct") == []


async def test_github_like_answer_lost_after_commit_is_found_by_its_marker(walk: Start) -> None:
    async with walk("github_like", "after_commit") as it:
        operation = await it.go()
        assert it.story == ["issue: unknown", "read: committed"]
        assert (operation.state, operation.attempts) == ("committed", 1)
        assert operation.object_id == "4"  # after the three that were there
        assert len(writes(it.world, "acct")) == 1


async def test_github_like_request_lost_before_arrival_is_held_and_decided(walk: Start) -> None:
    async with walk("github_like", "before_commit") as it:
        operation = await it.go()
        assert it.story == ["issue: unknown", "read: ambiguous too_early", "read: ambiguous late_commit_possible"]
        assert (operation.state, operation.reason, operation.unbounded) == ("held", "late_commit_possible", True)
        assert len(writes(it.world, "acct")) == 1 and effects(it.world, "acct") == []
        assert (await it.order("permit_one_retry")).endswith(": applied")
        (decision,) = await decisions.history(it.system.ledger, it.key)
        assert "second effect" in decision["residual_risk"]
        operation = await it.go()
        assert (operation.state, operation.attempts) == ("committed", 2)
        assert len(effects(it.world, "acct")) == 1


@pytest.mark.parametrize("when", ["after_commit", "before_commit"])
async def test_mail_is_held_in_both_cases_and_only_a_person_ends_it(walk: Start, when: str) -> None:
    """case a8"""
    async with walk("mail", when) as it:
        operation = await it.go()
        assert it.story == ["issue: unknown", "read: ambiguous no_route"]
        assert (operation.state, operation.reason, operation.unbounded) == ("held", "no_route", True)
        handed_over = len(effects(it.world, "acct"))
        assert handed_over == (1 if when == "after_commit" else 0)
        with pytest.raises(DecisionRefused) as early:
            await it.order("permit_one_retry")
        assert early.value.code == "too_early"
        if when == "after_commit":
            object_id = effects(it.world, "acct")[0]["object_id"]
            assert (await it.order("mark_committed", object_id=object_id, evidence="the relay's log")).endswith(
                ": applied"
            )
            operation = await it.operation()
            assert (operation.state, operation.completion) == ("committed", "operator_attested")
        else:
            await _past(operation)
            assert (await it.order("mark_absent", evidence="not in the relay's log")).endswith(": applied")
            assert (await it.operation()).state == "closed"
        assert len(effects(it.world, "acct")) == handed_over


async def _past(operation: Operation) -> None:
    assert operation.reconcile_at is not None
    await asyncio.sleep(max((operation.reconcile_at - datetime.now(UTC)).total_seconds(), 0.0) + 0.05)
