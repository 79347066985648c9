"""What the effects of one process share: ledger, registered destinations, owner, freeze timer, sends in flight."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import structlog
from psycopg.types.json import Jsonb

from actonce.contracts.errors import ContractError, LedgerUnavailable
from actonce.credentials import Broker
from actonce.destinations.base import Destination, Registry
from actonce.effects.fence import FreezeTimer
from actonce.ledger.authorising import uses_of
from actonce.ledger.journal import Journal, notice_restore
from actonce.ledger.leases import Leases
from actonce.ledger.migrate import migrate
from actonce.ledger.permits import Owner
from actonce.ledger.store import Ledger, many, one
from actonce.memory import Memory

log = structlog.get_logger("actonce")


@dataclass
class System:
    """Composed once per process."""

    ledger: Ledger
    registry: Registry
    owner: Owner
    timer: FreezeTimer = field(default_factory=FreezeTimer)
    memory: Memory | None = None
    journal: Journal | None = None  # outside the backup; None: none is kept
    in_flight: set[asyncio.Task[object]] = field(default_factory=set)

    def destination(self, name: str, action: str | None = None) -> Destination:
        return self.registry.get(name, action)

    def keep(self, task: asyncio.Task[object]) -> None:
        """A send outlives the activity that started it: its late acknowledgement is still recorded."""
        self.in_flight.add(task)
        task.add_done_callback(self.in_flight.discard)

    async def drain(self, grace_s: float) -> None:
        """Wait for sends in flight at most `grace_s`, then cancel them: their operations stay unknown."""
        if self.in_flight and grace_s > 0:
            await asyncio.wait(set(self.in_flight), timeout=grace_s)
        for task in set(self.in_flight):
            task.cancel()
        await asyncio.gather(*self.in_flight, return_exceptions=True)


@asynccontextmanager
async def compose(
    dsn: str,
    registry: Registry,
    *,
    deployment: str = "default",
    ledger_id: str | None = None,
    pool_max: int = 10,
    broker: Broker | None = None,
    memory: Memory | None = None,
    journal: Path | None = None,
) -> AsyncIterator[System]:
    """Open the ledger at `dsn` (migrated unless a `ledger_id` is expected) and register the contracts in it.

    `broker`: the leases of this process, which its destinations were given; it is opened on the ledger and closed.
    `memory` may be unreachable now: tasks that need it wait, all others do not; it is closed.
    `journal`: the folder outside the backup; a ledger that does not know a permit in it enters quarantine here.
    In a clone, destinations that are no sandbox are registered and cannot be reached.
    Raises ForeignLedger, ContractError or LedgerUnavailable; nothing is sent before all of it holds.
    """
    if ledger_id is None:
        try:
            await asyncio.to_thread(migrate, dsn, deployment=deployment)
        except psycopg.OperationalError as error:
            raise LedgerUnavailable(f"the ledger could not be opened: {error}; check PostgreSQL") from error
    async with Ledger(dsn, ledger_id=ledger_id, pool_max=pool_max) as ledger:
        identity, _, _ = await ledger.identity()
        if journal is not None and (noticed := await notice_restore(dsn, journal)) is not None:
            log.error("the ledger was restored", epoch=noticed.epoch, boundary=noticed.boundary)
        await register_contracts(ledger, registry)
        clone_of = await ledger.clone_of()
        if clone_of is not None:
            registry = registry.of_a_clone(clone_of)
        owner = this_process()
        system = System(ledger, registry, owner, memory=memory)
        if journal is not None:
            name = f"{owner.host}-{owner.boot_id[:8]}-{owner.pid}-{owner.start_time:.2f}"
            system.journal = Journal(journal, identity, name)
        if broker is not None:
            holder = f"{owner.host}:{owner.pid}:{owner.start_time:g}"
            await broker.open(Leases(ledger, uses_of(d.contract for d in registry if d.credentials is broker), holder))
        try:
            yield system
        finally:
            await system.drain(grace_s=0.0)
            if system.journal is not None:
                await system.journal.close()
            if broker is not None:
                await broker.close()
            if memory is not None:
                await memory.close()


def this_process() -> Owner:
    """Name this process so that nobody mistakes another with the same pid for it."""
    return Owner(host=socket.gethostname(), boot_id=_boot_id(), pid=os.getpid(), start_time=_start_time())


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "unknown"


def _start_time() -> float:
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return 0.0
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


async def register_contracts(ledger: Ledger, registry: Registry) -> None:
    """Write this worker's contracts to the ledger. The same version with another digest is refused."""
    for destination in registry:
        contract = destination.contract
        async with ledger.transaction() as connection:
            others = await many(
                connection,
                "SELECT digest FROM actonce.contract WHERE name = %s AND version = %s AND digest <> %s",
                (contract.name, contract.version, contract.digest),
            )
            if others:
                raise ContractError(
                    f"contract {contract.name} v{contract.version} changed without a new version "
                    f"({others[0]['digest']}, now {contract.digest}); raise its version"
                )
            await one(
                connection,
                "INSERT INTO actonce.contract (name, digest, version, body) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT (name, digest) DO UPDATE SET name = excluded.name RETURNING name",
                (contract.name, contract.digest, contract.version, Jsonb(contract.model_dump(mode="json"))),
            )
