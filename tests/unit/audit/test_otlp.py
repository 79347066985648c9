"""OTLP over HTTP: the lines arrive as they were sealed, and only a whole success counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from actonce.audit import AuditSettings, OtlpSink, SinkError, open_sinks
from actonce.audit.otlp import request_of
from actonce.testing.collector import Collector
from tests.unit.audit.builders import chain

PARTIAL = {"partialSuccess": {"rejectedLogRecords": "2", "errorMessage": "too old"}}


async def test_collector_gets_the_sealed_lines_in_order() -> None:
    async with Collector() as collector:
        sink = OtlpSink(f"http://127.0.0.1:{collector.port}/v1/logs")
        await asyncio.to_thread(sink.write, chain(3))
        await asyncio.to_thread(sink.write, chain(4)[3:])
        sink.close()
    assert collector.lines == [event.line for event in chain(4)]


def test_record_carries_number_hash_kind_and_time() -> None:
    [event] = chain(1)
    [record] = request_of([event])["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    told = {one["key"]: next(iter(one["value"].values())) for one in record["attributes"]}
    assert told == {
        "actonce.seq": "1",
        "actonce.hash": event.hash,
        "actonce.kind": "operation.permit",
        "actonce.task_id": "default/single/t",
        "actonce.operation_id": "op1_x",
    }
    assert record["timeUnixNano"] == "1767323045000003000"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(503, text="full"), "answered 503: full"),
        (httpx.Response(302, headers={"location": "http://elsewhere"}), "answered 302"),
        (
            httpx.Response(200, json=PARTIAL),
            "too old",
        ),
        (httpx.Response(200, text="<html>"), "no OTLP answer"),
        (httpx.Response(200, json=[]), "no OTLP answer"),
    ],
)
def test_anything_but_a_whole_success_is_not_shipped(answer: httpx.Response, said: str) -> None:
    sink = OtlpSink("http://collector.test/v1/logs")
    sink._client = httpx.Client(transport=httpx.MockTransport(lambda request: answer))
    with pytest.raises(SinkError, match=said):
        sink.write(chain(1))


@pytest.mark.parametrize("body", [b"", b"{}", b'{"partialSuccess":{}}', b'{"partialSuccess":{"rejectedLogRecords":0}}'])
def test_success_may_be_said_in_several_ways(body: bytes) -> None:
    respond: Callable[[httpx.Request], httpx.Response] = lambda request: httpx.Response(200, content=body)  # noqa: E731
    sink = OtlpSink("http://collector.test/v1/logs")
    sink._client = httpx.Client(transport=httpx.MockTransport(respond))
    sink.write(chain(1))


def test_settings_open_folders_and_collectors_and_refuse_what_is_neither() -> None:
    settings = AuditSettings(sinks="file:///var/a%20b, otlp+https://user:pw@host:4318/v1/logs")  # type: ignore[arg-type]
    assert [s.name for s in open_sinks(settings)] == ["file:/var/a b", "otlp:https://host:4318/v1/logs"]
    for bad in ("file://relative", "http://host/v1/logs", "s3://bucket", "file:///"):
        with pytest.raises(ValueError, match="write file:///"):
            AuditSettings(sinks=(bad,))
