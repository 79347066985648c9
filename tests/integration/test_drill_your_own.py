"""The project in docs/guides/drill-your-own.md, written into an empty folder and drilled there.

It sees the built wheel of actonce and what that depends on, and nothing of this repository.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs/guides/drill-your-own.md"
FILE = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTEST_S = 220  # about 60 on a quiet machine

# What the plugin must not let pass. Beside the guide's tests, on the same servers.
BAD = '''
import actonce
import pytest

from actonce.testing.plugin import drilled
from test_drills import plan_trip


def test_only_the_wheel_is_here(request):
    assert "SITE" in actonce.__file__
    with pytest.raises(ImportError):
        import drills


def changes_nothing():
    """A control without a control."""


@drilled(controls={"test_bad:changes_nothing": "duplicate op"})
async def test_control_that_nobody_notices(drill):
    trip = plan_trip(drill)
    async with drill.lose_answer(trip, "payment"):
        await drill.start(trip)


@drilled()
async def test_fault_that_does_not_strike(drill):
    trip = plan_trip(drill)
    drill.struck(trip, "payment", ["request_arrived", "answer_not_delivered"])
    await drill.start(trip)


@drilled()
async def test_effects_that_are_not_as_expected(drill):
    trip = drill.task("trip", "1", {"trip": "T-1", "amount_minor": 1}, steps=["seat", "payment", "mail", "hotel"])
    async with drill.lose_answer(trip, "seat"):
        await drill.start(trip)


@drilled()
async def test_no_fault_at_all(drill):
    await drill.start(plan_trip(drill))
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of this checkout, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "SITE")
    return folder / "SITE"


def guide_files() -> dict[str, str]:
    return dict(FILE.findall(GUIDE.read_text(encoding="utf-8")))


def test_the_guides_drills_are_under_sixty_lines() -> None:
    files = guide_files()
    assert set(files) == {"bookings.py", "trip.py", "worker.py", "conftest.py", "test_drills.py", "pytest.ini"}
    lines = [line for name in ("conftest.py", "test_drills.py") for line in files[name].splitlines() if line.strip()]
    assert len(lines) < 60


@pytest.mark.timeout(PYTEST_S + 30, method="thread")
def test_the_guides_project_is_drilled_with_the_wheel_alone(site: Path, project: Path) -> None:
    for name, text in {**guide_files(), "test_bad.py": BAD}.items():
        (project / name).write_text(text, encoding="utf-8")
    packages, scripts = sysconfig.get_path("purelib"), sysconfig.get_path("scripts")
    path = os.pathsep.join([scripts, os.environ["PATH"]])
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ACTONCE_", "TEMPORAL_", "PYTEST_"))}
    ran = subprocess.run(
        # Without `site` no .pth file puts this checkout on the path.
        [sys.executable, "-S", "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=junit.xml"],
        cwd=project,
        env={**env, "PATH": path, "PYTHONPATH": os.pathsep.join([str(site), packages])},
        capture_output=True,
        text=True,
        check=False,
        timeout=PYTEST_S,
    )
    said = f"{ran.stdout[-6000:]}\n{ran.stderr[-2000:]}"
    assert ran.returncode == 1, said
    cases = {
        case.attrib["name"]: "".join(f"{one.get('message')} {one.text}" for one in case)
        for case in ElementTree.parse(project / "junit.xml").iter("testcase")
    }
    failed = {name: why for name, why in cases.items() if why}
    must_fail = {
        "test_control_that_nobody_notices[without:test_bad:changes_nothing]": "nobody noticed",
        "test_fault_that_does_not_strike[guarded]": "installed but did not strike",
        "test_effects_that_are_not_as_expected[guarded]": "unaccounted op",
        "test_no_fault_at_all[guarded]": "no fault was put to any operation",
    }
    assert set(failed) == set(must_fail), said
    assert [name for name, why in must_fail.items() if why not in failed[name]] == [], said
    assert {name for name in cases if name.startswith(("test_a_worker_killed", "test_a_request_lost"))} == {
        "test_a_worker_killed_after_the_commit_leaves_one_payment_which_is_adopted[guarded]",
        "test_a_worker_killed_after_the_commit_leaves_one_payment_which_is_adopted[without:resend_without_lookup]",
        "test_a_request_lost_on_its_way_is_sent_once_more[guarded]",
        "test_a_request_lost_on_its_way_is_sent_once_more[without:done_without_evidence]",
    }
