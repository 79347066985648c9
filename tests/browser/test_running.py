"""The console beside everything else, at work: a worker, a sandbox, Temporal, an identity provider; two people."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from actonce.contracts.people import Role, Scope
from actonce.ledger import tokens
from actonce.ledger.store import Ledger
from actonce.stack import Stack
from tests.browser.visiting import SECOND_OPERATOR, Visited, browser_state
from tests.integration.cases.kit import Bench, open_lab
from tests.unit.console.provider_double import CLIENT, SECRET, Double, serving

pytestmark = pytest.mark.asyncio(loop_scope="session")
LOST = {"answer": {"kind": "close", "when": "before_commit", "times": 1}}  # the first request; the next one is answered


@dataclass(kw_only=True)
class Running(Visited):
    """A deployment at work, as browsers meet it."""

    bench: Bench
    entry: str
    ledger: Ledger
    provider: Double

    @contextlib.asynccontextmanager
    async def operator(self, browser: Browser, name: str) -> AsyncIterator[Page]:
        async with self.visiting(
            browser, storage_state=await browser_state(self.ledger, self.url, name, Role.OPERATOR)
        ) as page:
            yield page


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(servers: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with (
        open_lab(servers, tmp_path_factory.mktemp("running")) as lab,
        lab.bench(modes=LOST, late_arrival="none", timing={"page_grace_s": 0.0}) as bench,
        Ledger(bench.dsn) as ledger,
        serving() as provider,
    ):
        provider.url = provider.url.replace("127.0.0.1", "localhost")  # another site than the console, for a browser
        both = {"ACTONCE_SECOND_PERSON": "permit_one_retry"}
        entry = await bench.entry(**both)
        _, speaks = await tokens.create_token(ledger, "console", [Scope.ACT_FOR], by="tests")
        console = await bench.start(
            "-m actonce.console",
            role="console",
            ACTONCE_CONSOLE_PORT="0",
            ACTONCE_ENTRY_URL=entry,
            ACTONCE_CONSOLE_TOKEN=speaks,
            ACTONCE_CONSOLE_OIDC_ISSUER=provider.url,
            ACTONCE_CONSOLE_OIDC_CLIENT_ID=CLIENT,
            ACTONCE_CONSOLE_OIDC_CLIENT_SECRET=SECRET,
            ACTONCE_CONSOLE_OIDC_ROLES='{"on-call": "operator"}',
            **both,
        )
        await bench.worker()
        url = str(console.ready["url"])
        yield Running(url=url, bench=bench, entry=entry, ledger=ledger, provider=provider)


async def held(on: Running) -> str:
    """A refund whose answer is lost at a destination that bounds nothing. Returns its operation_id."""
    task = on.bench.task()
    async with on.bench.caller(on.entry) as http:
        answer = await http.post("/v1/tasks/single", json=task.payload, headers={"Idempotency-Key": task.task_key})
        assert answer.status_code in (200, 202), answer.text
    return str((await on.bench.until_state("held"))["operation_id"])


async def lights(page: Page, *words: str) -> None:
    await expect(page.locator(".light .light-word")).to_have_text(list(words))


async def test_two_people_permit_a_retry_the_worker_reads_sends_once_and_open_pages_say_so(
    chromium: Browser, running: Running
) -> None:
    operation_id = await held(running)
    async with running.operator(chromium, "olga") as hers, running.operator(chromium, SECOND_OPERATOR) as his:
        for page in (hers, his):
            await page.goto(f"/operations/{operation_id}")
        await expect(hers.locator("#live")).to_contain_text("live")
        form = hers.locator("#act-permit_one_retry")
        await form.locator("summary").click()
        await form.get_by_label("Why").fill("the bank has nothing of it")
        await form.get_by_label("What you saw").fill("its own console, today")
        await form.get_by_label("Type").fill(operation_id[-6:])
        await form.get_by_role("button", name="Permit one retry").click()
        await expect(hers.get_by_role("status").first).to_contain_text("no effect before a second person agrees")
        await expect(hers.locator("#decide")).to_contain_text("somebody else has to agree")
        await expect(hers.get_by_role("button", name="Agree", exact=True)).to_have_count(0)
        assert len(running.bench.requests()) == 1, "nothing is sent on one person's word"
        await his.reload()
        await his.locator("#decide").get_by_label("Why").first.fill("I looked too")
        await his.get_by_role("button", name="Agree", exact=True).click()
        await expect(his.get_by_role("status").first).to_contain_text("You agreed")
        await his.evaluate("() => { window.same = true }")
        await expect(his.locator("#live")).to_contain_text("live")
        await running.bench.until_state("committed")
        for page in (hers, his):  # neither is loaded again
            await lights(page, "yes", "yes", "yes")
            await expect(page.locator("#state")).to_contain_text("committed")
        assert await his.evaluate("() => window.same") is True
        row = await running.bench.operation()
        assert (row["attempts"], len(running.bench.requests()), len(running.bench.effects())) == (2, 2, 1)
        await hers.goto(f"/tasks/{row['task_id'].replace('/', '%2F')}")
        await expect(hers.get_by_role("main")).to_contain_text("complete")


async def test_an_identity_provider_at_another_site_signs_in_whom_it_vouches_for(
    chromium: Browser, running: Running
) -> None:
    claims: dict[str, Any] = {"sub": "sub-7", "preferred_username": "pia", "groups": ["on-call"]}
    running.provider.browsing = claims
    async with running.visiting(chromium) as page:
        await page.goto("/operations")
        await page.get_by_role("link", name="Sign in with localhost").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Operations")
        await expect(page.get_by_role("banner")).to_contain_text("pia")
        assert "code=" not in page.url and len(running.provider.redeemed) == 1
    running.provider.browsing = {**claims, "sub": "sub-8", "preferred_username": "otto", "groups": ["chess club"]}
    async with running.visiting(chromium) as page:
        await page.goto("/")
        await page.get_by_role("link", name="Sign in with localhost").click()
        await expect(page.get_by_role("alert")).to_contain_text("nothing of")
        await page.goto("/tasks")
        assert page.url.startswith(f"{running.url}/sign-in")
