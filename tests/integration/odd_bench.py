"""What tests of misbehaving destinations share: a real ledger, and processes whose destination is a test's function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from actonce.contracts.contract import (
    Contract,
    Route,
    Timing,
    Unbounded,
    WritePath,
)
from actonce.contracts.errors import Unknown
from actonce.contracts.identity import OperationKey, derive_operation_id
from actonce.contracts.messages import DecisionRequest, OperationRequest
from actonce.contracts.verdict import Page, Receipt, Row
from actonce.destinations.base import Call, Destination, Lookup, Registry
from actonce.effects.decide import decide
from actonce.effects.system import System, register_contracts, this_process
from actonce.ledger import decisions
from actonce.ledger.store import Ledger

# Seconds: as short as a permit can live with a slow transaction in it.
TIMING = Timing(
    connect_timeout_s=0.5,
    write_timeout_s=0.5,
    permit_lifetime_s=1.0,
    send_deadline_s=1.0,
    activity_timeout_s=1.1,
    reconcile_after_s=1.2,
    read_deadline_s=0.5,
    read_again_s=0.1,
    page_grace_s=0.2,
)
TWO_ROUTES = tuple(
    Route(name=n, kind="list", network=n, store=n, credential=n, lag_s=0, declares_total=True) for n in ("list", "log")
)
TO_THE_PAGE_S = 2.0  # reconcile-after, grace and a rest


def contract(**more: Any) -> Contract:
    declared: dict[str, Any] = {
        "name": "odd",
        "version": 1,
        "actions": {"do"},
        "account": "acct",
        "object_kind": "thing",
        "business_fields": ("amount",),
        "late_arrival": Unbounded(),
        "completion": "receipt",
        "write": WritePath(network="write", store="primary", credential="write"),
        "routes": (Route(name="list", kind="list", network="list", store="list", credential="list", lag_s=0),),
        "timing": TIMING,
        "processing_bound_s": 0,
        "clock_skew_s": 0.05,
        "sandbox": True,
    }
    return Contract.model_validate(declared | more)


async def shows_nothing(_look: Lookup, _cursor: str | None) -> Page:
    return Page()


async def answer_lost(call: Call) -> Receipt:
    async with call.window():
        pass
    raise Unknown("the answer was lost")


def ours(look: Lookup, **more: Any) -> Row:
    """A row that proves itself ours."""
    shown = {"object_id": "x", "kind": "thing", "account": "acct", "own_field": True, "by_us": True}
    return Row.model_validate({**shown, "marker": look.markers[0], "digest": look.digest, **more})


def request(number: int = 1, **more: Any) -> OperationRequest:
    values: dict[str, Any] = {
        "tenant": "t",
        "task_id": f"t/odd/{number}",
        "step": "only",
        "destination": "odd",
        "action": "do",
        "payload": {"amount": 1},
    }
    return OperationRequest.model_validate(values | more)


def key_of(asked: OperationRequest) -> OperationKey:
    operation_id = derive_operation_id(asked.tenant, asked.task_id, asked.step, asked.iteration)
    return OperationKey(asked.tenant, asked.destination, asked.action, operation_id)


class Deployment:
    """One ledger; a `process` for each set of functions and contract that works on it."""

    def __init__(self, dsn: str, cleanup: AsyncExitStack) -> None:
        self.dsn = dsn
        self._cleanup = cleanup

    async def process(
        self,
        send: Callable[[Call], Awaitable[Receipt]] = answer_lost,
        of: Contract | None = None,
        read: Callable[[Lookup, str | None], Awaitable[Page]] = shows_nothing,
        **functions: Any,
    ) -> System:
        used = of or contract()
        destination = Destination(used, send=send, routes={r.name: read for r in used.routes}, **functions)
        ledger = await self._cleanup.enter_async_context(Ledger(self.dsn))
        system = System(ledger, Registry([destination]), this_process())
        await register_contracts(ledger, system.registry)
        self._cleanup.push_async_callback(system.drain, 0.0)
        return system

    async def rows(self, table: str) -> list[dict[str, Any]]:
        query = sql.SQL("SELECT * FROM actonce.{}").format(sql.Identifier(table))
        async with await psycopg.AsyncConnection.connect(self.dsn, row_factory=dict_row) as link:
            return await (await link.execute(query)).fetchall()


async def take(system: System, asked: OperationRequest, decision: str, version: int) -> None:
    """Record a decision and consume it."""
    taken = {"action": decision, "name": "n", "reason": "r", "expected_epoch": 1, "expected_version": version}
    await decisions.record(system.ledger, key_of(asked), DecisionRequest.model_validate(taken))
    assert (await decide(system, key_of(asked)))[1].endswith("applied")
