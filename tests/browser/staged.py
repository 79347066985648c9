"""A console on a ledger with something of everything in it, beside a real entry service.

PostgreSQL, entry and console are real, each a process. No worker and no destination: what they would have reported is
reported by the ledger's own functions (`tests/integration/console_stage.py`), so nothing moves unless a test moves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.async_api import Browser, Page

from actonce.contracts.people import Role, Scope
from actonce.contracts.verdict import Outcome, Reason, Verdict
from actonce.ledger import decisions, people, tokens
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from tests.browser.visiting import NAMES, PASSWORD, Visited, browser_state
from tests.integration.console_stage import Stage, stage

ROOT = Path(__file__).parents[2]


@dataclass(kw_only=True)
class Staged(Visited):
    """Use `staged`. Each test takes operations and approvals of its own."""

    stage: Stage
    entry: httpx.AsyncClient
    process: Process
    env: dict[str, str]
    log: Path
    names: dict[str, str] = field(default_factory=dict)  # operation_id → name on the stage
    taken: int = 0

    @property
    def ledger(self) -> Ledger:
        return self.stage.ledger

    def name(self, prefix: str) -> str:
        self.taken += 1
        return f"{prefix}-{self.taken}"

    # operations and approvals ----------------------------------------------------------------------------------------

    async def one_held(self, name: str | None = None, **payload: Any) -> str:
        """A held operation that may be decided about. Returns its id."""
        name = name or self.name("stuck")
        await self.stage.task(name, **payload)
        return await self._hold(name)

    async def _hold(self, name: str) -> str:
        operation = await self.stage.held(name)
        async with self.ledger.transaction() as connection:  # the last bound has passed
            await connection.execute(
                "UPDATE actonce.operation SET decide_at = clock_timestamp(), may_commit_until = clock_timestamp()"
                " WHERE operation_id = %s",
                (operation.operation_id,),
            )
        self.names[operation.operation_id] = name
        return operation.operation_id

    async def take_effect(self, operation_id: str) -> str:
        """As the workflow does: read the destination once more, which shows nothing, then consume the decision."""
        decision = await decisions.pending(self.ledger, self.stage.key(self.names[operation_id]))
        assert decision is not None
        fresh = Verdict(outcome=Outcome.AMBIGUOUS, reason=Reason.ROUTE_UNAVAILABLE, words="the statement is still down")
        operation, how = await decisions.consume(self.ledger, decision, fresh)
        assert how == "applied", how
        return operation.state.value

    async def lose_again(self, operation_id: str) -> None:
        """The permitted retry is sent, and its answer is lost as well."""
        await self._hold(self.names[operation_id])

    async def operation(self, operation_id: str) -> dict[str, Any]:
        answer = await self.entry.get(f"/v1/operations/{operation_id}")
        assert answer.status_code == 200, answer.text
        (record,) = answer.json()["records"]
        return dict(record)

    async def one_asked(self, **more: Any) -> str:
        """An approval that people are asked for. Returns its id."""
        name = self.name("asks")
        await self.stage.task(name)
        return await self.stage.ask(name, **more)

    async def one_asked_and_held(self) -> tuple[str, str]:
        """An approval of a step whose operation is held. Returns the ids of both."""
        approval_id = await self.one_asked()
        return approval_id, await self._hold(f"asks-{self.taken}")

    async def approval(self, approval_id: str) -> dict[str, Any]:
        answer = await self.entry.get(f"/v1/approvals/{approval_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    # people ----------------------------------------------------------------------------------------------------------

    async def person(self, name: str, role: Role) -> None:
        """Somebody with a password."""
        await people.add_person(self.ledger, name, [role], password=PASSWORD, by="tests")

    @contextlib.asynccontextmanager
    async def signed_in(
        self, browser: Browser, role: Role = Role.OPERATOR, name: str | None = None, **options: Any
    ) -> AsyncIterator[Page]:
        """A page of somebody's own browser, signed in without a password: the form is tested by itself."""
        name = name or NAMES[role]
        if name not in self.states:
            self.states[name] = await browser_state(self.ledger, self.url, name, role)
        async with self.visiting(browser, storage_state=self.states[name], **options) as page:
            yield page

    # processes -------------------------------------------------------------------------------------------------------

    async def restart_console(self) -> None:
        """Stopped as a deployment stops it, and started again where it was."""
        self.process.send_signal(signal.SIGTERM)
        await self.process.wait()
        port = str(urlsplit(self.url).port)
        self.process, _ = await started("actonce.console", self.env | {"ACTONCE_CONSOLE_PORT": port}, self.log)


async def started(module: str, env: dict[str, str], log: Path) -> tuple[Process, str]:
    """Start one program. Returns it and the address that it says it has."""
    with log.open("a") as file:
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, env=env, stdout=PIPE, stderr=file)
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, log.read_text()
    return process, str(json.loads(line)["url"])


@contextlib.asynccontextmanager
async def staged(dsn: str, folder: Path) -> AsyncIterator[Staged]:
    """Stage the ledger at `dsn`, and run entry and console on it. Logs go to `folder`."""
    migrate(dsn)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ACTONCE_", "TEMPORAL_"))}
    env |= {"ACTONCE_LEDGER_DSN": dsn, "TEMPORAL_ADDRESS": "127.0.0.1:1", "PYTHONPATH": str(ROOT)}
    env |= {"ACTONCE_ENTRY_PORT": "0", "ACTONCE_CONSOLE_PORT": "0", "ACTONCE_START_DEADLINE_S": "0.2"}
    env |= {"ACTONCE_TEMPORAL_UI_URL": "http://127.0.0.1:8233", "ACTONCE_STALE_AFTER_S": "3600"}
    async with contextlib.AsyncExitStack() as cleanup:
        ledger = await cleanup.enter_async_context(Ledger(dsn))
        on = await stage(ledger)
        _, speaks = await tokens.create_token(ledger, "console", [Scope.ACT_FOR], by="tests")
        _, mine = await tokens.create_token(ledger, "tests", set(Scope) - {Scope.ACT_FOR}, by="tests")
        entry, entry_url = await started("actonce.entry", env, folder / "entry.log")
        cleanup.push_async_callback(_end, lambda: entry)
        env |= {"ACTONCE_ENTRY_URL": entry_url, "ACTONCE_CONSOLE_TOKEN": speaks}
        console, url = await started("actonce.console", env, folder / "console.log")
        bearer = {"Authorization": f"Bearer {mine}"}
        http = await cleanup.enter_async_context(httpx.AsyncClient(base_url=entry_url, headers=bearer, timeout=60))
        made = Staged(url=url, stage=on, entry=http, process=console, env=env, log=folder / "console.log")
        cleanup.push_async_callback(_end, lambda: made.process)
        yield made


async def _end(which: Any) -> None:
    process: Process = which()
    if process.returncode is None:
        process.kill()
        await process.wait()
