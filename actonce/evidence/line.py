"""One line of record.jsonl: what every kind of it says.

Contract: a line of an unknown kind, or one that lacks a field the judge needs, is refused, both when it
is written and when it is read. Extra fields are kept and shown, never judged. Every line says when the
event happened on the system-wide monotonic clock, which all processes of a host share, so that lines of
different sources can be compared.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from actonce.evidence.record import Source


class Line(BaseModel):
    """One line of record.jsonl. `order` counts from 1 without a gap; `mono_ns` is the system-wide
    monotonic clock at the event (not at the writing), `at` the same moment as ISO-8601 UTC. Subclasses
    add what the judge needs."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="constants")
    of_source: ClassVar[str] = ""
    of_kind: ClassVar[str] = ""

    order: int = Field(ge=1)
    mono_ns: int = Field(ge=0)
    at: str = Field(min_length=10)
    source: Source
    cell: str | None
    kind: str
