"""`actonce up | down | env | doctor`, as a person runs them, on a small project of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest

from actonce.stack import Proc, eventually
from actonce.stack.process import wait_gone

WORKER = """
import asyncio, json, os, signal, sys
from temporalio.client import Client
async def main():
    await Client.connect(os.environ["TEMPORAL_ADDRESS"], namespace=os.environ["TEMPORAL_NAMESPACE"])
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    print("some log line")
    print(json.dumps({"event": "ready", "queue": os.environ["ACTONCE_TASK_QUEUE"], "argv": sys.argv[1:]}))
    await end.wait()
    print("clean shutdown")
asyncio.run(main())
"""
ENTRY = """
import http.server, json, os, urllib.parse
address = urllib.parse.urlparse(os.environ["ACTONCE_ENTRY_URL"])
server = http.server.HTTPServer((address.hostname, address.port), http.server.SimpleHTTPRequestHandler)
print(json.dumps({"event": "ready", "url": os.environ["ACTONCE_ENTRY_URL"]}))
server.serve_forever()
"""
TABLE = """
[tool.actonce.stack.programs]
entry = ["entry.py"]
worker = { command = ["worker.py", "run"], count = 2 }
"""
PROCESSES = {"postgres", "temporal", "toxiproxy", "entry", "worker-1", "worker-2"}


@pytest.fixture
def app(project: Path) -> Path:
    for name, text in {"worker.py": WORKER, "entry.py": ENTRY, "pyproject.toml": TABLE}.items():
        (project / name).write_text(text)
    return project


def actonce(app: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "actonce.cli", *arguments],
        cwd=app,
        env=environment() | env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path.cwd()), "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}


def how_busy() -> float:
    """1.0 on an idle machine; 3.0 when a fixed piece of work (0.5 s there) takes three times as long."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import temporalio.client, fastapi"], check=True)
    return max(1.0, (time.monotonic() - began) / 0.8)


def state(app: Path) -> Any:
    return json.loads((app / ".actonce" / "stack.json").read_text())


def processes(app: Path) -> dict[str, Proc]:
    found = {name: part["proc"] for name, part in state(app)["parts"].items() if part["proc"]}
    return {name: Proc.model_validate(proc) for name, proc in found.items()}


def test_up_in_the_background_then_down_leaves_nothing(app: Path) -> None:
    up = actonce(app, "up", "--detach")
    assert up.returncode == 0, up.stdout + up.stderr
    running = processes(app)
    assert set(running) == PROCESSES and all(proc.alive() for proc in running.values())
    supervisor = Proc.model_validate(state(app)["supervisor"])

    settings = dict(re.findall(r"export (\w+)=(.*)", actonce(app, "env").stdout))
    assert urllib.request.urlopen(settings["ACTONCE_ENTRY_URL"], timeout=5).status == 200
    with psycopg.connect(settings["ACTONCE_LEDGER_DSN"]) as connection:
        connection.execute("CREATE TABLE remembered (n int)")
    for database in (app / ".actonce").glob("temporal.db*"):  # root's folder lets others pass through
        assert database.stat().st_mode & 0o077 == 0, database
    log = (app / ".actonce/logs/worker-2.log").read_text()
    assert json.loads(log.splitlines()[1])["queue"] == settings["ACTONCE_TASK_QUEUE"]

    again = actonce(app, "up")
    assert again.returncode == 1 and "in use by another supervisor" in again.stderr

    down = actonce(app, "down")
    assert down.returncode == 0 and "nothing is left running" in down.stdout, down.stdout + down.stderr
    assert not any(proc.alive() for proc in (*running.values(), supervisor))
    assert "clean shutdown" in (app / ".actonce/logs/worker-1.log").read_text()
    assert processes(app) == {}
    assert actonce(app, "env").returncode == 1

    busy = how_busy()
    began = time.monotonic()
    second = actonce(app, "up", "--detach", **settings)  # from a shell that took over the first one's settings
    took_s = time.monotonic() - began
    try:
        assert second.returncode == 0, second.stdout + second.stderr
        assert took_s < 10 * max(busy, how_busy()), "a second start takes under 10 s on a machine that is not busy"
        same = dict(re.findall(r"export (\w+)=(.*)", actonce(app, "env").stdout))
        assert same == settings
        with psycopg.connect(settings["ACTONCE_LEDGER_DSN"]) as connection:
            assert connection.execute("SELECT count(*) FROM remembered").fetchone() == (0,)
    finally:
        assert actonce(app, "down").returncode == 0


async def test_ctrl_c_leaves_nothing(app: Path) -> None:
    popen = await started(app)
    running = processes(app)
    popen.send_signal(signal.SIGINT)
    assert popen.wait(60) == 0
    assert not any(proc.alive() for proc in running.values())
    assert "nothing is left running" in (app / "up.log").read_text()


async def test_ctrl_c_while_it_starts_leaves_nothing(app: Path) -> None:
    (app / "worker.py").write_text("import time; time.sleep(600)")  # is never ready
    popen = launch(app)
    try:
        await eventually(
            lambda: "starting worker-1" in (app / "up.log").read_text(), within_s=60, what="worker started"
        )
        running = processes(app)
    finally:
        popen.send_signal(signal.SIGINT)
    assert popen.wait(60) == 0
    assert running and not any(proc.alive() for proc in running.values())
    assert processes(app) == {}


@pytest.mark.parametrize("then", ["up", "down"])
async def test_killed_supervisor_leaves_no_orphan_after_the_next(app: Path, then: str) -> None:
    popen = await started(app)
    orphans = processes(app)
    assert set(orphans) == PROCESSES
    popen.kill()
    popen.wait()
    if then == "up":
        second = await started(app)
        fresh = processes(app)
        assert not any(proc.alive() for proc in orphans.values())
        assert all(proc.alive() for proc in fresh.values())
        second.terminate()
        assert second.wait(60) == 0
    else:
        down = actonce(app, "down")
        assert down.returncode == 0, down.stdout + down.stderr
    for proc in orphans.values():
        assert await wait_gone(proc, within_s=0)


async def test_part_that_dies_is_reported_once_with_its_log(app: Path) -> None:
    popen = await started(app)
    try:
        os.kill(processes(app)["worker-2"].pid, signal.SIGKILL)
        log = app / "up.log"
        await eventually(lambda: "worker-2 ended with status -9" in log.read_text(), within_s=20, what="report")
    finally:
        popen.terminate()
    assert popen.wait(60) == 0
    assert log.read_text().count("ended with status") == 1


def test_program_that_fails_shows_its_last_words_and_stops_the_rest(app: Path) -> None:
    (app / "worker.py").write_text("raise SystemExit('no ledger for me')")
    up = actonce(app, "up")
    assert up.returncode == 1
    assert re.search("worker-[12] ended with status 1", up.stderr) and "no ledger for me" in up.stderr
    assert processes(app) == {}


def test_down_without_a_stack_says_so(app: Path) -> None:
    down = actonce(app, "down")
    assert down.returncode == 1 and "There is no stack" in down.stderr


def test_doctor_names_versions_and_fails_only_on_what_is_needed(app: Path, tmp_path: Path) -> None:
    doctor = actonce(app, "doctor")
    assert doctor.returncode == 0, doctor.stdout
    for words in ("PostgreSQL) 18.4, pgvector 0.8.5", "temporal version 1.9.1", "2.12.0", "worker×2"):
        assert words in doctor.stdout
    lacking = subprocess.run(
        [sys.executable, "-m", "actonce.cli", "doctor"],
        cwd=app,
        env=environment() | {"ACTONCE_LEDGER_DSN": "postgresql://127.0.0.1:1/x"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert lacking.returncode == 1 and "missing" in lacking.stdout and "ACTONCE_LEDGER_DSN" in lacking.stdout


def launch(app: Path) -> subprocess.Popen[bytes]:
    with (app / "up.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "actonce.cli", "up"], cwd=app, env=environment(), stdout=log, stderr=log
        )


async def started(app: Path) -> subprocess.Popen[bytes]:
    popen = launch(app)

    def ready() -> bool:
        assert popen.poll() is None, (app / "up.log").read_text()
        file = app / ".actonce" / "stack.json"
        if not file.exists():
            return False
        found = json.loads(file.read_text())
        return bool(found["ready"] and found["supervisor"] and found["supervisor"]["pid"] == popen.pid)

    await eventually(ready, within_s=90, what="stack ready")
    return popen
