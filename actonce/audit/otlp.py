"""A log collector, by OTLP over HTTP with JSON (`POST …/v1/logs`), one log record for each event.

The record's body is the event's canonical line, so that the chain can be checked in whatever the collector feeds. Sent
synchronously and confirmed: an exporter with a queue of its own drops what does not fit, and an audit event is not
dropped. A collector cannot tell its end; a batch whose answer was lost arrives twice, with the same `actonce.seq`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from actonce.audit.sink import SinkError
from actonce.contracts.audit import End, Sealed
from actonce.version import __version__


class OtlpSink:
    """Implements `Sink`."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, deadline_s: float = 10.0) -> None:
        self.url = url
        parts = urlsplit(url)
        self.name = f"otlp:{parts.scheme}://{parts.hostname}:{parts.port or ''}{parts.path}"
        self._client = httpx.Client(
            timeout=deadline_s, trust_env=False, follow_redirects=False, headers=dict(headers or {})
        )

    def end(self) -> End | None:
        return None

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def write(self, events: Sequence[Sealed]) -> None:
        try:
            answer = self._client.post(self.url, json=request_of(events))
        except httpx.HTTPError as error:
            raise SinkError(f"{self.name}: {type(error).__name__}: {error}") from error
        if answer.status_code != 200:
            raise SinkError(f"{self.name} answered {answer.status_code}: {answer.text[:200]}")
        rejected = _rejected(answer)
        if rejected:
            raise SinkError(f"{self.name} rejected {rejected}")


def request_of(events: Sequence[Sealed]) -> dict[str, Any]:
    """An OTLP ExportLogsServiceRequest in its JSON form (64-bit integers are strings there)."""
    return {
        "resourceLogs": [
            {
                "resource": {"attributes": [_text("service.name", "actonce")]},
                "scopeLogs": [
                    {
                        "scope": {"name": "actonce.audit", "version": __version__},
                        "logRecords": list(map(_record, events)),
                    }
                ],
            }
        ]
    }


def _record(event: Sealed) -> dict[str, Any]:
    at = datetime.fromisoformat(event.at)
    nanoseconds = str(int(at.timestamp()) * 1_000_000_000 + at.microsecond * 1000)
    facts = {"actonce.task_id": event.task_id, "actonce.operation_id": event.operation_id}
    return {
        "timeUnixNano": nanoseconds,
        "severityNumber": 9,
        "severityText": "INFO",
        "body": {"stringValue": event.line},
        "attributes": [
            {"key": "actonce.seq", "value": {"intValue": str(event.seq)}},
            _text("actonce.hash", event.hash),
            _text("actonce.kind", event.kind),
            *(_text(name, value) for name, value in facts.items() if value is not None),
        ],
    }


def _text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _rejected(answer: httpx.Response) -> str:
    """What a partial success says was not taken; nothing when all was."""
    if not answer.content.strip():
        return ""
    try:
        partial = answer.json().get("partialSuccess") or {}
        count = int(partial.get("rejectedLogRecords") or 0)
    except (ValueError, AttributeError, TypeError) as error:
        raise SinkError(f"the collector's answer is no OTLP answer: {answer.text[:200]!r}") from error
    return f"{count} records: {partial.get('errorMessage', '')}" if count else ""
