"""Turns a destination's own journal into record events.

Contract: every journal line becomes exactly one event and none is dropped: kinds that the record does not
know become notes that keep the whole line. The journal's own number is kept as `seq`, so that a lost line
shows as a gap. It invents nothing: a line without its number, clock or kind is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from actonce.evidence.lines import KINDS
from actonce.evidence.record import EvidenceError

# Names that destinations use for what the record calls otherwise.
RENAMED = {"probe": "probe_note", "cancel": "key_cancelled", "cancelled_key": "key_cancelled"}
# The last part of a path tells what a request is for; anything else that is no read is a send of the effect, so a
# misread path can only make the judge stricter.
ROLE_BY_TAIL = {
    "beacons": "beacon",
    "notes": "probe",
    "comments": "probe",
    "cancel": "cancel",
    "reverse": "reversal",
    "challenge": "other",
}


def request_role(method: str, path: str) -> str:
    """What a request is for, from its method and path."""
    if method.upper() in {"GET", "HEAD"}:
        return "read"
    return ROLE_BY_TAIL.get(path.partition("?")[0].rstrip("/").rpartition("/")[2], "effect")


def journal_events(
    lines: Iterable[Mapping[str, Any]],
    journal: str,
    cell_of: Callable[[Mapping[str, Any]], str | None],
) -> list[dict[str, Any]]:
    """The events for `EvidenceWriter.extend`, in the journal's order.

    lines: raw journal lines with order, mono_ns, at, kind. cell_of: the cell a line belongs to (by
    account), or None. EvidenceError names the first line that lacks what the record needs.
    """
    events = []
    for raw in lines:
        if missing := {"order", "mono_ns", "at", "kind"} - raw.keys():
            raise EvidenceError(f"journal {journal}: a line lacks {sorted(missing)}: {dict(raw)}")
        kind = RENAMED.get(str(raw["kind"]), str(raw["kind"]))
        event: dict[str, Any] = {key: value for key, value in raw.items() if key not in {"order", "kind"}}
        if ("destination", kind) not in KINDS or kind == "journal_end":
            event["text"] = f"{raw['kind']}: {dict(raw)}"
            kind = "note"
        elif kind == "request":
            event.setdefault("role", request_role(str(raw.get("method", "")), str(raw.get("path", ""))))
        elif kind == "latch" and "name" not in event:
            event["name"] = str(raw.get("point", "unnamed"))
        elif kind == "note":
            event.setdefault("text", str(dict(raw)))
        event |= {"source": "destination", "kind": kind, "journal": journal, "seq": raw["order"]}
        event["destination"] = raw.get("destination") or journal
        event["cell"] = cell_of(raw)
        events.append(event)
    return events
