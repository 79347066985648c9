"""Every recorded history of a released workflow version replays on today's code, and the replay can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

import workflows
from tests.replay.changed import Changed, Empty

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def history_of(path: Path) -> WorkflowHistory:
    recorded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return WorkflowHistory.from_json(recorded["workflow_id"], recorded["history"])


def name_of(cls: type) -> str:
    definition = getattr(cls, "__temporal_workflow_definition")
    return str(definition.name)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda p: p.stem)
async def test_recorded_history_replays(path: Path) -> None:
    replayer = Replayer(workflows=workflows.ALL, data_converter=pydantic_data_converter)
    await replayer.replay_workflow(history_of(path))


def test_every_workflow_has_a_recorded_history() -> None:
    recorded = {".".join(path.stem.split(".")[:2]) for path in HISTORIES}
    assert recorded >= {name_of(cls) for cls in workflows.ALL}


@pytest.mark.parametrize(
    ("changed", "story"),
    [(Changed, "single.v1.clean"), (Changed, "single.v1.held_resolved"), (Empty, "refund.v1.clean")],
)
async def test_changed_workflow_does_not_replay(changed: type, story: str) -> None:
    (path,) = [p for p in HISTORIES if p.stem == story]
    replayer = Replayer(workflows=[changed], data_converter=pydantic_data_converter)
    with pytest.raises(NondeterminismError):
        await replayer.replay_workflow(history_of(path))
