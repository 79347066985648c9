"""Every control still takes out what it is named for: what it replaces is there and is called as the replacement is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# Each in a process of its own, forked: they change the modules of their process.
INSTALL_ALL = """
import os, sys, traceback
from drills.controls import broken

broken.register_all()
import actonce.entry.app, actonce.ledger.listing, worker  # as the programs have them

failed = []
for name, install in broken.CONTROLS.items():
    pid = os.fork()
    if pid == 0:
        try:
            install()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        failed.append(name)
print(len(broken.CONTROLS), *failed)
"""


def test_every_control_finds_what_it_replaces() -> None:
    ran = subprocess.run([sys.executable, "-c", INSTALL_ALL], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    count, *failed = ran.stdout.split()
    assert int(count) >= 42 and failed == [], ran.stderr
