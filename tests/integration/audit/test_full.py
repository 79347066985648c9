"""A sink on a file system that is really full, and a collector that really hangs: nothing is lost, nothing waits."""

from __future__ import annotations

import asyncio
import time

import pytest

from actonce.audit import AuditSettings
from actonce.contracts.audit import parse
from actonce.ledger import listing, records
from actonce.ledger.store import Ledger, audit
from actonce.stack import Stack
from actonce.testing.collector import Collector
from actonce.testing.disk import CannotMount, Disk
from actonce.testing.faults import Faults, WireFault
from actonce.testing.waiting import eventually
from actonce.trail import AuditKeeper, verify
from tests.integration.audit.work import work

QUICK = AuditSettings(deadline_s=0.5, retry_max_s=0.2, lag_warn_s=0.01, lag_page_s=0.3, batch_max=7)


class Kept(AuditKeeper):
    """A keeper whose duties are made once, as a watching process does."""

    def __init__(self, ledger: Ledger, settings: AuditSettings) -> None:
        super().__init__(ledger, settings)
        self.made = self.duties()


async def turn(keeper: Kept) -> None:
    """One turn of every duty but the verification, which the test asks for by itself."""
    for name, _, act in keeper.made:
        if name != "audit verifier":
            await act()


async def caught_up(keeper: Kept, name: str) -> bool:
    await turn(keeper)
    shown = {row["name"]: row["state"] for row in await records.list_dependencies(keeper.ledger)}
    open_ = [page for page in await listing.pages(keeper.ledger) if page["reason"] == "audit_lag"]
    return shown.get(f"audit:{name}") == "up" and not open_


async def paged(keeper: Kept, words: str) -> bool:
    await turn(keeper)
    return any(
        page["reason"] == "audit_lag" and page["severity"] == "page" and words in page["body"]
        for page in await listing.pages(keeper.ledger)
    )


async def test_folder_on_a_full_disk_delays_events_and_loses_none(ledger: Ledger) -> None:
    """case f1"""
    try:
        disk = Disk.mount(256 << 10)
    except CannotMount as error:
        pytest.skip(str(error))
    folder = disk.path / "audit"
    try:
        keeper = Kept(ledger, QUICK.model_copy(update={"sinks": (f"file://{folder}",)}))
        await turn(keeper)
        disk.fill()
        await work(ledger)
        await eventually(lambda: paged(keeper, "No space left on device"), within_s=20, what="somebody is called")
        [row] = [r for r in await records.list_dependencies(ledger) if r["kind"] == "audit_sink"]
        assert row["state"] == "down" and "No space left on device (errno 28)" in row["detail"]
        disk.free()
        await eventually(lambda: caught_up(keeper, f"file:{folder}"), within_s=20, what="everything is shipped")
        report = await verify(ledger.dsn, folder)
        assert report.findings == [] and report.shipped > 30
    finally:
        disk.close()


async def test_hanging_collector_delays_events_and_nothing_else(servers: Stack, ledger: Ledger) -> None:
    """case f3: shipping never waits in an operation's path."""
    async with Collector() as collector:
        faults = Faults(servers.toxiproxy_url, f"audit{id(collector)}")
        proxy = await faults.proxy("collector", "127.0.0.1", collector.port)
        url = f"otlp+http://{proxy.host}:{proxy.port}/v1/logs"
        keeper = Kept(ledger, QUICK.model_copy(update={"sinks": (url,)}))
        silent = await proxy.install(WireFault.SILENT, "upstream")
        stop = asyncio.Event()

        async def ships() -> None:
            while not stop.is_set():
                await turn(keeper)

        shipping = asyncio.create_task(ships())
        began = time.monotonic()
        await work(ledger)
        took_s = time.monotonic() - began
        await eventually(lambda: paged(keeper, "no answer within"), within_s=20, what="somebody is called")
        stop.set()
        await shipping
        assert took_s < 5, "the work waited for the collector"
        await proxy.remove(silent)
        await eventually(lambda: caught_up(keeper, keeper.sinks[0].name), within_s=20, what="everything is shipped")
        await faults.close()
        keeper.close()
        first = {event.seq: event for event in map(parse, reversed(collector.lines))}
        assert sorted(first) == list(range(1, len(first) + 1)) and len(first) > 30


async def test_work_needs_no_sink_and_no_sealer(ledger: Ledger) -> None:
    async with ledger.transaction() as connection:
        await audit(connection, "test.note", None, {})
    assert (await verify(ledger.dsn)).unsealed > 0
