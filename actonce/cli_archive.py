"""`actonce archive`: let the payloads of what ended long ago go. Works on the ledger, so it needs its DSN.

Exit status as `actonce`: 0 done, 1 it did not work, 2 wrong usage.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from actonce.cli_people import By, Dsn, on_ledger, out

if TYPE_CHECKING:
    from actonce.ledger.archiving import Archived
    from actonce.ledger.store import Ledger


def archive(
    older_than_days: Annotated[float, typer.Option(min=1, help="Ended and quiet for as long.", show_default=False)],
    reason: Annotated[str, typer.Option(help="Why, for the audit trail.", show_default=False)],
    name: By,
    dsn: Dsn = None,
) -> None:
    """Let the payloads of tasks that ended long ago go. Ids, digests, outcomes and receipts stay; no row is deleted."""
    from actonce.ledger.archiving import Archived, archive_some

    async def all_of_it(ledger: Ledger) -> Archived:
        tasks = operations = 0
        older = timedelta(days=older_than_days)
        while (made := await archive_some(ledger, older, by=name, reason=reason)).tasks:
            tasks, operations = tasks + made.tasks, operations + made.operations
        return Archived(tasks, operations)

    made = on_ledger(dsn, all_of_it)
    out.print(f"{made.tasks} tasks and {made.operations} operations archived: their payloads are gone, all else stays")
