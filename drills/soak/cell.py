"""The deployment of a soak: one cell that lives long, and whose record is a cell line for each window.

Contract: whatever is recorded while a window plays goes under its name, and what concerns an operation or task under
the name of the window that planned it. What the taps saw is written down as soon as it is over, so that a soak does not
grow in memory. A resumed soak finds its ledger, its memory and its destinations' journal as they were, and starts new
processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from actonce.testing.parts import Access, address
from actonce.testing.processes import Process
from actonce.testing.tap import Exchange
from drills.rig import Cell, CellSpec, Run
from drills.script import Wanted
from drills.soak.state import SoakState

Submit = Callable[[tuple[Wanted, ...]], Awaitable[Any]]
Attach = Callable[[Cell], AbstractAsyncContextManager[dict[str, str]]]


class LatchHeld:
    """A latch at the world's payments, as `actonce.testing.strikes` wants it."""

    def __init__(self, cell: Cell, latch_id: str) -> None:
        self._cell = cell
        self._latch_id = latch_id

    async def hit(self) -> dict[str, Any]:
        """Wait until the operation stands there. Raises WorldError when it does not come."""
        return await self._cell.run.world.wait_latch(self._cell.account, self._latch_id, wait_s=45.0)

    async def release(self) -> list[str]:
        return await self._cell.run.world.release(self._cell.account, self._latch_id)


class SoakCell(Cell):
    """Use `async with`. `state` is None for a control, which is short and cannot be resumed."""

    def __init__(self, run: Run, spec: CellSpec, state: SoakState | None) -> None:
        super().__init__(run, spec)
        self.state = state
        self.life = state.lives if state is not None else 1
        self.folder = run.folder / "cells" / f"{spec.number}-{self.life}"
        self.resume_tried = False
        self.hold_seen = False
        self._started = spec.workers

    async def __aenter__(self) -> SoakCell:
        await super().__aenter__()
        del self.run.cells[self.account]  # its lines belong to windows, by operation: see `Run.place`
        del self.run.channels[self.channel]
        return self

    @property
    def pictured(self) -> bool:
        return self.state is not None and self.run.pictured is not None

    async def make_ground(self) -> None:
        if self.life == 1:
            await super().make_ground()
            if self.state is not None:
                self.state.access = self.parts.access
            return
        self.folder.mkdir(parents=True)
        await self.make_fronts()

    @property
    def access(self) -> Access:
        kept = self.state.access if self.state is not None else None
        return kept or super().access

    async def _make_memory(self) -> str:
        if self.state is None:
            return await super()._make_memory()
        if self.state.memory_dsn is None:
            self.state.memory_dsn = await super()._make_memory()
        return self.state.memory_dsn

    async def latch(self, operation_id: str, point: str = "committed") -> LatchHeld:
        """A latch for one operation."""
        return LatchHeld(self, await self.run.world.latch(self.account, point, operation_id=operation_id))

    async def top_up(self, *, keep: int | None = None) -> list[Process]:
        """Workers again, up to as many as there should be."""
        self.workers = [worker for worker in self.workers if worker.alive]
        fresh = []
        for _ in range((keep or self.spec.workers) - len(self.workers)):
            self._started += 1
            fresh.append(await self.start_program(f"worker-{self._started}", *self.spec.worker))
        self.workers += fresh
        await asyncio.gather(*(process.until_ready() for process in fresh))
        return fresh

    async def calm(self) -> None:
        """Nothing of a strike is left in the way, whatever it came to: no latch, no gate, no toxic, no mode."""
        await self.run.world.release(self.account)
        for tap in self.taps.values():
            if tap.gate is not None:
                tap.gate.open()
                tap.gate = None
        await self.faults.calm()
        await self.heal_routes()

    def flush(self) -> None:
        """Write down what the taps saw and is over, and forget it."""
        for tap in self.taps.values():
            over = [seen for seen in tap.exchanges if seen.ended_by is not None]
            tap.exchanges[:] = [seen for seen in tap.exchanges if seen.ended_by is None]
            for seen in over:
                self._record_exchange(seen)

    def _record_exchange(self, seen: Exchange) -> None:
        own, self.name = self.name, self.run.place(seen.operation_id, None) or self.name
        try:
            super()._record_exchange(seen)
        finally:
            self.name = own

    def front(self, name: str) -> tuple[str, int]:
        """Host and port of a proxy of this cell."""
        return self.proxies[name].host, self.proxies[name].port

    def behind(self, name: str) -> tuple[str, int]:
        """Host and port of what is behind it."""
        return address(f"//{self.proxies[name].upstream}")


def soak_spec(
    name: str, number: int, control: str | None, settings: Mapping[str, Any], attach: Attach | None = None
) -> CellSpec:
    """The soak's deployment: the programs of the project, or those with one protection taken out."""

    def program(verb: str) -> tuple[str, ...]:
        return ("-m drills.controls.broken", control, verb) if control else ("worker.py", verb)

    return CellSpec(
        name=name,
        number=number,
        arm="guarded" if control is None else f"control:{control}",
        worker=program("run"),
        watch=program("watch"),
        entry=("-m actonce.entry",),
        own_memory=True,
        settings=dict(settings),
        env={"ACTONCE_PROBE_EVERY_S": "2"},
        attach=attach,
    )
