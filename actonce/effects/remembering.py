"""Recall and remember for tasks: the memory's answer, on record in the ledger, with the hold while there is none.

Promises: what a workflow is told is what the ledger has recorded; a task that needs its memory is held and a person
paged in the same transaction; the answer of another memory than this deployment's is no answer. Free to be retried:
a recall only reads, and what is remembered is kept by its key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio import activity

from actonce.contracts.memory import (
    Empty,
    Found,
    RecallRequest,
    RecallResult,
    Remembered,
    RememberRequest,
    RememberResult,
    Trouble,
    Unavailable,
)
from actonce.effects.activities import beating
from actonce.effects.system import System
from actonce.ledger import memory_use

NONE = Unavailable(
    trouble=Trouble.NOT_CONFIGURED, words="this worker was composed without a memory; give `compose` one"
)


class MemoryActivities:
    """The memory's activities of one worker."""

    def __init__(self, system: System) -> None:
        self.system = system

    def all(self) -> list[Callable[..., Any]]:
        """What to register with the worker."""
        return [self.recall, self.remember]

    @activity.defn(name="actonce.recall.v1")
    @beating
    async def recall(self, request: RecallRequest) -> RecallResult:
        """Ask the memory once, and record what it said; unavailable: held and paged, unless the task may do without."""
        memory, r = self.system.memory, request
        told = await memory_use.answer_of(self.system.ledger, r.task_id, r.step)
        if told is not None:
            return RecallResult(said=told)
        said = await memory.recall(r.tenant, r.query, r.k, r.filter) if memory else NONE
        kept = await memory_use.record(
            self.system.ledger, task_id=r.task_id, step=r.step, kind="recall", said=said, hold=r.hold
        )
        assert isinstance(kept, Found | Empty | Unavailable)
        return RecallResult(said=kept)

    @activity.defn(name="actonce.remember.v1")
    @beating
    async def remember(self, request: RememberRequest) -> RememberResult:
        """Keep something by its key; unavailable: held and paged, since what is forgotten harms later tasks."""
        memory, r = self.system.memory, request
        said = await memory.remember(r.tenant, r.key, r.text, r.facts) if memory else NONE
        kept = await memory_use.record(self.system.ledger, task_id=r.task_id, step=r.step, kind="remember", said=said)
        assert isinstance(kept, Remembered | Unavailable)
        return RememberResult(said=kept)


async def check_memory(system: System) -> Empty | Unavailable:
    """Really recall, in the memory that this deployment remembers in."""
    said = await system.memory.check() if system.memory else NONE
    kept = await memory_use.ours(system.ledger, said)
    assert isinstance(kept, Empty | Unavailable)
    return kept


async def adopt_memory(system: System, name: str, reason: str) -> None:
    """On a person's word this deployment remembers from now on in the memory that answers now, if one does."""
    said = await system.memory.check() if system.memory else NONE
    if isinstance(said, Empty):
        await memory_use.adopt(system.ledger, said.memory_id, name, reason)
