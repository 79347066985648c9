"""The verdict rule (SPEC §2.4): readings and facts in, exactly one verdict out. Pure: no clock, no I/O.

committed   exactly one object carries our key in our own field, in our account, with our digest, on any route, and
            no acknowledgement named another one; or the object that an acknowledgement named answers a reference
            probe while the routes still deny it
absent      nothing stands in our own field under our key that is not proven ours, the contract looks for what was sent,
            and the destination cancelled every key; or, after the last moment it could still commit plus each route's
            lag, no route shows it, and two independent routes (one of them a list whose total agrees) are complete,
            fresh and able to see; or no attempt of it can have left: none was made, or each is provably not sent
ambiguous   everything else, with a reason; before the last bound it is only too early
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from actonce.contracts import bounds
from actonce.contracts.contract import Contract
from actonce.contracts.verdict import Facts, Outcome, Reading, Reason, Receipt, Row, Verdict


@dataclass(frozen=True)
class _Found:
    matches: dict[str, tuple[str, Row]]  # object id -> (route, row)
    conflicts: list[str]
    unproven: list[str]  # under our key in our own field, and not proven ours: blocks `absent`
    foreign: list[str]  # mentions our marker where anybody can write it: blocks nothing


def combine(contract: Contract, facts: Facts, readings: Sequence[Reading], now: datetime) -> Verdict:
    """Return the verdict. `now` and the readings' times are the ledger's."""
    found = find(facts, readings)
    flagged = flags(contract, readings, matched=bool(found.matches) or facts.probed)
    until, unbounded = bounds.may_commit_until(contract, facts.attempts)
    common = {
        "flagged": flagged,
        "look_alikes": (*found.unproven, *found.foreign),
        "may_commit_until": until,
        "unbounded": unbounded,
    }
    if found.conflicts:
        words = f"the destination holds something else than was asked: {', '.join(found.conflicts)}"
        return Verdict(outcome=Outcome.AMBIGUOUS, reason=Reason.PAYLOAD_CONFLICT, words=words, page=True, **common)
    objects = {*found.matches, *([facts.acknowledged_object_id] if facts.acknowledged_object_id is not None else [])}
    if found.matches and len(objects) > 1:
        words = f"{len(objects)} objects were acknowledged or carry our key and digest: {', '.join(sorted(objects))}"
        return Verdict(outcome=Outcome.AMBIGUOUS, reason=Reason.MULTIPLE_MATCHES, words=words, page=True, **common)
    if found.matches:
        return _committed(found, common)
    if facts.probed and facts.acknowledged_object_id is not None:
        words = f"object {facts.acknowledged_object_id} was acknowledged and a reference probe shows that it exists"
        receipt = Receipt(object_id=facts.acknowledged_object_id, source="probe")
        return Verdict(outcome=Outcome.COMMITTED, words=words, receipt=receipt, **common)
    if facts.acknowledged_object_id is None and may_be_absent(contract, facts, found, readings, now):
        how = (
            "the destination cancelled every key we sent"
            if facts.key_cancelled
            else ("no route shows it; two independent, complete, fresh readings after the last possible commit agree")
        )
        return Verdict(outcome=Outcome.ABSENT, words=how, **common)
    return _ambiguous(contract, facts, found, readings, now, common)


def find(facts: Facts, readings: Sequence[Reading]) -> _Found:
    """Sort what the routes showed into matches, conflicts, unproven and foreign rows.

    A row in our own field that another principal is named as the author of may still be ours: principals are rotated,
    accounts are renamed, objects are turned into others. It is no match, and while it is there nothing is absent.
    """
    matches: dict[str, tuple[str, Row]] = {}
    conflicts: list[str] = []
    unproven: list[str] = []
    foreign: list[str] = []
    for reading in readings:
        for row in reading.candidates:
            label = f"{row.kind} {row.object_id} on {reading.route}"
            ours = row.own_field and row.by_us and row.account == facts.account and row.kind == facts.object_kind
            if not ours:
                (unproven if row.own_field else foreign).append(label)
            elif row.marker not in (*facts.keys, facts.operation_id):
                conflicts.append(f"{label} was acknowledged to us and carries the key {row.marker}")
            elif row.digest is None:
                unproven.append(label)
            elif row.digest != facts.digest:
                conflicts.append(f"{label} has digest {row.digest}, asked was {facts.digest}")
            else:
                matches.setdefault(row.object_id, (reading.route, row))
    return _Found(matches, conflicts, unproven, foreign)


def flags(contract: Contract, readings: Sequence[Reading], *, matched: bool) -> dict[str, str]:
    """What is wrong with a route. A denial never contradicts a match: it flags the route that denies."""
    wrong: dict[str, str] = {}
    for reading in readings:
        if reading.status != "read":
            wrong[reading.route] = reading.error or reading.status
        elif not reading.complete:
            declared = "no total" if reading.declared_total is None else f"declares {reading.declared_total}"
            wrong[reading.route] = f"incomplete: {declared}, served {reading.rows_received} rows"
        elif matched and not reading.candidates:
            wrong[reading.route] = "denies what another route shows"
    return wrong


def _committed(found: _Found, common: dict[str, Any]) -> Verdict:
    ((object_id, (route, row)),) = found.matches.items()
    receipt = Receipt(
        object_id=object_id,
        digest=row.digest,
        at=row.committed_at,
        source=f"route:{route}",
        detail={"state": row.state},
    )
    words = f"route {route} shows {row.kind} {object_id} with our key, account and digest"
    return Verdict(outcome=Outcome.COMMITTED, words=words, receipt=receipt, **common)


def may_be_absent(contract: Contract, facts: Facts, found: _Found, readings: Sequence[Reading], now: datetime) -> bool:
    """Is the rule for `absent` met? No match is already known."""
    if found.unproven or facts.sent_as is not None:  # beside a confirmed cancel too: what is there contradicts it
        return False
    if facts.key_cancelled:
        return True
    until, unbounded = bounds.may_commit_until(contract, facts.attempts)
    if unbounded:
        return False
    floor = bounds.reconcile_at(contract, facts.attempts)
    if until is None or floor is None:
        return not facts.attempts or all(a.provably_not_sent for a in facts.attempts)
    if now < floor:
        return False
    return would_show(contract, readings, until)


def would_show(contract: Contract, readings: Sequence[Reading], until: datetime) -> bool:
    """Would these readings show whatever was committed until then? What they do not show then does not exist."""
    return len(witnesses(contract, readings, until)) >= 2 and _one_is_a_counted_list(contract, readings, until)


def witnesses(contract: Contract, readings: Sequence[Reading], until: datetime) -> list[set[str]]:
    """Independent groups in which a route proves that it would show the effect if it existed."""
    able = {r.route for r in readings if able_to_see(contract, r, until)}
    return [group for group in contract.independent_groups() if group & able]


def able_to_see(contract: Contract, reading: Reading, until: datetime) -> bool:
    """Complete, begun after the last possible commit and the route's lag, and showing something committed after it."""
    if not reading.complete or reading.started_at < until + timedelta(seconds=contract.route(reading.route).lag_s):
        return False
    return is_fresh(contract, reading, until)


def is_fresh(contract: Contract, reading: Reading, until: datetime) -> bool:
    """Does the route show an object (a beacon of ours), or a position, after the last moment ours could commit?

    Those times are the destination's: its clock may be `clock_skew_s` behind the ledger's, which `until` allows for.
    """
    after = until - timedelta(seconds=contract.clock_skew_s)
    return any(t is not None and t >= after for t in (reading.beacon_at, reading.as_of))


def _one_is_a_counted_list(contract: Contract, readings: Sequence[Reading], until: datetime) -> bool:
    apart = {name for group in contract.independent_groups() for name in group}
    return any(
        able_to_see(contract, r, until) and r.declared_total is not None and contract.route(r.route).kind == "list"
        for r in readings
        if r.route in apart
    )


def _ambiguous(
    contract: Contract,
    facts: Facts,
    found: _Found,
    readings: Sequence[Reading],
    now: datetime,
    common: dict[str, Any],
) -> Verdict:
    reason, words = why_not(contract, facts, found, readings, now)
    bound = bounds.page_at(contract, facts.attempts)
    at_once = reason is Reason.NO_ROUTE or (reason is Reason.LOOK_ALIKE and bool(common["unbounded"]))
    page = at_once or bound is None or now >= bound
    again = now + timedelta(seconds=contract.timing.read_again_s)
    if not page:
        words = f"too early to say ({reason.value}: {words}); people are paged at {bound}"
        reason = Reason.TOO_EARLY
    return Verdict(
        outcome=Outcome.AMBIGUOUS,
        reason=reason,
        words=words,
        page=page,
        read_again_at=again,
        **common,
    )


def why_not(
    contract: Contract, facts: Facts, found: _Found, readings: Sequence[Reading], now: datetime
) -> tuple[Reason, str]:
    """The reason why neither committed nor absent can be said, most telling first."""
    if not contract.routes:
        return Reason.NO_ROUTE, f"{contract.name} cannot be read; only a person can find out"
    if facts.acknowledged_object_id is not None:
        return Reason.NOT_VISIBLE, f"object {facts.acknowledged_object_id} was acknowledged, no route shows it"
    if found.unproven or found.foreign:
        both = [*found.unproven, *found.foreign]
        return Reason.LOOK_ALIKE, f"something carries our key and cannot be proven ours: {', '.join(both)}"
    if facts.sent_as is not None:
        return Reason.NOT_VISIBLE, f"it was sent as {facts.sent_as}; the contract here looks for something else"
    until, unbounded = bounds.may_commit_until(contract, facts.attempts)
    if unbounded:
        return _unbounded(contract, facts, now)
    down = [r.route for r in readings if r.status == "unavailable"]
    if down:
        return Reason.ROUTE_UNAVAILABLE, f"no answer from {', '.join(down)}"
    short = [r.route for r in readings if not r.complete]
    if short:
        return Reason.ROUTE_INCOMPLETE, f"not read to the end, or totals disagree: {', '.join(short)}"
    blind = [r.route for r in readings if r.beacon_at is None and r.as_of is None]
    if blind:
        return Reason.NOT_VISIBLE, f"cannot be shown able to see (no object of ours, no position): {', '.join(blind)}"
    old = [r.route for r in readings if until is not None and not is_fresh(contract, r, until)]
    if old:
        return Reason.NOT_FRESH, f"shows nothing newer than the last possible commit: {', '.join(old)}"
    return Reason.NOT_INDEPENDENT, "fewer than two independent routes, one a list with a declared total, say so"


def _unbounded(contract: Contract, facts: Facts, now: datetime) -> tuple[Reason, str]:
    first = min((a.issued_at for a in facts.attempts), default=now)
    if contract.keys is not None and now >= first + timedelta(
        seconds=contract.keys.retention_s - contract.keys.margin_s
    ):
        return Reason.RETENTION_EXPIRED, (
            f"the key's retention ({contract.keys.retention_s:g} s) has passed; sending again could be a second effect"
        )
    return Reason.LATE_COMMIT_POSSIBLE, "nothing bounds how late a request may still take effect here"
