"""A cell's console, and who sits at it: one process of the system for as long as the cell lives, started when it is
first looked at.

Contract: the door is chosen by one rule, `door_of`: in the cell that its drill pictures, where a browser can be opened,
people use it; everywhere else they use the console's forms over HTTP. What the console has no button for is done with
the command-line client, and is on record as such. Everybody signs in by the form; `close` leaves no session and no
browser window behind.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from actonce.testing.parts import HURRIED, OPERATOR
from actonce.testing.processes import Process
from drills.console.visitors import ByBrowser, Login, Visitor, by_browser, by_forms

if TYPE_CHECKING:
    from drills.rig import Cell


class ConsolePlace:
    """Use `Cell.console`."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._process: Process | None = None
        self._entry = ""
        self._number = 0
        self._visitors: dict[tuple[str, str], Visitor] = {}
        self._open = AsyncExitStack()
        self._starting = asyncio.Lock()

    async def url(self) -> str:
        """Where it is; started when it is not there, or speaks to an entry that is gone."""
        async with self._starting:
            entry = str(self._cell.others["entry"].ready["url"])
            if self._process is None or not self._process.alive or entry != self._entry:
                await self.close()
                self._process = await self._start(entry)
                self._entry = entry
            return str(self._process.ready["url"])

    async def _start(self, entry: str) -> Process:
        self._number += 1
        process = await self._cell.start_program(
            f"console-{self._number}",
            *self._cell.spec.console,
            ACTONCE_ENTRY_URL=entry,
            ACTONCE_CONSOLE_TOKEN=self._cell.access.console_token,
            ACTONCE_CONSOLE_PORT="0",
            ACTONCE_TEMPORAL_UI_URL=self._cell.temporal_ui_url,
        )
        await process.until_ready()
        return process

    def door_of(self, *, acts: bool = True) -> str:
        """Through which door people of this cell come. `acts` False: for somebody who only reads."""
        return "browser" if acts and self._cell.pictured and self._cell.run.screens.why_not is None else "console"

    async def visitor(self, name: str = OPERATOR, *, acts: bool = True) -> Visitor:
        """Somebody at the console, signed in when they first come."""
        login = await self.login(name)
        door = self.door_of(acts=acts)
        if (name, door) not in self._visitors:
            if door == "browser":
                coming = by_browser(login, await self._cell.run.screens.browser())
                self._visitors[name, door] = await self._open.enter_async_context(coming)
            else:
                self._visitors[name, door] = await self._open.enter_async_context(by_forms(login))
        return self._visitors[name, door]

    async def be_there(self, *names: str) -> None:
        """Whoever will act is signed in before anything happens (by default whoever is called, and who is in a hurry):
        a process and a browser take seconds, and so does the Temporal UI when it is opened for the first time."""
        for name in names or (OPERATOR, HURRIED):
            if (name, self.door_of()) in self._visitors:
                continue
            person = await self.visitor(name)
            await person.open("/")
            if isinstance(person, ByBrowser) and name == OPERATOR:
                trouble = await person.look_around(self._cell.temporal_ui_url)
                if trouble is not None:
                    self._cell.run.writer.append("drill", "note", self._cell.name, text=trouble)

    async def login(self, name: str) -> Login:
        """For one of the people who may sign in here."""
        return Login(await self.url(), name, self._cell.access.password)

    async def login_file(self, name: str) -> Path:
        """The same for a program that is given nothing else: a private file of the cell."""
        login = await self.login(name)
        path = self._cell.folder / f"login-{name.replace(' ', '-')}.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps({**vars(login), "browser": self.door_of() == "browser"}), encoding="utf-8")
        return path

    async def close(self) -> None:
        """Everybody leaves; the process, if there is one, is ended."""
        self._visitors.clear()
        await self._open.aclose()
        self._open = AsyncExitStack()
        if self._process is not None and self._process.alive:
            await self._process.kill()
        self._process = None
