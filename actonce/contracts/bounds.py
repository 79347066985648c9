"""Rule R1: until when may an operation still take effect, and from when may `absent` be read?

All times are the ledger's. `None` means nothing bounds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from actonce.contracts.contract import Bounded, Contract, DeadlineAtCommit, DeadlineOnArrival
from actonce.contracts.verdict import AttemptFact


def late_bound_s(contract: Contract) -> float | None:
    """How many seconds after `not_after` a request can still take effect; None where nothing enforces a bound."""
    late = contract.late_arrival
    if isinstance(late, Bounded):
        return late.transit_s + contract.processing_bound_s + 2 * contract.clock_skew_s
    if isinstance(late, DeadlineOnArrival):
        return contract.processing_bound_s + 2 * contract.clock_skew_s
    if isinstance(late, DeadlineAtCommit):
        return 2 * contract.clock_skew_s
    return None


def may_commit_until(contract: Contract, attempts: Sequence[AttemptFact]) -> tuple[datetime | None, bool]:
    """Return (T, unbounded) over all attempts and epochs that may have sent.

    (None, False) means nothing was sent that could still commit. The contract may have changed since an attempt was
    sent: the longer of what was promised then and what is promised now counts.
    """
    live = [a for a in attempts if not a.provably_not_sent]
    if not live:
        return None, False
    bound_s = late_bound_s(contract)
    if bound_s is None or any(a.unbounded for a in live):
        return None, True
    now = max(a.not_after for a in live) + timedelta(seconds=bound_s)
    return max([now, *(a.until for a in live if a.until is not None)]), False


def reconcile_at(contract: Contract, attempts: Sequence[AttemptFact]) -> datetime | None:
    """When absent, holds and pages may begin: reconcile-after, counted from the last permit's issue.

    When a permit of a lost interval was issued nobody knows; the end of its life is the latest that it can have been.
    """
    live = [a for a in attempts if not a.provably_not_sent]
    if not live:
        return None
    return max(a.not_after if a.lost_interval else a.issued_at for a in live) + timedelta(
        seconds=contract.timing.reconcile_after_s
    )


def last_bound(contract: Contract, attempts: Sequence[AttemptFact]) -> datetime | None:
    """The last finite bound: T + the slowest route's lag, or reconcile-after where T is infinite (rule R8)."""
    until, unbounded = may_commit_until(contract, attempts)
    floor = reconcile_at(contract, attempts)
    if floor is None:
        return None
    if unbounded or until is None:
        return floor
    lag_s = max((r.lag_s for r in contract.routes), default=0.0)
    return max(floor, until + timedelta(seconds=lag_s))


def page_at(contract: Contract, attempts: Sequence[AttemptFact]) -> datetime | None:
    """When an operation that is still ambiguous is held and a person is paged."""
    bound = last_bound(contract, attempts)
    return None if bound is None else bound + timedelta(seconds=contract.timing.page_grace_s)
