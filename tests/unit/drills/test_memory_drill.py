"""The memory's controls change what they say they change, and every fault has a word in the procedure."""

from __future__ import annotations

import subprocess
import sys

import pytest

from actonce.contracts.memory import Trouble
from actonce.evidence.observations import CLAIMS
from drills.catalog import Options
from drills.controls import forgetting
from drills.controls.registry import CONTROLS as ALL
from drills.memory_faults import FAULTS
from drills.memory_operator import _command, _lines
from drills.operator import ROOT
from drills.scenarios.memory_unreachable import CONTROLS as PLANNED
from drills.scenarios.memory_unreachable import MemoryUnreachable

CONTROLS = {name: one for name, one in ALL.items() if one.__module__ == forgetting.__name__}
PROCEDURE = (ROOT / "docs/operations/memory_unavailable.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_finds_what_it_takes_out(name: str) -> None:
    code = f"import worker\nfrom drills.controls import forgetting\nforgetting.{name}()"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_every_control_is_planned_with_a_fault_that_also_runs_guarded() -> None:
    assert {control for control, _, _ in PLANNED} == set(CONTROLS)
    assert {fault for _, fault, _ in PLANNED} <= set(FAULTS)
    names = [job.name for job in MemoryUnreachable().plan(Options()).jobs]
    assert len(names) == len(set(names)) == len(FAULTS) + len(PLANNED)


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_witness_claims_of_a_fault_is_judged(name: str) -> None:
    assert set(FAULTS[name].observations) <= set(CLAIMS) and FAULTS[name].troubles <= set(Trouble)


@pytest.mark.parametrize("trouble", sorted(set(Trouble) - {Trouble.NOT_CONFIGURED}))
def test_the_procedure_has_a_line_for_every_trouble(trouble: Trouble) -> None:
    assert any(f"`{trouble}`" in line for line in _lines(PROCEDURE))


@pytest.mark.parametrize("verb", ["check", "rebuild"])
def test_the_procedure_names_the_commands(verb: str) -> None:
    assert _command(PROCEDURE, verb) == f"python worker.py memory {verb}"
