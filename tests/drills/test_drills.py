"""The drills themselves, as anybody runs them: `final`, and a small cut of others with their controls.

Case i2: the same drill again in one process, and after one that broke off half way, proves its fault each time.
Case i3: a kill with no operation in the wanted state makes the drill invalid, never passed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
STAYS_UP = re.compile(r"the stack stays up: Temporal UI\s+(http://\S+)")
DRILLS = ("final", "lost-acknowledgement", "memory-unreachable")


def drills(*arguments: str, timeout_s: float = 420.0) -> subprocess.CompletedProcess[str]:
    """`python -m drills …` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "drills", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@dataclass(frozen=True)
class Run:
    """One invocation: how it ended, and what a person could still look at before it did."""

    ran: subprocess.CompletedProcess[str]
    out: Path
    kept: dict[str, Any]  # the workflows that Temporal's UI showed while KEEP=1 left the stack up


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All of them in one invocation, on one stack, which stays up until somebody presses Enter."""
    out = tmp_path_factory.mktemp("drills") / "run"
    command = [sys.executable, "-m", "drills", "run", *DRILLS, "--cut", "--out", str(out), "--json"]
    said = out.with_name("said")
    with (
        said.open("wb") as sink,
        subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            env=os.environ | {"KEEP": "1"},
        ) as process,
    ):
        try:
            deadline = time.monotonic() + 420.0
            while (found := STAYS_UP.search(said.read_text(errors="replace"))) is None and process.poll() is None:
                assert time.monotonic() < deadline, said.read_text(errors="replace")[-3000:]
                time.sleep(0.2)
            kept = workflows(found.group(1)) if found else {}
            stdout, _ = process.communicate(b"\n", timeout=60.0)
        finally:
            process.kill()
    ran = subprocess.CompletedProcess(command, process.returncode, stdout.decode(), said.read_text(errors="replace"))
    return Run(ran, out, kept)


def workflows(ui: str) -> dict[str, Any]:
    """What the page of the Temporal UI asks its server for."""
    answer = httpx.get(f"{ui}/api/v1/namespaces/default/workflows", timeout=10.0, trust_env=False)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def test_keep_leaves_the_stack_up_until_enter(run: Run) -> None:
    assert run.kept.get("executions"), run.ran.stderr[-2000:]


@pytest.mark.timeout(480)
@pytest.mark.parametrize("drill", DRILLS)
def test_the_drill_passes(run: Run, drill: str) -> None:
    ran, out = run.ran, run.out
    verdict = json.loads(ran.stdout)[drill]
    failed = [check for check in verdict["checks"] if not check["ok"]]
    assert verdict["result"] == "passed", f"{verdict['sentence']}\n{failed}\n{ran.stderr[-3000:]}"
    assert verdict["balance"]["duplicates"] == verdict["balance"]["lost"] == 0
    assert all(control["caught"] for control in verdict["controls"]) and verdict["controls"]
    assert (out / drill / "report.html").stat().st_size > 10_000


@pytest.mark.timeout(480)
def test_it_exits_as_it_judged_and_verify_says_the_same(run: Run) -> None:
    again = drills("verify", str(run.out), "--json")
    assert run.ran.returncode == again.returncode == 0, again.stdout[-2000:]


def test_a_changed_record_is_never_passed(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "final"
    shutil.copytree(run.out / "final", folder)
    record = folder / "record.jsonl"
    lines = record.read_text(encoding="utf-8").splitlines()
    record.write_text("\n".join(line for line in lines if '"kind":"effect"' not in line) + "\n", encoding="utf-8")
    assert drills("verify", str(folder)).returncode == 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["run", "no-such-drill"], 2), (["run"], 2), (["verify", "/nowhere"], 2), (["list"], 0)],
)
def test_usage_errors_are_their_own_exit_code(arguments: list[str], code: int) -> None:
    assert drills(*arguments).returncode == code
