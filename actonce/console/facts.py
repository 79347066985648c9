"""One operation for people: the three facts with their sources, and what the newest reading of each route says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from actonce.ledger.records import OperationRecord, Row
from actonce.ledger.store import Operation

_SOURCES = {
    "receipt": "the acknowledgement, which this destination's contract takes for applied",
    "read_back": "a route of the destination shows it",
    "handover": "a relay took it: handed over, not known to be delivered",
    "operator_attested": "a person's word; no route confirms it",
}


@dataclass(frozen=True)
class Light:
    """One of the three facts. `at` None: not established, which is not the same as `it did not happen`."""

    name: str
    means: str
    at: datetime | None
    source: str
    attested: bool = False


def lights(record: OperationRecord) -> list[Light]:
    """Request issued, side effect committed, acknowledgement received: each for itself."""
    o = record.operation
    return [
        Light("Request issued", "a permit to send was consumed", o.issued_at, _issued(record)),
        Light(
            "Side effect committed",
            "evidence says that the effect happened",
            o.committed_at,
            _committed(o),
            attested=o.committed_at is not None and o.completion == "operator_attested",
        ),
        Light(
            "Acknowledgement received",
            "the destination's own answer reached us",
            o.acknowledged_at,
            _acknowledged(record),
        ),
    ]


def _issued(record: OperationRecord) -> str:
    if not record.attempts:
        return "no permit was given yet: nothing was sent from here"
    last = record.attempts[-1]
    owner = last["owner"] if isinstance(last["owner"], dict) else {}
    used = f"{len(record.attempts)} permits, the last" if len(record.attempts) > 1 else "one permit,"
    return f"{used} attempt {last['attempt']}, by process {owner.get('pid', '?')} on {owner.get('host', '?')}"


def _committed(o: Operation) -> str:
    if o.committed_at is None:
        ended = {
            "refused": "the destination declined it",
            "closed": "it was ended without another send",
        }
        return ended.get(o.state.value, "nothing on record shows the effect, and nothing here says that it is absent")
    source = _SOURCES.get(o.completion or "", "no evidence on record")
    told = (o.receipt or {}).get("source", "")
    return f"{source} ({told})" if str(told).startswith("route:") else source


def _acknowledged(record: OperationRecord) -> str:
    if record.operation.acknowledged_at is None:
        return "no answer that counts as one was received"
    if not record.acknowledgements:
        return "recorded by the operation"
    last = record.acknowledgements[-1]
    odd = "; it contradicts what was concluded before" if last["contradicts"] else ""
    return f"attempt {last['attempt']} was answered with object {last['object_id']}{odd}"


@dataclass(frozen=True)
class RouteReading:
    """What one route showed at the newest reading, beside what its contract declares."""

    name: str
    kind: str
    status: str
    rows: int
    total: int | None
    complete: bool
    matches: tuple[str, ...]
    sees_until: datetime | None  # an object of ours, or its own position: it can see what was committed by then
    sees_by: str
    lag_s: float | None
    read_at: datetime
    independent: bool | None
    flagged: str
    error: str | None


@dataclass(frozen=True)
class Newest:
    """The newest verdict, and the readings that it was derived from."""

    verdict: Row
    routes: list[RouteReading]
    applied: bool


def newest(record: OperationRecord, contract: Mapping[str, Any] | None) -> Newest | None:
    """None: it was never read back."""
    if not record.verdicts:
        return None
    verdict = record.verdicts[0]
    declared = {r["name"]: r for r in (contract or {}).get("routes", [])}
    write = (contract or {}).get("write", {})
    flagged = verdict["body"].get("flagged", {})
    routes = [_route(r, declared.get(r["route"]), write, str(flagged.get(r["route"], ""))) for r in verdict["readings"]]
    return Newest(verdict, routes, verdict["applied"])


def _route(
    reading: Mapping[str, Any], declared: Mapping[str, Any] | None, write: Mapping[str, Any], flagged: str
) -> RouteReading:
    beacon, as_of = reading.get("beacon_at"), reading.get("as_of")
    seen = beacon or as_of
    apart = None
    if declared is not None:
        apart = all(declared[name] != write.get(name) for name in ("network", "store", "credential"))
    return RouteReading(
        name=reading["route"],
        kind=declared["kind"].replace("_", " ") if declared else "",
        status=reading["status"],
        rows=reading["rows_received"],
        total=reading["declared_total"],
        complete=bool(reading["complete"]),
        matches=tuple(_match(candidate) for candidate in reading["candidates"]),
        sees_until=datetime.fromisoformat(seen) if seen else None,
        sees_by="a beacon of ours that it shows" if beacon else "its own position" if as_of else "nothing",
        lag_s=declared["lag_s"] if declared else None,
        read_at=datetime.fromisoformat(reading["finished_at"]),
        independent=apart,
        flagged=flagged,
        error=reading.get("error"),
    )


def _match(candidate: Mapping[str, Any]) -> str:
    state = candidate.get("state")
    return f"{candidate['object_id']} ({state})" if state else str(candidate["object_id"])
