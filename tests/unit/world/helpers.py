"""A running world in this process, and calls as the library would make them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from actonce.contracts.contract import Contract
from actonce.contracts.identity import derive_operation_id
from actonce.contracts.payload import business_fields, payload_digest
from actonce.contracts.verdict import Page, Row
from actonce.destinations import Call, Destination, Lookup
from actonce.destinations.sandbox import SandboxSettings, build_sandbox
from drills.world import app
from drills.world.client import World

SECRET = "secret-of-this-test"
REFUND = {"payment_id": "pay_1", "amount_minor": 1250, "currency": "EUR", "reason": "damaged"}
_numbers = itertools.count(1)


@asynccontextmanager
async def running_world(folder: Path) -> AsyncIterator[World]:
    served = app.World(folder, "run-test", SECRET)
    path = await served.start()
    client = World.load(path)
    try:
        yield client
    finally:
        await client.close()
        await served.stop()


async def eventually(check: Callable[[], Any], within_s: float = 5.0) -> Any:
    """Return the first truthy result of `check`; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        result = check()
        if isinstance(result, Awaitable):
            result = await result
        if result:
            return result
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


class Window:
    """A fence that records what it saw and can refuse."""

    def __init__(self, refuse: Exception | None = None) -> None:
        self.refuse = refuse
        self.events: list[str] = []

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        if self.refuse is not None:
            self.events.append("refused")
            raise self.refuse
        self.events.append("entered")
        try:
            yield
        finally:
            self.events.append("left")


def settings(world: World, account: str, **changes: Any) -> SandboxSettings:
    return SandboxSettings(listeners=world.listeners, account=account, **changes)


def destination(world: World, account: str, name: str = "payments", **changes: Any) -> Destination:
    built = build_sandbox(settings(world, account, **changes))
    return next(d for d in built if d.contract.name == name)


def make_call(
    contract: Contract,
    payload: dict[str, Any] | None = None,
    *,
    operation_id: str | None = None,
    key: str | None = None,
    window: Window | None = None,
    not_after_in_s: float = 3.0,
    deadline_s: float = 3.0,
) -> Call:
    payload = REFUND if payload is None else payload
    (action,) = contract.actions
    op = operation_id or derive_operation_id("t", f"task-{next(_numbers)}", "step", 0)
    end = time.monotonic() + deadline_s
    return Call(
        tenant="t",
        destination=contract.name,
        action=action,
        operation_id=op,
        key=key or op,
        payload=payload,
        digest=payload_digest(
            tool=f"{contract.name}.{action}",
            destination=contract.name,
            action=action,
            account=contract.account,
            fields=business_fields(payload, contract.business_fields),
        ),
        account=contract.account,
        task_id="t/refund/1",
        epoch=1,
        attempt=1,
        not_after=datetime.now(UTC) + timedelta(seconds=not_after_in_s),
        window=window or Window(),
        time_left_s=lambda: end - time.monotonic(),
    )


def lookup_for(call: Call, *beacons: str, object_id: str | None = None) -> Lookup:
    return Lookup(
        tenant=call.tenant,
        destination=call.destination,
        action=call.action,
        operation_id=call.operation_id,
        markers=(call.key, *beacons),
        digest=call.digest,
        account=call.account,
        object_id=object_id,
        since=datetime.now(UTC),
        not_after=call.not_after,
        deadline_s=3.0,
    )


async def read_all(dest: Destination, route: str, lookup: Lookup, pages_max: int = 50) -> tuple[list[Row], list[Page]]:
    """Read a route to its end."""
    rows: list[Row] = []
    pages: list[Page] = []
    cursor: str | None = None
    for _ in range(pages_max):
        page = await dest.routes[route](lookup, cursor)
        pages.append(page)
        rows += page.rows
        cursor = page.next_cursor
        if cursor is None:
            break
    return rows, pages


def effects(world: World, account: str) -> list[dict[str, Any]]:
    return [line for line in world.journal() if line["kind"] == "effect" and line["account"] == account]


def writes(world: World, account: str) -> list[dict[str, Any]]:
    return [
        line
        for line in world.journal()
        if line["kind"] == "request" and line["account"] == account and line["listener"].endswith(".write")
    ]
