"""The judge on one good record, and on the same record spoiled in exactly one way: each spoiling is noticed by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from actonce.evidence import EvidenceError, judge, verify
from actonce.evidence.checkers import CHECKERS
from tests.unit.evidence.builders import Run, at, caller, good_run, history, issue, plan, reconcile, send, toxic

Spoil = Callable[[Run], object]


def judged(run: Run, folder: Path) -> tuple[str, str]:
    """The result, and everything the verdict says."""
    verdict = judge(run.write(folder))
    said = [verdict.sentence, *(f"{check.name}: {check.detail}" for check in verdict.checks if not check.ok)]
    return verdict.result, "\n".join(said)


def test_a_good_record_passes_and_every_check_was_made(tmp_path: Path) -> None:
    verdict = judge(good_run().write(tmp_path))
    assert verdict.result == "passed", verdict.sentence
    assert all(check.ok for check in verdict.checks)
    assert {check.name for check in verdict.checks} >= CHECKERS.keys()
    assert verdict.sentence.startswith(
        "3 operations, 3 effects, 0 duplicate, 0 lost, 1 held and paged; the fault struck 3"
    )
    assert [control.caught for control in verdict.controls] == [True]
    assert [twin.same_records for twin in verdict.twins] == [True]
    assert [(fact.operation_id, fact.effects) for fact in verdict.facts] == [
        ("op1_after", 1),
        ("op1_before", 1),
        ("op1_held", 1),
    ]


def second_effect(run: Run) -> None:
    send(run, "after", 4, 2)


def reversed_duplicate(run: Run) -> None:
    send(run, "after", 4, 2)
    run.journal("reversed", "after", 5, object_id="re_after_2")


def duplicate_without_our_id(run: Run) -> None:
    send(run, "after", 4, 2, operation_id=None, key="fresh")


def no_effect(run: Run) -> None:
    run.drop("effect", "before")


def absent_after_commit(run: Run) -> None:
    run.find("verdict", "after")["verdict"] = "absent"


def absent_before_a_late_effect(run: Run) -> None:
    attempts = [event for event in run.events if event["kind"] == "attempt" and event["cell"] == "before"]
    attempts[1]["issued_at"] = at(13)


def absent_and_closed(run: Run) -> None:
    run.find("operation", "after").update(state="closed", completed_at=None)


def short_list(run: Run) -> None:
    run.find("reading", "before")["rows"] = 2


def list_without_total(run: Run) -> None:
    run.find("reading", "before")["declared_total"] = None


def complete_too_early(run: Run) -> None:
    run.find("operation", "before")["completed_at"] = at(14.4)


def complete_but_open(run: Run) -> None:
    run.find("task", "held")["state"] = "complete"


def foreign_effect(run: Run) -> None:
    about = {"operation_id": "op1_nobody", "request_id": "req_x"}
    run.journal("request", "after", 6, method="POST", path="/v1/refunds", role="effect", **about)
    run.journal("effect", "after", 6.1, object_id="re_x", state="committed", **about)


def effect_under_another_id(run: Run) -> None:
    run.find("request", "after")["operation_id"] = "op1_else"
    run.find("effect", "after")["operation_id"] = "op1_else"


def not_in_the_ledger(run: Run) -> None:
    run.drop("operation", "after")
    run.drop("attempt", "after")


def unplanned_in_the_ledger(run: Run) -> None:
    row = dict(run.find("operation", "after"), operation_id="op1_surplus")
    run.events.append(row)


def task_forgotten(run: Run) -> None:
    run.drop("task", "after")


def task_running(run: Run) -> None:
    run.find("task", "after")["state"] = "running"


def sent_twice_on_one_permit(run: Run) -> None:
    send(run, "after", 4, 2, effect=False)


def sent_late(run: Run) -> None:
    about = {"proxy": "write_after", "bytes_up": 10, "bytes_down": 0, "operation_id": "op1_after"}
    run.add("wire", "caller_connection", "after", 10.3, **about)


def permit_during_hold(run: Run) -> None:
    run.find("attempt", "held")["fenced_at"] = at(30)


def left_unknown(run: Run) -> None:
    run.find("operation", "after").update(state="unknown")


def held_silently(run: Run) -> None:
    run.drop("page", "held")


def paged_for_another_reason(run: Run) -> None:
    run.find("page", "held")["reason"] = "late"


def held_without_hold(run: Run) -> None:
    run.find("hold", "held")["resolved_at"] = at(30)


def wrong_reason(run: Run) -> None:
    run.cell("held")["expected"]["outcomes"] = ["committed"]


def wrong_amount(run: Run) -> None:
    run.find("effect", "after")["amount_minor"] = 12


def paged_for_nothing(run: Run) -> None:
    about = {"incident": "i2", "reason": "late", "operation_id": "op1_after", "channel": "sink"}
    run.add("page", "page", "after", 9, **about)


def blind_resend(run: Run) -> None:
    run.histories["t/refund/before"] = history(issue("before", 11), issue("before", 14))


def resend_on_ambiguous(run: Run) -> None:
    between = reconcile("before", 13.5, "ambiguous", "issue")
    run.histories["t/refund/before"] = history(issue("before", 11), between, issue("before", 14))


def resend_on_another_operations_verdict(run: Run) -> None:
    between = reconcile("after", 13.5, "absent", "issue")
    run.histories["t/refund/before"] = history(issue("before", 11), between, issue("before", 14))


def twin_recorded_otherwise(run: Run) -> None:
    run.find("attempt", "before")["error"] = "connection_reset"


def resumed_early(run: Run) -> None:
    run.add("drill", "early_resume_accepted", "held", 29, operation_id="op1_held", answer="200")


def view_wrong(run: Run) -> None:
    run.find("view", name="user")["assertions"] = [{"name": "says held", "ok": False, "detail": "says complete"}]


def probe_lied(run: Run) -> None:
    run.drop("effect", operation_id="op1_probe")


def still_open(run: Run) -> None:
    run.find("quiet")["still_open"] = ["op1_after"]


FAILED: list[tuple[Spoil, str]] = [
    (second_effect, "duplicate op=op1_after: 2 effects"),
    (reversed_duplicate, "duplicate op=op1_after"),
    (duplicate_without_our_id, "duplicate op=op1_after"),
    (no_effect, "lost op=op1_before"),
    (no_effect, "complete without evidence op=op1_before"),
    (absent_after_commit, "false absent op=op1_after"),
    (absent_before_a_late_effect, "false absent op=op1_before"),
    (absent_and_closed, "false absent op=op1_after"),
    (short_list, "absent without completeness op=op1_before"),
    (list_without_total, "absent without completeness op=op1_before"),
    (complete_too_early, "complete without evidence op=op1_before"),
    (complete_but_open, "complete without evidence op=op1_held"),
    (foreign_effect, "unaccounted effect=re_x"),
    (foreign_effect, "unaccounted request=req_x"),
    (effect_under_another_id, "unaccounted effect=re_after_1: carries op1_else"),
    (not_in_the_ledger, "unaccounted op=op1_after"),
    (not_in_the_ledger, "request without permit op=op1_after"),
    (unplanned_in_the_ledger, "unaccounted op=op1_surplus"),
    (task_forgotten, "unaccounted task=t/refund/after"),
    (task_running, "stuck task=t/refund/after"),
    (sent_twice_on_one_permit, "request without permit op=op1_after: 2 sends arrived, 1 permits"),
    (sent_late, "sent after not_after op=op1_after"),
    (permit_during_hold, "permit used under hold op=op1_held"),
    (left_unknown, "stuck op=op1_after"),
    (held_silently, "held without page op=op1_held"),
    (held_silently, "wrong page op=op1_held"),
    (paged_for_another_reason, "held without page op=op1_held: held:route_unavailable, and the pages say late"),
    (held_without_hold, "stuck op=op1_held"),
    (wrong_reason, "wrong outcome op=op1_held: held:route_unavailable, expected committed"),
    (wrong_amount, "wrong amount op=op1_after"),
    (paged_for_nothing, "wrong page op=op1_after"),
    (blind_resend, "resend without reason op=op1_before"),
    (resend_on_ambiguous, "resend without reason op=op1_before"),
    (resend_on_another_operations_verdict, "resend without reason op=op1_before"),
    (twin_recorded_otherwise, "twins differ=after|before"),
    (resumed_early, "early resume accepted op=op1_held"),
    (view_wrong, "view user: says held: says complete"),
    (probe_lied, "probe=op1_probe"),
    (still_open, "still open=op1_after"),
    (second_effect, "balance: 2 operations committed, 3 effects"),
]


@pytest.mark.parametrize(("spoil", "finding"), FAILED, ids=[f"{spoil.__name__}-{name[:20]}" for spoil, name in FAILED])
def test_a_system_that_did_wrong_fails_with_the_named_finding(spoil: Spoil, finding: str, tmp_path: Path) -> None:
    run = good_run()
    spoil(run)
    result, said = judged(run, tmp_path)
    assert (result, finding in said) == ("failed", True), said


def not_struck(run: Run) -> None:
    run.find("toxic_added", "held").update(at=at(22.5), mono_ns=int(22.5e9))


def fault_not_recorded(run: Run) -> None:
    run.drop("toxic_added", "before")


def vacuous_upstream(run: Run) -> None:
    """The toxic stood upstream, of a request that had already gone through: DESIGN's silent vacuous pass."""
    run.find("toxic_added", "held")["stream"] = "upstream"


def wrong_process_killed(run: Run) -> None:
    run.find("attempt", "after")["owner_pid"] = 101


def killed_after_the_answer(run: Run) -> None:
    run.find("toxic_added", "after").update(at=at(1.5), mono_ns=int(1.5e9))
    run.find("signalled", "after").update(at=at(1.2), mono_ns=int(1.2e9))
    run.find("exited", "after").update(at=at(1.3), mono_ns=int(1.3e9))


def exit_not_by_the_signal(run: Run) -> None:
    run.find("exited", "after")["returncode"] = 0


def control_missed(run: Run) -> None:
    run.events.remove(run.find("effect", "blind", object_id="re_blind_2"))


def control_for_another_reason(run: Run) -> None:
    run.cell("blind")["expected_finding"] = "false absent op"


def control_not_struck(run: Run) -> None:
    run.drop("toxic_added", "blind")


def no_control(run: Run) -> None:
    run.cells.remove(run.cell("blind"))
    run.events = [event for event in run.events if event["cell"] != "blind"]


def promised_control_left_out(run: Run) -> None:
    run.drill["protections"] = ["fence_off"]


def view_missing(run: Run) -> None:
    run.drop("view", name="alerts")


def no_probe(run: Run) -> None:
    run.drop("probe")
    run.events = [event for event in run.events if "probe" not in str(event.get("request_id"))]


def no_quiet(run: Run) -> None:
    run.drop("quiet")


def broke_off(run: Run) -> None:
    """Everything on record of the cell looks right; but its strike never ended, so it shows nothing."""
    run.find("quiet")["cell"] = "after"
    run.add("drill", "quiet", "held", 86, seconds=5.0, still_open=[])
    run.add("drill", "note", "before", 30, text="broke off: NeverHappened: the late answer kept")


def never_probed(run: Run) -> None:
    run.find("probe")["cell"] = "after"


def early_resume_untried(run: Run) -> None:
    run.drop("early_resume_refused")


def twin_missing(run: Run) -> None:
    run.cell("after")["twin_of"] = None
    run.cell("before")["twin_of"] = None


def history_missing(run: Run) -> None:
    del run.histories["t/refund/after"]


def foreign_row(run: Run) -> None:
    run.add("drill", "note", "elsewhere", 5, text="from another run")


def wrong_total(run: Run) -> None:
    run.declared["world"] = 99


def truncated_journal(run: Run) -> None:
    """The last page of the journal was not read: every row is in sequence, only the declared total tells."""
    run.declared["world"] = sum(event["source"] == "destination" for event in run.events)
    run.drop("request", request_id="req_plain_2")
    run.drop("effect", request_id="req_plain_2")


def no_challenge(run: Run) -> None:
    run.drop("challenge")


def effect_without_request(run: Run) -> None:
    run.drop("request", "after")


def self_test_failed(run: Run) -> None:
    run.cell("after")["fault"]["self_test"] = "closed"
    run.add("drill", "self_test", None, 0.1, name="closed", ok=False, observed="the answer went through")


def self_test_missing(run: Run) -> None:
    run.cell("after")["fault"]["self_test"] = "closed"


def verdicts_not_exported(run: Run) -> None:
    run.drop("verdict", "held")


def only_comparison(run: Run) -> None:
    run.cells = [run.cell("plain")]
    run.events = [event for event in run.events if event["cell"] in ("plain", None)]
    run.histories = {}


INVALID: list[tuple[Spoil, str]] = [
    (not_struck, "held: installed but did not strike"),
    (fault_not_recorded, "before: indeterminate"),
    (vacuous_upstream, "held: installed but did not strike"),
    (wrong_process_killed, "the first attempt belongs to pid 101"),
    (killed_after_the_answer, "SIGKILL came after the answer had left"),
    (exit_not_by_the_signal, "ended with 0, not by SIGKILL"),
    (control_missed, "control blind_retry not caught"),
    (control_for_another_reason, "expected false absent op, found duplicate op=op1_blind"),
    (control_not_struck, "control blind_retry not caught"),
    (no_control, "no control ran"),
    (promised_control_left_out, "control fence_off was promised and did not run"),
    (view_missing, "view alerts: was not captured"),
    (no_probe, "no probe operation ran"),
    (no_quiet, "no quiet period is on record"),
    (broke_off, "still open=before: broke off: NeverHappened: the late answer kept"),
    (never_probed, "probe=before: no probe operation ran"),
    (early_resume_untried, "no early resume of any of them was tried"),
    (twin_missing, "no pair is on record"),
    (history_missing, "no history of task t/refund/after"),
    (foreign_row, "foreign row: lines for cell elsewhere"),
    (wrong_total, "journal world: declares 99 lines"),
    (truncated_journal, "journal world: declares"),
    (no_challenge, "no challenge on record"),
    (effect_without_request, "its request req_after_1 is not on record as a send"),
    (self_test_failed, "self-test closed failed"),
    (self_test_missing, "self-test closed is not on record"),
    (verdicts_not_exported, "no verdict was exported"),
    (only_comparison, "no guarded cell was run"),
]


@pytest.mark.parametrize(("spoil", "reason"), INVALID, ids=[spoil.__name__ for spoil, _ in INVALID])
def test_a_drill_that_did_not_show_what_it_must_is_invalid(spoil: Spoil, reason: str, tmp_path: Path) -> None:
    run = good_run()
    spoil(run)
    result, said = judged(run, tmp_path)
    assert (result, reason in said) == ("invalid", True), said


def test_a_recorded_decision_between_two_issues_allows_the_second(tmp_path: Path) -> None:
    run = good_run()
    retry = "actonce.decide.v1", 13.5, {"operation_id": "op1_before"}, {"operation_id": "op1_before", "next": "issue"}
    run.histories["t/refund/before"] = history(issue("before", 11), retry, issue("before", 14))
    assert "resend without reason op=op1_before" in judged(run, tmp_path / "without")[1]
    run.add("drill", "decision", "before", 13, operation_id="op1_before", action="mark_absent", by="ann")
    assert "resend without reason op=op1_before" in judged(run, tmp_path / "another")[1]
    run.find("decision")["action"] = "permit_one_retry"
    assert judged(run, tmp_path / "with")[0] == "passed"


@pytest.mark.parametrize(("late_arrival", "result"), [("key_on_arrival", "passed"), ("key_at_commit", "failed")])
def test_the_same_key_may_be_sent_again_only_where_it_is_registered_on_arrival(
    late_arrival: str, result: str, tmp_path: Path
) -> None:
    run = good_run()
    resend_on_ambiguous(run)
    run.cell("before")["params"]["late_arrival"] = late_arrival
    assert judged(run, tmp_path)[0] == result


def test_no_list_is_needed_where_nothing_was_sent(tmp_path: Path) -> None:
    run = good_run()
    short_list(run)
    assert judged(run, tmp_path / "sent")[0] == "failed"
    run.find("attempt", "before")["outcome"] = "not_sent"
    assert "absent without completeness" not in judged(run, tmp_path / "not_sent")[1]


def test_an_untold_wrong_in_a_control_or_comparison_arm_fails_nothing(tmp_path: Path) -> None:
    run = good_run()
    run.find("operation", "blind").update(state="unknown")
    result, said = judged(run, tmp_path)
    assert result == "passed", said


def test_the_systems_wrong_outranks_an_uncaught_control(tmp_path: Path) -> None:
    run = good_run()
    second_effect(run)
    no_control(run)
    assert judged(run, tmp_path)[0] == "failed"


def test_a_lost_line_of_the_journal_is_a_gap(tmp_path: Path) -> None:
    def drop_one(events: list[dict[str, object]]) -> None:
        events.remove(next(e for e in events if e["kind"] == "answer_begun" and e["cell"] == "held"))

    verdict = judge(good_run().write(tmp_path, drop_one))
    assert verdict.result == "invalid"
    assert "is missing or doubled" in verdict.sentence or "lines were" in verdict.sentence, verdict.sentence


def test_a_crashed_checker_is_never_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(case: object) -> list[object]:
        raise ZeroDivisionError("half way")

    monkeypatch.setitem(CHECKERS, "no lost effect", crash)
    verdict = judge(good_run().write(tmp_path))
    assert verdict.result == "invalid"
    assert "no lost effect: the checker crashed: ZeroDivisionError" in verdict.sentence


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("record.jsonl", lambda text: "", "the record is empty"),
        ("cells.jsonl", lambda text: "", "no cell ran"),
        ("record.jsonl", lambda text: text[:-40], "the last line is cut off"),
        ("record.jsonl", lambda text: text.replace('"mono_ns":', '"mono_ns":x', 1), "unreadable"),
        ("record.jsonl", lambda text: "\n".join(text.split("\n")[:-2]) + "\n", "does not finish with its one end line"),
        ("record.jsonl", lambda text: "\n".join(text.split("\n")[1:]), "order 2 where 1 is due"),
        ("record.jsonl", lambda text: text.replace('"kind":"page"', '"kind":"pager"'), "unknown kind"),
        ("record.jsonl", lambda text: text.replace('"amount_minor":1200', '"amount_minor":NaN'), "NaN is no JSON"),
        ("drill.json", lambda text: text.replace('"seed": 7', '"seed": 7, "sead": 8'), "sead"),
        ("histories/t%2Frefund%2Fafter.json", lambda text: "{}", "no events"),
        ("histories/t%2Frefund%2Fafter.json", lambda text: text.replace("eventId", "eventNo"), "malformed event"),
    ],
)
def test_a_damaged_file_is_invalid_and_says_where(
    name: str, change: Callable[[str], str], reason: str, tmp_path: Path
) -> None:
    path = good_run().write(tmp_path) / name
    path.write_text(change(path.read_text()))
    verdict = judge(tmp_path)
    assert verdict.result == "invalid"
    assert any(reason in check.detail for check in verdict.checks), verdict.checks


@pytest.mark.parametrize("name", ["drill.json", "cells.jsonl", "record.jsonl", "histories/t%2Frefund%2Fafter.json"])
def test_a_missing_file_is_invalid(name: str, tmp_path: Path) -> None:
    (good_run().write(tmp_path) / name).unlink()
    assert judge(tmp_path).result == "invalid"
    assert verify(tmp_path)[1] == 3


def test_an_empty_or_absent_folder_is_invalid(tmp_path: Path) -> None:
    assert verify(tmp_path)[1] == 3
    assert verify(tmp_path / "nowhere")[1] == 3


def test_a_run_that_broke_off_is_invalid(tmp_path: Path) -> None:
    run = good_run()
    run.events[-1]["kind"] = "no such kind"
    with pytest.raises(EvidenceError, match="unknown kind"):
        run.write(tmp_path)
    assert judge(tmp_path).result == "invalid"


def test_a_held_and_released_request_that_arrives_late_is_proven(tmp_path: Path) -> None:
    run = good_run()
    cell = plan(run, "late", twin="drop_before_commit", twin_of="later")
    plan(run, "later", twin_of="late")
    cell["fault"]["proof"] = ["request_held", "request_sent"]
    toxic(run, "late", 70, 74, "upstream")
    run.add("wire", "caller_connection", "late", 71, proxy="write_late", bytes_up=99, bytes_down=0)
    send(run, "late", 74.5)
    toxic(run, "later", 70, 74)
    send(run, "later", 71)
    for name in ("late", "later"):
        caller(run, name, 79)
        run.histories[f"t/refund/{name}"] = history(issue(name, 71), reconcile(name, 76, "committed"))
    verdict = judge(run.write(tmp_path))
    assert verdict.result == "passed", verdict.sentence
    assert json.loads(verdict.text())["fault"]["struck"][-2]["proof"]["request_held"].endswith("after the release")


@pytest.mark.parametrize(("cell", "result"), [("held", "passed"), ("after", "failed")])
def test_a_step_behind_a_held_one_need_not_have_been_issued_and_behind_a_settled_one_it_must(
    tmp_path: Path, cell: str, result: str
) -> None:
    run = good_run()
    [first] = run.cell(cell)["operations"]
    later = {"operation_id": "op1_next", "step": "ticket", "subject": "next"}
    wanted = {"outcomes": ["committed"], "effects": [1, 1]}
    run.cell(cell)["operations"].append({**first, **later, "expected": wanted})
    run.add("drill", "quiet", cell, 99, seconds=1.0, still_open=["op1_next"])
    found, said = judged(run, tmp_path)
    assert found == result, said
    if result == "passed":
        assert "3 operations, 3 effects" in said
    else:
        for finding in ("unaccounted op=op1_next", "wrong outcome op=op1_next", "still open=op1_next", "balance"):
            assert finding in said
