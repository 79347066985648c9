"""Spans to a collector, beside the work and never in its way.

Promises: ending a span costs a place in a queue and nothing else; a collector that hangs, refuses or is not there costs
spans, never time; every span that was not taken is counted, logged and shown on the dependency page. A span is never
the only record of anything: what happened is in the audit trail. Off unless ACTONCE_TRACES_URL is set; needs the extra
`traces` (OpenTelemetry's SDK and its OTLP exporter).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import structlog

log = structlog.get_logger("actonce.traces")
QUEUE_MAX = 2048
BATCH_MAX = 256
EXPORT_DEADLINE_S = 5.0  # of one batch; only the queue's own thread waits for it
_IDLE_S = 0.2

Export = Callable[[Sequence[Any]], bool]
"""Hands spans to a collector; True when it took them. May block, may raise."""


class SpanQueue:
    """A bounded queue of ended spans, and a thread that empties it."""

    def __init__(self, export: Export, queue_max: int = QUEUE_MAX) -> None:
        self.taken = 0
        self.dropped = 0
        self.last_error = ""
        self._told = 0
        self._export = export
        self._queue: queue.Queue[Any] = queue.Queue(queue_max)
        self._counting = threading.Lock()
        threading.Thread(target=self._empty, name="spans", daemon=True).start()

    def put(self, span: Any) -> None:
        """Take an ended span, or count it: never wait. What is queued when the process ends is lost with it."""
        try:
            self._queue.put_nowait(span)
        except queue.Full:
            self._count(0, 1, "the queue is full: the collector is slower than the work, or hangs")

    @property
    def waiting(self) -> int:
        """Spans in the queue."""
        return self._queue.qsize()

    def _empty(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < BATCH_MAX:
                try:
                    batch.append(self._queue.get(timeout=_IDLE_S))
                except queue.Empty:
                    break
            try:
                ok, why = self._export(batch), "the collector did not take them"
            except Exception as error:  # whatever the exporter raises: counted like any other failure
                ok, why = False, f"{type(error).__name__}: {error}"
            self._count(len(batch) if ok else 0, 0 if ok else len(batch), "" if ok else why)

    def _count(self, taken: int, dropped: int, why: str) -> None:
        with self._counting:
            first = dropped and not self.dropped
            self.taken += taken
            self.dropped += dropped
            self.last_error = why or self.last_error
        if first:
            log.warning("spans_dropped", why=why)

    def dropped_since_told(self) -> int:
        """Spans lost since this was last asked."""
        with self._counting:
            since, self._told = self.dropped - self._told, self.dropped
        return since

    def words(self) -> str:
        """For the dependency page."""
        words = f"{self.taken} spans taken, {self.dropped} dropped, {self.waiting} waiting"
        return f"{words}; {self.last_error}" if self.dropped else words


def interceptors(url: str, service: str) -> tuple[list[Any], SpanQueue]:
    """Temporal interceptors that make spans, and the queue they end in. Raises RuntimeError without the extra."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from temporalio.contrib.opentelemetry import TracingInterceptor
    except ImportError as error:
        raise RuntimeError(
            f"ACTONCE_TRACES_URL is set and {error.name} is missing: pip install 'actonce[traces]', or unset it"
        ) from error
    exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_DEADLINE_S)
    spans = SpanQueue(lambda batch: bool(exporter.export(batch).name == "SUCCESS"))
    # A class statement would need the extra's types to be checked.
    ended: Any = type("Ended", (SpanProcessor,), {"on_end": lambda self, span: spans.put(span)})
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(ended())
    return [TracingInterceptor(provider.get_tracer("actonce"))], spans
