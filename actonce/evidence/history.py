"""Reads exported Temporal histories: which activities ran for which operation, in what order, with what result.

Contract: understands the JSON that `WorkflowHistory.to_json()` writes (regular activities and local-activity markers;
payloads of encoding json/plain). What it cannot decode it reports as unknown, and an unknown never allows a resend. It
knows activity names and a few field names of their inputs and results (SPEC words), and none of the system's code.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actonce.evidence.case import Case, Finding, Story, moment
from actonce.evidence.folder import History
from actonce.evidence.lines import Decision
from actonce.evidence.record import EvidenceError

ISSUE = "actonce.issue.v1"
# Activities that read the destination and end in a verdict.
VERDICTS = frozenset({"actonce.reconcile.v1", "actonce.hold.v1", "actonce.decide.v1"})
# Ways in which an issue can end that show that nothing of it was processed, each fenced by the ledger (SPEC 2.3).
NOTHING_SENT = frozenset({"not_sent", "not_accepted"})


@dataclass
class Activity:
    """One activity of one history, by its scheduling event."""

    name: str
    event_id: int
    scheduled_at: str
    input: Any
    result: Any = None
    outcome: str = "open"  # completed, failed, timed_out, cancelled, open
    ended_at: str | None = None


def activities(history: History) -> list[Activity]:
    """All activities, in the order in which they were scheduled. EvidenceError when an event is malformed."""
    found: dict[int, Activity] = {}
    try:
        for event in history.events:
            _take(found, event)
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"histories/{history.file}: malformed event: {error!r}") from error
    return [found[event_id] for event_id in sorted(found)]


def _take(found: dict[int, Activity], event: dict[str, Any]) -> None:
    kind, event_id = str(event["eventType"]), int(event["eventId"])
    if kind.endswith("ACTIVITY_TASK_SCHEDULED"):
        data = event["activityTaskScheduledEventAttributes"]
        decoded = _payloads(data.get("input"))
        found[event_id] = Activity(
            data["activityType"]["name"], event_id, event["eventTime"], decoded[0] if decoded else None
        )
        return
    for suffix, attributes, outcome in (
        ("ACTIVITY_TASK_COMPLETED", "activityTaskCompletedEventAttributes", "completed"),
        ("ACTIVITY_TASK_FAILED", "activityTaskFailedEventAttributes", "failed"),
        ("ACTIVITY_TASK_TIMED_OUT", "activityTaskTimedOutEventAttributes", "timed_out"),
        ("ACTIVITY_TASK_CANCELED", "activityTaskCanceledEventAttributes", "cancelled"),
    ):
        if kind.endswith(suffix):
            data = event[attributes]
            activity = found[int(data["scheduledEventId"])]
            activity.outcome, activity.ended_at = outcome, event["eventTime"]
            results = _payloads(data.get("result"))
            activity.result = results[0] if results else None
            return
    if kind.endswith("MARKER_RECORDED"):
        data = event["markerRecordedEventAttributes"]
        if data.get("markerName") == "core_local_activity":
            found[event_id] = _local(data, event_id, event["eventTime"])


def _local(data: dict[str, Any], event_id: int, at: str) -> Activity:
    """A local activity leaves one marker, after it ended; its input is not in the history."""
    about = _payloads(data["details"]["data"])[0]
    results = _payloads(data["details"].get("result"))
    outcome = "failed" if data.get("failure") else "completed"
    name = about.get("activity_type") or about.get("activityType")
    return Activity(name, event_id, at, None, results[0] if results else None, outcome, at)


def _payloads(data: Any) -> list[Any]:
    return [_payload(item) for item in (data or {}).get("payloads", [])]


def _payload(item: dict[str, Any]) -> Any:
    try:
        encoding = base64.b64decode(item.get("metadata", {}).get("encoding", "")).decode()
        if encoding == "binary/null":
            return None
        if encoding.startswith("json/"):
            return json.loads(base64.b64decode(item.get("data", "")))
    except (binascii.Error, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"payload cannot be decoded: {error}") from error
    return {"undecodable": encoding}


def find(data: Any, field: str) -> Any:
    """The first value of a field anywhere in a decoded payload, breadth first."""
    queue = [data]
    while queue:
        item = queue.pop(0)
        if isinstance(item, dict):
            if field in item and item[field] is not None:
                return item[field]
            queue.extend(item.values())
        elif isinstance(item, list):
            queue.extend(item)
    return None


class Names:
    """Which operation an activity is about: by an operation_id in its input or result; else, for the inputs that name
    task, step and iteration, by another activity of the same step that told its id; else by the plan."""

    def __init__(self, case: Case, found: list[Activity]) -> None:
        self._planned: Mapping[tuple[Any, ...], str] = case.operation_of_step
        self._by_step: dict[tuple[Any, ...], str] = {}
        for activity in found:
            told = find(activity.result, "operation_id")
            if told is not None and activity.input is not None:
                self._by_step[self._step(activity.input)] = str(told)

    @staticmethod
    def _step(data: Any) -> tuple[Any, ...]:
        return find(data, "task_id"), find(data, "step"), find(data, "iteration") or 0, find(data, "destination")

    def of(self, activity: Activity) -> str | None:
        told = find(activity.input, "operation_id") or find(activity.result, "operation_id")
        if told is not None:
            return str(told)
        step = self._step(activity.input)
        return self._by_step.get(step) or self._planned.get(step)


def resends_without_reason(case: Case) -> list[Finding]:
    """SPEC 4: between two issue activities of one operation_id lies a fenced not-sent or not-accepted record, a
    contract-allowed same-key re-send, an absent verdict or a recorded decision (a `drill.decision` line)."""
    findings: list[Finding] = []
    stories = {story.operation_id: story for story in case.stories.values()}
    for history in case.evidence.histories:
        found = activities(history)
        names = Names(case, found)
        last_issue: dict[str | None, int] = {}
        for position, activity in enumerate(found):
            if activity.name != ISSUE:
                continue
            operation_id = names.of(activity)
            if operation_id is None:
                detail = f"{history.file} event {activity.event_id} issues an operation that nothing names"
                findings.append(Finding("resend without reason op", "unknown", detail, weight="invalid"))
            elif operation_id in last_issue:
                between = found[last_issue[operation_id] : position]
                story = stories.get(operation_id)
                if not _allowed(case, story, operation_id, between, activity, names):
                    cell = story.cell.cell if story else None
                    events = f"events {between[0].event_id} and {activity.event_id} of {history.file}"
                    detail = f"{events}: nothing between them allows the second"
                    findings.append(Finding("resend without reason op", operation_id, detail, cell, operation_id))
            last_issue[operation_id] = position
    return findings


def _allowed(
    case: Case, story: Story | None, operation_id: str, between: list[Activity], second: Activity, names: Names
) -> bool:
    """Does something between two issues (the first of them is between[0]) allow the second?"""
    first = between[0]
    if first.outcome == "completed" and {find(first.result, "how"), find(first.result, "outcome")} & NOTHING_SENT:
        return True
    same_key = str(story.cell.params.get("late_arrival", "")) if story else ""
    for activity in between[1:]:
        if activity.outcome != "completed" or names.of(activity) != operation_id:
            continue
        if activity.name in VERDICTS:
            if find(activity.result, "verdict") == "absent":
                return True
            resent = find(activity.result, "next") == "issue"
            if resent and same_key in {"key_honoured", "key_on_arrival"}:
                return True
    return any(
        decision.operation_id == operation_id
        and decision.action in {"permit_one_retry", "resume"}
        and moment(first.scheduled_at) < moment(decision.at) < moment(second.scheduled_at)
        for decision in case.evidence.of(Decision)
    )
