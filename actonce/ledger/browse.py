"""What people look through: counts for a first look, lists in pages, a search. Reads only.

Lists are newest first and paged by the last row that was seen, never by counting rows: a page costs the same however
far back it is, and rows that are added meanwhile are neither repeated nor skipped. Each answer is one snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from actonce.contracts.errors import ForeignLedger
from actonce.ledger.records import snapshot
from actonce.ledger.store import Ledger, one

# Another word whenever something was recorded: every change of note is an audit event; readings of dependencies and
# alerts that are pending are none.
_PULSE: LiteralString = (
    "concat_ws('-', coalesce((SELECT max(audit_id) FROM actonce.audit), 0),"
    " (SELECT count(*) FROM actonce.audit WHERE seq IS NULL),"
    " left((SELECT md5(string_agg(name || state, ',' ORDER BY name)) FROM actonce.dependency), 8),"
    " left((SELECT md5(string_agg(incident || state, ',' ORDER BY incident)) FROM actonce.alert"
    " WHERE state <> 'resolved'), 8))"
)
_HEADING: LiteralString = (
    f"SELECT deployment, ledger_id::text, restore_epoch, quarantined, clock_timestamp() AS now, {_PULSE} AS pulse,"
    " (SELECT count(*) FROM actonce.hold WHERE closed_at IS NULL) AS holds,"
    " (SELECT count(*) FROM actonce.page WHERE closed_at IS NULL) AS pages,"
    # Both conditions on the state: the first is that of the index.
    " (SELECT count(*) FROM actonce.approval WHERE state IN ('pending', 'approved') AND state = 'pending'"
    " AND expires_at > clock_timestamp()) AS approvals FROM actonce.identity"
)


@dataclass(frozen=True)
class Heading:
    """What every page says of the deployment: whose it is, whether it is quarantined, what waits for people.

    `pulse` is the one of the same moment: whoever follows it from there misses no change of what the page shows.
    """

    deployment: str
    ledger_id: str
    restore_epoch: int
    quarantined: bool
    now: datetime
    pulse: str
    holds: int
    pages: int
    approvals: int


async def heading(ledger: Ledger) -> Heading:
    """Cheap however long the history is: counts what is open, by indexes of its own."""
    async with snapshot(ledger) as connection:
        row = await one(connection, _HEADING)
    if row is None:
        raise ForeignLedger("the ledger has no identity; it was emptied: restore it, do not start on it")
    if ledger.expected_id not in (None, row["ledger_id"]):
        raise ForeignLedger(f"this is ledger {row['ledger_id']}, this deployment's is {ledger.expected_id}")
    return Heading(**row)


async def pulse(ledger: Ledger) -> str:
    """A word that is another one whenever something was recorded since it was read the last time."""
    async with snapshot(ledger) as connection:
        row = await one(connection, f"SELECT {_PULSE} AS pulse")
    assert row is not None
    return str(row["pulse"])
