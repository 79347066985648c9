"""What all drills of a session share: the servers, a zygote that forks the project's programs, a ledger to copy.

Contract: the servers are given, started and stopped by whoever gave them. Every drill gets a ledger database of its
own, a copy of one that was migrated by a process of its own. The programs start without the settings of whoever started
the drill. Nothing of the system under test is imported here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from actonce.stack import Stack
from actonce.stack.zygote import Zygote
from actonce.testing.faults import Proxied

# Imported once, before any program is forked; what a program needs beyond these it imports itself.
PRELOADED = (
    "temporalio.client",
    "temporalio.worker",
    "temporalio.contrib.pydantic",
    "temporalio.envconfig",
    "psycopg",
    "psycopg_pool",
    "httpx",
    "pydantic_settings",
    "structlog",
    "actonce.testing.preloading",
    "actonce.ledger.migrate",
    "actonce.settings",
    "actonce.effects.watcher",
    "actonce.effects.activities",
)
OPERATOR, HURRIED, OWNER = "operator on call", "somebody in a hurry", "owner of the credential"
APPROVER, ASKER = "Ada Approver", "Bea Asker"  # who asks anew for an approval cannot give it
PEOPLE = {  # who may sign in, and as what
    OPERATOR: "operator",
    HURRIED: "operator",
    OWNER: "admin",
    APPROVER: "approver",
    ASKER: "approver",
}
# What every copy begins with: the tables, an empty memory, a token that is good at every entry on a copy, one for its
# console, and people who may sign in there, made as `actonce up` makes them.
_MAKE = """
import asyncio, json, os, secrets
from actonce.contracts.people import Role, Scope
from actonce.ledger.migrate import migrate
from actonce.ledger.people import add_person
from actonce.ledger.store import Ledger
from actonce.ledger.tokens import create_token
from actonce.memory import HashingEmbedder
from actonce.memory.setting_up import set_up

async def access(dsn):
    password = secrets.token_urlsafe(18)
    async with Ledger(dsn, pool_max=1) as ledger:
        for name, role in json.loads(os.environ["PEOPLE"]).items():
            await add_person(ledger, name, [Role(role)], password=password, by="drills")
        return {
            "token": (await create_token(ledger, "drills", set(Scope) - {Scope.ACT_FOR}, by="drills"))[1],
            "console_token": (await create_token(ledger, "console", {Scope.ACT_FOR}, by="drills"))[1],
            "password": password,
        }

dsn = os.environ["ACTONCE_LEDGER_DSN"]
migrate(dsn), set_up(dsn, HashingEmbedder())
print(json.dumps(asyncio.run(access(dsn))))
"""


@dataclass(frozen=True)
class Access:
    """What opens the entry and the console of every ledger that was copied from one template."""

    token: str
    console_token: str
    password: str  # of each of PEOPLE


@dataclass
class Parts:
    """Use `open_parts`."""

    stack: Stack
    temporal: Client
    zygote: Zygote
    template: str  # name of the migrated, empty ledger database, with an empty memory in it
    access: Access  # to every ledger made from it
    env: dict[str, str]  # of every process
    project: Path
    folder: Path
    temporal_of_its_own: Stack | None = None  # a server that this drill may kill; `temporal` is connected to it

    @property
    def temporal_address(self) -> str:
        return (self.temporal_of_its_own or self.stack).temporal_address

    @contextlib.asynccontextmanager
    async def with_own_temporal(self, folder: Path) -> AsyncIterator[Parts]:
        """The same parts with another Temporal, which nobody else uses."""
        async with Stack.open(folder, {"temporal"}) as own:
            client = await Client.connect(own.temporal_address, data_converter=pydantic_data_converter)
            yield dataclasses.replace(self, temporal=client, temporal_of_its_own=own)

    def dsn(self, database: str) -> str:
        """Of a database, straight to the server."""
        return urlunsplit(urlsplit(self.stack.ledger_dsn)._replace(path=f"/{database}"))

    @property
    def shown(self) -> dict[str, str]:
        """The headers of a request to an entry."""
        return {"Authorization": f"Bearer {self.access.token}"}

    async def make_ledger(self, database: str) -> str:
        """One more empty, migrated ledger; returns its DSN."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        async with await psycopg.AsyncConnection.connect(self.stack.ledger_dsn, autocommit=True) as link:
            await link.execute(statement.format(sql.Identifier(database), sql.Identifier(self.template)))
        return self.dsn(database)


@contextlib.asynccontextmanager
async def open_parts(
    stack: Stack, project: Path, folder: Path, preloaded: Sequence[str] = PRELOADED
) -> AsyncIterator[Parts]:
    """On running servers (PostgreSQL, Temporal), for the programs of the project in `project`. Logs go to `folder`."""
    env = base_environment(stack, project)
    async with await Zygote.start(preloaded, log=folder / "logs" / "zygote.log", cwd=project, env=env) as zygote:
        template, access = await _template_ledger(stack, env, project)
        client = await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)
        yield Parts(stack, client, zygote, template, access, env, project, folder)


def base_environment(stack: Stack, project: Path) -> dict[str, str]:
    """What every process gets: ours, without the settings of whoever started the drill."""
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("ACTONCE_", "TEMPORAL_"))}
    shared = {k: v for k, v in stack.settings().items() if k.startswith("TEMPORAL_")}
    path = os.pathsep.join([str(project), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**mine, **shared, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}


async def _template_ledger(stack: Stack, env: dict[str, str], project: Path) -> tuple[str, Access]:
    name = f"ledger_template_{secrets.token_hex(4)}"
    async with await psycopg.AsyncConnection.connect(stack.ledger_dsn, autocommit=True) as link:
        await link.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    dsn = urlsplit(stack.ledger_dsn)._replace(path=f"/{name}").geturl()
    migration = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MAKE),
        env={**env, "ACTONCE_LEDGER_DSN": dsn, "PEOPLE": json.dumps(PEOPLE)},
        cwd=project,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await migration.communicate()
    if migration.returncode != 0:
        raise RuntimeError(f"the ledger could not be migrated:\n{said.decode(errors='replace')[-2000:]}")
    return name, Access(**json.loads(said.decode().splitlines()[-1]))


def address(url: str) -> tuple[str, int]:
    """Host and port of an address. Raises ValueError without echoing it: a DSN holds a password."""
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"{parts.scheme or 'address'} without host and port")
    return parts.hostname, parts.port


def through(dsn: str, proxy: Proxied) -> str:
    """The same database by way of a proxy."""
    parts = urlsplit(dsn)
    login, _, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}@{proxy.host}:{proxy.port}", query=""))
