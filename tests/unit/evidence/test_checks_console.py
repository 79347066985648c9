"""What the console said and the pictures of it: each way in which they can be wrong is noticed by name."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from actonce.evidence import Verdict, verify, write_verdict
from actonce.evidence.lines import Picture
from tests.unit.evidence.builders import Run, good_run

PNG = b"\x89PNG\r\n\x1a\n and so on"
NO_BROWSER = "No Chromium was found."


def said(run: Run, name: str, second: float, page: str, state: str, **more: Any) -> None:
    """A page of the console said so."""
    about = {"task_id": f"t/refund/{name}", "operation_id": f"op1_{name}" if page == "operation" else None}
    line = {"moment": "hold", "page": page, "path": "/", "status": 200, "said": state}
    run.add("view", "console_said", name, second, **line, **about, **more)


def pictured(run: Run, second: float = 30, **each: Any) -> None:
    """Pictures of the cell `held`, at both moments; as a missing one by default."""
    run.drill["pictured"] = ["held"]
    for moment in ("hold", "after"):
        for page in ("task", "operation", "history"):
            line = {
                "of": "held",
                "moment": moment,
                "page": page,
                "path": f"/{page}",
                **(each or {"missing": NO_BROWSER}),
            }
            run.add("view", "picture", "held", second, **line)


def taken(folder: Path, data: bytes = PNG) -> dict[str, str]:
    """A picture that lies in the folder."""
    (folder / "pictures").mkdir(parents=True)
    (folder / "pictures" / "one.png").write_bytes(data)
    return {"file": "pictures/one.png", "sha256": hashlib.sha256(data).hexdigest()}


def judged(run: Run, folder: Path) -> tuple[Verdict, str]:
    verdict = write_verdict(run.write(folder))
    return verdict, "\n".join(f"{check.name}: {check.detail}" for check in verdict.checks if not check.ok)


def test_a_console_that_told_the_truth_passes(tmp_path: Path) -> None:
    run = good_run()
    said(run, "held", 30, "task", "held")
    said(run, "held", 30, "operation", "held", reason="route_unavailable", offered=["mark_committed"])
    said(run, "after", 30, "task", "complete")
    pictured(run, **taken(tmp_path))
    verdict, wrong = judged(run, tmp_path)
    assert verdict.result == "passed", wrong


def test_a_page_that_says_complete_before_the_destination_has_anything_is_caught(tmp_path: Path) -> None:
    run = good_run()
    said(run, "before", 12, "task", "complete")  # the first request was lost; the effect is of second 14.5
    verdict, wrong = judged(run, tmp_path)
    assert verdict.result == "failed" and "console false task=t/refund/before" in wrong


def test_a_page_that_says_committed_before_the_destination_has_anything_is_caught(tmp_path: Path) -> None:
    run = good_run()
    said(run, "before", 12, "operation", "committed")
    verdict, wrong = judged(run, tmp_path)
    assert verdict.result == "failed" and "console false operation=op1_before" in wrong


def test_a_page_that_offers_a_decision_about_what_is_not_held_is_caught(tmp_path: Path) -> None:
    run = good_run()
    said(run, "after", 2, "operation", "unknown", offered=["permit_one_retry"])
    verdict, wrong = judged(run, tmp_path)
    assert verdict.result == "failed" and "offers permit_one_retry" in wrong


def test_without_a_browser_a_record_that_says_so_passes(tmp_path: Path) -> None:
    run = good_run()
    pictured(run)
    verdict, wrong = judged(run, tmp_path)
    assert verdict.result == "passed", wrong
    assert NO_BROWSER in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_moment_that_was_promised_and_neither_pictured_nor_missed_is_invalid(tmp_path: Path) -> None:
    run = good_run()
    pictured(run)
    run.events = [e for e in run.events if (e.get("moment"), e.get("page")) != ("after", "history")]
    verdict, wrong = judged(run, tmp_path)
    assert verdict.result == "invalid" and "the history page, after" in wrong


def gone(file: Path) -> None:
    file.unlink()


def another(file: Path) -> None:
    file.write_bytes(PNG + b"!")


def no_picture(file: Path) -> None:
    file.write_bytes(b"<html>")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(gone, "cannot be read"), (another, "not the picture that was taken"), (no_picture, "no picture")],
)
def test_a_picture_on_record_that_is_not_what_was_taken_is_invalid(tmp_path: Path, spoil: Any, words: str) -> None:
    run = good_run()
    pictured(run, **taken(tmp_path))
    folder = run.write(tmp_path)
    spoil(folder / "pictures" / "one.png")
    verdict = write_verdict(folder)
    wrong = "\n".join(check.detail for check in verdict.checks if not check.ok)
    assert verdict.result == "invalid" and words in wrong


def test_a_picture_outside_of_the_folder_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(PNG)
    run = good_run()
    pictured(run, file="../one.png", sha256=hashlib.sha256(PNG).hexdigest())
    verdict, wrong = judged(run, tmp_path / "folder")
    assert verdict.result == "invalid" and "not in the folder" in wrong


def test_verify_notices_a_picture_that_was_changed_afterwards(tmp_path: Path) -> None:
    run = good_run()
    pictured(run, **taken(tmp_path))
    write_verdict(run.write(tmp_path))
    assert verify(tmp_path)[1] == 0
    (tmp_path / "pictures" / "one.png").write_bytes(PNG + b"!")
    assert verify(tmp_path)[1] == 3


def test_the_report_holds_the_pictures_itself_each_with_words(tmp_path: Path) -> None:
    run = good_run()
    pictured(run, **taken(tmp_path))
    write_verdict(run.write(tmp_path))
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert report.count('src="data:image/png;base64,') == 6
    assert 'alt="held: its history in the Temporal UI, after"' in report


@pytest.mark.parametrize("given", [{}, {"file": "a.png"}, {"file": "a.png", "sha256": "0", "missing": "gone"}])
def test_a_picture_is_there_or_says_why_not(given: dict[str, str]) -> None:
    line = {"order": 1, "mono_ns": 1, "at": "2026-01-01T00:00:00Z", "source": "view", "kind": "picture", "cell": "a"}
    with pytest.raises(ValidationError, match="says why it is missing"):
        Picture.model_validate({**line, "of": "a", "moment": "hold", "page": "task", "path": "/", **given})
