"""The connection to the ledger: pool, deadlines, identity, clock, and the one compare-and-set.

Every failure to reach PostgreSQL becomes `LedgerUnavailable`; nothing may be sent on the strength of a ledger
that did not answer. Times are the ledger's own (`clock_timestamp()`), so that hosts with different clocks agree.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, LiteralString, cast
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb, set_json_dumps
from psycopg.types.string import StrDumperUnknown
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from actonce.contracts import clocks
from actonce.contracts.errors import ForeignLedger, LedgerUnavailable, StaleWrite
from actonce.contracts.identity import OperationKey
from actonce.contracts.lifecycle import FINAL, Event, State, next_state
from actonce.hanging_up import hang_up

LEDGER_DEADLINE_S = 4.0  # one transaction; longer than a slow fsync, shorter than a heartbeat budget of a held task
GIVE_UP_S = 1.0  # after the deadline, for the server to end what it does; then the line is cut, by either end
_CANCEL_S = 0.5  # of it, to ask the server to end it

Connection = AsyncConnection[DictRow]


class _Connection(AsyncConnection[DictRow]):
    """A connection that does not wait long for its cancel: a ledger that is silent is silent to that, too."""

    async def cancel_safe(self, *, timeout: float = _CANCEL_S) -> None:
        await super().cancel_safe(timeout=min(timeout, _CANCEL_S))


_NOT_STORABLE = str.maketrans({"\x00": "\ufffd", **{chr(c): "\ufffd" for c in range(0xD800, 0xE000)}})


def storable(value: Any) -> Any:
    """What PostgreSQL can keep of a value: a destination may say NUL, half a character or NaN, and must be heard.

    What is asked is refused instead where it is not storable (`contracts.payload.check_storable`).
    """
    if isinstance(value, str):
        return value.translate(_NOT_STORABLE)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {storable(k): storable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable(v) for v in value]
    return value


class _Text(StrDumperUnknown):
    def dump(self, obj: str) -> Any:
        return super().dump(storable(obj))


async def _configure(connection: Connection, silent_max_s: float) -> None:
    connection.adapters.register_dumper(str, _Text)
    set_json_dumps(lambda value: json.dumps(storable(value)), connection)
    # A process that is frozen, or whose network is cut, in the middle of a transaction cannot end it; what it has
    # locked would stay locked for everyone.
    limit = str(round(silent_max_s * 1000))
    await connection.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", (limit,))
    await connection.commit()


@dataclass(frozen=True)
class Operation:
    """One row of `actonce.operation`."""

    tenant: str
    destination: str
    action: str
    operation_id: str
    task_id: str
    step: str
    iteration: int
    payload: dict[str, Any]
    payload_digest: str
    account: str
    natural_key: str | None
    reverses: str | None
    contract_version: int
    contract_digest: str
    guarantee: str
    state: State
    reason: str | None
    words: str | None
    version: int
    epoch: int
    attempt: int
    attempts: int
    generation: int
    nonce: UUID | None
    object_id: str | None
    receipt: dict[str, Any] | None
    completion: str | None
    issued_at: datetime | None
    committed_at: datetime | None
    acknowledged_at: datetime | None
    not_after: datetime | None
    may_commit_until: datetime | None
    unbounded: bool
    reconcile_at: datetime | None
    decide_at: datetime | None
    recount_at: datetime | None
    recounted_at: datetime | None
    retry_granted: bool
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None  # its payload is gone since then

    @property
    def key(self) -> OperationKey:
        return OperationKey(self.tenant, self.destination, self.action, self.operation_id)

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.epoch, self.attempt, self.version)

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @staticmethod
    def of(row: Mapping[str, Any]) -> Operation:
        names = Operation.__dataclass_fields__
        values: dict[str, Any] = {k: v for k, v in row.items() if k in names}
        values["state"] = State(values["state"])
        return Operation(**values)


@dataclass(frozen=True)
class Stamp:
    """What every write about an attempt compares (rule R6)."""

    epoch: int
    attempt: int
    version: int


class Ledger:
    """The ledger of one process. Open it once with `async with Ledger(dsn) as ledger`."""

    def __init__(
        self, dsn: str, *, ledger_id: str | None = None, pool_max: int = 10, deadline_s: float = LEDGER_DEADLINE_S
    ) -> None:
        self.dsn = dsn
        self.expected_id = ledger_id
        self.deadline_s = deadline_s
        self._pool: AsyncConnectionPool[_Connection] = AsyncConnectionPool(
            dsn,
            connection_class=_Connection,
            kwargs={"row_factory": dict_row, "connect_timeout": 3, "application_name": "actonce"},
            min_size=1,
            max_size=pool_max,
            timeout=deadline_s,
            reconnect_timeout=0.0,  # try again at the next request, not in the background until a give-up time
            open=False,
            configure=partial(_configure, silent_max_s=deadline_s + GIVE_UP_S),
            check=None,
        )

    async def __aenter__(self) -> Ledger:
        await self._pool.open(wait=False)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._pool.close(timeout=1.0)

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[Connection]:
        """A connection of the pool; who is not done with it `GIVE_UP_S` after the deadline finds it ended."""
        lent: list[Connection] = []
        end = asyncio.get_running_loop().call_later(self.deadline_s + GIVE_UP_S, hang_up, lent)
        try:
            async with self._pool.connection() as connection:
                lent.append(connection)
                yield connection
        finally:
            end.cancel()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One transaction within the deadline, over at the latest `GIVE_UP_S` after it.

        The commit's own answer may be lost: then LedgerUnavailable too.
        """
        try:
            async with (
                asyncio.timeout(self.deadline_s),
                self._lent() as connection,
                connection.transaction(),
            ):
                yield connection
        except (psycopg.errors.ProgramLimitExceeded, psycopg.errors.StatementTooComplex):
            raise  # of what is asked, not of the server: asking again would not help
        except (
            psycopg.OperationalError,
            psycopg.InterfaceError,
            psycopg.InternalError,  # among them: read-only, in the middle of a failover
            PoolTimeout,
            PoolClosed,
            TimeoutError,
            OSError,
        ) as error:
            raise LedgerUnavailable(
                f"the ledger did not answer: {type(error).__name__}: {error}; nothing was or will be sent on it, "
                "check PostgreSQL and try again"
            ) from error

    async def identity(self) -> tuple[str, int, bool]:
        """Return (ledger_id, restore epoch, quarantined). Raises ForeignLedger for an empty or foreign ledger."""
        try:
            async with self.transaction() as connection:
                row = await one(connection, "SELECT ledger_id, restore_epoch, quarantined FROM actonce.identity")
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise ForeignLedger("this database holds no ledger; run `actonce ledger migrate` or fix the DSN") from error
        if row is None:
            raise ForeignLedger("the ledger has no identity; it was emptied: restore it, do not start on it")
        if self.expected_id is not None and str(row["ledger_id"]) != self.expected_id:
            raise ForeignLedger(
                f"this is ledger {row['ledger_id']}, this deployment's is {self.expected_id}; fix the DSN or restore"
            )
        return str(row["ledger_id"]), row["restore_epoch"], row["quarantined"]

    async def clone_of(self) -> str | None:
        """The deployment that this one is a copy of, or None."""
        async with self.transaction() as connection:
            row = await one(connection, "SELECT clone_of FROM actonce.identity")
        return None if row is None else row["clone_of"]

    async def clock(self) -> LedgerClock:
        """Read the ledger's clock once; the result goes on by this host's monotonic clock."""
        async with self.transaction() as connection:
            row = await one(connection, "SELECT clock_timestamp() AS now")
        assert row is not None
        return LedgerClock(row["now"], clocks.now_s())  # read afterwards: a wait may be too long, never too short


@dataclass(frozen=True)
class LedgerClock:
    """The ledger's time, carried on by the local boot-time clock. Never later than the ledger's real time."""

    at: datetime
    read_s: float

    def now(self) -> datetime:
        return self.at + timedelta(seconds=clocks.now_s() - self.read_s)


async def one(connection: Connection, query: LiteralString, params: object = None) -> DictRow | None:
    """Run a query and return its first row."""
    cursor = await connection.execute(query, cast(Any, params))
    return await cursor.fetchone()


async def many(connection: Connection, query: LiteralString, params: object = None) -> list[DictRow]:
    """Run a query and return all rows."""
    cursor = await connection.execute(query, cast(Any, params))
    return await cursor.fetchall()


def identity_params(key: OperationKey) -> dict[str, str]:
    return {
        "tenant": key.tenant,
        "destination": key.destination,
        "action": key.action,
        "operation_id": key.operation_id,
    }


WHERE_KEY: LiteralString = (
    "tenant = %(tenant)s AND destination = %(destination)s AND action = %(action)s AND operation_id = %(operation_id)s"
)


async def lock_operation(connection: Connection, key: OperationKey) -> Operation | None:
    """Read the operation and lock its row for this transaction."""
    row = await one(connection, f"SELECT * FROM actonce.operation WHERE {WHERE_KEY} FOR UPDATE", identity_params(key))
    return None if row is None else Operation.of(row)


async def read_operation(connection: Connection, key: OperationKey) -> Operation | None:
    """Read the operation without locking it."""
    row = await one(connection, f"SELECT * FROM actonce.operation WHERE {WHERE_KEY}", identity_params(key))
    return None if row is None else Operation.of(row)


def compare(operation: Operation, expected: Stamp) -> None:
    """The compare of every compare-and-set (rule R6); the row lock of the caller's transaction makes it atomic."""
    if operation.stamp != expected:
        raise StaleWrite(
            f"{operation.operation_id} is at {operation.stamp}, this write is about {expected}; re-read and reconcile"
        )


@cache
def _update(columns: tuple[str, ...], beside: LiteralString) -> bytes:
    """The statement that changes these columns of one operation, compare-and-set on its version."""
    assignments = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(c), sql.Placeholder(f"v_{c}")) for c in columns
    )
    statement = sql.SQL(
        "UPDATE actonce.operation SET {}, version = version + 1, updated_at = clock_timestamp() WHERE {} "
        "AND version = %(version)s RETURNING *"
    ).format(assignments, sql.SQL(WHERE_KEY))
    if beside:
        statement = sql.SQL("WITH moved AS ({}), beside AS ({}) SELECT * FROM moved").format(statement, sql.SQL(beside))
    return statement.as_bytes(None)


@dataclass(frozen=True)
class Beside:
    """A write that goes with a move, in its statement: it selects from `moved`, so it is made only if that moved."""

    statement: LiteralString
    params: Mapping[str, Any]


async def move(
    connection: Connection, operation: Operation, event: Event, beside: Beside | None = None, **columns: Any
) -> Operation:
    """Apply one event of the lifecycle table to a locked operation; a trigger writes its audit event with it."""
    state = next_state(operation.state, event)
    values = {**columns, "state": state.value, "last_event": event.value}
    params: dict[str, Any] = {f"v_{k}": Jsonb(v) if isinstance(v, dict) else v for k, v in values.items()}
    if beside is not None:
        params |= beside.params
    cursor = await connection.execute(
        _update(tuple(values), beside.statement if beside is not None else ""),
        {**params, **identity_params(operation.key), "version": operation.version},
    )
    row = await cursor.fetchone()
    if row is None:
        raise StaleWrite(f"{operation.operation_id} changed under this write; re-read and reconcile")
    return Operation.of(row)


async def audit(
    connection: Connection, kind: str, operation: Operation | None, body: dict[str, Any], *, task_id: str | None = None
) -> None:
    """Append a required event that is no change of an operation's state, in the caller's transaction."""
    await connection.execute(
        "INSERT INTO actonce.audit (kind, tenant, task_id, operation_id, body) VALUES (%s, %s, %s, %s, %s)",
        (
            kind,
            operation.tenant if operation else None,
            operation.task_id if operation else task_id,
            operation.operation_id if operation else None,
            Jsonb(body),
        ),
    )


def digest_of(value: str) -> str:
    """What is kept of a random value that opens something. (A password is not random enough for this.)"""
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def utc(value: datetime) -> str:
    """ISO 8601 in UTC, as messages and people get it."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds")
