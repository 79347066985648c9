"""Processes are signalled by recorded identity, never by pid alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actonce.stack import Foreign, Proc, StackError, boot_id, eventually, signal_checked, spawn, start_time
from actonce.stack.process import wait_gone

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    popen = subprocess.Popen(SLEEPER)
    yield popen
    popen.kill()
    popen.wait()


def test_recorded_process_is_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    assert signal_checked(Proc.of(sleeper.pid), signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL


def test_pid_file_that_names_a_foreign_pid_signals_nobody(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """case j3: the pid in the file now belongs to someone else, who started at another time."""
    pid_file = tmp_path / "worker.json"
    stale = Proc.of(sleeper.pid).model_dump() | {"start_time": start_time(sleeper.pid) - 1}  # type: ignore[operator]
    pid_file.write_text(json.dumps(stale))

    with pytest.raises(Foreign, match=f"Process {sleeper.pid} started at .* Not signalled"):
        signal_checked(Proc.model_validate_json(pid_file.read_text()), signal.SIGKILL)
    assert sleeper.poll() is None


def test_pid_recorded_before_this_boot_signals_nobody(sleeper: subprocess.Popen[bytes]) -> None:
    """case j3, over a host restart: start times of two boots say nothing about each other."""
    stale = Proc.of(sleeper.pid).model_copy(update={"boot_id": "an-earlier-boot"})
    with pytest.raises(Foreign, match="recorded before this boot"):
        signal_checked(stale, signal.SIGKILL)
    assert sleeper.poll() is None
    assert not stale.alive()


def test_process_that_is_gone_is_reported_as_gone(sleeper: subprocess.Popen[bytes]) -> None:
    proc = Proc.of(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert signal_checked(proc, signal.SIGKILL) is False
    assert not proc.alive()


async def test_zombie_counts_as_gone(sleeper: subprocess.Popen[bytes]) -> None:
    proc = Proc.of(sleeper.pid)
    sleeper.kill()  # not reaped: its pid and its entry in the process table stay
    assert await wait_gone(proc, within_s=5)
    assert signal_checked(proc, signal.SIGTERM) is False


def test_gone_process_cannot_be_recorded(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(StackError, match=f"Process {sleeper.pid} is gone"):
        Proc.of(sleeper.pid)


def test_start_time_is_read_behind_a_command_name_with_parentheses(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    popen = subprocess.Popen([program, "600"])
    try:
        assert start_time(popen.pid) == Proc.of(popen.pid).start_time
        assert Proc.of(popen.pid).boot_id == boot_id()
        assert abs((start_time(popen.pid) or 0) - (start_time(os.getpid()) or 0)) < 1_000_000
    finally:
        popen.kill()
        popen.wait()


async def test_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    child = spawn("stubborn", [sys.executable, "-c", program], log=tmp_path / "log")
    await eventually(lambda: "on" in child.tail(), within_s=10, what="started")
    assert await child.stop(grace_s=0.2) == -signal.SIGKILL


async def test_child_of_a_killed_parent_dies_or_can_be_ended_by_its_record(tmp_path: Path) -> None:
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import sys, time\nfrom pathlib import Path\nfrom actonce.stack import spawn\n"
        f"child = spawn('child', {SLEEPER!r}, log=Path({str(tmp_path / 'log')!r}))\n"
        "print(child.proc.model_dump_json(), flush=True)\ntime.sleep(600)\n"
    )
    popen = subprocess.Popen([sys.executable, parent], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": "."})
    assert popen.stdout is not None
    child = Proc.model_validate_json(popen.stdout.readline())
    assert child.alive()
    popen.kill()
    popen.wait()
    popen.stdout.close()
    if sys.platform != "linux":  # no kernel there sends a signal at the parent's death: the next `up` or `down` does
        assert signal_checked(child, signal.SIGKILL)
    assert await wait_gone(child, within_s=5)


def test_leaving_flushes_what_was_said_and_keeps_the_status() -> None:
    source = "from actonce.leaving import leave; print('last words'); leave(3)"
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (3, "last words\n")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("return None", 0, ""),
        ("return 4", 4, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(2)", 2, ""),
        ("raise SystemExit('why')", 1, "why"),
        ("raise KeyboardInterrupt", 130, ""),
        ("raise ValueError('boom')", 1, "ValueError: boom"),
    ],
)
def test_program_leaves_with_the_status_it_would_have_had(body: str, status: int, said: str) -> None:
    source = f"from actonce.leaving import run_and_leave\ndef main():\n    {body}\nrun_and_leave(main)"
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert run.returncode == status and said in run.stderr
