"""What the watching process does for the audit trail: seal, ship to each sink, tell the lag, verify now and then.

Each duty is one turn of a loop of its own, so that a sink that hangs delays neither the sealing nor another sink.
Several watching processes may run: one seals at a time, and a folder has one writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from actonce.audit import AuditSettings, FileSink, Shipper, Sink, open_sinks
from actonce.ledger.audit_chain import SEAL_MAX, cursor_of, seal_once
from actonce.ledger.store import Ledger
from actonce.trail.journal import LedgerJournal, report_findings, report_lag, report_whole
from actonce.trail.verify import Report, Unreadable, verify

TELL_EVERY_S = 3.0  # well inside the age at which the entry calls a reading stale

log = structlog.get_logger("actonce.audit")
Duty = tuple[str, float | None, Callable[[], Awaitable[object]]]
"""Name, seconds between turns (None: those of every other duty), one turn."""


class AuditKeeper:
    """One per watching process."""

    def __init__(self, ledger: Ledger, settings: AuditSettings | None = None) -> None:
        self.ledger = ledger
        self.settings = settings or AuditSettings()
        self.sinks: list[Sink] = open_sinks(self.settings)
        self._verified = "not verified since this process started"

    def duties(self) -> list[Duty]:
        """What to run, each in its own loop."""
        shippers = [Shipper(LedgerJournal(self.ledger), sink, self.settings) for sink in self.sinks]
        return [
            ("audit sealer", None, self.seal),
            *((f"audit shipper {s.sink.name}", None, self._shipping(s)) for s in shippers),
            ("audit lag", TELL_EVERY_S, self.tell),
            ("audit verifier", self.settings.verify_every_s, self.verify_once),
        ]

    def close(self) -> None:
        """Let another process write to the sinks."""
        for sink in self.sinks:
            sink.close()

    async def seal(self) -> None:
        """Seal everything there is; what came meanwhile is the next turn's."""
        while await seal_once(self.ledger) == SEAL_MAX:
            pass

    def _shipping(self, shipper: Shipper) -> Callable[[], Awaitable[None]]:
        async def ship() -> None:
            while await shipper.ship_once() == self.settings.batch_max:
                pass

        return ship

    async def tell(self) -> None:
        """Show each sink on the dependency page; warn and page by the age of the oldest event that waits."""
        for sink in self.sinks:
            await report_lag(
                self.ledger,
                sink.name,
                warn_s=self.settings.lag_warn_s,
                page_s=self.settings.lag_page_s,
                verified=self._verified,
            )

    async def verify_once(self) -> None:
        """The same as `actonce audit verify`, for the ledger and for each folder."""
        folders: list[Path | None] = [
            sink.folder
            for sink in self.sinks
            if isinstance(sink, FileSink) and await cursor_of(self.ledger, sink.name) > 0
        ]
        reports = [(folder, await self._verify(folder)) for folder in folders or [None]]
        findings = [finding for _, report in reports if report for finding in report.findings]
        whole = [report for _, report in reports if report and report.whole]
        if findings:
            self._verified = f"{len(findings)} findings when last verified"
            spoilt = ", ".join(str(folder) for folder, report in reports if folder and report and not report.whole)
            await report_findings(self.ledger, f"ledger and {spoilt}" if spoilt else "ledger", findings)
        elif len(whole) == len(reports):  # one folder that is whole says nothing about another
            self._verified = f"whole up to {whole[-1].end.seq} when last verified"
            await report_whole(self.ledger, whole[-1].end, whole[-1].sealed)

    async def _verify(self, folder: Path | None) -> Report | None:
        """None: it could not be read to its end, which is shown and is no finding."""
        try:
            async with asyncio.timeout(self.settings.verify_every_s):  # a ledger that hangs must not end all verifying
                return await verify(self.ledger.dsn, folder)
        except (Unreadable, TimeoutError) as error:
            self._verified = f"last verification could not read everything: {error}"
            where = f"ledger and {folder}" if folder else "ledger"
            log.warning("audit_not_verified", where=where, error=str(error))
            return None
