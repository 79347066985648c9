"""The ledger's audit events, for `actonce.audit`, which knows no ledger; and what is told to people about them."""

from __future__ import annotations

from collections.abc import Sequence

from actonce.contracts.audit import End, Finding, Sealed
from actonce.contracts.commands import CLIENT
from actonce.contracts.reasons import Severity, policy
from actonce.contracts.verdict import Reason
from actonce.ledger import audit_chain, pages, watch
from actonce.ledger.audit_chain import Lag
from actonce.ledger.store import Ledger, audit

GAP = "audit:gap"
_DO = "Do: actonce audit verify --dsn … --sink …"


class LedgerJournal:
    """Implements `actonce.audit.Journal`. Raises LedgerUnavailable when the ledger does not answer."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    async def after(self, seq: int, limit: int) -> Sequence[Sealed]:
        return await audit_chain.sealed_after(self.ledger, seq, limit)

    async def hash_at(self, seq: int) -> str | None:
        return await audit_chain.hash_at(self.ledger, seq)

    async def cursor(self, sink: str) -> int:
        return await audit_chain.cursor_of(self.ledger, sink)

    async def shipped(self, sink: str, end: End) -> None:
        await audit_chain.move_cursor(self.ledger, sink, end)

    async def failed(self, sink: str, error: str) -> None:
        await audit_chain.sink_failed(self.ledger, sink, error)

    async def found(self, sink: str, finding: Finding) -> None:
        await report_findings(self.ledger, sink, [finding])


async def report_findings(ledger: Ledger, where: str, findings: Sequence[Finding]) -> None:
    """Call somebody about a trail that is not whole; one incident, however often it is found."""
    words = "\n".join(str(finding) for finding in findings[:20])
    async with ledger.transaction() as connection:
        await pages.open_page(
            connection,
            incident=GAP,
            reason=Reason.AUDIT_GAP.value,
            title=f"the audit trail is not whole ({len(findings)} findings)",
            body=f"{where}:\n{words}\nWork goes on; nothing is lost by waiting, and nothing may be tidied up.\n{_DO}\n"
            f"Owner: {policy(Reason.AUDIT_GAP).owner}. Procedure: {policy(Reason.AUDIT_GAP).procedure}",
        )


async def report_whole(ledger: Ledger, end: End, events: int) -> None:
    """A whole verification found nothing: put it on record, and close what was open."""
    async with ledger.transaction() as connection:
        await audit(connection, "audit.verified", None, {"seq": end.seq, "hash": end.hash, "events": events})
        await pages.close_page(connection, GAP)


async def report_lag(ledger: Ledger, sink: str, *, warn_s: float, page_s: float, verified: str = "") -> Lag:
    """Show how far a sink is behind, warn from `warn_s` on and call a person from `page_s` on; close it when it is not.

    A sink that fails while nothing waits is shown, and paged when something does.
    """
    lag = await audit_chain.lag_of(ledger, sink)
    late = lag.age_s >= warn_s
    severity: Severity = "page" if lag.age_s >= page_s else "warning"
    words = f"{lag.waiting} events wait, the oldest for {lag.age_s:.0f} s; {lag.shipped} of {lag.head} shipped"
    if lag.error:
        words += f"; {lag.error}"
    async with ledger.transaction() as connection:
        if not late:
            await pages.close_page(connection, f"audit:lag:{sink}")
        else:
            row = policy(Reason.AUDIT_LAG)
            await pages.open_page(
                connection,
                incident=f"audit:lag:{sink}",
                reason=Reason.AUDIT_LAG.value,
                severity=severity,
                title=f"audit events wait to be shipped to {sink}",
                body=f"{words}.\nNone is lost: they are in the ledger and are shipped when {row.resumes_when}.\n"
                f"Do: {CLIENT} dependencies   then repair the sink.\n"
                f"Owner: {row.owner}. Procedure: {row.procedure}",
            )
    await watch.set_dependency(
        ledger,
        name=f"audit:{sink}",
        kind="audit_sink",
        state="down" if lag.failing_s is not None else "degraded" if late else "up",
        how="what the sink confirmed, against the end of the ledger's chain",
        detail=words + (f"; {verified}" if verified else ""),
        blocks="nothing: events wait in the ledger",
    )
    return lag
