"""What the entry's tests share: the app in this process, on a real ledger and a real Temporal."""

from __future__ import annotations

import contextlib
import secrets
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode

from actonce.contracts.contract import Bounded, Contract, Timing, Unbounded, WritePath
from actonce.contracts.identity import OperationKey, derive_operation_id
from actonce.contracts.payload import payload_digest
from actonce.contracts.verdict import Reason
from actonce.entry.app import create_app
from actonce.entry.settings import EntrySettings
from actonce.entry.starter import Starter
from actonce.ledger import pages
from actonce.ledger.migrate import migrate
from actonce.ledger.permits import Intent, Owner, Permit, take_permit
from actonce.ledger.store import Ledger, Operation, lock_operation, many
from tests.integration.entry_token import SHOWN, let_in

DEFAULT = Timing()
QUICK = Timing(
    connect_timeout_s=0.05,
    write_timeout_s=0.05,
    permit_lifetime_s=0.1,
    send_deadline_s=0.2,
    activity_timeout_s=0.3,
    reconcile_after_s=0.4,
)


def contract(*, bounded: bool, timing: Timing = DEFAULT) -> Contract:
    return Contract(
        name="payments",
        version=1,
        actions=frozenset({"refund"}),
        account="acct",
        object_kind="refund",
        business_fields=("amount_minor",),
        late_arrival=Bounded(transit_s=60, enforced_by="the gateway") if bounded else Unbounded(),
        completion="receipt",
        write=WritePath(network="n", store="s", credential="c"),
        timing=timing,
        clock_skew_s=0.1,
        sandbox=True,
    )


@dataclass
class Bench:
    """One entry process, seen through its public door and its ledger."""

    http: httpx.AsyncClient
    ledger: Ledger
    starter: Starter
    temporal: Client | None
    transport: httpx.ASGITransport  # for whoever else calls it

    async def start(self, key: str, payload: Any = None, **headers: str) -> httpx.Response:
        body = {"amount_minor": 100} if payload is None else payload
        return await self.http.post("/v1/tasks/single", json=body, headers={"Idempotency-Key": key, **headers})

    async def show(self, task_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/tasks/{task_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def dispatched(self, task_id: str, terms: Contract) -> Permit:
        """An operation of this task whose permit has been consumed."""
        operation_id = derive_operation_id("default", task_id, "refund", 0)
        key = OperationKey("default", "payments", "refund", operation_id)
        fields = {"amount_minor": 100}
        digest = payload_digest(tool="t", destination="payments", action="refund", account="acct", fields=fields)
        intent = Intent(key, task_id, "refund", 0, fields, digest)
        permit = await take_permit(self.ledger, intent, terms, Owner("host", "boot", 1, 1.0), uuid.uuid4())
        assert isinstance(permit, Permit)
        return permit

    async def held(self, task_id: str, terms: Contract, reason: Reason = Reason.NOT_VISIBLE) -> Operation:
        permit = await self.dispatched(task_id, terms)
        async with self.ledger.transaction() as connection:
            operation = await lock_operation(connection, permit.operation.key)
            assert operation is not None
            return await pages.hold(connection, operation, reason, "no route shows it")


@contextlib.asynccontextmanager
async def bench(dsn: str, address: str | None, **settings: Any) -> AsyncIterator[Bench]:
    """Run the entry on the ledger at `dsn`. `address` None: a port where nobody is, so Temporal is away."""
    migrate(dsn)
    let_in(dsn)
    queue = f"entry-{secrets.token_hex(4)}"
    known = EntrySettings(**{"ledger_dsn": dsn, "task_queue": queue, "start_again_s": 0.05, **settings})

    async def connect() -> Client:
        target = address or "127.0.0.1:1"
        return await Client.connect(target, lazy=True, data_converter=pydantic_data_converter)

    app = create_app(known, connect=connect)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://entry", headers=SHOWN) as http,
    ):
        entry = app.state.entry
        client = None
        if address:
            client = await Client.connect(address, data_converter=pydantic_data_converter)
        try:
            yield Bench(http, entry.ledger, entry.starter, client, transport)
        finally:
            if client is not None:
                await _end_workflows(client, entry.ledger)


async def _end_workflows(client: Client, ledger: Ledger) -> None:
    """Temporal is shared and task keys are used again: whoever came next would attach to ours, and read its history."""
    async with ledger.transaction() as connection:
        ours = [row["workflow_id"] for row in await many(connection, "SELECT workflow_id FROM actonce.task")]
    for workflow_id in ours:
        try:
            await client.get_workflow_handle(workflow_id).terminate("its test is over")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # never started, ended or deleted already
                raise
