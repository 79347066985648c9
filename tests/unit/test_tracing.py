"""case f3: a collector that hangs or refuses costs spans, which are counted, and never time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from actonce.testing.waiting import eventually
from actonce.tracing import SpanQueue, interceptors


async def test_spans_reach_the_collector_in_order() -> None:
    got: list[Any] = []

    def export(batch: Sequence[Any]) -> bool:
        got.extend(batch)
        return True

    spans = SpanQueue(export)
    for number in range(600):
        spans.put(number)
    await eventually(lambda: spans.taken == 600, within_s=10, what="all spans exported")
    assert got == list(range(600)) and spans.dropped == 0


async def test_ending_a_span_never_waits_for_a_collector_that_hangs() -> None:
    go = threading.Event()

    def hang(batch: Sequence[Any]) -> bool:
        go.wait(30)
        return True

    spans = SpanQueue(hang, queue_max=10)
    spans.put("first")
    began = time.monotonic()
    for number in range(5000):
        spans.put(number)
    assert time.monotonic() - began < 2, "the work waited for the collector"
    assert spans.dropped >= 4000 and "the queue is full" in spans.words()
    go.set()
    await eventually(lambda: spans.taken + spans.dropped == 5001, within_s=10, what="every span is accounted for")


@pytest.mark.parametrize("how", ["refuses", "raises"])
async def test_spans_that_the_collector_does_not_take_are_counted_and_the_reason_is_told(how: str) -> None:
    def export(batch: Sequence[Any]) -> bool:
        if how == "raises":
            raise ConnectionError("answered 500")
        return False

    spans = SpanQueue(export)
    for number in range(3):
        spans.put(number)
    await eventually(lambda: spans.dropped == 3, within_s=10, what="all three are counted")
    assert (spans.dropped_since_told(), spans.dropped_since_told()) == (3, 0)
    assert ("answered 500" if how == "raises" else "did not take") in spans.words()


def test_without_the_extra_the_setting_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)  # not importable
    with pytest.raises(RuntimeError, match=r"actonce\[traces\]"):
        interceptors("http://127.0.0.1:1/v1/traces", "test")
