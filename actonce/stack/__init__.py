"""Finds, builds, starts and stops what a deployment runs on: PostgreSQL, Temporal, Toxiproxy, the project's programs.

Knows the system only as processes. See `Stack` for what it promises.
"""

from actonce.stack.errors import Missing, StackError
from actonce.stack.part import Part
from actonce.stack.process import (
    Child,
    Foreign,
    Proc,
    boot_id,
    eventually,
    signal_checked,
    spawn,
    start_time,
    wait_gone,
)
from actonce.stack.program import ProgramSpec, programs_of
from actonce.stack.supervisor import Stack, postgres

__all__ = [
    "Child",
    "Foreign",
    "Missing",
    "Part",
    "Proc",
    "ProgramSpec",
    "Stack",
    "StackError",
    "boot_id",
    "eventually",
    "postgres",
    "programs_of",
    "signal_checked",
    "spawn",
    "start_time",
    "wait_gone",
]
