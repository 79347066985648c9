"""A console on a ledger with something of everything in it, and nothing else: no worker, no destination, no entry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page

from actonce.contracts.people import Role
from actonce.ledger import sessions
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger
from tests.browser.visiting import NAMES, Visited
from tests.integration.console_stage import Stage, stage

ROOT = Path(__file__).parents[2]


@dataclass(kw_only=True)
class Staged(Visited):
    """Use `staged`. People are signed in without a password: that is tested elsewhere."""

    stage: Stage

    @contextlib.asynccontextmanager
    async def signed_in(self, browser: Browser, who: str | Role = Role.ADMIN, **options: Any) -> AsyncIterator[Page]:
        role = Role(who)
        if role not in self.states:
            _, value = await sessions.sign_in_by_provider(self.stage.ledger, "tests", role, NAMES[role], [role])
            name = f"actonce-session-{self.url.rpartition(':')[2]}"
            cookie = {"name": name, "value": value, "domain": "127.0.0.1", "path": "/", "expires": -1}
            kept = {"httpOnly": True, "secure": False, "sameSite": "Strict"}
            self.states[role] = {"cookies": [cookie | kept], "origins": []}
        async with self.visiting(browser, storage_state=self.states[role], **options) as page:
            yield page


@contextlib.asynccontextmanager
async def staged(dsn: str, log: Path) -> AsyncIterator[Staged]:
    """Stage the ledger at `dsn`, and run a console on it."""
    migrate(dsn)
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("ACTONCE_", "TEMPORAL_"))}
    mine |= {"ACTONCE_LEDGER_DSN": dsn, "ACTONCE_CONSOLE_PORT": "0", "PYTHONPATH": str(ROOT)}
    mine |= {"ACTONCE_TEMPORAL_UI_URL": "http://127.0.0.1:8233", "ACTONCE_STALE_AFTER_S": "3600"}
    async with Ledger(dsn) as ledger:
        on = await stage(ledger)
        with log.open("w") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "actonce.console"), env=mine, stdout=asyncio.subprocess.PIPE, stderr=file
            )
        try:
            assert process.stdout is not None
            line = await process.stdout.readline()
            assert line, log.read_text()
            yield Staged(url=json.loads(line)["url"], stage=on)
        finally:
            process.kill()
            await process.wait()
