"""The deployment that the browser tests look at: every part real, and refunds that got stuck for real.

PostgreSQL, Temporal, the sandbox destinations, a worker, a watcher, the entry service and the console, each a process.
Some refunds went well. Then the destination's answers get lost and its read routes go down, and stay down: what is
started then is held, for `route_unavailable`, until a person decides. Two contract rules make larger refunds wait for
approval. Four people can sign in, one for each role.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from actonce.contracts.people import Role, Scope
from actonce.ledger import people, tokens
from actonce.ledger.store import Ledger
from actonce.testing.processes import Process
from actonce.testing.waiting import eventually
from tests.browser.visiting import NAMES, PASSWORD, SECOND_OPERATOR, Visited
from tests.integration.cases.kit import Bench, Lab

HELD_WITHIN_S = 120.0  # six seconds on a quiet machine
ASKS_OVER_MINOR, BRIEFLY_OVER_MINOR = 10_000, 1_000_000
BRIEFLY_S = 3.0
APPROVALS = [
    {"action": "refund", "over_minor": ASKS_OVER_MINOR, "valid_s": 7200.0},
    {"action": "refund", "over_minor": BRIEFLY_OVER_MINOR, "valid_s": BRIEFLY_S},
]


@dataclass(kw_only=True)
class Deployment(Visited):
    """Use `deployment`."""

    bench: Bench
    ledger: Ledger
    entry: httpx.AsyncClient
    console: Process
    held: list[str] = field(default_factory=list)  # operations that nobody has decided about yet
    token: str = ""  # the console's own
    started: int = 0

    # tasks -----------------------------------------------------------------------------------------------------------

    async def start(
        self, amount_minor: int = 1250, *, kind: str = "single", key: str | None = None, **more: Any
    ) -> str:
        """Start a task; returns its id. `single` is one refund; `refund` is the refund, a ticket and a mail."""
        self.started += 1
        key = key or f"order-{1000 + self.started}"
        refund = {"payment_id": f"pay_{key}", "amount_minor": amount_minor, "currency": "EUR", "reason": "damaged"}
        refund |= {name: value for name, value in more.items() if name in refund}
        payload: dict[str, Any] = {"destination": "payments", "action": "refund", "payload": refund}
        if kind == "refund":
            payload = {**refund, "customer": more.get("customer", "ann@example.com")}
        if "requested_by" in more:
            payload["requested_by"] = more["requested_by"]
        answer = await self.entry.post(f"/v1/tasks/{kind}", json=payload, headers={"Idempotency-Key": key})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["task_id"])

    async def task(self, task_id: str) -> dict[str, Any]:
        answer = await self.entry.get(f"/v1/tasks/{quote(task_id, safe='')}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def until(self, task_id: str, *states: str) -> dict[str, Any]:
        """Wait until the task is in one of these states."""

        async def check() -> dict[str, Any] | None:
            task = await self.task(task_id)
            return task if task["state"] in states else None

        return await eventually(check, within_s=HELD_WITHIN_S, what=f"{task_id} {' or '.join(states)}", every_s=0.1)

    async def operation(self, operation_id: str) -> dict[str, Any]:
        answer = await self.entry.get(f"/v1/operations/{operation_id}")
        assert answer.status_code == 200, answer.text
        (record,) = answer.json()["records"]
        return dict(record)

    async def until_operation(self, operation_id: str, *states: str, attempts: int = 0) -> dict[str, Any]:
        """Wait until the operation is in one of these states, after so many attempts. Returns its record."""

        async def check() -> dict[str, Any] | None:
            record = await self.operation(operation_id)
            return record if record["state"] in states and record["attempts"] >= attempts else None

        what = f"{operation_id} {' or '.join(states)}"
        return await eventually(check, within_s=HELD_WITHIN_S, what=what, every_s=0.1)

    async def one_held(self) -> str:
        """A held operation that is this test's own."""
        if not self.held:
            self.held += await self._hold(1)
        return self.held.pop()

    async def _hold(self, count: int) -> list[str]:
        tasks = [await self.start() for _ in range(count)]
        found = await asyncio.gather(*(self.until(task, "held") for task in tasks))
        return [task["operations"][0]["operation_id"] for task in found]

    async def one_asked(self, amount_minor: int = ASKS_OVER_MINOR + 1, **more: Any) -> str:
        """An approval that people are asked for. Returns its id."""
        task_id = await self.start(amount_minor, **more)

        async def check() -> str | None:
            answer = await self.entry.get("/v1/approvals", params={"task_id": task_id})
            return str(found[0]["approval_id"]) if (found := listed(answer)) else None

        return await eventually(check, within_s=HELD_WITHIN_S, what=f"{task_id} asks people", every_s=0.1)

    # people ----------------------------------------------------------------------------------------------------------

    async def person(self, name: str, *roles: Role) -> None:
        await people.add_person(self.ledger, name, roles, password=PASSWORD, by="tests")

    async def disable(self, name: str) -> None:
        await people.disable(self.ledger, name, by="tests")

    # processes -------------------------------------------------------------------------------------------------------

    async def restart_console(self) -> None:
        """Stopped as a deployment stops it, and started again where it was."""
        self.console.signal(signal.SIGTERM)
        await self.console.ended()
        self.console = await start_console(self.bench, self.entry, self.token, port=urlsplit(self.url).port or 0)


def listed(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return list(found if isinstance(found, list) else found["items"])


async def start_console(bench: Bench, entry: httpx.AsyncClient, token: str, port: int = 0) -> Process:
    return await bench.start(
        "-m actonce.console",
        role="console",
        ACTONCE_CONSOLE_PORT=str(port),
        ACTONCE_CONSOLE_TOKEN=token,
        ACTONCE_ENTRY_URL=str(entry.base_url),
        ACTONCE_TEMPORAL_UI_URL=bench.lab.parts.stack.temporal_ui_url or "",
        ACTONCE_DEPLOYMENT="default",
    )


@contextlib.asynccontextmanager
async def deployment(lab: Lab, *, held: int) -> AsyncIterator[Deployment]:
    """Bring it up: two refunds done, then trouble, `held` operations held by it."""
    contracts = {"payments": {"approvals": APPROVALS}}
    async with contextlib.AsyncExitStack() as cleanup:
        bench = await cleanup.enter_async_context(lab.bench(contracts=contracts))
        ledger = await cleanup.enter_async_context(Ledger(bench.dsn))
        for role, name in [*NAMES.items(), (Role.OPERATOR, SECOND_OPERATOR)]:
            await people.add_person(ledger, name, [role], password=PASSWORD, by="tests")
        _, console_token = await tokens.create_token(ledger, "console", [Scope.ACT_FOR], by="tests")
        _, mine = await tokens.create_token(ledger, "tests", set(Scope) - {Scope.ACT_FOR}, by="tests")
        url, _, _ = await asyncio.gather(bench.entry(), bench.worker(), bench.watch())
        bearer = {"Authorization": f"Bearer {mine}"}
        entry = await cleanup.enter_async_context(httpx.AsyncClient(base_url=url, headers=bearer, timeout=30))
        console = await start_console(bench, entry, console_token)
        made = Deployment(
            url=str(console.ready["url"]), bench=bench, ledger=ledger, entry=entry, console=console, token=console_token
        )
        good = [await made.start(kind="refund", key=f"order-{n}") for n in (981, 982)]
        for task_id in good:
            await made.until(task_id, "complete")
        lose = {"kind": "close", "when": "after_commit", "times": None}
        await bench.configure(answer=lose, routes={"*": {"mode": "down"}})
        made.held += await made._hold(held)
        yield made
