"""This application's activities: the guarded operations of the library, with this application's planner.

An activity with a side effect is registered only through a destination with a contract (`worker.registry_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from activities.planner import ScriptedPlanner
from actonce.effects.activities import OperationActivities
from actonce.effects.remembering import MemoryActivities
from actonce.effects.system import System


def all_of(system: System) -> list[Callable[..., Any]]:
    """What to register with the Temporal worker."""
    return [*OperationActivities(system, ScriptedPlanner()).all(), *MemoryActivities(system).all()]
