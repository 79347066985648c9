"""What the ledger knows of itself: whose it is, since when, and how far it has counted. Reads only.

It knows nothing of a backup: a ledger that somebody restored by hand says the same as the one that was backed up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from actonce.contracts.errors import ForeignLedger
from actonce.ledger.records import snapshot
from actonce.ledger.store import Ledger, one

_ORIGINS: LiteralString = """
SELECT i.ledger_id::text, i.deployment, i.restore_epoch, i.quarantined, i.created_at AS established_at,
    m.memory_id::text, m.since AS memory_since,
    coalesce(a.seq, 0) AS audit_seq, a.at AS audit_at,
    (SELECT coalesce(max(audit_id), 0) FROM actonce.audit) AS audit_id,
    o.operation_id, o.created_at AS operation_at,
    (SELECT count(*) FROM actonce.operation) AS operations
FROM actonce.identity i
LEFT JOIN actonce.memory_pin m ON true
LEFT JOIN LATERAL (SELECT seq, at FROM actonce.audit WHERE seq IS NOT NULL ORDER BY seq DESC LIMIT 1) a ON true
LEFT JOIN LATERAL (SELECT operation_id, created_at FROM actonce.operation ORDER BY created_at DESC, operation_id DESC
    LIMIT 1) o ON true
"""


@dataclass(frozen=True)
class Origins:
    """One ledger, and its high-water marks."""

    ledger_id: str
    deployment: str
    restore_epoch: int
    quarantined: bool
    established_at: datetime
    memory_id: str | None  # of the memory that this ledger trusts; None: it never heard of one
    memory_since: datetime | None
    audit_seq: int  # the last one with a place in the chain; 0: none
    audit_at: datetime | None
    audit_id: int  # the last one on record
    operation_id: str | None  # the newest intent
    operation_at: datetime | None
    operations: int


async def origins(ledger: Ledger) -> Origins:
    """One snapshot. Raises ForeignLedger where the ledger has no identity."""
    async with snapshot(ledger) as connection:
        row = await one(connection, _ORIGINS)
    if row is None:
        raise ForeignLedger("the ledger has no identity; it was emptied: restore it, do not start on it")
    return Origins(**row)
