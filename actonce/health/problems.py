"""Workflows that their workers cannot continue: found in Temporal, paged through the ledger (case c10).

Temporal keeps giving the workflow task of such a workflow to workers, each fails it (incompatible code, an unknown
workflow type, a panic), and nothing in the workflow can say so. Its operations stay readable in the ledger and are
reconciled by the watcher all the same. Promises: one incident per workflow, closed when it goes on. Does not decide
what is wrong and changes nothing in Temporal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from temporalio.client import Client

from actonce.contracts.commands import CLIENT
from actonce.contracts.reasons import policy
from actonce.contracts.verdict import Reason
from actonce.ledger import pages
from actonce.ledger.store import Ledger, audit, many

# Set by the server after a few failures of one workflow task, and taken away when one is completed.
QUERY = "ExecutionStatus = 'Running' AND TemporalReportedProblems IS NOT NULL"
SHOWN_MAX = 200
_INCIDENT = "workflow:"


@dataclass
class Problems:
    """One per watching process. `look_once` is one turn."""

    ledger: Ledger
    connect: Callable[[], Awaitable[Client]]
    _client: Client | None = field(default=None)

    async def look_once(self) -> dict[str, str]:
        """Find them, page new ones, close what goes on again. Returns workflow id → what Temporal reports.

        Raises LedgerUnavailable, and what the Temporal client raises; then nothing is opened or closed.
        """
        self._client = self._client or await self.connect()
        found: dict[str, str] = {}
        async for run in self._client.list_workflows(QUERY, limit=SHOWN_MAX):
            reported = run.search_attributes.get("TemporalReportedProblems", [])
            found[run.id] = ", ".join(str(one) for one in reported)
        await self._write(found)
        return found

    async def _write(self, found: dict[str, str]) -> None:
        async with self.ledger.transaction() as connection:
            rows = await many(
                connection,
                "SELECT incident FROM actonce.page WHERE starts_with(incident, %s) AND closed_at IS NULL",
                (_INCIDENT,),
            )
            known = {str(row["incident"]).removeprefix(_INCIDENT) for row in rows}
            for workflow_id in sorted(known - set(found)):
                await pages.close_page(connection, _INCIDENT + workflow_id)
                await audit(connection, "workflow.continues", None, {"workflow_id": workflow_id}, task_id=workflow_id)
            for workflow_id in sorted(set(found) - known):
                body = {"workflow_id": workflow_id, "reported": found[workflow_id]}
                await audit(connection, "workflow.cannot_continue", None, body, task_id=workflow_id)
                await pages.open_page(
                    connection,
                    incident=_INCIDENT + workflow_id,
                    reason=Reason.INCOMPATIBLE_WORKER.value,
                    title=f"workflow {workflow_id} cannot go on: {Reason.INCOMPATIBLE_WORKER.value}",
                    body=_body(workflow_id, found[workflow_id]),
                    task_id=workflow_id,
                )


def _body(workflow_id: str, reported: str) -> str:
    row = policy(Reason.INCOMPATIBLE_WORKER)
    return (
        f"Task {workflow_id} does not move: its workers fail its workflow task ({reported}). {row.meaning}.\n"
        "Its operations are readable and reconciled all the same; nothing is sent twice, whatever you deploy.\n"
        f"Do: {CLIENT} show {workflow_id}\n"
        f"It goes on when {row.resumes_when}.\n"
        f"Owner: {row.owner}. Procedure: {row.procedure}"
    )
