"""Every permit that was consumed for an operation, and those that may have been without our knowing.

After a restore the ledger does not know what was permitted in the lost interval. Whatever could have been is *presumed
sent*: it gets an attempt with the outcome `lost_interval`, with bounds as if its permit had been taken at the last
moment before the restore, and is reconciled like an operation whose answer was lost. Such an attempt counts for every
bound and for the recount, and not for the number of permits that a contract allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import uuid4

from psycopg.types.json import Jsonb

from actonce.contracts import bounds
from actonce.contracts.contract import Contract
from actonce.contracts.identity import OperationKey, wire_key
from actonce.contracts.lifecycle import Event, State
from actonce.contracts.verdict import AttemptFact
from actonce.ledger.store import WHERE_KEY, Beside, Connection, Operation, identity_params, many, move, one

LOST_INTERVAL = "lost_interval"  # the outcome of an attempt that nobody has on record
_NOBODY = {"host": "unknown: before the restore", "boot_id": "unknown", "pid": 0, "start_time": 0.0}

ATTEMPT: LiteralString = """
INSERT INTO actonce.attempt (tenant, destination, action, operation_id, epoch, attempt, nonce, generation, wire_key,
    owner, issued_at, not_after, late_arrival, may_commit_until, key_kept_until, lease_id, outcome, outcome_at, detail)
SELECT tenant, destination, action, operation_id, epoch, attempt, nonce, generation, %(wire_key)s, %(owner)s,
    %(attempt_issued_at)s, not_after, %(late_arrival)s, %(until)s, %(kept_until)s, %(lease_id)s, %(outcome)s,
    CASE WHEN %(outcome)s::text IS NOT NULL THEN clock_timestamp() END, %(detail)s FROM moved
"""
"""Goes beside the move that consumes (or presumes) a permit."""


async def attempt_facts(connection: Connection, key: OperationKey) -> list[AttemptFact]:
    """Every consumed permit of an operation, over all epochs, oldest first."""
    rows = await many(
        connection,
        f"SELECT * FROM actonce.attempt WHERE {WHERE_KEY} ORDER BY epoch, attempt",
        identity_params(key),
    )
    return [
        AttemptFact(
            epoch=row["epoch"],
            attempt=row["attempt"],
            generation=row["generation"],
            issued_at=row["issued_at"],
            not_after=row["not_after"],
            provably_not_sent=row["outcome"] in ("not_sent", "not_accepted"),
            lost_interval=row["outcome"] == LOST_INTERVAL,
            until=row["may_commit_until"],
            unbounded=row["may_commit_until"] is None,
            key_kept_until=row["key_kept_until"],
        )
        for row in rows
    ]


async def nothing_is_out(connection: Connection, operation: Operation, earlier: list[AttemptFact]) -> bool:
    """Is it established that no effect exists or can come? A same-key resend and a granted retry establish nothing."""
    sent = [(a.epoch, a.attempt) for a in earlier if not a.provably_not_sent]
    if not sent:
        return True
    epoch, attempt = max(sent)
    absent = await one(
        connection,
        f"SELECT 1 FROM actonce.verdict WHERE {WHERE_KEY} AND applied AND outcome = 'absent'"
        " AND (epoch, attempt) >= (%(epoch)s, %(attempt)s)",
        {**identity_params(operation.key), "epoch": epoch, "attempt": attempt},
    )
    return absent is not None


async def key_used(connection: Connection, operation: Operation) -> str | None:
    """The key that this generation was sent under; a contract with another format must not change it on the way."""
    row = await one(
        connection,
        f"SELECT wire_key FROM actonce.attempt WHERE {WHERE_KEY} AND generation = %(generation)s"
        " ORDER BY epoch, attempt LIMIT 1",
        {**identity_params(operation.key), "generation": operation.generation},
    )
    return None if row is None else str(row["wire_key"])


@dataclass(frozen=True)
class LostInterval:
    """The time of which a restored ledger knows nothing."""

    epoch: int  # of the restore that ended it
    began_at: datetime
    ended_at: datetime
    not_after: datetime  # the last moment at which a permit taken in it may be used, by the contracts known then

    def not_after_of(self, contract: Contract | None) -> datetime:
        """The same, where its contract came in the lost interval itself and promises a longer life."""
        if contract is None:
            return self.not_after
        return max(self.not_after, self.ended_at + timedelta(seconds=contract.timing.permit_lifetime_s))


async def presume_sent(
    connection: Connection, operation: Operation, contract: Contract | None, lost: LostInterval
) -> Operation:
    """Treat a locked operation that is not final as sent in the lost interval, its answer lost (rule R12).

    It becomes `unknown`; `acknowledged` and `held` stay what they are. Its version moves, so that a decision from
    before is stale. Without a contract nothing is known to bound it.
    """
    earlier = await attempt_facts(connection, operation.key)
    attempt = operation.attempt + 1
    not_after = lost.not_after_of(contract)
    fact = AttemptFact(
        epoch=lost.epoch,
        attempt=attempt,
        generation=operation.generation,
        issued_at=lost.began_at,
        not_after=not_after,
        lost_interval=True,
        unbounded=contract is None or contract.late_arrival.kind == "cancel_by_key",  # which keys it used, nobody knows
    )
    every = [*earlier, fact]
    until, unbounded = (None, True) if contract is None else bounds.may_commit_until(contract, every)
    own_until = None if contract is None else bounds.may_commit_until(contract, [fact])[0]
    reconcile_at = not_after if contract is None else bounds.reconcile_at(contract, every)
    words = f"it may have been sent between the backup and the restore that began epoch {lost.epoch}"
    columns: dict[str, Any] = {} if operation.state is State.HELD else {"reason": None, "words": words}
    return await move(
        connection,
        operation,
        Event.RESTORED,
        Beside(
            ATTEMPT,
            {
                "wire_key": await _key_of(connection, operation, contract),
                "owner": Jsonb(_NOBODY),
                "attempt_issued_at": lost.began_at,
                # No cancel of a key that we know of speaks for those that we do not.
                "late_arrival": "none" if fact.unbounded or contract is None else contract.late_arrival.kind,
                "until": own_until,
                "kept_until": None,  # nobody knows since when the destination has the key
                "lease_id": None,
                "outcome": LOST_INTERVAL,
                "detail": words,
            },
        ),
        epoch=lost.epoch,
        attempt=attempt,
        attempts=operation.attempts + 1,
        nonce=uuid4(),  # nobody's: whatever an owner from before still says is about another permit
        not_after=not_after,
        may_commit_until=until,
        unbounded=unbounded,
        reconcile_at=reconcile_at,
        decide_at=reconcile_at if contract is None else bounds.last_bound(contract, every),
        recount_at=None if contract is None else bounds.page_at(contract, every),
        recounted_at=None,
        retry_granted=False,
        **columns,
    )


async def _key_of(connection: Connection, operation: Operation, contract: Contract | None) -> str:
    used = await key_used(connection, operation)
    if used is not None or contract is None or contract.keys is None:
        return used or operation.operation_id
    return wire_key(operation.operation_id, operation.generation, contract.keys.format)
