"""What a run leaves for machines and for people: schema, JUnit, the report."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from actonce.evidence import judge, verify, write_verdict
from actonce.evidence.result import junit, validate
from actonce.evidence.verdict import SCHEMA_FILE, schema
from tests.unit.evidence.builders import Run, good_run, send

PUBLISHED = {"drill", "result", "sentence", "claim", "seed", "versions", "fault", "twins", "facts", "balance", "views"}
PUBLISHED |= {"controls", "checks"}


def bad_run() -> Run:
    run = good_run()
    send(run, "after", 4, 2)
    return run


def test_the_shipped_schema_is_the_models_own() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == schema(), "regenerate: python -m actonce.evidence.verdict"
    jsonschema.Draft202012Validator.check_schema(schema())
    assert set(schema()["required"]) >= PUBLISHED


def test_a_written_verdict_fits_the_schema_and_a_shortened_one_does_not(tmp_path: Path) -> None:
    write_verdict(good_run().write(tmp_path))
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    validate(verdict)
    assert set(verdict["fault"]["struck"][0]) >= {"operation_id", "pid", "signal", "order"}
    for field in PUBLISHED:
        with pytest.raises(jsonschema.ValidationError):
            validate({name: value for name, value in verdict.items() if name != field})
    with pytest.raises(jsonschema.ValidationError):
        validate(verdict | {"result": "skipped"})


def test_junit_counts_what_is_not_ok(tmp_path: Path) -> None:
    suite = ElementTree.fromstring(junit(judge(good_run().write(tmp_path / "good"))))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert int(suite.get("tests", "0")) == len(suite.findall("testcase")) > 20
    suite = ElementTree.fromstring(junit(judge(bad_run().write(tmp_path / "bad"))))
    failed = [case.get("name") for case in suite.findall("testcase") if case.find("failure") is not None]
    assert "check: no duplicate effect" in failed
    assert suite.get("failures") == str(len(failed))


class Page(HTMLParser):
    """Collects what a browser would load or follow."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [str(value) for name, value in attrs if name in {"src", "href", "style", "action", "data"}]


def test_the_report_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    write_verdict(good_run().write(tmp_path))
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    links = {load for load in page.loads if "://" in load}
    assert links == {
        f"http://127.0.0.1:1/namespaces/default/workflows/t%2Frefund%2F{name}"
        for name in ("after", "before", "held", "blind", "plain")
    }
    assert not re.search(r"@import|url\(", text)
    assert page.tags.count("svg") >= 6


def test_the_report_says_the_sentence_first_and_names_what_is_wrong(tmp_path: Path) -> None:
    verdict = write_verdict(bad_run().write(tmp_path))
    text = (tmp_path / "report.html").read_text()
    headline = verdict.sentence.partition(". Failed")[0]
    assert text.index(f"<h1>{headline}</h1>") < text.index("What is wrong") < text.index("duplicate op=op1_after: 2")


def test_recorded_text_cannot_become_markup_or_a_script_link(tmp_path: Path) -> None:
    run = good_run()
    run.drill["claim"] = "<script>alert(1)</script>"
    run.drill["config"] = {"temporal_ui": "javascript:alert(1)"}
    run.cell("after")["params"]["name"] = "<img src=x onerror=alert(1)>"
    run.find("page", "held")["reason"] = "</text><script>alert(2)</script>"
    run.find("attempt", "after")["error"] = '"><script>'
    write_verdict(run.write(tmp_path))
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert not {"script", "img"} & set(page.tags)
    assert not any(load.startswith("javascript") for load in page.loads)


def test_an_unreadable_folder_still_gets_a_verdict_and_a_page(tmp_path: Path) -> None:
    (good_run().write(tmp_path) / "cells.jsonl").write_text("{\n")
    assert write_verdict(tmp_path).result == "invalid"
    assert "cells.jsonl:1: unreadable" in (tmp_path / "report.html").read_text()


def test_a_timeline_that_cannot_be_drawn_does_not_cost_the_page(tmp_path: Path) -> None:
    run = good_run()
    run.find("hold", "held")["opened_at"] = "yesterday noon"
    run.find("verdict", "held")["decided_at"] = "yesterday noon"
    assert write_verdict(run.write(tmp_path)).result == "invalid"
    assert "cannot be drawn" in (tmp_path / "report.html").read_text()


def test_verify_judges_again_and_notices_edited_added_and_removed_files(tmp_path: Path) -> None:
    written = write_verdict(good_run().write(tmp_path))
    verdict, code = verify(tmp_path)
    assert (verdict.result, code) == ("passed", 0)
    assert verdict.balance == written.balance
    record = tmp_path / "record.jsonl"
    original = record.read_text()
    record.write_text(original.replace("req_after_1", "req_after_9"))
    assert verify(tmp_path)[1] == 3
    assert "record.jsonl was changed" in verify(tmp_path)[0].sentence
    record.write_text(original)
    (tmp_path / "extra.txt").write_text("x")
    assert "extra.txt was added" in verify(tmp_path)[0].sentence
    (tmp_path / "extra.txt").unlink()
    (tmp_path / "junit.xml").unlink()
    assert "junit.xml is gone" in verify(tmp_path)[0].sentence


def test_verify_does_not_trust_the_stored_verdict(tmp_path: Path) -> None:
    write_verdict(bad_run().write(tmp_path))
    assert verify(tmp_path)[1] == 1
