"""What destinations promise, as workers recorded it when they started. Reads only.

A contract is recorded once, with its digest, and never changed; another version is another row. Which of them a worker
serves at this moment the ledger does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from actonce.contracts.contract import Contract
from actonce.contracts.errors import ContractError
from actonce.ledger.records import snapshot
from actonce.ledger.store import Ledger, many


@dataclass(frozen=True)
class Recorded:
    """One contract on record. `contract` None: this release reads contracts otherwise; `body` is what was recorded."""

    name: str
    version: int
    digest: str
    first_seen: datetime
    body: dict[str, Any]
    contract: Contract | None
    operations: int  # that are stamped with it and not settled
    newest: bool  # of its destination


async def contracts(ledger: Ledger) -> list[Recorded]:
    """By destination, and of one the newest first."""
    async with snapshot(ledger) as connection:
        rows = await many(
            connection,
            "SELECT c.*, coalesce(o.n, 0) AS operations, row_number() OVER (PARTITION BY c.name ORDER BY c.version"
            " DESC, c.first_seen DESC) = 1 AS newest FROM actonce.contract c LEFT JOIN (SELECT destination,"
            " contract_digest, count(*)::int AS n FROM actonce.operation"
            " WHERE state NOT IN ('committed', 'refused', 'closed') GROUP BY 1, 2) o"
            " ON o.destination = c.name AND o.contract_digest = c.digest"
            " ORDER BY c.name, c.version DESC, c.first_seen DESC",
        )
    return [Recorded(contract=_read(row["body"]), **row) for row in rows]


def _read(body: dict[str, Any]) -> Contract | None:
    try:
        return Contract.model_validate(body)
    except (ValidationError, ContractError):
        return None
