"""What people do at the console: each button, through a real entry, into a real ledger; seen as HTML."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from actonce.console.app import create_app
from actonce.console.settings import ConsoleSettings
from actonce.contracts.approval import ApprovalTerms, Proposal
from actonce.contracts.identity import OperationKey, derive_operation_id
from actonce.contracts.lifecycle import Event
from actonce.ledger import approvals
from actonce.ledger.approvals import Approval
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger, Operation, lock_operation, move
from actonce.stack import Stack
from actonce.testing.waiting import eventually
from tests.databases import empty_database
from tests.integration.console_bench import Desk, desk, form_of, press, served
from tests.integration.entry_bench import QUICK, contract
from tests.integration.test_entry_credentials import NAME, SECRET, leased

pytestmark = pytest.mark.asyncio(loop_scope="module")
MARKUP = "<script>alert(1)</script>\"'&<b>"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dsn(postgres_server: Stack) -> AsyncIterator[str]:
    """One ledger for all: each test has tasks of its own."""
    async with empty_database(postgres_server.postgres.dsn) as found:
        migrate(found)
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(dsn: str) -> AsyncIterator[Desk]:
    async with desk(dsn) as found:
        yield found


@pytest.fixture
def key() -> str:
    """A task key of this test's own."""
    return f"k-{secrets.token_hex(4)}"


async def held(at: Desk, key: str, *, bounded: bool = True, **more: Any) -> Operation:
    await at.on.start(key)
    return await at.on.held(f"default/single/{key}", contract(bounded=bounded, **more))


def page_of(operation: Operation) -> str:
    return f"/operations/{operation.operation_id}"


def committed(operation: Operation, **more: str) -> dict[str, str]:
    """A decision that may be made at once, filled in."""
    filled = {"action": "mark_committed", "reason": "looked at the statement", "evidence": "line 4"}
    return {**filled, "object_id": "re_1", "confirm": operation.operation_id[-6:], **more}


async def decide(http: httpx.AsyncClient, operation: Operation, **fields: str) -> httpx.Response:
    return await press(http, page_of(operation), f"{page_of(operation)}/decisions", **fields)


async def rows(at: Desk, query: Any, *params: object) -> list[dict[str, Any]]:
    async with at.on.ledger.transaction() as connection:
        return list(await (await connection.execute(query, params)).fetchall())


async def decisions(at: Desk, operation: Operation) -> list[dict[str, Any]]:
    query = "SELECT * FROM actonce.decision WHERE operation_id = %s ORDER BY decision_id"
    return await rows(at, query, operation.operation_id)


async def goes_to(http: httpx.AsyncClient, answer: httpx.Response) -> str:
    """The page after a press. It can be loaded again without pressing again."""
    assert answer.status_code == 303, answer.text
    assert re.fullmatch(r"/[\w/%.-]+\?done=[a-z-]+", answer.headers["location"])
    page = await http.get(answer.headers["location"])
    assert page.status_code == 200, page.text
    assert 'class="banner ok"' in page.text
    return page.text


# decisions --------------------------------------------------------------------------------------------------------


async def test_only_what_the_reason_permits_is_offered_with_its_procedure_and_consequences(at: Desk, key: str) -> None:
    operation = await held(at, key)
    async with await at.browser() as http:
        page = (await http.get(page_of(operation))).text
        assert form_of(page, f"{page_of(operation)}/decisions", action="mark_committed")
        assert 'href="/procedures/not_visible"' in page
        assert "Nothing more is sent" in page and "it never will" in page
        assert f"Type {operation.operation_id[-6:]} to confirm" in page
        assert f"epoch {operation.epoch}, version {operation.version}" in page
        assert "may still commit until" in page and page.count(">not now<") == 2  # absent and retry
        for action in ("mark_absent", "permit_one_retry", "resume"):
            assert f'name="action" value="{action}"' not in page
        assert "Resume" not in page


async def test_decision_is_recorded_in_the_name_of_who_is_signed_in(at: Desk, key: str) -> None:
    operation = await held(at, key)
    async with await at.browser(name="Ada") as http:
        page = await goes_to(http, await decide(http, operation, **committed(operation), name="Mallory"))
        assert "Your decision is recorded" in page and "mark_committed by Ada" in page
    (row,) = await decisions(at, operation)
    assert (row["decision"], row["name"], row["evidence"]) == ("mark_committed", "Ada", "line 4")
    assert (row["object_id"], row["reason"], row["expected_version"]) == (
        "re_1",
        "looked at the statement",
        operation.version,
    )


async def test_double_click_is_one_decision(at: Desk, key: str) -> None:
    operation = await held(at, key)
    async with await at.browser(name="Ada") as http:
        page = (await http.get(page_of(operation))).text
        address = f"{page_of(operation)}/decisions"
        filled = {**form_of(page, address, action="mark_committed"), **committed(operation)}
        answers = await asyncio.gather(*(http.post(address, data=filled) for _ in range(4)))
        assert [a.status_code for a in answers] == [303] * 4
        again = await http.post(address, data=filled)
        assert again.headers["location"].endswith("done=decided-again")
    assert len(await decisions(at, operation)) == 1


async def test_second_of_two_operators_is_told_who_was_first(at: Desk, key: str) -> None:
    operation = await held(at, key)
    async with await at.browser(name="Ada") as ada, await at.browser(name="Bo") as bo:
        address = f"{page_of(operation)}/decisions"
        both = []
        for http in (ada, bo):
            page = (await http.get(page_of(operation))).text
            both.append({**form_of(page, address, action="mark_committed"), **committed(operation)})
        answers = await asyncio.gather(ada.post(address, data=both[0]), bo.post(address, data=both[1]))
        assert sorted(a.status_code for a in answers) == [303, 409]
    (row,) = await decisions(at, operation)
    (lost,) = [a.text for a in answers if a.status_code == 409]
    assert f"mark_committed by {row['name']}" in lost and f"<strong>{row['name']}</strong>" in lost
    assert row["name"] == ("Ada" if answers[0].status_code == 303 else "Bo")


async def test_stale_page_is_refused_with_what_changed_and_a_fresh_form(at: Desk, key: str) -> None:
    operation = await held(at, key)
    async with await at.browser() as http:
        page = (await http.get(page_of(operation))).text
        address = f"{page_of(operation)}/decisions"
        filled = {**form_of(page, address, action="mark_committed"), **committed(operation)}
        async with at.on.ledger.transaction() as connection:  # a late answer meanwhile
            now = await lock_operation(connection, operation.key)
            assert now is not None
            words = {"reason": "possible_duplicate", "words": "another object was acknowledged"}
            moved = await move(connection, now, Event.ACK_CONTRADICTS, **words)
        assert moved.version > operation.version
        refused = await http.post(address, data=filled)
        assert refused.status_code == 409 and await decisions(at, operation) == []
        assert "What changed since you looked" in refused.text
        assert f"version {moved.version}: " in refused.text and "possible_duplicate" in refused.text
        fresh = form_of(refused.text, address, action="mark_committed")
        assert fresh["version"] == str(moved.version) and fresh["press"] != filled["press"]
        assert "looked at the statement</textarea>" in refused.text and 'value="re_1"' in refused.text
        await goes_to(http, await http.post(address, data={**filled, **fresh}))
    assert [d["expected_version"] for d in await decisions(at, operation)] == [moved.version]


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ({"confirm": ""}, "It is not confirmed"),
        ({"confirm": "zzzzzz"}, "It is not confirmed"),
        ({"evidence": " "}, "evidence"),
        ({"reason": ""}, "reason"),
        ({"object_id": ""}, "object_id"),
    ],
)
async def test_dangerous_decision_without_its_confirmation_or_evidence_records_nothing(
    at: Desk, key: str, left_out: dict[str, str], told: str
) -> None:
    operation = await held(at, key)
    async with await at.browser() as http:
        refused = await decide(http, operation, **committed(operation, **left_out))
        assert refused.status_code == 422 and told in refused.text and "Nothing was recorded" in refused.text
        assert await decisions(at, operation) == []


async def test_retry_shows_its_residual_risk_and_records_it(at: Desk, key: str) -> None:
    operation = await held(at, key, bounded=False, timing=QUICK)
    async with await at.browser() as http:

        async def offered() -> bool:
            return 'value="permit_one_retry"' in (await http.get(page_of(operation))).text

        await eventually(offered, within_s=20, what="reconcile-after has passed")
        page = (await http.get(page_of(operation))).text
        assert "Residual risk" in page and "exactly one more request is sent" in page
        end = operation.operation_id[-6:].upper()  # as a phone would begin it
        fields = {"action": "permit_one_retry", "reason": "asked them", "evidence": "their log", "confirm": end}
        await goes_to(http, await decide(http, operation, **fields))
    (row,) = await decisions(at, operation)
    assert row["decision"] == "permit_one_retry" and "second effect" in row["residual_risk"]


async def test_page_that_never_had_the_form_gets_no_decision_through(at: Desk, key: str) -> None:
    """What is not offered is refused by the entry too, with why: the form is no protection."""
    operation = await held(at, key)
    async with await at.browser() as http:
        fields = committed(operation) | {"action": "mark_absent"}
        form = form_of((await http.get(page_of(operation))).text, f"{page_of(operation)}/decisions")
        refused = await http.post(f"{page_of(operation)}/decisions", data={**form, **fields})
        assert refused.status_code == 409 and "too_early" in refused.text
        invented = await http.post(f"{page_of(operation)}/decisions", data={**form, **fields, "action": "just_do_it"})
        assert invented.status_code == 422
        broken = await http.post(f"{page_of(operation)}/decisions", data={**form, **fields, "version": "x"})
        assert broken.status_code == 400
    assert await decisions(at, operation) == []


class _Lossy(httpx.AsyncBaseTransport):
    """The entry does what is asked, and its answer is lost."""

    def __init__(self, to: httpx.ASGITransport) -> None:
        self.to = to

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await (await self.to.handle_async_request(request)).aread()
        raise httpx.ReadError("connection reset")


async def test_lost_answer_of_the_entry_is_not_known_and_pressing_again_is_the_same_press(
    at: Desk, dsn: str, key: str
) -> None:
    operation = await held(at, key)
    address = f"{page_of(operation)}/decisions"
    settings: Any = {"ledger_dsn": dsn, "entry_url": "http://entry", "console_token": token_of(at)}
    lossy = create_app(ConsoleSettings(**settings), entry=_Lossy(at.on.transport))
    async with lossy.router.lifespan_context(lossy), await Desk(at.on, lossy).browser(name="Ada") as http:
        lost = await decide(http, operation, **committed(operation))
        assert lost.status_code == 504 and "is not known" in lost.text and "Press again" in lost.text
    (row,) = await decisions(at, operation)
    async with await at.browser(name="Ada") as http:
        # decided by now, so the page has no form; who presses again in the old one is told that it is one decision
        same = {"csrf": form_of((await http.get("/")).text, "/sign-out")["csrf"], "press": row["press"]}
        again = await http.post(address, data={**same, **stamped(operation), **committed(operation)})
        assert again.headers["location"].endswith("done=decided-again")
    assert len(await decisions(at, operation)) == 1


def token_of(at: Desk) -> str:
    settings: ConsoleSettings = at.app.state.console.settings
    assert settings.console_token is not None
    return settings.console_token.get_secret_value()


async def test_entry_that_is_away_records_nothing_and_says_so(at: Desk, dsn: str, key: str) -> None:
    operation = await held(at, key)
    settings: Any = {"ledger_dsn": dsn, "entry_url": "http://127.0.0.1:1", "console_token": token_of(at)}
    alone = create_app(ConsoleSettings(**settings))
    async with alone.router.lifespan_context(alone), await Desk(at.on, alone).browser() as http:
        refused = await decide(http, operation, **committed(operation))
        assert (
            refused.status_code == 503 and "does not answer" in refused.text and "Nothing was recorded" in refused.text
        )
        assert "line 4</textarea>" in refused.text
    assert await decisions(at, operation) == []


async def test_form_from_before_a_restart_of_the_console_is_still_good(at: Desk, dsn: str, key: str) -> None:
    operation = await held(at, key)
    address = f"{page_of(operation)}/decisions"
    async with await at.browser(name="Ada") as http:
        page = (await http.get(page_of(operation))).text
        filled = {**form_of(page, address, action="mark_committed"), **committed(operation)}
        cookies = http.cookies
    settings: Any = {"ledger_dsn": dsn, "entry_url": "http://entry", "console_token": token_of(at)}
    again = create_app(ConsoleSettings(**settings), entry=at.on.transport)
    async with again.router.lifespan_context(again), served(again) as http:
        http.cookies.update(cookies)
        done = await http.post(address, data=filled, headers={"Origin": "http://console"})
        await goes_to(http, done)
    assert len(await decisions(at, operation)) == 1


async def test_dangerous_decision_waits_for_somebody_else_and_never_for_who_made_it(dsn: str, key: str) -> None:
    async with desk(dsn, second_person="mark_committed") as two:
        operation, other = await held(two, key), await held(two, f"{key}-other")
        async with await two.browser(name="Ada") as ada, await two.browser(name="Bo") as bo:
            assert "somebody else, who may decide too, agrees" in (await ada.get(page_of(operation))).text
            mine = await goes_to(ada, await decide(ada, operation, **committed(operation)))
            assert "no effect before a second person agrees" in mine
            (row,) = await decisions(two, operation)
            address = f"{page_of(operation)}/decisions/{row['decision_id']}/second"
            assert "somebody else has to agree" in mine and ">Agree<" not in mine
            own = await ada.post(address, data={**form_of(mine, address), "why": "sure", "agrees": "yes"})
            assert own.status_code == 409 and "somebody else than who decided" in own.text
            shown = (await bo.get(page_of(operation))).text
            assert "Ada decided mark_committed" in shown and "line 4" in shown and ">Agree<" in shown
            assert (await press(bo, page_of(operation), address, agrees="yes", why=" ")).status_code == 422
            page = await goes_to(bo, await press(bo, page_of(operation), address, agrees="yes", why="the same line"))
            assert "You agreed" in page and address not in page
            assert "mark committed</strong> by Ada" in page and "Bo agreed" in page and ": the same line" in page
            await goes_to(ada, await decide(ada, other, **committed(other)))
            (row,) = await decisions(two, other)
            address = f"{page_of(other)}/decisions/{row['decision_id']}/second"
            page = await goes_to(bo, await press(bo, page_of(other), address, agrees="no", why="another customer"))
            assert form_of(page, f"{page_of(other)}/decisions", action="mark_committed")  # free for another decision
            assert "The decision is declined" in page and "Bo declined" in page and ": another customer" in page
            for one, verb, why in ((operation, "Agreed to", "the same line"), (other, "Declined", "another customer")):
                told = (await ada.get(f"/tasks/{quote(one.task_id, safe='')}")).text
                assert "Decided: mark_committed" in told and f"{verb}: mark_committed" in told and why in told
            late = await ada.post(address, data={"csrf": csrf_of(mine), **stamped(other), "why": "x", "agrees": "yes"})
            assert late.status_code == 409 and "declined by Bo" in late.text
        (row,) = await decisions(two, operation)
        assert (row["second_name"], row["second_agrees"], row["second_why"]) == ("Bo", True, "the same line")
        (row,) = await decisions(two, other)
        assert (row["second_name"], row["second_agrees"], row["result"]) == ("Bo", False, "declined")


def stamped(operation: Operation) -> dict[str, str]:
    """What a form says of the operation that it is about."""
    named = {"tenant": "default", "destination": "payments", "operation_action": "refund"}
    return {**named, "epoch": str(operation.epoch), "version": str(operation.version)}


# approvals --------------------------------------------------------------------------------------------------------


async def proposed(at: Desk, key: str, *, valid_s: float = 600.0, **payload: Any) -> Approval:
    await at.on.start(key)
    task = f"default/single/{key}"
    named = OperationKey("default", "payments", "refund", derive_operation_id("default", task, "refund", 0))
    proposal = Proposal(
        tenant="default",
        tool="payments.refund",
        destination="payments",
        action="refund",
        account="acct",
        principal="svc",
        payload={"amount_minor": 100, **payload},
        resolved={},
        terms=ApprovalTerms(valid_s=valid_s),
        requested_by="Rae",
    )
    return await approvals.propose(at.on.ledger, named, task, "refund", proposal)


def approval_page(approval: Approval) -> str:
    return f"/approvals/{approval.approval_id}"


async def vote(http: httpx.AsyncClient, approval: Approval, verb: str, **fields: str) -> httpx.Response:
    """A rejection is a second button of the form that approves."""
    shown = (await http.get(approval_page(approval))).text
    form = form_of(shown, f"{approval_page(approval)}/{'approve' if verb == 'reject' else verb}")
    return await http.post(f"{approval_page(approval)}/{verb}", data={**form, **fields})


async def test_approval_is_of_exactly_what_was_shown_and_the_second_is_told_who_won(at: Desk, key: str) -> None:
    approval = await proposed(at, key)
    async with await at.browser("approver", "Ada") as ada, await at.browser("approver", "Bo") as bo:
        shown = (await bo.get(approval_page(approval))).text
        assert approval.digest in shown and "data-until=" in shown and "by the server's clock" in shown
        form = form_of(shown, f"{approval_page(approval)}/approve")
        page = await goes_to(ada, await vote(ada, approval, "approve", note="the invoice fits"))
        assert "Your approval is recorded" in page and "the invoice fits" in page
        lost = await bo.post(f"{approval_page(approval)}/reject", data={**form, "note": "no"})
        assert lost.status_code == 409 and "Already decided" in lost.text and "approved by Ada" in lost.text
        twice = await ada.post(f"{approval_page(approval)}/approve", data={**form, "csrf": csrf_of(page)})
        assert twice.status_code == 303  # a double click
        form = form_of((await bo.get(approval_page(approval))).text, f"{approval_page(approval)}/withdraw")
        for _ in range(2):  # a double click too
            answer = await bo.post(f"{approval_page(approval)}/withdraw", data={**form, "note": "wrong customer"})
        withdrawn = await goes_to(bo, answer)
        assert "withdrawn" in withdrawn and "wrong customer" in withdrawn
    clicks = await rows(
        at, "SELECT name, decision, effect FROM actonce.approval_vote WHERE approval_id = %s ORDER BY vote_id",
        approval.approval_id,
    )  # fmt: skip
    assert [(c["name"], c["decision"], c["effect"]) for c in clicks] == [
        ("Ada", "approve", "counted"),
        ("Bo", "reject", "already_decided"),
        ("Bo", "withdraw", "counted"),
    ]


def csrf_of(page: str) -> str:
    return form_of(page, "/sign-out")["csrf"]


async def test_rejection_needs_a_note_and_another_digest_is_another_thing(at: Desk, key: str) -> None:
    approval = await proposed(at, key)
    async with await at.browser("approver", "Ada") as http:
        silent = await vote(http, approval, "reject", note="  ")
        assert silent.status_code == 422
        other = await vote(http, approval, "approve", digest="a1:other")
        assert other.status_code == 409 and "you decided about a1:other" in other.text
        assert form_of(other.text, f"{approval_page(approval)}/approve")["digest"] == approval.digest
        page = await goes_to(http, await vote(http, approval, "reject", note="not this customer"))
        assert "rejected" in page and f"{approval_page(approval)}/approve" not in page


async def test_click_after_the_expiry_is_a_click_and_never_an_approval(at: Desk, key: str) -> None:
    approval = await proposed(at, key, valid_s=3.0)
    async with await at.browser("approver", "Ada") as http:
        form = form_of((await http.get(approval_page(approval))).text, f"{approval_page(approval)}/approve")

        async def over() -> bool:
            return f"{approval_page(approval)}/approve" not in (await http.get(approval_page(approval))).text

        await eventually(over, within_s=20, what="its time is over")
        late = await http.post(f"{approval_page(approval)}/approve", data={**form, "note": "yes"})
        assert late.status_code == 409 and "expired" in late.text and "changes nothing" in late.text
        assert "Your approval is recorded" not in late.text
        page = (await http.get(approval_page(approval))).text
        assert "pressed approve" in page and ">approved<" not in page
        early = await vote(http, approval, "renew", note="it was late")
        assert early.status_code == 409 and "only a held one" in early.text  # its task has not gone on yet


async def test_asked_again_for_a_held_operation_leads_to_the_new_approval(at: Desk, key: str) -> None:
    approval = await proposed(at, key)
    await at.on.held(f"default/single/{key}", contract(bounded=True))
    async with await at.browser("approver", "Ada") as http:
        await goes_to(http, await vote(http, approval, "withdraw", note="wrong amount"))
        form = form_of((await http.get(approval_page(approval))).text, f"{approval_page(approval)}/renew")
        renewal = {**form, "note": "it was right after all"}
        done = await http.post(f"{approval_page(approval)}/renew", data=renewal)
        twice = await http.post(f"{approval_page(approval)}/renew", data=renewal)
        assert twice.headers["location"] == done.headers["location"]
        page = await goes_to(http, done)
        assert approval.approval_id not in done.headers["location"]
        assert "round 2" in page and "asked for" in page and "/approve" in page
        before = (await http.get(approval_page(approval))).text
        assert "withdrawn" in before and "/approve" not in before


async def test_requester_is_told_that_somebody_else_has_to_approve(at: Desk, key: str) -> None:
    approval = await proposed(at, key)
    async with await at.browser("approver", "Rae") as http:
        assert "somebody else has to approve it" in (await http.get(approval_page(approval))).text
        refused = await vote(http, approval, "approve")
        assert refused.status_code == 409 and "somebody else has to approve" in refused.text


# pages, release, tasks --------------------------------------------------------------------------------------------


async def test_page_is_acknowledged_once_and_by_the_first(at: Desk, key: str) -> None:
    operation = await held(at, key)
    (row,) = await rows(at, "SELECT page_id FROM actonce.page WHERE operation_id = %s", operation.operation_id)
    address = f"/pages/{row['page_id']}/acknowledge"
    async with await at.browser(name="Ada") as ada, await at.browser(name="Bo") as bo:
        form = form_of((await bo.get("/alerts")).text, address)
        page = await goes_to(ada, await press(ada, "/alerts", address))
        assert "not repeated" in page and address not in page
        assert (await bo.post(address, data=form)).status_code == 303
        unknown = await bo.post("/pages/999999/acknowledge", data=form)
        assert unknown.status_code == 404 and "999999 is not in this ledger" in unknown.text
    (row,) = await rows(at, "SELECT acknowledged_by FROM actonce.page WHERE page_id = %s", row["page_id"])
    assert row["acknowledged_by"] == "Ada"


async def test_release_is_paused_and_let_go_and_a_stale_form_is_told_who_changed_it(at: Desk) -> None:
    await at.on.start(f"r-{secrets.token_hex(4)}")
    async with await at.browser(name="Ada") as ada, await at.browser(name="Bo") as bo:
        await bo.get("/release")
        stale = form_of((await bo.get("/release")).text, "/release/single")
        page = await goes_to(ada, await press(ada, "/release", "/release/single", do="pause", why="the bank asks"))
        assert "paused by Ada: the bank asks" in page
        lost = await bo.post("/release/single", data={**stale, "do": "set", "rate": "5", "window": "3", "why": "more"})
        assert lost.status_code == 409 and "<strong>Ada</strong>" in lost.text and "the bank asks" in lost.text
        fresh = form_of(lost.text, "/release/single")
        assert int(fresh["version"]) == int(stale["version"]) + 1 and 'value="5"' in lost.text
        done = await bo.post("/release/single", data={**fresh, "do": "set", "rate": "5", "window": "3", "why": "more"})
        assert "at most 5 a second" in await goes_to(bo, done)
        for wrong in ({"rate": "fast"}, {"rate": "-1"}, {"window": "0"}, {"window": ""}, {"rate": "nan"}):
            fields = {"do": "set", "rate": "5", "window": "3", "why": "x", **wrong}
            assert (await press(bo, "/release", "/release/single", **fields)).status_code == 422
        silent = await press(bo, "/release", "/release/single", do="resume", why="")
        assert silent.status_code == 422
        await goes_to(bo, await press(bo, "/release", "/release/single", do="resume", why="they are ready"))
        form = form_of((await bo.get("/release")).text, "/release/single")
        assert (await bo.post("/release/none", data={**form, "do": "pause", "why": "x"})).status_code == 404
    query = (
        "SELECT body ->> 'name' AS name FROM actonce.audit WHERE kind = 'release.changed'"
        " AND body ->> 'why' IN ('the bank asks', 'more', 'they are ready') ORDER BY audit_id"
    )
    assert [e["name"] for e in await rows(at, query)] == ["Ada", "Bo", "Bo"]


async def test_credential_is_rotated_and_a_stale_form_is_told_of_the_generation(at: Desk) -> None:
    broker, _ = await leased(at.on)
    try:
        async with await at.browser("admin", "Ada") as ada, await at.browser("admin", "Bo") as bo:
            stale = form_of((await bo.get("/credentials")).text, "/credentials/rotations")
            assert stale["credential"] == NAME and SECRET not in (await bo.get("/credentials")).text
            page = await goes_to(ada, await press(ada, "/credentials", "/credentials/rotations", reason="planned"))
            assert "generation 2" in page and "planned (Ada)" in page
            lost = await bo.post("/credentials/revocations", data={**stale, "reason": "leaked"})
            assert lost.status_code == 409 and "generation 2" in lost.text and "leaked</textarea>" in lost.text
            fresh = form_of(lost.text, "/credentials/rotations")
            await goes_to(bo, await bo.post("/credentials/revocations", data={**fresh, "reason": "leaked"}))
            assert (await press(bo, "/credentials", "/credentials/rotations", reason=" ")).status_code == 422
            assert "procedures/credential_revoked" in (await bo.get("/credentials")).text
    finally:
        await broker.close()


async def test_every_button_pressed_twice_does_it_once(at: Desk, key: str) -> None:
    """Besides those of decisions and votes, which have tests of their own."""
    await at.on.start(key)
    task = f"/tasks/default%2Fsingle%2F{key}"
    buttons: list[tuple[str, str, dict[str, str]]] = [
        ("/release", "/release/single", {"do": "pause", "why": "twice"}),
        ("/release", "/release/single", {"do": "resume", "why": "twice"}),
        (task, f"{task}/deadline", {"deadline": "2031-01-01T00:00", "why": "twice"}),
        (task, f"{task}/cancel", {"why": "twice"}),
    ]
    async with await at.browser(name="Ada") as http:
        for page, address, typed in buttons:
            filled = {**form_of((await http.get(page)).text, address), **typed}
            answers = await asyncio.gather(*(http.post(address, data=filled) for _ in range(3)))
            assert [a.status_code for a in answers] == [303] * 3, (address, [a.text for a in answers])
    query = "SELECT kind, count(*) AS n FROM actonce.audit WHERE body::text LIKE '%%\"twice\"%%' GROUP BY kind"
    events = {row["kind"]: row["n"] for row in await rows(at, query)}
    assert events == {"release.changed": 2, "task.deadline_changed": 1, "task.cancel_requested": 1}


async def test_task_is_cancelled_with_a_name_and_a_reason(at: Desk, key: str) -> None:
    await at.on.start(key)
    page, address = f"/tasks/default%2Fsingle%2F{key}", f"/tasks/default%2Fsingle%2F{key}/cancel"
    async with await at.browser(name="Ada") as http:
        assert (await press(http, page, address, why="")).status_code == 422
        after = await goes_to(http, await press(http, page, address, why="wrong customer"))
        assert "Cancellation is recorded" in after
    (row,) = await rows(at, "SELECT cancel_by, cancel_why FROM actonce.task WHERE task_key = %s", key)
    assert (row["cancel_by"], row["cancel_why"]) == ("Ada", "wrong customer")


async def test_deadline_is_changed_in_utc_and_a_stale_form_is_refused(at: Desk, key: str) -> None:
    first = datetime.now(UTC) + timedelta(hours=3)
    await at.on.start(key, **{"Actonce-Deadline": first.isoformat()})
    page, address = f"/tasks/default%2Fsingle%2F{key}", f"/tasks/default%2Fsingle%2F{key}/deadline"
    later = (first + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    async with await at.browser(name="Ada") as http, await at.browser(name="Bo") as bo:
        stale = form_of((await bo.get(page)).text, address)
        await goes_to(http, await press(http, page, address, deadline=later, why="the bank is closed"))
        lost = await bo.post(address, data={**stale, "deadline": "2031-01-01T00:00", "why": "more time"})
        assert lost.status_code == 409 and "<strong>Ada</strong>" in lost.text and "the bank is closed" in lost.text
        assert (await press(bo, page, address, deadline="tomorrow", why="x")).status_code == 422
    (row,) = await rows(at, "SELECT deadline FROM actonce.task WHERE task_key = %s", key)
    assert row["deadline"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M") == later


# for all ----------------------------------------------------------------------------------------------------------


async def test_markup_in_every_field_stays_text(at: Desk, key: str) -> None:
    operation, approval = await held(at, key), await proposed(at, f"a-{key}", note=MARKUP)
    task = f"/tasks/default%2Fsingle%2F{key}"
    async with await at.browser("admin", "Ada") as http:
        wrong = committed(operation, reason=MARKUP, evidence=MARKUP, object_id=MARKUP, confirm=MARKUP)
        seen = [await decide(http, operation, **wrong)]
        await decide(http, operation, **{**wrong, "confirm": operation.operation_id[-6:]})
        seen += [await http.get(page_of(operation)), await http.get(approval_page(approval))]
        seen += [await vote(http, approval, "approve", note=MARKUP, digest=MARKUP)]
        seen += [await press(http, "/release", "/release/single", do="set", why=MARKUP, rate=MARKUP, window="3")]
        seen += [await press(http, task, f"{task}/deadline", why=MARKUP, deadline=MARKUP)]
        await press(http, task, f"{task}/cancel", why=MARKUP)
        seen += [await http.get(task)]
        for answer in seen:
            assert "<script>alert" not in answer.text and "<b>" not in answer.text, answer.url
            assert ESCAPED in answer.text, answer.url


async def test_nothing_typed_is_in_an_address_or_a_log(
    at: Desk, key: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    operation = await held(at, key)
    async with await at.browser() as http:
        refused = await decide(http, operation, **committed(operation, evidence="hush-hush", confirm=""))
        done = await decide(http, operation, **committed(operation, evidence="hush-hush"))
        assert "hush-hush" not in done.headers["location"] and "hush-hush" not in str(refused.url)
        said = capsys.readouterr()
        told = said.out + said.err + caplog.text
        assert "hush-hush" not in told and token_of(at) not in told + refused.text
    async with Ledger(at.on.ledger.dsn) as ledger, ledger.transaction() as connection:
        found = await (await connection.execute("SELECT body::text AS t FROM actonce.audit")).fetchall()
        assert not any(token_of(at) in row["t"] for row in found)
