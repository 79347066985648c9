"""What is asked in the permit's transaction beside the operation's state, and how a gate's hold is left again."""

from __future__ import annotations

import psycopg
import pytest

from actonce.contracts.errors import DecisionRefused
from actonce.contracts.messages import DecisionRequest
from actonce.contracts.verdict import Reason
from actonce.effects.decide import decide
from actonce.effects.perform import perform
from actonce.effects.system import System
from actonce.ledger import decisions, pages, tasks
from tests.integration.cases.kit import Bench, Lab, key_of, lost, settle, side_by_side

PAST, FUTURE = "clock_timestamp() - interval '1 s'", "clock_timestamp() + interval '1 hour'"


async def accepted(bench: Bench, system: System, deadline: str) -> None:
    """The task of the bench's operation, with a deadline."""
    _, task_type, key = bench.request().task_id.split("/")
    await tasks.accept(system.ledger, "default", task_type, key, {})
    await set_deadline(bench, deadline)


async def set_deadline(bench: Bench, deadline: str) -> None:
    async with await psycopg.AsyncConnection.connect(bench.dsn, autocommit=True) as link:
        await link.execute(f"UPDATE actonce.task SET deadline = {deadline}")  # type: ignore[arg-type]


async def press(bench: Bench, system: System, action: str) -> str:
    """What a person does with the held operation: decide, and have it consumed."""
    row = await bench.operation()
    request = DecisionRequest.model_validate(
        {
            "action": action,
            "name": "olga",
            "reason": "asked the owner",
            "evidence": "ticket 7",
            "expected_epoch": row["epoch"],
            "expected_version": row["version"],
        }
    )
    await decisions.record(system.ledger, key_of(bench.request()), request)
    _, result = await decide(system, key_of(bench.request()))
    return result


@side_by_side
async def test_nothing_is_sent_after_the_deadline_of_its_task_until_a_person_resumes_it(lab: Lab) -> None:
    async with lab.bench() as bench:
        system = await bench.system()
        await accepted(bench, system, PAST)
        result = await perform(system, bench.request())
        assert (result.status, result.reason) == ("held", "deadline_passed")
        assert bench.requests() == [] and await bench.rows("attempt") == []
        (page,) = await bench.rows("page")
        assert page["reason"] == "deadline_passed" and "docs/operations/deadline_passed.md" in page["body"]
        with pytest.raises(DecisionRefused, match="new deadline") as early:
            await press(bench, system, "resume")
        assert early.value.code == "condition_not_met"
        await set_deadline(bench, FUTURE)
        assert await press(bench, system, "resume") == "resume: applied"
        assert (await perform(system, bench.request())).status == "committed"
        assert len(bench.requests()) == len(bench.effects()) == 1


@side_by_side
async def test_a_permit_never_outlives_the_deadline_of_its_task(lab: Lab) -> None:
    async with lab.bench() as bench:
        system = await bench.system()
        await accepted(bench, system, "clock_timestamp() + interval '1 s'")
        await perform(system, bench.request())
        (attempt,) = await bench.rows("attempt")
        (task,) = await bench.rows("task")
        assert attempt["not_after"] == task["deadline"]


@side_by_side
async def test_a_hold_about_an_unknown_outcome_cannot_be_resumed(lab: Lab) -> None:
    """`resume` needs no proof of absence, so only a hold that a gate opened before a permit may use it."""
    async with lab.bench(contracts={"payments": {"routes": [], "has_beacon": False}}) as bench:
        system = await bench.system()
        await bench.configure(answer={"kind": "close", "when": "before_commit", "times": 1})
        await lost(system, bench.request())
        await settle(system, bench.request())
        await bench.until_decidable()
        with pytest.raises(DecisionRefused) as refused:
            await press(bench, system, "resume")
        assert refused.value.code == "not_permitted"
        assert "permit_one_retry" in str(refused.value)


@side_by_side
async def test_a_task_is_held_for_as_long_as_anything_of_it_is(lab: Lab) -> None:
    async with lab.bench() as bench:
        system = await bench.system()
        await accepted(bench, system, FUTURE)
        task_id = bench.request().task_id
        for step in ("recall", "recall", "other"):
            async with system.ledger.transaction() as connection:
                await pages.hold_task(connection, task_id, step, Reason.ORPHANED, "an example")
        assert len(await bench.rows("hold")) == len(await bench.rows("page")) == 2
        for step, state in (("recall", "held"), ("other", "running")):
            async with system.ledger.transaction() as connection:
                assert await pages.close_task_hold(connection, task_id, step, "evidence:test")
            (task,) = await bench.rows("task")
            assert task["state"] == state
        assert all(p["closed_at"] for p in await bench.rows("page"))
