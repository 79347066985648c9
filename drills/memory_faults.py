"""What is done to a memory whose port stays open, and how a witness sees it for itself.

Contract: a fault touches the memory's path or its database and nothing else: ledger, Temporal and destinations are as
they were. `observe` looks at the very place where the fault is, past the system; it is called once the fault is there
and once more when the task has stopped, so that the time in between was certainly struck.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import psycopg

from actonce.testing import witness
from actonce.testing.faults import Installed, Stream, WireFault
from actonce.testing.waiting import eventually
from drills.rig import Cell
from drills.script import Script

HELLO = struct.pack("!ii", 8, 80877103)  # PostgreSQL's SSLRequest: any server answers it with one byte at once
LISTEN_S = 2.0
POINT_S = 30.0
Submit = Callable[[], Awaitable[object]]


class MemoryFault:
    """One way to lose a memory."""

    observations: ClassVar[tuple[str, ...]] = ()
    troubles: ClassVar[frozenset[str]] = frozenset()  # what the system may call it
    self_test: ClassVar[str | None] = None
    mends_itself: ClassVar[bool] = False  # the operator's own commands are the repair

    def __init__(self, script: Script) -> None:
        self.script = script
        self.cell: Cell = script.cell
        assert self.cell.memory_dsn is not None, "a cell with own_memory"
        self.dsn = self.cell.memory_dsn

    async def strike(self, submit: Submit) -> None:
        """Break it, then start the tasks (or in the order that the fault needs)."""
        await self.install()
        await self.observe()
        await submit()

    async def install(self) -> None:
        raise NotImplementedError

    async def observe(self) -> None:
        raise NotImplementedError

    async def heal(self) -> None:
        """What somebody with access to the database or the network does."""

    def saw(self, name: str, facts: dict[str, Any]) -> None:
        self.script.observe(name, "memory", facts)

    async def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Straight to the memory's database, as its owner. Returns the rows of the last statement."""
        rows: list[tuple[Any, ...]] = []
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as link:
            for statement in statements:
                cursor = await link.execute(statement)
                rows = await cursor.fetchall() if cursor.description else []
        return rows


class OnTheWire(MemoryFault):
    """A toxic on the memory's proxy."""

    fault: ClassVar[WireFault] = WireFault.SILENT
    stream: ClassVar[Stream] = "upstream"

    async def install(self) -> None:
        self.toxic: Installed = await self.cell.proxies["memory"].install(self.fault, self.stream)

    async def observe(self) -> None:
        proxy = self.cell.proxies["memory"]
        self.saw(self.observations[-1], await witness.speak(proxy.host, proxy.port, HELLO, wait_s=LISTEN_S))

    async def heal(self) -> None:
        await self.cell.proxies["memory"].remove(self.toxic)


class SilentOnOpen(OnTheWire):
    """Accepted, no answer: on the connection that the worker has kept from its last recall."""

    observations: ClassVar[tuple[str, ...]] = ("silent",)
    troubles = frozenset({"timeout"})
    self_test = "silent_upstream"


class SilentOnNew(SilentOnOpen):
    """The same for a worker that has never connected to it."""

    async def install(self) -> None:
        await super().install()
        for worker in self.cell.workers:
            worker.signal(signal.SIGKILL)
            await worker.ended()
        await self.cell.add_workers()


class SilentInQuery(SilentOnOpen):
    """The query stands in the database when the way back goes silent: its answer is ready and never comes."""

    stream: ClassVar[Stream] = "downstream"
    observations = ("stands_in_query", "silent")
    self_test = "silent_downstream"

    async def strike(self, submit: Submit) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn) as lock:
            await lock.execute("LOCK TABLE actonce_memory.item IN ACCESS EXCLUSIVE MODE")
            await submit()
            waiting = await eventually(self._waiting, within_s=POINT_S, what=f"{self.cell.name}: a recall in its query")
            self.saw("stands_in_query", {"waiting": waiting})
            await self.install()
            await lock.rollback()
        await self.observe()

    async def _waiting(self) -> list[str]:
        rows = await self.sql(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return [str(row[0]) for row in rows]


class Slow(OnTheWire):
    """Every packet arrives, each too late: an answer takes longer than anyone waits."""

    fault: ClassVar[WireFault] = WireFault.SLOW
    stream: ClassVar[Stream] = "downstream"
    observations = ("slow",)
    troubles = frozenset({"timeout"})
    self_test = "slow_downstream"


class Reset(OnTheWire):
    """Accepted and broken off."""

    fault: ClassVar[WireFault] = WireFault.RESET
    stream: ClassVar[Stream] = "downstream"
    observations = ("broken_off",)
    troubles = frozenset({"unreachable"})
    self_test = "reset_downstream"


class WrongPassword(MemoryFault):
    """The role has another password since its sessions ended."""

    observations = ("login_refused",)
    troubles = frozenset({"login_refused"})

    def _set_password(self, password: str | None) -> str:
        info = psycopg.conninfo.conninfo_to_dict(self.dsn)
        return f"ALTER ROLE \"{info['user']}\" PASSWORD '{password or info['password']}'"

    async def install(self) -> None:
        await self._as_admin(self._set_password("another"))
        await self._as_admin(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = "
            f"'{psycopg.conninfo.conninfo_to_dict(self.dsn)['user']}'"
        )

    async def observe(self) -> None:
        error = None
        try:
            await self.sql("SELECT 1")
        except psycopg.OperationalError as caught:
            error = str(caught)
        self.saw("login_refused", {"error": error})

    async def heal(self) -> None:
        await self._as_admin(self._set_password(None))

    async def _as_admin(self, statement: str) -> None:
        async with await psycopg.AsyncConnection.connect(self.cell.run.stack.ledger_dsn, autocommit=True) as link:
            await link.execute(statement)


_STATE = (
    "SELECT (SELECT CASE WHEN indisvalid THEN 'valid' ELSE 'invalid' END FROM pg_index"
    " WHERE indexrelid = to_regclass('actonce_memory.item_embedding')), (SELECT count(*) FROM actonce_memory.item)"
)


class IndexDropped(MemoryFault):
    """The derived index is gone, the rows are there."""

    observations = ("index_gone",)
    troubles = frozenset({"index_missing"})
    mends_itself = True

    async def install(self) -> None:
        await self.sql("DROP INDEX actonce_memory.item_embedding")

    async def observe(self) -> None:
        ((index, rows),) = await self.sql(_STATE)
        self.saw("index_gone", {"index": index, "rows": rows})


class MadeAnew(MemoryFault):
    """Table and index are there, valid and empty: a restore of the schema without its data.

    Canary and count of rows know.
    """

    observations = ("rows_gone",)
    troubles = frozenset({"canary_missing"})

    async def install(self) -> None:
        ((_, self.rows_before),) = await self.sql(_STATE)
        await self.sql(
            "ALTER TABLE actonce_memory.item RENAME TO item_before",
            "ALTER INDEX actonce_memory.item_embedding RENAME TO item_before_embedding",
            "CREATE TABLE actonce_memory.item (LIKE actonce_memory.item_before INCLUDING DEFAULTS)",
            "ALTER TABLE actonce_memory.item ADD PRIMARY KEY (tenant, key)",
            "CREATE INDEX item_embedding ON actonce_memory.item USING ivfflat (embedding vector_cosine_ops)"
            " WITH (lists = 1)",
        )

    async def observe(self) -> None:
        ((index, rows),) = await self.sql(_STATE)
        self.saw("rows_gone", {"index": index, "rows": rows, "rows_before": self.rows_before})

    async def heal(self) -> None:
        """The rows come back, as from a backup."""
        await self.sql(
            "DROP TABLE actonce_memory.item",
            "ALTER TABLE actonce_memory.item_before RENAME TO item",
            "ALTER INDEX actonce_memory.item_before_embedding RENAME TO item_embedding",
        )


FAULTS: dict[str, type[MemoryFault]] = {
    "silent-on-open": SilentOnOpen,
    "silent-on-new": SilentOnNew,
    "silent-in-query": SilentInQuery,
    "slow": Slow,
    "reset": Reset,
    "wrong-password": WrongPassword,
    "index-dropped": IndexDropped,
    "made-anew": MadeAnew,
}
