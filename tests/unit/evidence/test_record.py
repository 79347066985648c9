"""Writing: what is refused, what survives a broken run, how journals and histories come in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actonce.evidence import Cell, Drill, EvidenceError, EvidenceWriter, journal_events
from actonce.evidence.case import build, moment
from actonce.evidence.compare import wilson
from actonce.evidence.folder import History, load
from actonce.evidence.history import activities, find, resends_without_reason
from actonce.evidence.journal import request_role
from actonce.evidence.record import history_name, workflow_of
from tests.unit.evidence.builders import Run, at, good_run, payload, plan


def a_drill() -> Drill:
    return Drill(drill="d", claim="c", seed=1, started_at=at(0), commit="0", versions={}, quick=True)


def test_a_folder_takes_the_record_of_one_run_only(tmp_path: Path) -> None:
    with EvidenceWriter(tmp_path, a_drill()):
        pass
    with pytest.raises(EvidenceError, match="already holds a record"):
        EvidenceWriter(tmp_path, a_drill())


def test_a_refused_line_uses_no_number_and_leaves_no_trace(tmp_path: Path) -> None:
    with EvidenceWriter(tmp_path, a_drill()) as writer:
        for source, kind, fields in (
            ("drill", "remark", {"text": "x"}),
            ("drill", "note", {}),
            ("wire", "toxic_added", {"proxy": "p", "toxic": "t", "stream": "sideways"}),
        ):
            with pytest.raises(EvidenceError):
                writer.append(source, kind, None, **fields)
        assert writer.append("drill", "note", None, text="x").order == 1
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) == 2


def test_a_batch_with_one_bad_line_is_written_not_at_all(tmp_path: Path) -> None:
    good = {"source": "drill", "kind": "note", "cell": None, "mono_ns": 1, "at": at(1), "text": "x"}
    with EvidenceWriter(tmp_path, a_drill()) as writer:
        with pytest.raises(EvidenceError):
            writer.extend([good, {**good, "kind": "remark"}])
        assert writer.append("drill", "note", None, text="x").order == 1


def test_every_line_can_be_read_while_the_run_still_goes_on(tmp_path: Path) -> None:
    writer = EvidenceWriter(tmp_path, a_drill())
    writer.append("drill", "note", None, text="before the crash")
    assert "before the crash" in (tmp_path / "record.jsonl").read_text()
    writer.abandon()
    with pytest.raises(EvidenceError, match="closed"):
        writer.append("drill", "note", None, text="too late")


def test_nan_is_refused(tmp_path: Path) -> None:
    with EvidenceWriter(tmp_path, a_drill()) as writer, pytest.raises(ValueError, match="not JSON compliant"):
        writer.append("drill", "note", None, text="x", share=float("nan"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"arm": "control:x"}, "needs its name and its expected_finding"),
        ({"control": "x"}, "is no control but names one"),
        ({"arm": "naive"}, "arm"),
        ({"operations": []}, "operations"),
        ({"parms": {}}, "parms"),
    ],
)
def test_a_cell_that_cannot_be_judged_is_refused(changes: dict[str, Any], reason: str) -> None:
    cell = plan(Run(), "x") | changes
    with pytest.raises(ValueError, match=reason):
        Cell.model_validate(cell)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"targets": ["op1_other"]}, "not among its operations"),
        ({"proof": []}, "proof"),
        ({"proof": ["cut_active"]}, "needs cut_proxies"),
        ({"proof": ["process_exited"]}, "need signals"),
        ({"proof": ["effect_comitted"]}, "proof"),
    ],
)
def test_a_fault_that_cannot_be_proven_is_refused(fault: dict[str, Any], reason: str) -> None:
    cell = plan(Run(), "x")
    cell["fault"] |= fault
    with pytest.raises(ValueError, match=reason):
        Cell.model_validate(cell)


def test_journal_lines_keep_their_number_and_none_is_dropped(tmp_path: Path) -> None:
    base = {"mono_ns": 5, "at": at(5), "destination": "payments", "account": "acc_x"}
    raw = [
        {"order": 1, "kind": "world_started", **base},
        {"order": 2, "kind": "request", "request_id": "r", "method": "POST", "path": "/v1/acc/refunds?x=1", **base},
        {"order": 3, "kind": "latch", "point": "committed", "request_id": "r", **base},
        {"order": 4, "kind": "something_new", **base},
    ]
    events = journal_events(raw, "world", lambda line: "x" if line.get("account") == "acc_x" else None)
    assert [event["seq"] for event in events] == [1, 2, 3, 4]
    assert [event["kind"] for event in events] == ["note", "request", "latch", "note"]
    assert (events[1]["role"], events[2]["name"], events[1]["cell"]) == ("effect", "committed", "x")
    assert "something_new" in events[3]["text"]
    with EvidenceWriter(tmp_path, a_drill()) as writer:
        assert writer.extend(events) == 4
    with pytest.raises(EvidenceError, match="lacks \\['at', 'mono_ns'\\]"):
        journal_events([{"order": 1, "kind": "request"}], "world", lambda line: None)


@pytest.mark.parametrize(
    ("method", "path", "role"),
    [
        ("GET", "/v1/a/refunds", "read"),
        ("POST", "/v1/a/refunds", "effect"),
        ("POST", "/v1/a/refunds/re_1/notes", "probe"),
        ("POST", "/v1/a/refunds/re_1/reverse", "reversal"),
        ("POST", "/v1/a/keys/k/cancel", "cancel"),
        ("POST", "/v1/a/beacons", "beacon"),
        ("PUT", "/v1/a/unknown", "effect"),
    ],
)
def test_a_request_that_is_not_known_to_be_harmless_counts_as_a_send(method: str, path: str, role: str) -> None:
    assert request_role(method, path) == role


def test_a_workflow_id_survives_its_file_name() -> None:
    for workflow_id in ("t/refund/1", "a~b/c d/ü", "..", "%2F"):
        name = history_name(workflow_id, "run~1")
        assert "/" not in name
        assert workflow_of(name) == workflow_id


def test_local_activities_are_read_from_their_markers(tmp_path: Path) -> None:
    run = good_run()
    details = {
        "data": {"payloads": [payload({"activity_id": "1", "activity_type": "actonce.issue.v1"})]},
        "result": {"payloads": [payload({"operation_id": "op1_after", "how": "not_sent"})]},
    }
    marker = {
        "eventId": "5",
        "eventTime": at(1),
        "eventType": "EVENT_TYPE_MARKER_RECORDED",
        "markerRecordedEventAttributes": {"markerName": "core_local_activity", "details": details},
    }
    run.histories["t/refund/after"] = [marker]
    case = build(load(run.write(tmp_path)))
    history = next(h for h in case.evidence.histories if h.workflow_id == "t/refund/after")
    (activity,) = activities(history)
    assert (activity.name, activity.outcome) == ("actonce.issue.v1", "completed")
    assert find(activity.result, "operation_id") == "op1_after"


def test_a_payload_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    run = good_run()
    events = run.histories["t/refund/after"]
    scheduled = events[0]["activityTaskScheduledEventAttributes"]
    scheduled["input"]["payloads"][0]["metadata"]["encoding"] = "YmluYXJ5L2VuY3J5cHRlZA=="
    case = build(load(run.write(tmp_path)))
    history = next(h for h in case.evidence.histories if h.workflow_id == "t/refund/after")
    assert activities(history)[0].input == {"undecodable": "binary/encrypted"}


def test_times_without_offset_are_refused() -> None:
    assert moment("2026-01-01T12:00:00.123456789Z") == pytest.approx(moment("2026-01-01T12:00:00.123456+00:00"))
    for bad in ("2026-01-01T12:00:00", "yesterday"):
        with pytest.raises(EvidenceError):
            moment(bad)


def test_wilson_intervals_agree_with_published_values() -> None:
    """Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29 (Wilson, without continuity correction)."""
    for k, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        rate = wilson(k, n)
        assert (rate.low, rate.high) == pytest.approx((low, high), abs=1e-4)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0, 1)
    assert wilson(20, 20).high == 1


def test_rates_are_counted_on_the_conditions_that_the_plain_arms_ran(tmp_path: Path) -> None:
    from actonce.evidence.compare import rates
    from actonce.evidence.strike import strikes

    run = good_run()
    run.cell("plain")["params"]["routes"] = "all_down"  # the conditions of the cell `held` only
    case = build(load(run.write(tmp_path)))
    found = {row.arm: row for row in rates(case, strikes(case))}
    assert (found["plain_default"].duplicate.k, found["plain_default"].n) == (1, 1)
    assert (found["guarded"].n, found["guarded"].held.k, found["guarded"].duplicate.k) == (1, 1, 0)


def test_what_is_written_can_be_read_again(tmp_path: Path) -> None:
    evidence = load(good_run().write(tmp_path))
    orders = [json.loads(line)["order"] for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert orders == list(range(1, len(evidence.lines) + 1))


def test_a_history_exported_from_a_real_server_is_understood() -> None:
    """real_history.json: dev server 1.32, SDK 1.35: a failed issue, a reconcile, a local and a regular issue. Names of
    hosts and builds were replaced, nothing else."""
    events = json.loads(Path(__file__).with_name("real_history.json").read_text())["events"]
    found = activities(History("t/single/real", "real_history.json", events))
    assert [(activity.name, activity.outcome) for activity in found] == [
        ("actonce.issue.v1", "failed"),
        ("actonce.reconcile.v1", "completed"),
        ("actonce.issue.v1", "completed"),
        ("actonce.issue.v1", "completed"),
    ]
    assert find(found[0].input, "step") == "refund"
    assert find(found[1].result, "verdict") == "absent"
    assert found[2].input is None
    assert find(found[2].result, "how") == "not_sent"


def test_the_history_rule_holds_on_a_real_history(tmp_path: Path) -> None:
    events = json.loads(Path(__file__).with_name("real_history.json").read_text())["events"]
    run = good_run()
    run.cell("after")["operations"][0] |= {"operation_id": "op1_real", "task_id": "t/single/real", "subject": None}
    run.cell("after")["fault"]["targets"] = ["op1_real"]
    del run.histories["t/refund/after"]
    run.histories["t/single/real"] = events

    def said(folder: Path) -> list[str]:
        findings = resends_without_reason(build(load(run.write(folder))))
        return [str(finding) for finding in findings if finding.operation_id == "op1_real"]

    assert said(tmp_path / "whole") == []
    # Without the reconciliation, and without what told that the local attempt sent nothing:
    run.histories["t/single/real"] = [e for e in events if e["eventId"] not in ("11", "12", "13", "17")]
    (finding,) = said(tmp_path / "cut")
    assert finding.startswith("resend without reason op=op1_real: events 5 and 18")
