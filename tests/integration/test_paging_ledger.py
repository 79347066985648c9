"""Pages from a real ledger over real channels: sent once, repeated while unacknowledged, news sent again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from actonce.health import LedgerPages
from actonce.ledger import listing, pages, records, watch
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from actonce.paging import Pager, PagingSettings
from actonce.testing.sink import Sink
from actonce.testing.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


@pytest_asyncio.fixture
async def ledger(fresh_dsn: str) -> AsyncIterator[Ledger]:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as opened:
        yield opened


async def open_page(ledger: Ledger, reason: str = "not_visible") -> int:
    async with ledger.transaction() as connection:
        await pages.open_page(connection, incident="operation:x", reason=reason, title=f"held: {reason}", body="Do: …")
    return int((await listing.pages(ledger))[0]["page_id"])


def pager(ledger: Ledger, *urls: str, repeat_s: float = 900) -> Pager:
    return Pager(LedgerPages(ledger), PagingSettings(page_urls=urls, page_repeat_s=repeat_s, page_retry_s=0.01))


async def test_one_incident_is_sent_once_to_each_channel_however_often_it_is_seen(
    ledger: Ledger, tmp_path: Path
) -> None:
    """case a8: a second sweep opens no second incident and sends nothing anew."""
    file = tmp_path / "pages.jsonl"
    async with Sink() as sink:
        duty = pager(ledger, sink.url("oncall"), f"actonce-file://{file}")
        await open_page(ledger)
        assert await duty.deliver_once() == 2
        await open_page(ledger)
        assert await duty.deliver_once() == 0
        assert len(sink.of("oncall")) == len(file.read_text().splitlines()) == 1
        [row] = await listing.pages(ledger)
        assert (row["seen_again"], row["sends"], set(row["delivery"].values())) == (1, 2, {"ok"})
        assert json.loads(file.read_text())["incident"] == "operation:x"


async def test_another_reason_is_news_and_is_sent_again(ledger: Ledger) -> None:
    async with Sink() as sink:
        duty = pager(ledger, sink.url("oncall"))
        await open_page(ledger)
        await duty.deliver_once()
        await open_page(ledger, "possible_duplicate")
        await duty.deliver_once()
        assert [p.title for p in sink.pages] == ["held: not_visible", "held: possible_duplicate"]


async def test_news_of_an_acknowledged_page_is_repeated_until_it_is_acknowledged_too(ledger: Ledger) -> None:
    """Somebody saw the first reason; nobody has seen the second."""
    async with Sink() as sink:
        duty = pager(ledger, sink.url("oncall"), repeat_s=0.05)
        page_id = await open_page(ledger)
        await duty.deliver_once()
        await watch.acknowledge_page(ledger, page_id, "Ada")
        await open_page(ledger, "possible_duplicate")

        async def repeated() -> bool:
            await duty.deliver_once()
            return len([p for p in sink.pages if "possible_duplicate" in p.title]) >= 2

        await eventually(repeated, within_s=10, what="the news repeated")
        await open_page(ledger, "possible_duplicate")  # a repeat is no news
        await watch.acknowledge_page(ledger, page_id, "Ada")
        await open_page(ledger, "possible_duplicate")
        [row] = await listing.pages(ledger)
        assert row["acknowledged_by"] == "Ada"


async def test_reason_that_changes_while_the_page_is_on_its_way_is_not_lost(ledger: Ledger) -> None:
    page_id = await open_page(ledger)
    [old] = await watch.undelivered_pages(ledger, 900)
    await open_page(ledger, "possible_duplicate")
    await LedgerPages(ledger).sent(old, "c", "ok")
    assert [p["page_id"] for p in await watch.undelivered_pages(ledger, 900)] == [page_id]


async def test_unacknowledged_page_is_repeated_until_somebody_has_seen_it(ledger: Ledger) -> None:
    async with Sink() as sink:
        duty = pager(ledger, sink.url("oncall"), repeat_s=0.05)
        page_id = await open_page(ledger)

        async def repeated() -> bool:
            await duty.deliver_once()
            return len(sink.pages) >= 3

        await eventually(repeated, within_s=10, what="two repetitions")
        assert "Nobody has acknowledged this yet" in sink.pages[1].text
        await watch.acknowledge_page(ledger, page_id, "Ada")
        sent = len(sink.pages)
        await eventually(lambda: quiet(ledger), within_s=5, what="nothing is due although the repetition time passed")
        await duty.deliver_once()
        assert len(sink.pages) == sent


async def quiet(ledger: Ledger) -> bool:
    async with ledger.transaction() as connection:
        cursor = await connection.execute(
            "SELECT sent_at < clock_timestamp() - interval '0.1 second' AS passed FROM actonce.page"
        )
        row = await cursor.fetchone()
    return bool(row and row["passed"]) and await watch.undelivered_pages(ledger, 0.05) == []


async def test_channel_that_is_down_is_shown_and_gets_its_page_when_it_is_back(ledger: Ledger) -> None:
    async with Sink() as good, Sink(fail=True) as bad:
        duty = pager(ledger, good.url("a"), bad.url("b"))
        await open_page(ledger)
        await duty.deliver_once()
        shown = {r["name"]: r["state"] for r in await records.list_dependencies(ledger)}
        assert (shown["paging"], sorted(shown.values())) == ("degraded", ["degraded", "down", "up"])
        tried = len(bad.pages)
        bad.fail = False

        async def back() -> bool:
            await duty.deliver_once()
            return len(bad.pages) > tried

        await eventually(back, within_s=10, what="the second channel gets it")
        assert len(good.pages) == 1
        [row] = await listing.pages(ledger)
        assert set(row["delivery"].values()) == {"ok"}


async def test_total_failure_is_on_the_dependency_page_and_the_page_stays_due(ledger: Ledger) -> None:
    duty = pager(ledger, "json://127.0.0.1:1/nobody", "nonsense")
    page_id = await open_page(ledger)
    assert await duty.deliver_once() == 0
    shown = {r["name"]: r for r in await records.list_dependencies(ledger)}
    assert shown["paging"]["state"] == "down" and shown["paging"]["blocks"] == "calling a person"
    assert [p["page_id"] for p in await watch.undelivered_pages(ledger, 900)] == [page_id]


async def test_page_resolved_before_it_was_sent_says_so(ledger: Ledger) -> None:
    await open_page(ledger)
    async with ledger.transaction() as connection:
        await connection.execute("UPDATE actonce.page SET closed_at = clock_timestamp()")
    async with Sink() as sink:
        duty = pager(ledger, sink.url("oncall"))
        await duty.deliver_once()
        await duty.deliver_once()
        [page] = sink.pages
        assert "resolved in the meantime" in page.text


async def test_warning_that_no_channel_wants_is_shown_and_never_due(ledger: Ledger) -> None:
    async with Sink() as sink:
        await open_page(ledger, "backlog")
        assert await pager(ledger, sink.url("oncall")).deliver_once() == 0
        assert await watch.undelivered_pages(ledger, 900, {"page": ["c"]}) == []
        assert [p["severity"] for p in await listing.pages(ledger)] == ["warning"] and sink.pages == []
        settings = PagingSettings(page_urls=(), page_warning_urls=(sink.url("day"),))
        assert await Pager(LedgerPages(ledger), settings).deliver_once() == 1
        assert [p.title for p in sink.of("day")] == ["held: backlog"]


async def test_pages_that_one_channel_refuses_keep_no_new_one_from_the_others(ledger: Ledger) -> None:
    """More of them than one turn takes up."""
    async with ledger.transaction() as connection:
        for number in range(60):
            await pages.open_page(
                connection, incident=f"operation:{number}", reason="not_visible", title=f"held {number}", body="Do: …"
            )
        await connection.execute(
            'UPDATE actonce.page SET sent_at = clock_timestamp(), delivery = \'{"a": "ok", "b": "refused"}\''
        )
    new = await open_page(ledger)
    due = await watch.undelivered_pages(ledger, 900, {"page": ["a", "b"]})
    assert due[0]["page_id"] == new and len(due) == 50
