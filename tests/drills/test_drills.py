"""The drills themselves, as anybody runs them: `final`, and a small cut of others with their controls.

Case i2: the same drill again in one process, and after one that broke off half way, proves its fault each time.
Case i3: a kill with no operation in the wanted state makes the drill invalid, never passed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """All of them in one invocation, on one stack."""
    out = tmp_path_factory.mktemp("drills") / "run"
    return drills("run", *DRILLS, "--cut", "--out", str(out), "--json"), out


@pytest.mark.timeout(480)
@pytest.mark.parametrize("drill", DRILLS)
def test_the_drill_passes(run: tuple[subprocess.CompletedProcess[str], Path], drill: str) -> None:
    ran, out = run
    verdict = json.loads(ran.stdout)[drill]
    failed = [check for check in verdict["checks"] if not check["ok"]]
    assert verdict["result"] == "passed", f"{verdict['sentence']}\n{failed}\n{ran.stderr[-3000:]}"
    assert verdict["balance"]["duplicates"] == verdict["balance"]["lost"] == 0
    assert all(control["caught"] for control in verdict["controls"]) and verdict["controls"]
    assert (out / drill / "report.html").stat().st_size > 10_000


@pytest.mark.timeout(480)
def test_it_exits_as_it_judged_and_verify_says_the_same(
    run: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    ran, out = run
    again = drills("verify", str(out), "--json")
    assert ran.returncode == again.returncode == 0, again.stdout[-2000:]


def test_a_changed_record_is_never_passed(run: tuple[subprocess.CompletedProcess[str], Path], tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "final"
    shutil.copytree(run[1] / "final", folder)
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
