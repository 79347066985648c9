"""A drill that shows nothing says so: cases i2 and i3, in one process and on one stack."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actonce.evidence import Verdict, write_verdict
from actonce.stack import StackError
from actonce.testing.challenge import NotControlled
from actonce.testing.parts import Parts
from drills import running, strike, table
from drills.cells import Axes
from drills.rig import Cell
from drills.running import drill_record, open_run, shared_parts
from drills.table import PlannedCell, run_cell, table_play

KILLED = table_play(Axes(process="SIGKILL"))


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[Parts]:
    async with shared_parts(tmp_path / "stack", print) as parts:
        yield parts


async def one_run(shared: Parts, out: Path, *, breaks_off: bool = False) -> Verdict:
    """One drill of one cell; `breaks_off`: the drill itself crashes after the strike."""
    record = drill_record("lost-acknowledgement", "a test", seed=1, quick=True, stack=shared.stack)
    async with open_run(shared, out, record, print) as run:
        await run_cell(run, PlannedCell(KILLED, 1))
        if breaks_off:
            raise KeyboardInterrupt
    return write_verdict(out)


@pytest.mark.timeout(240)
async def test_the_same_drill_twice_and_after_a_crash_proves_its_fault_each_time_case_i2(
    shared: Parts, tmp_path: Path
) -> None:
    first = await one_run(shared, tmp_path / "first")
    with pytest.raises(KeyboardInterrupt):
        await one_run(shared, tmp_path / "crashed", breaks_off=True)
    assert write_verdict(tmp_path / "crashed").result == "invalid"
    second = await one_run(shared, tmp_path / "second")
    for verdict in (first, second):
        assert [hit.signal for hit in verdict.fault.struck] == ["SIGKILL"], verdict.fault
        assert not verdict.fault.not_struck


@pytest.mark.timeout(120)
async def test_a_kill_with_no_operation_in_the_wanted_state_is_invalid_case_i3(
    shared: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(cell: Cell, plan: PlannedCell) -> None:
        """The task is never started: nothing will ever be in flight."""

    monkeypatch.setattr(table, "start_single", nothing)
    monkeypatch.setattr(strike, "POINT_S", 3.0)
    verdict = await one_run(shared, tmp_path / "nothing")
    assert verdict.result == "invalid"
    assert [miss.status for miss in verdict.fault.not_struck] == ["indeterminate"]


@pytest.mark.timeout(120)
async def test_a_destination_that_does_not_prove_itself_controlled_is_not_touched(
    shared: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = running.spawn

    def impostor(name: str, command: list[str], **more: Any) -> Any:
        """A destination that belongs to somebody else: it does not know this run's secret."""
        more["env"] = {**more["env"], "ACTONCE_RUN_SECRET": "somebody else's"}
        return real(name, command, **more)

    monkeypatch.setattr(running, "spawn", impostor)
    with pytest.raises(NotControlled):
        await one_run(shared, tmp_path / "out")
    assert not (tmp_path / "out" / "record.jsonl").exists()


async def test_a_temporal_that_is_not_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example.org:7233")
    with pytest.raises(StackError, match="not the drills' own"):
        async with shared_parts(tmp_path / "stack", print):
            pass
