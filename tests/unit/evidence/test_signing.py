"""A signature names the folder as it is; a rehearsal is what a signed folder shows of the contracts in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from actonce.evidence import EvidenceError, verify, write_verdict
from actonce.evidence.rehearsal import rehearsal
from actonce.evidence.signing import SUFFIX, sign, signatures, witness_of
from actonce.evidence.verdict import MACHINE_ONLY
from drills.__main__ import app
from tests.unit.evidence.builders import Run, good_run, send

BODY = {"name": "payments", "version": 1}


def drilled(**contract: str) -> Run:
    """The good run, with the contract under which its operations were begun."""
    run = good_run()
    run.drill["versions"] = {"actonce": "9.9.9"}
    run.add("caller", "contract", None, 20, **{"name": "payments", "digest": "c1:x", "body": BODY, **contract})
    for event in run.events:
        if (event["source"], event["kind"]) == ("caller", "operation"):
            event["contract_digest"] = "c1:x"
    return run


def folder_of(run: Run, where: Path) -> Path:
    write_verdict(run.write(where))
    return where


def test_a_signature_is_beside_the_folder_and_changes_nothing_of_the_verdict(tmp_path: Path) -> None:
    folder = folder_of(good_run(), tmp_path / "run")
    before = verify(folder)
    assert witness_of(folder) == MACHINE_ONLY
    made = sign(folder, " Ada ", "both reports")
    assert verify(folder) == before and before[0].result == "passed"
    assert signatures(folder) == [made] and (made.name, made.results) == ("Ada", {".": "passed"})
    assert (tmp_path / f"run{SUFFIX}").exists()
    assert "signed by Ada" in witness_of(folder) and "both reports" in witness_of(folder)


def test_what_changed_since_is_not_signed(tmp_path: Path) -> None:
    folder = folder_of(good_run(), tmp_path / "run")
    sign(folder, "Ada", "both reports")
    (folder / "report.html").write_text("another")
    assert signatures(folder) == [] and witness_of(folder) == MACHINE_ONLY
    with pytest.raises(EvidenceError, match=r"not as it was left.*report\.html was changed"):
        sign(folder, "Ada", "both reports")


@pytest.mark.parametrize(("name", "saw"), [("", "x"), ("Ada", "  ")])
def test_nobody_signs_without_a_name_or_words(tmp_path: Path, name: str, saw: str) -> None:
    folder = folder_of(good_run(), tmp_path / "run")
    with pytest.raises(EvidenceError, match="not signed"):
        sign(folder, name, saw)


def test_a_run_that_failed_may_be_signed_and_says_so(tmp_path: Path) -> None:
    run = good_run()
    send(run, "after", 4, 2)
    assert sign(folder_of(run, tmp_path / "run"), "Ada", "a duplicate").results == {".": "failed"}


def test_a_signature_of_the_whole_run_holds_for_its_drills(tmp_path: Path) -> None:
    folder = folder_of(good_run(), tmp_path / "run" / "final")
    sign(tmp_path / "run", "Ada", "everything")
    assert "signed by Ada" in witness_of(folder)


def test_the_command_signs_and_verify_names_who_did(tmp_path: Path) -> None:
    folder = folder_of(good_run(), tmp_path / "run")
    shown = CliRunner().invoke(app, ["verify", str(folder), "--json"])
    (told,) = json.loads(shown.stdout).values()
    assert told["witness"] == MACHINE_ONLY
    assert CliRunner().invoke(app, ["sign", str(folder), "--name", "Ada", "--saw", "both"]).exit_code == 0
    (told,) = json.loads(CliRunner().invoke(app, ["verify", str(folder), "--json"]).stdout).values()
    assert "signed by Ada" in told["witness"]
    (folder / "report.html").write_text("another")
    assert CliRunner().invoke(app, ["sign", str(folder), "--name", "Ada", "--saw", "both"]).exit_code == 3


def test_what_a_signed_folder_shows(tmp_path: Path) -> None:
    folder = folder_of(drilled(), tmp_path / "run")
    sign(folder, "Ada", "both reports")
    seen = rehearsal(folder)
    (one,) = seen.contracts
    assert (one.name, one.body, seen.releases) == ("payments", BODY, {"9.9.9"})
    assert one.after_commit > 0 and one.before_commit > 0
    assert [s.name for s in seen.signatures] == ["Ada"]


def test_unsigned_it_shows_nothing(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="machine-witnessed only"):
        rehearsal(folder_of(drilled(), tmp_path / "run"))


def test_one_drill_that_did_not_pass_and_it_shows_nothing(tmp_path: Path) -> None:
    folder_of(drilled(), tmp_path / "run" / "good")
    bad = drilled()
    send(bad, "after", 4, 2)
    folder_of(bad, tmp_path / "run" / "bad")
    sign(tmp_path / "run", "Ada", "both")
    with pytest.raises(EvidenceError, match="bad is failed"):
        rehearsal(tmp_path / "run")


def test_what_was_begun_under_no_recorded_contract_is_shown_for_none(tmp_path: Path) -> None:
    folder = folder_of(drilled(digest="c1:another"), tmp_path / "run")
    sign(folder, "Ada", "both")
    assert rehearsal(folder).contracts == []
