"""A destination with a shelf that can be listed, and a ledger that is restored from a copy made at the boundary."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from actonce.contracts.contract import Bounded, Contract
from actonce.contracts.errors import RouteUnavailable, Unknown
from actonce.contracts.messages import IssueResult, OperationRequest
from actonce.contracts.verdict import Page, Receipt, Row
from actonce.destinations.base import Call, Destination, Lookup, Registry
from actonce.effects.perform import perform
from actonce.effects.system import System, register_contracts, this_process
from actonce.ledger.restoring import Boundary, Restore, enter_quarantine
from actonce.ledger.store import Ledger
from actonce.testing.waiting import eventually
from tests.integration.odd_bench import TWO_ROUTES, contract

LISTABLE = contract(late_arrival=Bounded(transit_s=0.1, enforced_by="the test"), routes=TWO_ROUTES)


class Crash(BaseException):
    """What ends a process at this very point: nothing catches it."""


class Shelf:
    """Keeps what was sent and shows it, page by page, on two routes."""

    def __init__(self, page_size: int = 100) -> None:
        self.things: list[Row] = []
        self._made = itertools.count(1)
        self.page_size = page_size
        self.loses_answers = False
        self.pages_read = 0  # of questions for everything
        self.crash_at: int | None = None  # before this page of those is answered
        self.down: set[int] = set()  # pages of those that are not answered
        self.sent: list[str] = []

    def put(self, operation_id: str, digest: str | None, **more: Any) -> Row:
        shown = {"kind": "thing", "account": "acct", "own_field": True, "by_us": True}
        made = {"object_id": f"thing-{next(self._made):06d}", "committed_at": datetime.now(UTC)}
        values = {**shown, **made, "marker": operation_id, "digest": digest, **more}
        self.things.append(Row.model_validate(values))
        return self.things[-1]

    async def send(self, call: Call) -> Receipt:
        async with call.window():
            pass
        self.sent.append(call.operation_id)
        made = self.put(call.key, call.digest)
        if self.loses_answers:
            raise Unknown("the answer was lost")
        return Receipt(object_id=made.object_id, digest=call.digest)

    async def read(self, look: Lookup, cursor: str | None) -> Page:
        start = int(cursor or 0)
        shown = self.things[start : start + self.page_size]
        if look.everything:
            number, self.pages_read = self.pages_read, self.pages_read + 1
            if number == self.crash_at:
                raise Crash
            if number in self.down:
                raise RouteUnavailable("no answer")
        upto = start + self.page_size
        return Page(
            rows=tuple(row for row in shown if look.everything or row.marker in look.markers),
            rows_received=len(shown),
            declared_total=len(self.things),
            next_cursor=str(upto) if upto < len(self.things) else None,
            as_of=datetime.now(UTC),
        )

    def destination(self, of: Contract = LISTABLE) -> Destination:
        routes = {route.name: self.read for route in of.routes}
        return Destination(of, send=self.send, routes=routes, lists_all=frozenset(routes))


@asynccontextmanager
async def process(dsn: str, *destinations: Destination) -> AsyncIterator[System]:
    """One process that works on a ledger; afterwards it is gone, with its connections."""
    async with Ledger(dsn, deadline_s=30) as ledger:
        system = System(ledger, Registry(destinations), this_process())
        await register_contracts(ledger, system.registry)
        yield system
        await system.drain(0.0)


async def send(system: System, asked: OperationRequest) -> IssueResult:
    """Issue it. On a machine that is busy enough, a send is sometimes provably not made: then once more."""
    while (result := await perform(system, asked)).how == "not_sent":
        assert result.status == "ready", result
    return result


async def copy_of(dsn: str) -> str:
    """A backup: the whole database as it is now, beside it. Nobody may be connected to it."""
    name = f"restored_{secrets.token_hex(6)}"
    server, _, database = dsn.rpartition("/")
    async with await psycopg.AsyncConnection.connect(f"{server}/postgres", autocommit=True) as link:
        await link.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(database))
        )
    return f"{server}/{name}"


async def now_of(dsn: str) -> datetime:
    async with await psycopg.AsyncConnection.connect(dsn) as link:
        row = await (await link.execute("SELECT clock_timestamp()")).fetchone()
    assert row is not None
    return row[0]  # type: ignore[no-any-return]


async def quarantine(dsn: str, boundary_at: datetime) -> Restore:
    """What `actonce restore` does before any process of ours starts."""
    async with Ledger(dsn, deadline_s=30) as ledger, ledger.transaction() as connection:
        return await enter_quarantine(connection, Boundary(boundary_at))


async def past_bounds(dsn: str, restore: Restore) -> None:
    async def passed() -> bool:
        return await now_of(dsn) > restore.bounds_until

    await eventually(passed, within_s=60, what="the bounds of the restore passed", every_s=0.1)


async def rows(dsn: str, table: str) -> list[dict[str, Any]]:
    query = sql.SQL("SELECT * FROM actonce.{}").format(sql.Identifier(table))
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as link:
        return await (await link.execute(query)).fetchall()


async def run_sql(dsn: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:
        await link.execute(statement)  # type: ignore[arg-type]
