"""`verify` of a whole run: a drill whose evidence is gone is no drill that passed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from actonce.evidence import write_verdict
from drills.__main__ import app
from tests.unit.evidence.builders import good_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two drills that passed."""
    (tmp_path / "run.json").write_text(json.dumps({"drills": ["one", "two"]}))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_verdict(good_run().write(tmp_path / name))
    return tmp_path


def verify(folder: Path) -> int:
    return CliRunner().invoke(app, ["verify", str(folder)]).exit_code


def test_a_run_is_all_its_drills(run: Path) -> None:
    assert verify(run) == verify(run / "one") == 0


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda run: shutil.rmtree(run / "one"), 3),
        (lambda run: (run / "one" / "drill.json").unlink(), 3),
        (lambda run: (run / "one" / "hashes.json").unlink(), 3),
        (lambda run: shutil.copytree(run / "one", run / "three").joinpath("cells.jsonl").unlink(), 3),
        (lambda run: (run / "run.json").unlink(), 2),
        (lambda run: (run / "run.json").write_text("{}"), 2),
    ],
)
def test_a_drill_that_is_gone_or_has_lost_its_first_file_is_noticed(
    run: Path, damage: Callable[[Path], object], code: int
) -> None:
    damage(run)
    assert verify(run) == code


def test_one_drill_without_its_first_file_is_invalid_by_itself_too(run: Path) -> None:
    (run / "one" / "drill.json").unlink()
    assert verify(run / "one") == 3
