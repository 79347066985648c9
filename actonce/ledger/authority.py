"""Authority: what tasks of a type may do at a destination that is no sandbox, within caps, on evidence.

A destination with effects in the world gets nothing sent until somebody grants authority to one task type there, on a
signed evidence folder of a stand-in that makes the same promises, for this release. `check` is the gate in the permit's
transaction, `count` writes down what was used, in the same one. An authority is never changed: to raise, lower or renew
it is to end it and grant another, each with its audit event. Caps on counts and totals are over everything that was
ever permitted for that task type there, so that a new grant is no new budget. A sandbox's contract costs no query here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, LiteralString

from actonce.contracts.contract import Contract
from actonce.contracts.errors import AuthorityRefused
from actonce.contracts.verdict import Reason
from actonce.ledger.store import WHERE_KEY, Connection, Ledger, Operation, identity_params, many, one, utc
from actonce.version import __version__

EVIDENCE_LIFE = timedelta(days=90)  # a drill that is older says nothing about what runs now; authority ends with it
BY_THE_CLOCK = "the clock"
Row = dict[str, Any]


@dataclass(frozen=True)
class Caps:
    """None: not capped. Amounts are integer minor units of the payload's `amount_field`."""

    amount_max_minor: int | None = None  # of one operation
    per_hour_max: int | None = None
    count_max: int | None = None  # of all operations ever
    total_max_minor: int | None = None
    amount_field: str = "amount_minor"

    def __post_init__(self) -> None:
        low = [name for name, value in self.limits.items() if value is not None and value < 1]
        if low:
            raise AuthorityRefused(f"a cap is at least 1, got less for {', '.join(low)}; withdraw it instead")

    @property
    def limits(self) -> dict[str, int | None]:
        return {name: value for name, value in asdict(self).items() if name != "amount_field"}

    def within(self, other: Caps) -> bool:
        """Does every cap here allow at most what the same cap of the other one allows?"""
        return self.amount_field == other.amount_field and all(
            mine is not None and mine <= theirs
            for mine, theirs in zip(self.limits.values(), other.limits.values(), strict=True)
            if theirs is not None
        )

    def words(self) -> str:
        """As people read it."""
        said = {
            "amount_max_minor": "at most {} minor units each",
            "per_hour_max": "{} an hour",
            "count_max": "{} in all",
            "total_max_minor": "{} minor units in all",
        }
        shown = [said[name].format(value) for name, value in self.limits.items() if value is not None]
        return ", ".join(shown) or "not capped"


@dataclass(frozen=True)
class Shown:
    """What a signed evidence folder showed, as it is kept with the authority."""

    contract_digest: str  # of the destination, whose promises the stand-in made
    release: str
    evidence_digest: str
    evidence_at: datetime
    signed_by: str
    saw: str


@dataclass(frozen=True)
class Denied:
    """Why no permit may be given."""

    reason: Reason
    words: str


@dataclass(frozen=True)
class Given:
    """A permit may be given until `latest`. `count`: the operation has not been counted yet."""

    authority_id: int
    task_type: str
    latest: datetime
    amount_minor: int | None
    counted: bool


# the gate ---------------------------------------------------------------------------------------------------------

_IN_FORCE: LiteralString = (
    "SELECT a.*, s.uses, s.amount_minor AS spent, clock_timestamp() AS now, h.recent, h.again"
    " FROM actonce.authority a JOIN actonce.authority_total s USING (destination, task_type) CROSS JOIN LATERAL"
    " (SELECT count(*) AS recent, min(u.at) + interval '1 hour' AS again FROM actonce.authority_use u"
    " WHERE (u.destination, u.task_type) = (a.destination, a.task_type)"
    " AND u.at > clock_timestamp() - interval '1 hour') h"
    " WHERE a.destination = %(destination)s AND a.task_type = %(task_type)s AND a.ended_at IS NULL"
)
_COUNTED: LiteralString = f"SELECT 1 FROM actonce.authority_use WHERE {WHERE_KEY}"
# Of a dispatched operation `o`: true when it was counted against an authority and there is none any more.
OVER: LiteralString = (
    "EXISTS (SELECT 1 FROM actonce.authority_use u WHERE (u.tenant, u.destination, u.action, u.operation_id) ="
    " (o.tenant, o.destination, o.action, o.operation_id) AND NOT EXISTS (SELECT 1 FROM actonce.authority a"
    " WHERE (a.destination, a.task_type) = (u.destination, u.task_type) AND a.ended_at IS NULL))"
)


async def check(
    connection: Connection, operation: Operation, task_type: str, contract: Contract
) -> Given | Denied | None:
    """May a task of this type do this now? None: the destination is a sandbox. Locks the counter until the commit."""
    if contract.sandbox:
        return None
    row = await _locked(connection, operation.destination, task_type)
    where = f"tasks of type {task_type or '(unknown)'} at {operation.destination}"
    if row is None:
        return Denied(Reason.NO_AUTHORITY, f"{where} have no authority: none was granted, or it was withdrawn")
    if row["expires_at"] <= row["now"]:
        why = f"its time was over at {utc(row['expires_at'])}"
        await _end(connection, row["authority_id"], BY_THE_CLOCK, why)
        return Denied(Reason.NO_AUTHORITY, f"the authority of {where} has expired: {why}")
    if row["contract_digest"] != contract.digest:
        shown = f"{row['contract_digest']} was shown, {contract.digest} is registered"
        return Denied(Reason.NO_AUTHORITY, f"the authority of {where} was given for another contract: {shown}")
    if row["release"] != __version__:
        shown = f"{row['release']} was shown, {__version__} runs"
        return Denied(Reason.NO_AUTHORITY, f"the authority of {where} was given for another release: {shown}")
    counted = await one(connection, _COUNTED, identity_params(operation.key)) is not None
    amount = _amount(operation, row)
    over = "" if counted else _over(amount, row)  # what is counted already is within the caps
    if over:
        return Denied(Reason.AUTHORITY_CAP, f"{where}: {over}")
    return Given(row["authority_id"], task_type, row["expires_at"], amount, counted)


async def _locked(connection: Connection, destination: str, task_type: str) -> Row | None:
    """The authority in force. Until this transaction ends nobody else counts on it, replaces it or withdraws it.

    The counter is locked first and read by a statement of its own: what somebody did meanwhile is seen.
    """
    names = {"destination": destination, "task_type": task_type}
    await connection.execute(
        "SELECT 1 FROM actonce.authority_total WHERE destination = %(destination)s AND task_type = %(task_type)s"
        " FOR UPDATE",
        names,
    )
    row = await one(connection, _IN_FORCE, names)
    return None if row is None else dict(row)


async def count(connection: Connection, operation: Operation, given: Given) -> None:
    """Write down that this operation is one of those permitted. Once; its retries are the same operation."""
    if given.counted:
        return
    await connection.execute(
        "WITH counted AS (INSERT INTO actonce.authority_use (tenant, destination, action, operation_id, task_type,"
        " authority_id, amount_minor) VALUES (%(tenant)s, %(destination)s, %(action)s, %(operation_id)s,"
        " %(task_type)s, %(authority_id)s, %(amount)s) RETURNING destination, task_type, amount_minor)"
        " UPDATE actonce.authority_total s SET uses = s.uses + 1,"
        " amount_minor = s.amount_minor + coalesce(c.amount_minor, 0) FROM counted c"
        " WHERE (s.destination, s.task_type) = (c.destination, c.task_type)",
        {
            **identity_params(operation.key),
            "task_type": given.task_type,
            "authority_id": given.authority_id,
            "amount": given.amount_minor,
        },
    )


def _amount(operation: Operation, row: Row) -> int | None:
    value = operation.payload.get(row["amount_field"])
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _over(amount: int | None, row: Row) -> str:
    """Words when a cap does not allow one more operation of this amount. An unknown amount is not known to be small."""
    each, total, spent = row["amount_max_minor"], row["total_max_minor"], int(row["spent"])
    if amount is None and (each is not None or total is not None):
        return f"its payload has no amount in {row['amount_field']}, so nobody can say that it is within the caps"
    if each is not None and amount is not None and amount > each:
        return f"{amount} minor units are more than {each}, the most for one operation"
    if total is not None and amount is not None and spent + amount > total:
        return f"{spent} of {total} minor units are used; {amount} more would be too many"
    if row["count_max"] is not None and row["uses"] >= row["count_max"]:
        return f"{row['uses']} operations were permitted, {row['count_max']} is the most in all"
    if row["per_hour_max"] is not None and row["recent"] >= row["per_hour_max"]:
        most = f"{row['per_hour_max']} is the most; the next may go at {utc(row['again'])}"
        return f"{row['recent']} operations were permitted within an hour, {most}"
    return ""


# resuming ---------------------------------------------------------------------------------------------------------

TASK_TYPE: LiteralString = (
    "SELECT coalesce((SELECT task_type FROM actonce.task WHERE task_id = %(id)s), split_part(%(id)s, '/', 2)) AS name"
)


async def unmet(connection: Connection, operation: Operation) -> str | None:
    """Why an operation that was held for want of authority may not be resumed yet. Reads only."""
    if operation.reason not in (Reason.NO_AUTHORITY.value, Reason.AUTHORITY_CAP.value):
        return None
    identity = await one(connection, "SELECT clone_of FROM actonce.identity WHERE clone_of IS NOT NULL")
    if identity is not None:
        return f"this deployment is a clone of {identity['clone_of']}, which never sends there; end it with mark_absent"
    named = await one(connection, TASK_TYPE, {"id": operation.task_id})
    assert named is not None
    row = await one(connection, _IN_FORCE, {"destination": operation.destination, "task_type": named["name"]})
    where = f"tasks of type {named['name']} at {operation.destination}"
    if row is None or row["expires_at"] <= row["now"] or row["release"] != __version__:
        return f"no authority for {where} is in force for this release; `actonce authority grant` gives one"
    counted = await one(connection, _COUNTED, identity_params(operation.key)) is not None
    over = "" if counted else _over(_amount(operation, dict(row)), dict(row))
    return f"{where}: {over}; somebody may raise the cap, or end it with mark_absent" if over else None


# people -----------------------------------------------------------------------------------------------------------


async def grant(
    ledger: Ledger, destination: str, task_type: str, caps: Caps, shown: Shown, *, by: str, reason: str, life: timedelta
) -> Row:
    """Give authority, in place of what was in force. Returns its row. Raises AuthorityRefused.

    It ends with its evidence at the latest. What is permitted already may still be sent until its `not_after`.
    """
    async with ledger.transaction() as connection:
        moment = await one(connection, "SELECT clock_timestamp() AS now")
        assert moment is not None
        expires_at = min(moment["now"] + life, shown.evidence_at + EVIDENCE_LIFE)
        if expires_at <= moment["now"]:
            raise AuthorityRefused(
                f"the evidence is of {utc(shown.evidence_at)}, older than {EVIDENCE_LIFE.days} days; run the drills "
                "again on the stand-in and sign what you saw"
            )
        if shown.release != __version__:
            raise AuthorityRefused(
                f"the evidence is of release {shown.release}, this is {__version__}; run the drills again with it"
            )
        return await _put(connection, destination, task_type, caps, shown, by, reason, expires_at)


async def lower(ledger: Ledger, destination: str, task_type: str, caps: Caps, *, by: str, reason: str) -> Row:
    """Replace the authority in force by one that allows less, on the same evidence. Raises AuthorityRefused."""
    async with ledger.transaction() as connection:
        row = await _locked(connection, destination, task_type)
        if row is None:
            raise AuthorityRefused(f"tasks of type {task_type} at {destination} have no authority; nothing to lower")
        now = caps_of(row)
        if not caps.within(now):
            raise AuthorityRefused(
                f"in force is: {now.words()}; asked for is: {caps.words()}, which allows more somewhere; "
                "to raise it, grant again with evidence"
            )
        shown = Shown(**{name: row[name] for name in Shown.__dataclass_fields__})
        return await _put(connection, destination, task_type, caps, shown, by, reason, row["expires_at"])


async def withdraw(ledger: Ledger, destination: str, task_type: str, *, by: str, reason: str) -> Row:
    """End the authority in force: no permit is given any more. Raises AuthorityRefused."""
    async with ledger.transaction() as connection:
        row = await _locked(connection, destination, task_type)
        if row is None:
            raise AuthorityRefused(f"tasks of type {task_type} at {destination} have no authority; nothing to withdraw")
        return await _end(connection, row["authority_id"], by, reason)


async def standing(ledger: Ledger) -> list[Row]:
    """Every authority, newest first, with what was used; `in_force` says whether it gives permits now."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "SELECT a.*, s.uses, s.amount_minor::bigint AS spent_minor,"
            " a.ended_at IS NULL AND a.expires_at > clock_timestamp() AND a.release = %s AS in_force,"
            " (SELECT count(*)::int FROM actonce.authority_use u WHERE (u.destination, u.task_type) ="
            " (a.destination, a.task_type) AND u.at > clock_timestamp() - interval '1 hour') AS in_hour"
            " FROM actonce.authority a JOIN actonce.authority_total s USING (destination, task_type)"
            " ORDER BY a.authority_id DESC LIMIT 500",
            (__version__,),
        )
    return [dict(row) for row in rows]


async def contracts_of(ledger: Ledger, destination: str) -> list[Contract]:
    """The contracts that workers recorded for a destination, newest first."""
    async with ledger.transaction() as connection:
        rows = await many(
            connection,
            "SELECT body FROM actonce.contract WHERE name = %s ORDER BY version DESC, first_seen DESC",
            (destination,),
        )
    return [Contract.model_validate(row["body"]) for row in rows]


def caps_of(row: Row) -> Caps:
    """The caps of a row."""
    return Caps(**{name: row[name] for name in Caps.__dataclass_fields__})


async def _put(
    connection: Connection,
    destination: str,
    task_type: str,
    caps: Caps,
    shown: Shown,
    by: str,
    reason: str,
    expires_at: datetime,
) -> Row:
    await connection.execute(
        "INSERT INTO actonce.authority_total (destination, task_type) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        (destination, task_type),
    )
    before = await _locked(connection, destination, task_type)
    if before is not None:
        await _end(connection, before["authority_id"], by, f"another takes its place: {reason}")
    row = await one(
        connection,
        "INSERT INTO actonce.authority (destination, task_type, amount_field, amount_max_minor, per_hour_max,"
        " count_max, total_max_minor, contract_digest, release, evidence_digest, evidence_at, signed_by, saw,"
        " granted_by, reason, expires_at) VALUES (%(destination)s, %(task_type)s, %(amount_field)s,"
        " %(amount_max_minor)s, %(per_hour_max)s, %(count_max)s, %(total_max_minor)s, %(contract_digest)s,"
        " %(release)s, %(evidence_digest)s, %(evidence_at)s, %(signed_by)s, %(saw)s, %(by)s, %(reason)s,"
        " %(expires_at)s) RETURNING *",
        {
            "destination": destination,
            "task_type": task_type,
            **asdict(caps),
            **asdict(shown),
            "by": by,
            "reason": reason,
            "expires_at": expires_at,
        },
    )
    assert row is not None
    return dict(row)


async def _end(connection: Connection, authority_id: int, by: str, why: str) -> Row:
    row = await one(
        connection,
        "UPDATE actonce.authority SET ended_at = clock_timestamp(), ended_by = %s, ended_why = %s"
        " WHERE authority_id = %s AND ended_at IS NULL RETURNING *",
        (by, why, authority_id),
    )
    if row is None:
        raise AuthorityRefused(f"authority {authority_id} has ended meanwhile; see `actonce authority list`")
    return dict(row)
