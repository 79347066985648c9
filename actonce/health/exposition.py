"""`/metrics` of a watching process, for Prometheus.

Promises: each scrape is a fresh collection; a ledger that does not answer is said (`actonce_ledger_readable 0`) and
nothing is served in its place. Listens on the loopback interface unless told otherwise, and authenticates nobody.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import httpx
import prometheus_client
from prometheus_client.metrics_core import Metric

from actonce.contracts.errors import LedgerUnavailable
from actonce.health.metrics import UNREADABLE, Collector, Snapshot, families
from actonce.health.prober import Reading

_PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody: our own metrics are served without TLS
SCRAPE_DEADLINE_S = 10.0  # Prometheus' own default; the ledger gives up sooner


class _Scrape:
    """Collects in the event loop on behalf of the server's threads, one collection at a time."""

    def __init__(self, collector: Collector, loop: asyncio.AbstractEventLoop) -> None:
        self._collector = collector
        self._loop = loop
        self._turn = asyncio.Lock()

    def collect(self) -> Iterable[Metric]:
        asked = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        try:
            return list(families(asked.result(SCRAPE_DEADLINE_S)))
        finally:
            asked.cancel()

    async def _read(self) -> Snapshot:
        async with self._turn:
            try:
                return await self._collector.collect()
            except LedgerUnavailable:
                return UNREADABLE


@contextmanager
def serving(collector: Collector, host: str, port: int) -> Iterator[str]:
    """Serve while inside; yields the URL. Port 0: the operating system chooses. Raises OSError when it cannot bind."""
    scrape = _Scrape(collector, asyncio.get_running_loop())
    server, thread = prometheus_client.start_http_server(port, host, registry=scrape)
    try:
        where = f"[{host}]" if ":" in host else host
        yield f"http://{where}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(SCRAPE_DEADLINE_S)


async def own_metrics(url: str) -> Reading:
    """Fetch our own metrics, as Prometheus would."""
    async with httpx.AsyncClient(trust_env=False, timeout=SCRAPE_DEADLINE_S, verify=_PLAIN) as client:
        answer = await client.get(url)
    whole = answer.is_success and "\nactonce_ledger_readable 1.0\n" in answer.text
    detail = f"{url}: {answer.status_code}, {len(answer.text.splitlines())} lines"
    return Reading("metrics", "metrics", "up" if whole else "down", "fetched our own metrics", detail, "Prometheus")
