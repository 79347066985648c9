"""Points inside one send or one reading at which a case can stop it: a real adapter that waits before it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from actonce.contracts.verdict import Page, Receipt
from actonce.destinations.base import Call, Destination, Lookup
from actonce.effects.fence import FENCE_FRESH_S


@dataclass
class Gate:
    """`reached` is set by who arrives; `go` lets it on."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_through(self) -> None:
        self.reached.set()
        await self.go.wait()
        await past_the_commit()


async def past_the_commit() -> None:
    """A permit's commit is a fence too, for a moment; whoever goes on after this has to ask again, on any machine."""
    await asyncio.sleep(2 * FENCE_FRESH_S)


def before_fence(gate: Gate, instead: Exception | None = None) -> Callable[[Destination], Destination]:
    """The owner has its permit and stands before its fence. `instead`: it then fails so and sends nothing."""

    def change(destination: Destination) -> Destination:
        async def send(call: Call) -> Receipt:
            await gate.pass_through()
            if instead is not None:
                raise instead
            return await destination.send(call)

        return replace(destination, send=send) if destination.contract.name == "payments" else destination

    return change


def after_reading(gate: Gate, route: str = "log") -> Callable[[Destination], Destination]:
    """The reconciler has read everything and stands before its verdict."""

    def change(destination: Destination) -> Destination:
        if destination.contract.name != "payments":
            return destination
        read = destination.routes[route]

        async def slow(lookup: Lookup, cursor: str | None) -> Page:
            page = await read(lookup, cursor)
            await gate.pass_through()
            return page

        return replace(destination, routes={**destination.routes, route: slow})

    return change
