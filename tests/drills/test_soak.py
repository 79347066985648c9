"""A soak whose own process is killed goes on in another one, with the same deployment, and balances in the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from drills.soak.state import POINTER, SoakState
from tests.drills.test_drills import ROOT, drills

WINDOWS_BEFORE = 2  # on record, before the process is killed
WAIT_S = 150.0


def soak(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", "drills", "run", "soak", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, "NO_COLOR": "1"},
        )


def guarded(out: Path) -> list[str]:
    cells = out / "soak" / "cells.jsonl"
    names = [json.loads(line)["cell"] for line in cells.read_text().splitlines()] if cells.exists() else []
    return [name for name in names if not name.startswith("control:")]


@pytest.mark.timeout(480)
def test_a_soak_whose_process_was_killed_goes_on_and_closes_its_balance(tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "soak.log"
    # Long enough that the window which the kill cuts off, and which counts as not struck, is less than one in five.
    process = soak("--minutes", "0.8", "--seed", "5", "--out", str(out), log=log)
    deadline = time.monotonic() + WAIT_S
    try:
        while len(guarded(out)) <= WINDOWS_BEFORE:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)  # between two looks
        children = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.wait(30)
    assert psutil.wait_procs(children, timeout=60)[1] == [], "something of the killed soak still runs"
    assert drills("verify", str(out)).returncode == 3  # it has no end: it shows nothing yet
    before, (state, private) = guarded(out), SoakState.find(out / "soak")
    assert state.seed == 5 and private.exists()

    went_on = drills("run", "--resume", str(out), "--json")
    verdict = json.loads(went_on.stdout or "{}").get("soak", {})
    failed = [check for check in verdict.get("checks", []) if not check["ok"]]
    assert went_on.returncode == 0, f"{verdict.get('sentence')}\n{failed}\n{went_on.stderr[-3000:]}"
    assert guarded(out)[: len(before)] == before and len(guarded(out)) > len(before)
    assert not (out / "soak" / POINTER).exists() and not private.exists()
    assert verdict["balance"]["duplicates"] == verdict["balance"]["lost"] == verdict["balance"]["unaccounted"] == 0
    assert verdict["recovery"] and [control["caught"] for control in verdict["controls"]] == [True] * 3
    assert drills("run", "--resume", str(out)).returncode == 2  # it has ended: there is nothing to go on with
