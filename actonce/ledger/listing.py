"""Lists in pages, newest first. Reads only.

A page goes on after the last row that was seen (a cursor), never after a number of rows: it costs the same however far
back it is, and rows that are added meanwhile are neither repeated nor skipped. Each page is one snapshot.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, TypeVar

from psycopg import sql

from actonce.contracts.errors import LedgerError
from actonce.contracts.lifecycle import State
from actonce.ledger.approvals import SHOWN, Approval
from actonce.ledger.records import Row, snapshot
from actonce.ledger.store import Ledger, Operation
from actonce.ledger.tasks import Task

T = TypeVar("T")


class BadCursor(LedgerError):
    """What was given as a cursor is none of this list."""


class Page(list[T]):
    """Some rows of a list, and the cursor of what comes after them; None: this was the end."""

    def __init__(self, items: Iterable[T], next_: str | None) -> None:
        super().__init__(items)
        self.next = next_


@dataclass(frozen=True)
class TaskLine:
    """A task in a list, with what its operations show."""

    task: Task
    operations: int
    evidenced: int  # committed, with evidence of the destination
    attested: int  # committed, by a person's word
    open: int

    @property
    def shown(self) -> str:
        return shown_state(self.task.state, self.evidenced, self.attested, self.open)


def shown_state(state: str, evidenced: int, attested: int, open_: int) -> str:
    """A task's state as people may see it: `complete` has evidence of a destination behind it.

    Else it is `attested`, where a person's word stands for evidence, or `unproven`, where nothing does.
    """
    if state != "complete":
        return state
    if open_ or not (evidenced or attested):
        return "unproven"
    return "attested" if attested else "complete"


def shown_of(state: str, found: Sequence[Operation]) -> str:
    """The same, of a task whose operations are at hand."""
    done = [o for o in found if o.state is State.COMMITTED]
    evidenced = sum(o.completion in EVIDENCE for o in done)
    return shown_state(state, evidenced, len(done) - evidenced, sum(not o.final for o in found))


EVIDENCE = ("receipt", "read_back", "handover")
_EVIDENCED: LiteralString = "state = 'committed' AND completion IN ('receipt', 'read_back', 'handover')"  # as above
COUNTS: LiteralString = (
    f"count(*)::int AS operations, count(*) FILTER (WHERE {_EVIDENCED})::int AS evidenced,"
    f" count(*) FILTER (WHERE state = 'committed' AND ({_EVIDENCED}) IS NOT TRUE)::int AS attested,"
    " count(*) FILTER (WHERE state NOT IN ('committed', 'refused', 'closed'))::int AS open"
)


async def tasks(
    ledger: Ledger,
    *,
    state: str | None = None,
    task_type: str | None = None,
    tenant: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[TaskLine]:
    """Tasks, newest first."""
    found = await _page(
        ledger,
        _List("SELECT * FROM actonce.task x", ("created_at", "task_id"), _COUNTED),
        _equal(state=state, task_type=task_type, tenant=tenant),
        cursor,
        limit,
    )
    return Page([task_line(row) for row in found], found.next)


# After the page is cut: only its own rows are counted for.
_COUNTED: LiteralString = (
    f"SELECT p.*, c.* FROM p, LATERAL (SELECT {COUNTS} FROM actonce.operation o WHERE o.task_id = p.task_id) c"
    " ORDER BY created_at DESC, task_id DESC"
)


def task_line(row: Row) -> TaskLine:
    """A row of `actonce.task` with its counts."""
    counts = {name: row[name] for name in ("operations", "evidenced", "attested", "open")}
    return TaskLine(Task.of(row), **counts)


async def operations(
    ledger: Ledger,
    *,
    state: str | None = None,
    natural_key: str | None = None,
    destination: str | None = None,
    reason: str | None = None,
    tenant: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[Operation]:
    """Operations, newest first."""
    keys = ("created_at", "operation_id", "destination", "action", "tenant")
    wanted = _equal(state=state, natural_key=natural_key, destination=destination, reason=reason, tenant=tenant)
    found = await _page(ledger, _List("SELECT * FROM actonce.operation x", keys), wanted, cursor, limit)
    return Page([Operation.of(row) for row in found], found.next)


async def pages(ledger: Ledger, *, open_only: bool = True, cursor: str | None = None, limit: int = 100) -> Page[Row]:
    """What people were called for, newest first."""
    wanted: list[_Condition] = [("closed_at IS NULL", {})] if open_only else []
    return await _page(ledger, _List("SELECT * FROM actonce.page x", ("page_id",)), wanted, cursor, limit)


async def approvals(
    ledger: Ledger,
    *,
    state: str | None = None,
    tenant: str | None = None,
    task_id: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[Approval]:
    """Approvals, newest first; `state` as it is shown: one whose time is over is expired."""
    wanted = _equal(shown=state, tenant=tenant, task_id=task_id)
    keys = ("proposed_at", "approval_id")
    found = await _page(ledger, _List(f"SELECT * FROM ({SHOWN}) x", keys), wanted, cursor, limit)
    return Page([Approval.of(row) for row in found], found.next)


async def audit(
    ledger: Ledger,
    *,
    kind: str | None = None,
    task_id: str | None = None,
    operation_id: str | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[Row]:
    """Audit events, newest first. A `kind` with a dot at its end: all that begin so. Of a task: its operations' too."""
    wanted = _equal(operation_id=operation_id)
    if kind is not None and kind.endswith("."):
        # From `task.` up to what comes after every word that begins so: a dot is followed by a slash.
        between: LiteralString = 'kind COLLATE "C" >= %(from)s AND kind COLLATE "C" < %(below)s'
        wanted.append((between, {"from": kind, "below": f"{kind[:-1]}/"}))
    elif kind is not None:
        wanted.append(('kind COLLATE "C" = %(kind)s', {"kind": kind}))
    if task_id is not None:
        of_it = (
            "(task_id = %(of_task)s OR operation_id = ANY(ARRAY("
            "SELECT operation_id FROM actonce.operation WHERE task_id = %(of_task)s)))"
        )
        wanted.append((of_it, {"of_task": task_id}))
    return await _page(ledger, _List("SELECT * FROM actonce.audit x", ("audit_id",)), wanted, cursor, limit)


_Condition = tuple[LiteralString, dict[str, Any]]


@dataclass(frozen=True)
class _List:
    """A list: where its rows are, the columns that order them (unique together), what is told of each beside."""

    source: LiteralString
    keys: tuple[LiteralString, ...]
    then: LiteralString | None = None  # selects from the page `p`


def _equal(**wanted: Any) -> list[_Condition]:
    conditions: list[_Condition] = []
    for name, value in wanted.items():
        if value is not None:
            # The name is an argument's of this module, never a caller's text.
            conditions.append((f"{name} = %({name})s", {name: value}))
    return conditions


async def _page(ledger: Ledger, of: _List, wanted: list[_Condition], cursor: str | None, limit: int) -> Page[Row]:
    """One row more than asked for tells whether there is a next page."""
    conditions: list[sql.Composable] = [sql.SQL(text) for text, _ in wanted]
    params: dict[str, Any] = {"limit": limit + 1}
    for _, values in wanted:
        params |= values
    if cursor is not None:
        params |= {f"after_{n}": value for n, value in enumerate(_decode(cursor, of.keys))}
        conditions.append(
            sql.SQL("({}) < ({})").format(
                sql.SQL(", ").join(map(sql.SQL, of.keys)),
                sql.SQL(", ").join(sql.Placeholder(f"after_{n}") for n in range(len(of.keys))),
            )
        )
    query = sql.SQL("{} {} ORDER BY {} LIMIT %(limit)s").format(
        sql.SQL(of.source),
        sql.SQL("WHERE {}").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL(""),
        sql.SQL(", ").join(sql.SQL(f"{key} DESC") for key in of.keys),
    )
    if of.then is not None:
        query = sql.SQL("WITH p AS ({}) {}").format(query, sql.SQL(of.then))
    async with snapshot(ledger) as connection:
        # Never prepared: a plan for all filters at once would be one for none of them.
        rows = await (await connection.execute(query, params, prepare=False)).fetchall()
    more = len(rows) > limit
    rows = rows[:limit]
    return Page(rows, _encode(rows[-1], of.keys) if more else None)


def _encode(row: Row, keys: tuple[str, ...]) -> str:
    values = [v.isoformat() if isinstance(v, datetime) else v for v in (row[key] for key in keys)]
    return base64.urlsafe_b64encode(json.dumps(values, separators=(",", ":")).encode()).decode().rstrip("=")


def _decode(cursor: str, keys: tuple[str, ...]) -> list[Any]:
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(values, list) or len(values) != len(keys):
            raise ValueError("another list's")
        return [_key(key, value) for key, value in zip(keys, values, strict=True)]
    except (ValueError, TypeError) as error:
        raise BadCursor("this cursor belongs to no page of this list; begin at its first page") from error


def _key(name: str, value: Any) -> Any:
    if name.endswith("_at"):
        return datetime.fromisoformat(value)
    if name in ("page_id", "audit_id"):
        if type(value) is not int or not 0 <= value < 2**63:
            raise ValueError(name)
    elif not isinstance(value, str) or "\x00" in value:
        raise ValueError(name)
    return value
