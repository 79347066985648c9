"""Where a Chromium is found, and what pytest says when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actonce.stack.chromium import chromium
from actonce.stack.errors import Missing

ROOT = Path(__file__).parents[2]


def program(path: Path, says: str, code: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any browser: a folder that is all of PATH."""
    monkeypatch.delenv("ACTONCE_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", f"{tmp_path}/playwright")
    return tmp_path


def test_one_on_path_is_found(bare: Path) -> None:
    there = program(bare / "bin" / "google-chrome", "Google Chrome 156.0")
    assert chromium() == there


def test_one_that_only_says_how_to_install_it_is_passed_over(bare: Path) -> None:
    program(bare / "bin" / "chromium-browser", "install the snap to run Chromium", code=1)
    program(bare / "bin" / "chromium", "not found")
    there = program(bare / "bin" / "google-chrome", "Google Chrome 156.0")
    assert chromium() == there


def test_playwrights_newest_is_found_when_there_is_none_on_path(bare: Path) -> None:
    program(bare / "playwright" / "chromium-999" / "chrome-linux" / "chrome", "Chromium 90")
    newest = program(bare / "playwright" / "chromium-1200" / "chrome-linux64" / "chrome", "Chromium 156")
    assert chromium() == newest


def test_a_chosen_one_that_does_not_run_is_an_error_and_no_reason_to_take_another(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(bare / "bin" / "chromium", "Chromium 156")
    monkeypatch.setenv("ACTONCE_CHROMIUM", "/nowhere/chrome")
    with pytest.raises(Missing, match="/nowhere/chrome, which does not run"):
        chromium()


def test_none_says_how_to_get_one(bare: Path) -> None:
    with pytest.raises(Missing, match="python -m playwright install chromium, or your system's package"):
        chromium()


def run_browser_tests(*more: str, **env: str) -> subprocess.CompletedProcess[str]:
    """pytest over the browser tests and one other test, on a machine whose Chromium does not run."""
    other = "tests/unit/test_stack_chromium.py::test_none_says_how_to_get_one"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/browser", other, *more],
        cwd=ROOT,
        env={**os.environ, "ACTONCE_CHROMIUM": "/nowhere/chrome", **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_without_a_browser_the_other_tests_run_and_the_summary_ends_with_how_to_get_one() -> None:
    run = run_browser_tests(ACTONCE_REQUIRE_BROWSER="")
    said = run.stdout.splitlines()
    assert run.returncode == 0, run.stdout
    assert "1 passed" in said[-1] and "deselected" in said[-1]
    assert "browser tests DID NOT RUN" in said[-2] and "python -m playwright install chromium" in said[-2]


def test_it_is_said_once_also_when_processes_share_the_tests() -> None:
    run = run_browser_tests("-n", "2", ACTONCE_REQUIRE_BROWSER="")
    assert run.returncode == 0 and "1 passed" in run.stdout, run.stdout
    assert run.stdout.count("browser tests DID NOT RUN") == 1


def test_where_they_are_required_a_run_without_a_browser_fails() -> None:
    run = run_browser_tests("-n", "2", "--maxfail", "1", ACTONCE_REQUIRE_BROWSER="1")
    assert run.returncode != 0 and "the browser tests are required" in run.stdout, run.stdout
