"""Builds small hand-written evidence folders: one good run, which tests then spoil in exactly one way."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from actonce.evidence import Drill, EvidenceWriter

START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
SECOND_NS = 1_000_000_000
VIEWS = ("user", "state", "alerts", "dependencies", "operator")
Event = dict[str, Any]


def at(second: float) -> str:
    """The wall time of a second of the run."""
    return (START + timedelta(seconds=second)).isoformat(timespec="microseconds")


def payload(data: Any) -> dict[str, Any]:
    """A value as Temporal's JSON shows a json/plain payload."""
    text = base64.b64encode(json.dumps(data).encode()).decode()
    return {"metadata": {"encoding": base64.b64encode(b"json/plain").decode()}, "data": text}


def history(*activities: tuple[str, float, Any, Any]) -> list[dict[str, Any]]:
    """A history from (activity, second, input, result); a result of None means that it timed out."""
    events: list[dict[str, Any]] = []
    for name, second, given, result in activities:
        scheduled = len(events) + 1
        events.append(
            {
                "eventId": str(scheduled),
                "eventTime": at(second),
                "eventType": "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED",
                "activityTaskScheduledEventAttributes": {
                    "activityType": {"name": name},
                    "input": {"payloads": [payload(given)]},
                },
            }
        )
        ended: dict[str, Any] = {"scheduledEventId": str(scheduled)}
        kind, attributes = "TIMED_OUT", "activityTaskTimedOutEventAttributes"
        if result is not None:
            kind, attributes = "COMPLETED", "activityTaskCompletedEventAttributes"
            ended["result"] = {"payloads": [payload(result)]}
        event = {"eventId": str(scheduled + 1), "eventTime": at(second + 0.1)}
        events.append(event | {"eventType": f"EVENT_TYPE_ACTIVITY_TASK_{kind}", attributes: ended})
    return events


class Run:
    """One run in the making: cells, events and histories that a test may change before `write`."""

    def __init__(self) -> None:
        self.drill: dict[str, Any] = {
            "drill": "lost-acknowledgement",
            "claim": "an answer lost after commit costs no effect and makes none twice",
            "seed": 7,
            "started_at": at(0),
            "commit": "0" * 40,
            "versions": {"temporal": "1.32"},
            "quick": True,
            "config": {"temporal_ui": "http://127.0.0.1:1/namespaces/default"},
        }
        self.cells: list[dict[str, Any]] = []
        self.events: list[Event] = []
        self.histories: dict[str, list[dict[str, Any]]] = {}
        self.declared: dict[str, int] = {}

    def add(self, source: str, kind: str, cell: str | None, second: float, **fields: Any) -> Event:
        """Add an event that happened at a second of the run."""
        event = {"source": source, "kind": kind, "cell": cell, "at": at(second), "mono_ns": int(second * SECOND_NS)}
        self.events.append(event | fields)
        return self.events[-1]

    def journal(self, kind: str, cell: str | None, second: float, **fields: Any) -> Event:
        """Add a line of the destination's journal."""
        return self.add("destination", kind, cell, second, destination="payments", journal="world", **fields)

    def find(self, kind: str, cell: str | None = None, **fields: Any) -> Event:
        """The first event of a kind, for a test to change or remove."""
        return next(
            event
            for event in self.events
            if event["kind"] == kind
            and (cell is None or event["cell"] == cell)
            and all(event.get(name) == value for name, value in fields.items())
        )

    def drop(self, kind: str, cell: str | None = None, **fields: Any) -> None:
        """Remove the first event of a kind."""
        self.events.remove(self.find(kind, cell, **fields))

    def cell(self, name: str) -> dict[str, Any]:
        """A cell, for a test to change."""
        return next(cell for cell in self.cells if cell["cell"] == name)

    def write(self, folder: Path, spoil: Callable[[list[Event]], None] | None = None) -> Path:
        """Write the folder. `spoil` may change the numbered events just before."""
        events = sorted(self.events, key=lambda event: event["mono_ns"])
        numbers: Counter[str] = Counter()
        for event in events:
            if event["source"] == "destination" and event["kind"] != "journal_end":
                numbers[event["journal"]] += 1
                event.setdefault("seq", numbers[event["journal"]])
        end_ns = events[-1]["mono_ns"] if events else 0
        for journal, lines in numbers.items():
            events.append(
                {"source": "destination", "kind": "journal_end", "cell": None, "mono_ns": end_ns, "at": at(99)}
                | {"journal": journal, "lines": self.declared.get(journal, lines)}
            )
        if spoil is not None:
            spoil(events)
        with EvidenceWriter(folder, Drill.model_validate(self.drill)) as writer:
            for cell in self.cells:
                writer.cell(cell)
            writer.extend(events)
            for workflow_id, found in self.histories.items():
                writer.history(workflow_id, json.dumps({"events": found}))
        return folder


def plan(
    run: Run, name: str, *, arm: str = "guarded", twin: str = "commit_then_drop", **changes: Any
) -> dict[str, Any]:
    """Add a cell with one operation `op1_<name>`."""
    cell = {
        "cell": name,
        "params": {
            "fault": "closed",
            "twin": twin,
            "process": "none",
            "cut": "none",
            "routes": "healthy",
            "late_arrival": "bounded",
        },
        "arm": arm,
        "expected": {"outcomes": ["committed"], "effects": [1, 1], "pages": False},
        "operations": [
            {
                "operation_id": f"op1_{name}",
                "tenant": "t",
                "destination": "payments",
                "action": "refund",
                "task_id": f"t/refund/{name}",
                "step": "refund",
                "subject": f"pay_{name}",
                "amount_minor": 1200,
            }
        ],
        "task_ids": [f"t/refund/{name}"],
        "fault": {
            "spec": {"toxic": "limit_data", "bytes": 0},
            "targets": [f"op1_{name}"],
            "proof": ["effect_committed", "answer_not_delivered"],
            "proxies": [f"write_{name}"],
        },
    }
    run.cells.append(cell | changes)
    return run.cells[-1]


def send(run: Run, name: str, second: float, number: int = 1, *, effect: bool = True, **fields: Any) -> None:
    """A request arrives and, if `effect`, commits; its answer begins."""
    request, operation_id = f"req_{name}_{number}", f"op1_{name}"
    about = {"operation_id": operation_id, "key": operation_id, "subject": f"pay_{name}", "account": f"acc_{name}"}
    about |= fields
    run.journal("request", name, second, request_id=request, method="POST", path="/v1/refunds", role="effect", **about)
    if effect:
        object_id = f"re_{name}_{number}"
        rest = {"digest": "d1:00", "amount_minor": 1200, "state": "committed", "request_id": request}
        run.journal("effect", name, second + 0.01, object_id=object_id, **rest, **about)
        run.journal("answer_begun", name, second + 0.02, request_id=request, status=201)


def caller(run: Run, name: str, second: float, *, state: str = "committed", permits: int = 1, **fields: Any) -> None:
    """What the ledger says of the operation, exported at a second."""
    operation_id = f"op1_{name}"
    row = {
        "operation_id": operation_id,
        "destination": "payments",
        "state": state,
        "reason": None,
        "verdict": None,
        "attempts": permits,
        "issued_at": at(second - 9),
        "acknowledged_at": None,
        "committed_at": at(second - 1) if state == "committed" else None,
        "completed_at": at(second - 1) if state == "committed" else None,
    }
    run.add("caller", "operation", name, second, **(row | fields))
    for number in range(1, permits + 1):
        run.add(
            "caller",
            "attempt",
            name,
            second,
            operation_id=operation_id,
            epoch=1,
            attempt=number,
            nonce=f"n{number}",
            not_after=at(second),
            issued_at=at(second - 9 + 3 * (number - 1)),
            outcome="unknown",
            error="closed_without_response",
            owner_pid=100,
        )
    task = {"committed": "complete", "held": "held"}.get(state, "failed")
    run.add("caller", "task", name, second, task_id=f"t/refund/{name}", state=task)


def verdict(run: Run, name: str, second: float, said: str, reason: str | None = None) -> None:
    """A verdict with one complete list reading before it."""
    reading = {"operation_id": f"op1_{name}", "route": "list", "rows": 3, "declared_total": 3, "status": "complete"}
    run.add("caller", "reading", name, second, reading_set=f"{name}@{second}", group="list", **reading)
    about = {"operation_id": f"op1_{name}", "verdict": said, "reason": reason, "decided_at": at(second)}
    run.add("caller", "verdict", name, second, reading_set=f"{name}@{second}", **about)


def toxic(run: Run, name: str, start: float, end: float, stream: str = "downstream") -> None:
    """The fault on the write's proxy, installed and taken away."""
    about = {"proxy": f"write_{name}", "toxic": "closed", "stream": stream}
    run.add("wire", "toxic_added", name, start, **about)
    run.add("wire", "toxic_removed", name, end, **about)


def issue(name: str, second: float, result: Any = None) -> tuple[str, float, Any, Any]:
    """An issue activity as the guard schedules it: its input has no operation_id, only the step."""
    given = {"tenant": "t", "task_id": f"t/refund/{name}", "step": "refund", "destination": "payments"}
    return "actonce.issue.v1", second, given, result


def reconcile(name: str, second: float, said: str, following: str = "done") -> tuple[str, float, Any, Any]:
    """A reconcile activity with its verdict."""
    ref = {"operation_id": f"op1_{name}", "destination": "payments"}
    return "actonce.reconcile.v1", second, ref, ref | {"verdict": said, "next": following}


def good_run() -> Run:
    """Passed: after (answer lost after commit), before (request lost), held (routes down), a control, a plain arm."""
    run = Run()
    run.journal("challenge", None, 0.5, run_id="run-1")
    _after(run)
    _before(run)
    _held(run)
    plan(run, "blind", arm="control:blind_retry", control="blind_retry", expected_finding="duplicate op")
    _doubled(run, "blind", 40)
    caller(run, "blind", 50, permits=2)
    run.histories["t/refund/blind"] = history(issue("blind", 40), issue("blind", 43))
    plan(run, "plain", arm="plain_default")
    _doubled(run, "plain", 60)
    run.add("caller", "task", "plain", 70, task_id="t/refund/plain", state="complete")
    for name in VIEWS:
        run.add("view", "view", None, 80, name=name, body="…", assertions=[{"name": "shown", "ok": True}])
    run.journal(
        "request", None, 85, request_id="req_probe", method="POST", path="/v1/refunds", operation_id="op1_probe"
    )
    rest = {"object_id": "re_probe", "request_id": "req_probe", "state": "committed"}
    run.journal("effect", None, 85.1, operation_id="op1_probe", **rest)
    run.add("drill", "quiet", None, 86, seconds=5.0, still_open=[])
    run.add("drill", "probe", None, 87, operation_id="op1_probe", ok=True)
    return run


def _after(run: Run) -> None:
    cell = plan(run, "after", twin_of="before")
    cell["params"]["process"] = "SIGKILL"
    cell["fault"]["proof"] += ["signal_delivered", "process_exited"]
    cell["fault"]["signals"] = ["SIGKILL"]
    toxic(run, "after", 1.005, 3)
    send(run, "after", 1)
    run.add("process", "signalled", "after", 1.015, pid=100, start_time=5, role="worker", signal="SIGKILL")
    run.add("process", "exited", "after", 1.1, pid=100, start_time=5, role="worker", returncode=-9)
    verdict(run, "after", 3, "committed")
    caller(run, "after", 10, verdict="committed")
    run.histories["t/refund/after"] = history(issue("after", 1), reconcile("after", 3, "committed"))


def _before(run: Run) -> None:
    cell = plan(run, "before", twin="drop_before_commit", twin_of="after")
    cell["fault"]["proof"] = ["request_sent", "request_not_arrived"]
    toxic(run, "before", 10, 13, "upstream")
    run.add("wire", "caller_connection", "before", 11, proxy="write_before", bytes_up=200, bytes_down=0)
    verdict(run, "before", 13.5, "absent")
    send(run, "before", 14.5)
    caller(run, "before", 20, permits=2, verdict="absent")
    attempts = [event for event in run.events if event["kind"] == "attempt" and event["cell"] == "before"]
    for attempt, second in zip(attempts, (11, 14), strict=True):
        attempt |= {"issued_at": at(second), "not_after": at(second + 1)}
    results = {"operation_id": "op1_before", "status": "committed", "how": "acknowledged"}
    run.histories["t/refund/before"] = history(
        issue("before", 11), reconcile("before", 13.5, "absent", "issue"), issue("before", 14, results)
    )


def _held(run: Run) -> None:
    cell = plan(run, "held")
    cell["params"] |= {"routes": "all_down"}
    cell["expected"] = {"outcomes": ["held:route_unavailable"], "effects": [1, 1], "pages": True}
    toxic(run, "held", 21, 39)
    send(run, "held", 22)
    reason = {"reason": "route_unavailable"}
    verdict(run, "held", 25, "ambiguous", "route_unavailable")
    run.add("caller", "hold", "held", 38, operation_id="op1_held", opened_at=at(26), resolved_at=None, **reason)
    run.add("page", "page", "held", 27, incident="i1", operation_id="op1_held", channel="sink", **reason)
    run.add("drill", "early_resume_refused", "held", 28, operation_id="op1_held", answer="409 too early")
    caller(run, "held", 31, state="held", verdict="ambiguous", **reason)
    run.histories["t/refund/held"] = history(issue("held", 22), reconcile("held", 25, "ambiguous", "hold"))


def _doubled(run: Run, name: str, second: float) -> None:
    toxic(run, name, second, second + 2)
    send(run, name, second + 1)
    send(run, name, second + 3, 2)
