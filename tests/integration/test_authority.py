"""Authority at a destination that is no sandbox: nothing is sent without it, nothing beyond its caps.

The effects of processes against a real ledger; the destination is a function of the test.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from actonce.contracts.contract import Contract
from actonce.contracts.errors import AuthorityRefused
from actonce.contracts.messages import OperationRequest
from actonce.contracts.verdict import Receipt
from actonce.destinations.base import Call
from actonce.effects.perform import perform
from actonce.effects.system import System
from actonce.ledger import authority, gates
from actonce.ledger.authority import Caps, Shown
from actonce.ledger.store import Ledger, read_operation
from actonce.version import __version__
from tests.integration.odd_bench import Deployment, contract, key_of, request

REAL = contract(sandbox=False)
MANY = Caps(per_hour_max=50, count_max=100)
DAY = timedelta(days=1)


class Sent:
    """A destination that counts."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    async def send(self, call: Call) -> Receipt:
        async with call.window():
            self.calls.append(call)
        return Receipt(object_id=f"x{len(self.calls)}", digest=call.digest)


def shown(of: Contract = REAL, **more: Any) -> Shown:
    declared: dict[str, Any] = {
        "contract_digest": of.digest,
        "release": __version__,
        "evidence_digest": "e" * 64,
        "evidence_at": datetime.now(UTC) - timedelta(hours=1),
        "signed_by": "ada",
        "saw": "one effect each",
    }
    return Shown(**{**declared, **more})


async def grant(ledger: Ledger, caps: Caps = MANY, of: Contract = REAL, life: timedelta = DAY, **more: Any) -> None:
    await authority.grant(ledger, "odd", "odd", caps, shown(of, **more), by="olga", reason="first week", life=life)


def asked(number: int, amount: Any = 1) -> OperationRequest:
    return request(number, payload={"amount": amount, "amount_minor": amount})


@pytest.fixture
def world() -> Sent:
    return Sent()


async def held_for(system: System, of: OperationRequest) -> str:
    """The reason for which it is held; nothing else may have become of it."""
    await perform(system, of)
    async with system.ledger.transaction() as connection:
        cursor = await connection.execute(
            "SELECT o.state, o.reason, h.words FROM actonce.operation o LEFT JOIN actonce.hold h USING (operation_id)"
            " WHERE operation_id = %s AND h.closed_at IS NULL",
            (key_of(of).operation_id,),
        )
        row = await cursor.fetchone()
    assert row is not None and row["state"] == "held", row
    return f"{row['reason']}: {row['words']}"


async def test_nothing_is_sent_where_nobody_gave_authority(deployment: Deployment, world: Sent) -> None:
    system = await deployment.process(world.send, REAL)
    assert "no_authority" in await held_for(system, asked(1))
    assert world.calls == []
    assert [p["reason"] for p in await deployment.rows("page")] == ["no_authority"]


async def test_control_without_the_gate_it_is_sent(
    deployment: Deployment, world: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(authority, "check", nothing)
    system = await deployment.process(world.send, REAL)
    await perform(system, asked(1))
    assert len(world.calls) == 1


async def test_a_sandbox_needs_none_and_counts_for_nothing(deployment: Deployment, world: Sent) -> None:
    system = await deployment.process(world.send)
    await perform(system, asked(1))
    assert len(world.calls) == 1 and await deployment.rows("authority_use") == []


async def test_with_authority_it_is_sent_and_counted_once(deployment: Deployment, world: Sent) -> None:
    system = await deployment.process(world.send, REAL)
    await grant(system.ledger)
    await perform(system, asked(1, 7))
    await perform(system, asked(1, 7))
    assert len(world.calls) == 1
    (total,) = await deployment.rows("authority_total")
    assert (total["uses"], total["amount_minor"]) == (1, 7)
    assert {row["kind"] for row in await deployment.rows("audit")} >= {"authority.granted"}


@pytest.mark.parametrize(
    ("caps", "first", "second", "words"),
    [
        (Caps(count_max=1), 1, 1, "the most in all"),
        (Caps(per_hour_max=1), 1, 1, "within an hour"),
        (Caps(amount_max_minor=5), 5, 6, "the most for one operation"),
        (Caps(total_max_minor=10), 6, 5, "6 of 10 minor units are used"),
        (Caps(amount_max_minor=5), 5, "5", "no amount"),
        (Caps(total_max_minor=5), 5, -1, "no amount"),
    ],
    ids=str,
)
async def test_beyond_a_cap_nothing_is_sent(
    deployment: Deployment, world: Sent, caps: Caps, first: int, second: Any, words: str
) -> None:
    system = await deployment.process(world.send, REAL)
    await grant(system.ledger, caps)
    await perform(system, asked(1, first))
    said = await held_for(system, asked(2, second))
    assert said.startswith("authority_cap") and words in said, said
    assert len(world.calls) == 1


async def test_of_many_permits_at_once_only_as_many_are_given_as_the_cap_has(
    deployment: Deployment, world: Sent
) -> None:
    system = await deployment.process(world.send, REAL)
    await grant(system.ledger, Caps(count_max=3))
    await asyncio.gather(*(perform(system, asked(n)) for n in range(8)))
    assert len(world.calls) == 3
    states = [row["state"] for row in await deployment.rows("operation")]
    assert (states.count("committed"), states.count("held")) == (3, 5)


@pytest.mark.parametrize(
    "given", [{"of": contract(sandbox=False, version=2)}, {"release": "0.0.0"}], ids=["contract", "release"]
)
async def test_authority_for_something_else_gives_no_permit(
    deployment: Deployment, world: Sent, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    system = await deployment.process(world.send, REAL)
    with monkeypatch.context() as then:
        if "release" in given:
            then.setattr(authority, "__version__", given["release"])
        await grant(system.ledger, **given)
    said = await held_for(system, asked(1))
    assert said.startswith("no_authority") and "for another" in said
    assert world.calls == []


async def test_it_ends_by_the_clock_and_that_is_recorded(deployment: Deployment, world: Sent) -> None:
    system = await deployment.process(world.send, REAL)
    await grant(system.ledger, life=timedelta(microseconds=1))
    assert "has expired" in await held_for(system, asked(1))
    (row,) = await deployment.rows("authority")
    assert (row["ended_by"], world.calls) == (authority.BY_THE_CLOCK, [])


async def test_withdrawn_it_gives_no_permit_and_no_fence_passes(deployment: Deployment) -> None:
    reached, go = asyncio.Event(), asyncio.Event()
    sent: list[Call] = []

    async def stops(call: Call) -> Receipt:
        reached.set()
        await go.wait()
        async with call.window():
            sent.append(call)
        return Receipt(object_id="x", digest=call.digest)

    patient = REAL.timing.model_copy(
        update={
            "permit_lifetime_s": 20.0,
            "send_deadline_s": 20.0,
            "activity_timeout_s": 21.0,
            "reconcile_after_s": 22.0,
        }
    )
    real = contract(sandbox=False, timing=patient)
    system = await deployment.process(stops, real)
    await grant(system.ledger, of=real)
    running = asyncio.create_task(perform(system, asked(1)))
    await reached.wait()
    await authority.withdraw(system.ledger, "odd", "odd", by="olga", reason="strange")
    await asyncio.sleep(0.1)  # until the permit's own commit is no longer the fence
    go.set()
    await running
    assert sent == []
    (attempt,) = await deployment.rows("attempt")
    assert attempt["outcome"] == "not_sent" and "was withdrawn" in attempt["detail"]
    assert "no_authority" in await held_for(system, asked(1))


async def test_it_is_resumed_only_when_the_cap_allows_it(deployment: Deployment, world: Sent) -> None:
    system = await deployment.process(world.send, REAL)
    await grant(system.ledger, Caps(count_max=1))
    await perform(system, asked(1))
    await held_for(system, asked(2))

    async def why_not() -> str | None:
        async with system.ledger.transaction() as connection:
            operation = await read_operation(connection, key_of(asked(2)))
            assert operation is not None
            return await gates.unmet(connection, operation)

    assert "1 is the most in all" in str(await why_not())
    await grant(system.ledger, Caps(count_max=2))
    assert await why_not() is None
    await authority.withdraw(system.ledger, "odd", "odd", by="olga", reason="strange")
    assert "no authority" in str(await why_not())


async def test_a_new_grant_is_no_new_budget_and_lowering_needs_no_evidence(deployment: Deployment, world: Sent) -> None:
    system = await deployment.process(world.send, REAL)
    await grant(system.ledger, Caps(per_hour_max=9, count_max=9))
    await perform(system, asked(1))
    with pytest.raises(AuthorityRefused, match="allows more"):
        await authority.lower(system.ledger, "odd", "odd", Caps(count_max=1), by="olga", reason="less")
    fewer = Caps(per_hour_max=9, count_max=1)
    await authority.lower(system.ledger, "odd", "odd", fewer, by="olga", reason="less")
    assert "authority_cap" in await held_for(system, asked(2))
    newer, older = await authority.standing(system.ledger)
    assert (newer["in_force"], newer["uses"], older["in_force"]) == (True, 1, False)
    assert older["ended_why"] == "another takes its place: less"


async def test_old_evidence_gives_nothing(deployment: Deployment, world: Sent) -> None:
    system = await deployment.process(world.send, REAL)
    old = datetime.now(UTC) - authority.EVIDENCE_LIFE
    with pytest.raises(AuthorityRefused, match="run the drills again"):
        await grant(system.ledger, evidence_at=old)
    nearly = old + timedelta(hours=1)
    await grant(system.ledger, evidence_at=nearly)
    (row,) = await deployment.rows("authority")
    assert row["expires_at"] == nearly + authority.EVIDENCE_LIFE


async def test_an_authority_cannot_be_widened_in_the_database(deployment: Deployment, world: Sent) -> None:
    system = await deployment.process(world.send, REAL)
    await grant(system.ledger)
    for change in ("count_max = 9999", "expires_at = expires_at + interval '1 day'", "ended_at = NULL"):
        with pytest.raises(psycopg.errors.RaiseException):
            async with await psycopg.AsyncConnection.connect(deployment.dsn) as link:
                await link.execute(f"UPDATE actonce.authority SET {change}")
