"""The soak's schedule, its state on disk, and a record that goes on in another process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actonce.evidence import EvidenceError, EvidenceWriter, judge
from actonce.evidence.folder import integrity, load
from drills.leasing import PIECE_BYTES, read_for
from drills.soak.schedule import KINDS, OVER_MINOR, window
from drills.soak.state import POINTER, SoakState
from drills.summary import summary
from drills.tail import JournalTail
from drills.world.desk import Desk
from drills.world.replay import replay
from tests.unit.evidence.builders import good_run


def test_the_same_seed_gives_the_same_windows_and_another_seed_others() -> None:
    first = [window(7, number, "r-1") for number in range(40)]
    assert first == [window(7, number, "r-1") for number in range(40)]
    assert [one.kind for one in first] != [window(8, number, "r-1").kind for number in range(40)]


def test_a_deck_has_every_kind_once_so_that_a_short_soak_meets_as_many_as_it_has_windows() -> None:
    for deck in range(3):
        kinds = [window(3, deck * len(KINDS) + number, "r-1").kind for number in range(len(KINDS))]
        assert sorted(kinds) == sorted(KINDS)


def test_no_two_operations_of_a_soak_share_an_id_or_a_business_fact() -> None:
    operations = [o for number in range(60) for task in window(1, number, "r-1").tasks for o in task.operations]
    subjects = [(o.destination, o.subject) for o in operations if o.subject is not None]
    assert len({o.operation_id for o in operations}) == len(operations) > 300
    assert len(set(subjects)) == len(subjects)


def test_what_is_to_be_struck_waits_for_no_approval_and_is_sent_to_the_destination_that_is_tapped() -> None:
    for number in range(100):
        for task in window(2, number, "r-1").struck:
            first = task.operations[0]
            assert first.destination == "payments" and (first.amount_minor or 0) < OVER_MINOR


def test_every_kind_of_task_is_beside_some_strike() -> None:
    tasks = [task for number in range(60) for task in window(4, number, "r-1").beside]
    assert {task.task_type for task in tasks} == {"single", "batch", "refund"}
    assert any((task.operations[0].amount_minor or 0) > OVER_MINOR for task in tasks)  # somebody must approve it


def test_the_state_is_found_again_from_the_evidence_folder_until_the_soak_is_done(tmp_path: Path) -> None:
    out, private = tmp_path / "out", tmp_path / "private"
    out.mkdir()
    private.mkdir()
    state = SoakState(seed=3, minutes=5, run_id="r1", secret="s", out=out, kinds=KINDS, played_s=12.5, lives=1)
    state.save(private)
    assert SoakState.find(out) == (state, private)
    assert (private / "soak.json").stat().st_mode & 0o077 == 0  # it holds the challenge's secret
    state.done()
    with pytest.raises(FileNotFoundError):
        SoakState.find(out)
    assert not (out / POINTER).exists()


def cut_short(folder: Path) -> None:
    """A good record as it is when its process is killed: no end, a line written in part."""
    good_run().write(folder)
    drill = json.loads((folder / "drill.json").read_text())
    (folder / "drill.json").write_text(json.dumps(drill | {"finished_at": None}))
    lines = (folder / "record.jsonl").read_text().splitlines(keepends=True)
    (folder / "record.jsonl").write_text("".join(lines[:-1]) + lines[-1][:20])


def test_a_record_goes_on_where_the_process_was_killed_and_is_whole_in_the_end(tmp_path: Path) -> None:
    cut_short(tmp_path)
    with EvidenceWriter.resume(tmp_path) as writer:
        assert "after" in writer.cells
        writer.append("drill", "note", None, text="another life")
        with pytest.raises(EvidenceError, match="already recorded"):
            writer.cell(load_cell(tmp_path))
    assert integrity(load(tmp_path)) == []


def load_cell(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "cells.jsonl").read_text().splitlines()[0]))


def test_a_record_that_has_its_end_is_not_gone_on_with(tmp_path: Path) -> None:
    good_run().write(tmp_path)
    with pytest.raises(EvidenceError, match="nothing to go on with"):
        EvidenceWriter.resume(tmp_path)


def test_what_was_not_resumed_after_a_kill_is_no_whole_record(tmp_path: Path) -> None:
    cut_short(tmp_path)
    with pytest.raises(EvidenceError, match="cut off"):
        load(tmp_path)


def test_of_a_long_journal_only_the_wanted_kinds_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines = [{"account": "a", "kind": kind} for kind in ("effect", "lease", "refused", "effect")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tail = JournalTail(path)
    tail.kinds = frozenset({"lease", "refused"})
    assert [line["kind"] for line in tail.of("a")] == ["lease", "refused"]
    assert tail.count() == 4


def test_a_secret_is_found_where_one_piece_of_a_file_ends_and_the_next_begins(tmp_path: Path) -> None:
    path, mark = tmp_path / "log", b"marked-secret-"
    path.write_bytes(b"." * (PIECE_BYTES - 5) + mark + b".")
    assert read_for(path, mark) == (PIECE_BYTES - 5 + len(mark) + 1, True)
    path.write_bytes(b"." * PIECE_BYTES + mark[:-1])
    assert read_for(path, mark)[1] is False


def test_every_kind_of_fault_can_be_left_out_and_the_deck_is_dealt_from_the_others() -> None:
    kinds = tuple(kind for kind in KINDS if kind != "audit:full")
    dealt = {window(3, number, "r-1", kinds).kind for number in range(len(kinds))}
    assert dealt == set(kinds)


def test_a_summary_says_what_struck_by_kind_and_is_made_of_the_verdict_alone(tmp_path: Path) -> None:
    run = good_run()
    for cell in run.cells:
        cell["fault"]["spec"] = {"fault": "answer_lost:closed"}
    text = summary(judge(run.write(tmp_path)))
    assert text.startswith("**passed**: ")
    assert "| `answer_lost:closed` | 3 of 3 | 0 | 0 | 1 | 7.9 | 8.0 | 8.0 |" in text
    assert "| all | 3 of 3 | 0 | 0 | 1 | | | 8.0 |" in text and "Negative controls: " in text


def test_a_world_that_starts_again_puts_no_lease_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    of_manager = {"destination": "leases", "account": "a", "at": "2026-01-01T00:00:00Z"}
    kinds = ("lease", "request", "answer_begun", "answer_failed")  # all that a soak's journal has of it
    path.write_text("".join(json.dumps({**of_manager, "kind": kind}) + "\n" for kind in kinds))

    def desk_of(destination: str, account: str) -> Desk:
        raise AssertionError(f"{destination} has no desk")

    assert replay(path, desk_of) == 0
