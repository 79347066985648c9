"""What the console's pages say of a ledger that has something of everything."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from actonce.ledger import approvals
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from actonce.stack import Stack
from tests.databases import empty_database
from tests.integration.console_bench import console, form_of
from tests.integration.console_stage import MARKUP, Stage, stage

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Seen:
    """The staged ledger, and a browser that is signed in."""

    on: Stage
    http: httpx.AsyncClient

    async def page(self, address: str, status: int = 200) -> str:
        answer = await self.http.get(address)
        assert answer.status_code == status, (address, answer.status_code, answer.text)
        return answer.text

    async def task(self, name: str) -> str:
        return await self.page(f"/tasks/{quote(self.on.tasks[name], safe='')}")

    async def operation(self, name: str) -> str:
        return await self.page(f"/operations/{self.on.operations[name].operation_id}")

    async def search(self, word: str) -> httpx.Response:
        form = form_of(await self.page("/search"), "/search")
        return await self.http.post("/search", data={**form, "word": word}, headers={"Origin": "http://console"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(postgres_server: Stack) -> AsyncIterator[Seen]:
    async with empty_database(postgres_server.postgres.dsn) as dsn:
        migrate(dsn)
        async with Ledger(dsn) as ledger, console(dsn) as (_, http):
            yield Seen(await stage(ledger), http)


def words(page: str) -> str:
    """What a person reads of a page, without its markup."""
    main = page.split('<main id="main"')[1].split("</main>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main)).split())


def row(page: str, name: str) -> str:
    """The table row that names something."""
    return next(words(f'<main id="main"{r}</main>') for r in re.findall(r"<tr>.*?</tr>", page, re.S) if name in r)


async def test_overview_says_what_is_held_and_counts_no_task_complete_without_evidence(seen: Seen) -> None:
    text = words(await seen.page("/"))
    assert "4 holds wait for a person" in text
    assert re.search(r"route_unavailable a needed route gives no usable answer", text)
    found = re.findall(r"(\d+) (queued|running|held|complete\b(?! [bw])|failed)", text)
    tiles = {state: int(n) for n, state in found}
    assert tiles["complete"] == 3 and tiles["held"] == 3 and tiles["queued"] == 2
    assert "1 complete without evidence" in text and "1 complete by a person's word" in text
    assert "down" in text and "route:payments.statement" in text and "not quarantined" in text


async def test_task_reported_complete_without_evidence_never_looks_complete(seen: Seen) -> None:
    listed = await seen.page("/tasks")
    for name, shown in {"nothing": "complete without evidence", "word": "complete by a person's word"}.items():
        assert shown in row(listed, f"rf-{name}<")
        page = await seen.task(name)
        assert shown in words(page) and 'class="st ok"' not in page.split('id="operations"')[0]
    proven = await seen.task("ada")
    assert 'class="st ok"' in proven.split('id="now"')[0] and "3 of 3" in row(listed, "rf-ada<")
    assert "done, says the task" in words(await seen.task("nothing"))


async def test_memory_says_found_empty_or_unavailable(seen: Seen) -> None:
    said = {"ada": "found earlier_refunds 1 found", "bo": "empty earlier_refunds nothing, by a healthy index"}
    said |= {"stuck": "unavailable earlier_refunds timeout: no answer within 3 s; the task waits for it"}
    for name, text in said.items():
        assert text in words(await seen.task(name)), name


async def test_task_tells_its_story_in_order_with_links_to_temporal_and_the_record(seen: Seen) -> None:
    page = await seen.task("held")
    text = words(page)
    order = ["Request accepted", "Plan made durable", "Intent recorded", "Permit consumed", "Outcome unknown", "Held:"]
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)
    where = "http://127.0.0.1:8233/namespaces/default/workflows/acme%2Frefund%2Frf-held"
    assert f'href="{where}"' in page and "/history" in page
    raw = (await seen.http.get(f"/raw/tasks/{quote(seen.on.tasks['held'], safe='')}")).json()
    assert raw["record"]["task"]["payload"]["amount_minor"] == 4900 and raw["operations"][0]["verdicts"]


async def test_operation_shows_three_facts_each_with_its_source(seen: Seen) -> None:
    lights = [
        words(f'<main id="main"{part}</main>') for part in (await seen.operation("held.refund")).split("<h2>")[1:4]
    ]
    assert lights[0].startswith("Request issued yes") and "process 4242 on worker-7.example" in lights[0]
    assert lights[1].startswith("Side effect committed not established")
    assert lights[2].startswith("Acknowledgement received not established")
    done = words(await seen.operation("ada.refund"))
    assert "a route of the destination shows it (route:list)" in done and "answered with object re_ada_refund" in done


async def test_attested_effect_is_no_green_light(seen: Seen) -> None:
    page = await seen.operation("word.refund")
    assert "yes, by a person's word" in words(page) and 'class="light attested"' in page
    assert "noor" in words(page) and "call with settlements desk" in words(page)


async def test_operation_shows_every_route_and_why_the_verdict_follows(seen: Seen) -> None:
    page = await seen.operation("held.refund")
    text = words(page)
    assert "ambiguous route_unavailable" in text and "route statement gives no usable answer (503)" in text
    listed = row(page, "<strong>list</strong>")
    assert "40 of 41" in listed and "independent of the write" in listed and "shows nothing newer" in listed
    down = row(page, "<strong>statement</strong>")
    assert "unavailable" in down and "not known" in down and "nothing shown" not in down
    assert "may still commit until" in text and "Mark as absent not now" in text
    assert '<svg class="timeline"' in page and "attempt 1, may send until" in page


async def test_markup_in_a_payload_stays_text(seen: Seen) -> None:
    for address in (
        f"/tasks/{quote(seen.on.tasks['markup'], safe='')}",
        f"/operations/{seen.on.operations['markup.refund'].operation_id}",
        f"/approvals/{seen.on.approvals['large']}",
        "/tasks", "/operations", "/audit",
    ):  # fmt: skip
        page = await seen.page(address)
        assert "<script>alert" not in page and "<img" not in page, address
    for page in (await seen.task("markup"), await seen.operation("markup.refund")):
        assert "&lt;script&gt;alert(" in page and "{{7*7}}" in page


async def test_lists_are_filtered_by_state_reason_and_destination(seen: Seen) -> None:
    held = await seen.page("/operations?state=held&reason=route_unavailable&destination=payments")
    assert held.count("<tr>") == 3  # the head, and two
    assert "No operation is like that" in await seen.page("/operations?state=refused&reason=not_fresh")
    assert "rf-declined" in await seen.page("/tasks?state=failed") and "No task is like that" in await seen.page(
        "/tasks?state=quarantined"
    )


async def test_search_finds_by_every_name_and_puts_none_in_an_address(seen: Seen) -> None:
    operation = seen.on.operations["held.refund"]
    at = {
        seen.on.tasks["held"]: f"/tasks/{quote(seen.on.tasks['held'], safe='')}",
        "rf-held": f"/tasks/{quote(seen.on.tasks['held'], safe='')}",
        operation.operation_id: f"/operations/{operation.operation_id}",
        "re_ada_refund": f"/operations/{seen.on.operations['ada.refund'].operation_id}",
        "held:refund": f"/operations/{operation.operation_id}",
        seen.on.approvals["large"]: f"/approvals/{seen.on.approvals['large']}",
        "held@example.com": f"/tasks/{quote(seen.on.tasks['held'], safe='')}",
    }
    for word, address in at.items():
        answer = await seen.search(word)
        assert (answer.status_code, answer.headers["location"]) == (303, address), word
    nothing = await seen.search("held@example")
    assert "Nothing in this ledger has exactly this name" in nothing.text
    assert html.escape(MARKUP) not in "".join(at.values()) and (await seen.search(MARKUP)).status_code == 303
    assert (await seen.http.get("/search?word=held@example.com")).text.count("held@example.com") == 0


async def test_alerts_say_when_nobody_evaluates_them(seen: Seen) -> None:
    page = words(await seen.page("/alerts"))
    assert "firing warning Route payments.statement is down" in page and "seen by nobody" in page
    async with seen.on.ledger.transaction() as connection:
        await connection.execute(
            "UPDATE actonce.dependency SET checked_at = now() - interval '1 h' WHERE name = 'watch:evaluator'"
        )
    page = words(await seen.page("/alerts"))
    assert "The rules are not looked at any more" in page and "what is wrong may be missing" in page
    assert "stale was up" in words(await seen.page("/dependencies"))
    async with seen.on.ledger.transaction() as connection:
        await connection.execute("UPDATE actonce.alert SET state = 'resolved' WHERE state = 'firing'")
    page = words(await seen.page("/"))
    assert "the rules are not known to be looked at" in page and "No alert fires" not in page


async def test_approval_shows_exactly_what_will_run_and_who_decided(seen: Seen) -> None:
    page = words(await seen.page(f"/approvals/{seen.on.approvals['large']}"))
    assert "240000" in page and "payments.refund" in page and "by the server's clock" in page
    assert "expired" in words(await seen.page(f"/approvals/{seen.on.approvals['gone']}"))
    rejected = words(await seen.page(f"/approvals/{seen.on.approvals['no']}"))
    assert "Decided by iris" in rejected and "the customer was refunded in cash" in rejected
    await seen.page("/approvals/ap1_none", 404)


async def test_audit_page_hashes_its_events_again_and_shows_one_that_was_changed(seen: Seen) -> None:
    assert "hashes hold" in words(await seen.page("/audit"))
    async with seen.on.ledger.transaction() as connection:
        await connection.execute("ALTER TABLE actonce.audit DISABLE TRIGGER audit_is_append_only")
        await connection.execute(
            "UPDATE actonce.audit SET body = body || '{\"x\": 1}' WHERE seq = (SELECT max(seq) FROM actonce.audit)"
        )
        await connection.execute("ALTER TABLE actonce.audit ENABLE TRIGGER audit_is_append_only")
    page = words(await seen.page("/audit"))
    assert "damaged 1 of the events below are not what was sealed" in page


async def test_credentials_release_and_restore_say_what_they_know_and_what_not(seen: Seen) -> None:
    page = words(await seen.page("/credentials"))
    assert "bank-sftp expired" in page and "lease_01" in page and "no leased credential may be used" in page
    page = words(await seen.page("/release"))
    assert page.count("1, the oldest accepted") == 2 and "by nobody yet" in page
    page = words(await seen.page("/restore"))
    assert "Restore epoch 1" in page and "Release from quarantine" not in page, "it was never restored"


async def test_procedures_are_pages_with_nothing_of_theirs_run(seen: Seen) -> None:
    assert "route_unavailable" in await seen.page("/procedures")
    page = await seen.page("/procedures/route_unavailable")
    assert "<h2>What may have happened</h2>" in page and "<pre>" in page and "<th" in page
    await seen.page("/procedures/none", 404)
    await seen.page("/procedures/README", 404)


async def test_unknown_ids_say_what_to_check(seen: Seen) -> None:
    assert "nothing was sent for it from here" in await seen.page("/operations/op1_none", 404)
    assert "tenant/task_type/task_key" in await seen.page("/tasks/a/b/c", 404)
    await seen.page("/tasks?cursor=none", 422)


async def test_what_is_unseen_in_what_will_run_is_shown_to_who_approves_it(seen: Seen) -> None:
    """Else a payment could read as another one: turned around, or the same but for a space of no width."""
    await seen.on.task("turned")
    approval_id = await seen.on.ask("turned", payment_id="pay\u202e1\u200b")
    page = await seen.page(f"/approvals/{approval_id}")
    assert "\u202e" not in page and "\u200b" not in page and "pay\\u202e1\\u200b" in page


async def test_approval_that_changed_shows_what_was_approved_beside_what_would_have_run(seen: Seen) -> None:
    await seen.on.task("other")
    approval_id = await seen.on.ask("other")
    async with seen.on.ledger.transaction() as connection:
        approval = await approvals.get(connection, approval_id, lock=True)
        assert approval is not None
        payload = {**approval.proposal.payload, "amount_minor": 990_000}
        found = approval.proposal.model_copy(update={"payload": payload})
        await approvals.end(connection, approval, "changed", "the task", "the payload is another one", found)
    page = await seen.page(f"/approvals/{approval_id}")
    assert "What would have run instead" in words(page) and "Nothing was sent" in page
    [line] = re.findall(r"<tr><td class=\"id\">.*?amount_minor.*?</tr>", page)
    assert "<del" in line and "240000" in line.split("<ins")[0] and "990000" in line.split("<ins")[1]
    assert f'action="/approvals/{approval_id}/approve"' not in page, "nobody can approve what has changed"
