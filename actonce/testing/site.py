"""One drill's own corner of the shared parts: ledger, task queue, proxies, taps, processes, all on record.

Contract: nothing of it is shared with another site of the session. Every process is started from the zygote, recorded,
and ended by `close`, which also records what the taps saw and destroys the proxies, whatever happened before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from actonce.evidence import EvidenceWriter
from actonce.testing.export import LedgerReader
from actonce.testing.faults import Faults, Proxied
from actonce.testing.parts import Access, Parts, address, through
from actonce.testing.processes import Process
from actonce.testing.tap import Exchange, Tap


class Invalid(RuntimeError):
    """The drill showed nothing: its fault could not be applied, or no operation was in the wanted state."""


class Site:
    """`run_id` and `number` make its names: two sites with the same pair must never be open in one session."""

    def __init__(
        self, parts: Parts, name: str, run_id: str, number: int, *, folder: Path, writer: EvidenceWriter
    ) -> None:
        self.parts = parts
        self.name = name
        self.number = number
        self.writer = writer
        self.folder = folder
        self.task_queue = f"{run_id}-{number}"
        self.database = f"{run_id}_{number}"
        self.faults = Faults(parts.stack.toxiproxy_url, f"{run_id}.{number}", self._on_wire)
        self.proxies: dict[str, Proxied] = {}
        self.taps: dict[str, Tap] = {}
        self.processes: list[Process] = []
        self.ledger = LedgerReader(parts.dsn(self.database))

    @property
    def access(self) -> Access:
        """To the entry and the console of its ledger."""
        return self.parts.access

    async def make_ground(self) -> None:
        """Its ledger, and the proxies in front of it and of Temporal."""
        self.folder.mkdir(parents=True)
        await self.parts.make_ledger(self.database)
        await self.make_fronts()

    async def make_fronts(self) -> None:
        """The proxies in front of Temporal and the ledger, which is there already."""
        await self.add_proxy("temporal", *address(f"//{self.parts.temporal_address}"))
        await self.add_proxy("ledger", *address(self.parts.stack.ledger_dsn))

    def ground_environment(self) -> dict[str, str]:
        """How a process of this site finds Temporal and the ledger: through the proxies."""
        temporal = self.proxies["temporal"]
        return {
            **self.parts.env,
            "ACTONCE_LEDGER_DSN": through(self.parts.dsn(self.database), self.proxies["ledger"]),
            "ACTONCE_TASK_QUEUE": self.task_queue,
            "TEMPORAL_ADDRESS": f"{temporal.host}:{temporal.port}",
        }

    async def add_proxy(self, name: str, host: str, port: int) -> Proxied:
        """A proxy of this site's own in front of something."""
        self.proxies[name] = await self.faults.proxy(name, host, port)
        return self.proxies[name]

    async def add_tap(self, name: str) -> Tap:
        """A tap in front of the proxy of that name."""
        proxy = self.proxies[name]
        self.taps[name] = Tap(name, proxy.host, proxy.port, via=proxy.name)
        await self.taps[name].start()
        return self.taps[name]

    async def spawn(self, role: str, program: str, args: Sequence[str], env: Mapping[str, str]) -> Process:
        """One more process of this site; not yet ready."""
        process = await Process.start(
            self.parts.zygote,
            role,
            program,
            args,
            env=env,
            log=self.folder / f"{role}.log",
            on_event=self._on_process,
            cwd=self.parts.project,
        )
        self.processes.append(process)
        return process

    def owner_of(self, exchange: Exchange) -> Process:
        """The process whose socket this exchange came from, by the kernel's own table. Raises Invalid."""
        for process in self.processes:
            if not process.alive:
                continue
            for link in psutil.Process(process.pid).net_connections(kind="tcp"):
                if link.laddr and link.laddr.port == exchange.peer_port:
                    return process
        raise Invalid(f"no living process of {self.name} owns the connection from port {exchange.peer_port}")

    async def close(self) -> None:
        """End every process, record the wire, destroy the proxies. Safe to call twice."""
        for process in self.processes:
            await process.kill()
        while self.taps:
            _, tap = self.taps.popitem()
            await tap.close()
            for seen in tap.exchanges:
                self._record_exchange(seen)
        await self.faults.close()
        await self.ledger.close()

    def _record_exchange(self, seen: Exchange) -> None:
        self.writer.append(
            "wire",
            "caller_connection",
            self.name,
            mono_ns=seen.first_ns,
            at=seen.at,
            proxy=seen.via,
            bytes_up=seen.bytes_up,
            bytes_down=seen.bytes_down,
            operation_id=seen.operation_id,
            complete_ns=seen.complete_ns,
            ended_by=seen.ended_by,
            ended_ns=seen.ended_ns,
        )

    def _on_wire(self, kind: str, fields: Mapping[str, Any]) -> None:
        self.writer.append("wire", kind, self.name, **fields)

    def _on_process(self, kind: str, fields: Mapping[str, Any]) -> None:
        self.writer.append("process", kind, self.name, **fields)
