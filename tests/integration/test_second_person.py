"""Decisions that a second person must confirm: nothing happens on one person's word, and everything is on record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest_asyncio

from actonce.contracts.people import Role, Scope
from actonce.contracts.verdict import Outcome, Reason, Verdict
from actonce.deployment import DeploymentSettings
from actonce.ledger import decisions, people, tokens, watch
from actonce.ledger.audit_facts import check_facts
from actonce.ledger.store import Operation, many
from tests.integration.entry_bench import Bench, bench, contract

UNCLEAR = Verdict(outcome=Outcome.AMBIGUOUS, reason=Reason.NOT_VISIBLE, words="no route shows it")


@dataclass
class Desk:
    """A held operation, and two people who may decide about it."""

    on: Bench
    operation: Operation
    shown: dict[str, dict[str, str]]

    async def decide(self, name: str = "Ada", **more: Any) -> httpx.Response:
        body = {
            "action": "mark_committed",
            "name": name,
            "reason": "seen",
            "evidence": "statement 4",
            "object_id": "re_1",
            "expected_epoch": self.operation.epoch,
            "expected_version": self.operation.version,
        }
        path = f"/v1/operations/{self.operation.operation_id}/decisions"
        return await self.on.http.post(path, json=body | more, headers=self.shown.get(name))

    async def second(self, name: str, decision_id: int, *, agrees: bool = True) -> httpx.Response:
        path = f"/v1/operations/{self.operation.operation_id}/decisions/{decision_id}/second"
        body = {"agrees": agrees, "name": name, "why": "looked as well"}
        return await self.on.http.post(path, json=body, headers=self.shown.get(name))

    async def consumed(self) -> str:
        """What consuming it now comes to, as a worker would."""
        decision = await decisions.pending(self.on.ledger, self.operation.key)
        if decision is None:
            return "nothing_pending"
        return (await decisions.consume(self.on.ledger, decision, UNCLEAR))[1]


FULL_WIDTH = "Ada".translate({ord(letter): ord(letter) + 0xFEE0 for letter in "Ada"})  # other code points


@pytest_asyncio.fixture
async def desk(fresh_dsn: str) -> AsyncIterator[Desk]:
    settings = {"second_person": "mark_committed, permit_one_retry", "start_deadline_s": 0.2, "token_cache_s": 0}
    async with bench(fresh_dsn, None, **settings) as on:
        shown = {}
        for name in ("Ada", "Ben", FULL_WIDTH):
            await people.add_person(on.ledger, name, [Role.OPERATOR], password=None, by="tests")
            _, value = await tokens.create_token(on.ledger, name, [Scope.DECIDE], by="tests", person=name)
            shown[name] = {"Authorization": f"Bearer {value}"}
        await on.start("h-1")
        yield Desk(on, await on.held("default/single/h-1", contract(bounded=False)), shown)


def code(answer: httpx.Response) -> tuple[int, str | None]:
    said = answer.json()
    return answer.status_code, said.get("code") or said["type"].rpartition(":")[2]


async def test_one_persons_word_changes_nothing_and_a_second_one_lets_it_take_effect(desk: Desk) -> None:
    recorded = await desk.decide()
    assert recorded.status_code == 201 and recorded.json()["waits_for_second_person"] is True
    assert "second" in recorded.json()["what_to_do"][0] and "--confirm" in recorded.json()["what_to_do"][0]
    number = recorded.json()["decision_id"]
    assert await desk.consumed() == "nothing_pending"
    assert await watch.undecided(desk.on.ledger, 0.0) == []
    shown = await desk.on.http.get(f"/v1/operations/{desk.operation.operation_id}")
    [record] = shown.json()["records"]
    assert record["state"] == "held"
    assert all("somebody else has confirmed" in now["refused_because"] for now in record["decisions_now"])
    confirmed = await desk.second("Ben", number)
    assert confirmed.status_code == 200 and confirmed.json()["waits_for_second_person"] is False
    assert [o.operation_id for o in await watch.undecided(desk.on.ledger, 0.0)] == [desk.operation.operation_id]
    assert (await desk.second("Ben", number)).status_code == 200, "the same word again"
    assert await desk.consumed() == "applied"
    async with desk.on.ledger.transaction() as connection:
        events = await many(connection, "SELECT kind, body FROM actonce.audit WHERE kind LIKE 'decision.%'")
        assert [finding async for finding in check_facts(connection)] == []
    told = {row["kind"]: row["body"] for row in events}
    assert told["decision.recorded"]["second_person"] is True and told["decision.recorded"]["name"] == "Ada"
    assert told["decision.second_person"]["second_name"] == "Ben" and told["decision.second_person"]["second_agrees"]


async def test_a_decision_that_waits_is_not_applied_even_if_somebody_tries(desk: Desk) -> None:
    """Without the filter in `pending` it would still not be: consume looks itself."""
    await desk.decide()
    async with desk.on.ledger.transaction() as connection:
        [row] = await many(connection, "SELECT * FROM actonce.decision")
    operation, result = await decisions.consume(desk.on.ledger, decisions.Decision.of(row), UNCLEAR)
    assert (operation.state, result) == ("held", "waits_for_second_person")


async def test_nobody_confirms_their_own_decision_under_any_spelling_or_token(desk: Desk) -> None:
    number = (await desk.decide()).json()["decision_id"]
    assert code(await desk.second("Ada", number)) == (409, "same_person")
    assert code(await desk.second(FULL_WIDTH, number)) == (409, "same_person")
    assert code(await desk.second("ada", number)) == (403, "person-needed"), "the deployment's own token is nobody"
    assert code(await desk.second("Cleo", number)) == (403, "person-needed")
    desk.shown["Ben"], ben = desk.shown["Ada"], desk.shown["Ben"]
    assert code(await desk.second("Ben", number)) == (403, "name-differs")
    desk.shown["Ben"] = ben
    assert await desk.consumed() == "nothing_pending"


async def test_the_first_word_too_needs_a_person_where_it_needs_a_second_one(desk: Desk) -> None:
    assert code(await desk.decide("anybody")) == (403, "person-needed")
    free = await desk.decide("anybody", action="mark_absent", object_id=None)
    assert code(free)[1] != "person-needed", "this one needs no second person"


async def test_declined_it_ends_without_effect_and_can_be_decided_anew(desk: Desk) -> None:
    number = (await desk.decide()).json()["decision_id"]
    assert (await desk.second("Ben", number, agrees=False)).status_code == 200
    assert code(await desk.second("Ben", number)) == (409, "decided")
    assert await desk.consumed() == "nothing_pending"
    again = await desk.decide("Ben")
    assert again.status_code == 201
    assert (await desk.second("Ben", again.json()["decision_id"], agrees=False)).status_code == 200, "one's own, back"


async def test_a_word_about_what_has_changed_since_is_refused(desk: Desk) -> None:
    number = (await desk.decide()).json()["decision_id"]
    async with desk.on.ledger.transaction() as connection:
        await connection.execute("UPDATE actonce.operation SET version = version + 1, last_event = 'hold'")
    assert code(await desk.second("Ben", number)) == (409, "stale")
    assert code(await desk.second("Ben", 4711)) == (409, "unknown_decision")


async def test_after_its_time_no_word_helps_and_the_watcher_closes_it(desk: Desk) -> None:
    number = (await desk.decide(expires_in_s=0.001)).json()["decision_id"]
    assert code(await desk.second("Ben", number)) == (409, "decided")
    assert len(await watch.undecided(desk.on.ledger, 0.0)) == 1
    assert await desk.consumed() == "nothing_pending"
    async with desk.on.ledger.transaction() as connection:
        [row] = await many(connection, "SELECT result FROM actonce.decision")
    assert row["result"] == "expired"


async def test_of_two_words_at_once_one_counts(desk: Desk) -> None:
    await people.add_person(desk.on.ledger, "Cleo", [Role.OPERATOR], password=None, by="tests")
    _, value = await tokens.create_token(desk.on.ledger, "c", [Scope.DECIDE], by="tests", person="Cleo")
    desk.shown["Cleo"] = {"Authorization": f"Bearer {value}"}
    number = (await desk.decide()).json()["decision_id"]
    answers = await asyncio.gather(desk.second("Ben", number), desk.second("Cleo", number, agrees=False))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    [loser] = [answer.json() for answer in answers if answer.status_code == 409]
    assert loser["decided_by"] in ("Ben", "Cleo")


async def test_a_decision_that_needs_no_second_person_takes_effect_at_once(fresh_dsn: str) -> None:
    """Negative control: the same press without the setting."""
    assert DeploymentSettings(ledger_dsn="postgresql://nobody").second_person == ()
    async with bench(fresh_dsn, None, start_deadline_s=0.2) as on:
        await on.start("h-1")
        desk = Desk(on, await on.held("default/single/h-1", contract(bounded=False)), {})
        recorded = await desk.decide()
        assert recorded.json()["waits_for_second_person"] is False
        assert code(await desk.second("Ben", recorded.json()["decision_id"]))[0] == 403
        assert await desk.consumed() == "applied"
