"""The named cells: what PROTOCOL.md asks for is there, and what a cell or a control names really exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drills import doors
from drills.controls import stops
from drills.controls.broken import CONTROLS as BROKEN
from drills.doors import Said
from drills.scenarios.protocol_cells import CONTROLS, PROTOCOL
from drills.table import Play

ROOT = Path(__file__).resolve().parents[3]
NAMES = [play.name for play in PROTOCOL]


def test_the_cells_of_the_protocol_are_there_by_name() -> None:
    # 14 is a restore: a drill of its own
    assert {name.split("-")[1] for name in NAMES if name.startswith("protocol-")} >= {
        *(f"{number:02}" for number in range(1, 14)),
        "15",
    }
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(
    "state",
    [
        "with-a-permit-ready",
        "with-attempt-2-dispatched",
        "with-the-same-key-sent-again",
        "under-a-hold",
        "after-the-verdict",
        "after-mark-absent",
    ],
)
def test_a_late_acknowledgement_meets_each_state_cell_8(state: str) -> None:
    assert f"protocol-08-late-acknowledgement-{state}" in NAMES


@pytest.mark.parametrize(
    "name",
    [
        "retry-permitted-too-early",
        "operator-permits-one-retry",  # and the same decision again
        "retry-permitted-on-old-evidence",
        "retry-permitted-races-a-committed-verdict",
    ],
)
def test_a_retry_is_permitted_early_twice_and_in_a_race_cell_10(name: str) -> None:
    assert f"protocol-10-{name}" in NAMES


@pytest.mark.parametrize("play", PROTOCOL, ids=lambda play: play.name)
def test_a_cell_expects_one_effect_at_most_and_says_why(play: Play) -> None:
    wanted = play.expected
    assert wanted.settled and wanted.final and wanted.why and wanted.effects[1] <= 1
    held = all(form.startswith("held:") for form in wanted.settled)
    assert wanted.pages is held, "a person is paged exactly when it is held before anything is healed"


@pytest.mark.parametrize("play", [play for play in PROTOCOL if play.stop], ids=lambda play: play.name)
def test_a_stop_names_points_that_exist_and_as_many_processes_as_stand_there(play: Play) -> None:
    assert play.stop is not None and play.stops
    points = play.stop.split(",")
    assert set(points) <= set(stops.POINTS)
    assert int(play.env.get("ACTONCE_DRILL_STOPS", "1")) >= len(points)


def test_every_control_has_its_program_and_a_cell_that_runs_guarded_too() -> None:
    named = {control.name for control in CONTROLS}
    here = {name for name, take_out in BROKEN.items() if take_out.__module__ == "drills.controls.broken"}
    assert here - {"resend_without_lookup"} <= named  # that one belongs to `final` and `worker-stopped`
    assert named <= set(BROKEN)
    special = {control.play().name for control in CONTROLS if "." not in control.play().name}
    assert special <= set(NAMES)


def alone(code: str, **env: str) -> None:
    """Run in a process of its own: what is swapped stays swapped."""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **env}
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_every_stop_finds_what_it_stops() -> None:
    for_all = "from drills.controls import stops\nstops.install_from_environment()"
    alone(for_all, ACTONCE_DRILL_STOP=",".join(stops.POINTS))


def test_an_unknown_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no point 'before_lunch'"):
        stops.install("before_lunch")


def test_every_control_finds_what_it_takes_out() -> None:
    alone("from drills.controls.broken import CONTROLS\nfor take_out in CONTROLS.values():\n    take_out()")


def test_the_first_processes_that_get_to_a_point_stand_and_say_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood: list[int] = []
    monkeypatch.setenv("ACTONCE_DRILL_STOP_FILE", str(tmp_path / "stopped"))
    monkeypatch.setenv("ACTONCE_DRILL_STOPS", "2")
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, signal: stood.append(pid))
        for pid, point in ((11, "before_loss"), (11, "before_next_permit"), (12, "before_next_permit"), (13, "x")):
            patched.setattr(os, "getpid", lambda pid=pid: pid)
            stops.stand_still(point)
    assert stood == [11, 12]
    assert (tmp_path / "stopped").read_text() == "11 before_loss"
    assert (tmp_path / "stopped.2").read_text() == "12 before_next_permit"


@pytest.mark.parametrize(
    ("code", "err", "refused"),
    [
        (1, "actonce.client: The decision was refused: … wait (code too_early)", True),
        (1, "actonce.client: The decision was refused: … read it again (code stale)", False),
        (4, "actonce.client: the entry does not answer", False),
        (0, "", False),
    ],
)
def test_a_failure_of_another_kind_is_no_refusal(code: int, err: str, refused: bool) -> None:
    assert doors.refused_as(Said(code, "", err), "too_early", "not_held") is refused
