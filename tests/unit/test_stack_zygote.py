"""A forked program must be like one that was started afresh."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from actonce.stack import StackError, eventually
from actonce.stack.process import wait_gone
from actonce.stack.zygote import Zygote, ZygoteChild

REPORT = """
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv, "path0": sys.path[0], "name": __name__, "file": __file__, "cwd": os.getcwd(),
    "env": dict(os.environ), "pid": os.getpid(), "sid": os.getsid(0), "stdin": sys.stdin.read(),
    "fds": sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) > 2
                  and os.path.exists(f"/proc/self/fd/{n}")) if sys.platform == "linux" else [],
    "handlers": [signal.getsignal(s) is signal.SIG_DFL for s in (signal.SIGCHLD, signal.SIGTERM)],
    "wakeup": signal.set_wakeup_fd(-1), "preloaded": "colorsys" in sys.modules,
}))
import atexit
atexit.register(lambda: print("goodbye"))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
async def zygote(tmp_path: Path) -> Any:
    async with await Zygote.start(["colorsys"], log=tmp_path / "zygote.log") as started:
        yield started


async def run(zygote: Zygote, tmp_path: Path, source: str, *args: str, **env: str) -> ZygoteChild:
    program = tmp_path / "program.py"
    program.write_text(source)
    return await zygote.spawn("program.py", args, env=env, log=tmp_path / "child.log", cwd=tmp_path)


async def test_program_reads_what_it_is_given_and_its_errors_go_where_they_should(
    zygote: Zygote, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text("import sys; print(sys.stdin.read()); print('oh', file=sys.stderr)")
    (tmp_path / "given").write_text("this")
    child = await zygote.spawn(
        "program.py",
        env={},
        log=tmp_path / "out",
        cwd=tmp_path,
        given=tmp_path / "given",
        errors=tmp_path / "err",
    )
    assert await child.wait(10) == 0
    assert ((tmp_path / "out").read_text(), (tmp_path / "err").read_text()) == ("this\n", "oh\n")


async def test_program_runs_as_if_started_afresh(zygote: Zygote, tmp_path: Path) -> None:
    child = await run(zygote, tmp_path, REPORT, "7", ONLY="this")
    assert await child.wait(10) == 7
    first, last = child.log.read_text().splitlines()
    said = json.loads(first)
    assert said["argv"] == [str(tmp_path / "program.py"), "7"]
    assert (said["name"], said["cwd"], said["path0"]) == ("__main__", str(tmp_path), str(tmp_path))
    assert said["env"] == {"ONLY": "this"}
    assert said["pid"] == said["sid"] == child.pid != os.getpid()
    assert said["stdin"] == "" and said["fds"] == [] and said["wakeup"] == -1
    assert said["handlers"] == [True, True]
    assert said["preloaded"] is True
    assert last == "goodbye", "exit handlers must run"


async def test_module_runs_as_main(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "thing.py").write_text("import sys; print(__name__, sys.argv[1:])")
    child = await zygote.spawn("-m thing", ["a"], env={}, log=tmp_path / "log", cwd=tmp_path)
    assert await child.wait(10) == 0
    assert child.log.read_text() == "__main__ ['a']\n"


async def test_crash_leaves_a_traceback_and_status_one(zygote: Zygote, tmp_path: Path) -> None:
    child = await run(zygote, tmp_path, "raise RuntimeError('boom')")
    assert await child.wait(10) == 1
    assert "RuntimeError: boom" in child.log.read_text()


async def test_killed_child_reports_its_signal_and_others_live(zygote: Zygote, tmp_path: Path) -> None:
    source = "import time; print('on'); time.sleep(600)"
    first, second = await run(zygote, tmp_path, source), await run(zygote, tmp_path, source)
    await eventually(lambda: first.log.read_text().count("on") == 2, within_s=10, what="both started")
    assert first.send_signal(signal.SIGKILL)
    assert await first.wait(10) == -signal.SIGKILL
    assert first.send_signal(signal.SIGTERM) is False
    assert second.poll() is None
    assert second.send_signal(signal.SIGTERM)
    assert await second.wait(10) == -signal.SIGTERM


async def test_children_die_with_the_zygote_and_their_waiters_are_told(tmp_path: Path) -> None:
    zygote = await Zygote.start([], log=tmp_path / "zygote.log")
    try:
        child = await run(zygote, tmp_path, "import time; time.sleep(600)")
        zygote._process.send_signal(signal.SIGKILL)
        with pytest.raises(StackError, match="zygote is gone"):
            await child.wait(10)
        assert await wait_gone(child.proc, within_s=5)
        with pytest.raises(StackError, match="zygote is gone"):
            await run(zygote, tmp_path, "")
    finally:
        await zygote.close()


async def test_closing_the_zygote_ends_its_children(tmp_path: Path) -> None:
    async with await Zygote.start([], log=tmp_path / "zygote.log") as zygote:
        child = await run(zygote, tmp_path, "import time; time.sleep(600)")
    assert await wait_gone(child.proc, within_s=5)


async def test_import_that_starts_a_thread_is_refused(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    with pytest.raises(StackError, match=r"importing threaded started 1 thread"):
        await Zygote.start(
            ["threaded"], log=tmp_path / "log", cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.getcwd()}
        )


async def test_import_that_fails_is_reported_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="No module named 'not_there'"):
        await Zygote.start(["not_there"], log=tmp_path / "log")


async def test_temporal_sdk_works_in_a_fork_of_a_zygote_that_imported_it(tmp_path: Path) -> None:
    source = (
        "import asyncio, temporalio.runtime as r\nfrom temporalio.client import Client\n"
        "async def main():\n"
        "    r.Runtime.default()\n"
        "    try: await Client.connect('127.0.0.1:1')\n"
        "    except RuntimeError as e: print('refused as it should')\n"
        "asyncio.run(main())\n"
        "from actonce.leaving import leave\nleave(0)\n"
    )
    async with await Zygote.start(["temporalio.worker", "psycopg", "httpx"], log=tmp_path / "zygote.log") as zygote:
        child = await run(zygote, tmp_path, source, **os.environ)
        assert await child.wait(60) == 0, child.log.read_text()
    assert "refused as it should" in child.log.read_text()


def test_python_runs_these_tests_from_the_checkout() -> None:
    assert Path(sys.modules["actonce.stack.zygote"].__file__ or "").is_relative_to(Path.cwd())
