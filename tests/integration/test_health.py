"""The prober reaches each part, and says `up` only after it answered."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from actonce.contracts.errors import LedgerUnavailable, RouteUnavailable
from actonce.contracts.verdict import Reading as RouteReading
from actonce.destinations.sandbox import PAYMENTS, SandboxSettings, sandbox_contract
from actonce.health import Prober, ProbeSettings, Reading, RouteProbe
from actonce.ledger import records
from actonce.ledger.migrate import migrate
from actonce.ledger.readings import believe
from actonce.ledger.store import Ledger
from actonce.stack import Stack
from actonce.testing.waiting import eventually


@workflow.defn(name="health.idle")
class Idle:
    @workflow.run
    async def run(self) -> None:
        return None


@activity.defn(name="health.nothing")
async def nothing() -> None:
    return None


@pytest_asyncio.fixture
async def ledger(fresh_dsn: str) -> AsyncIterator[Ledger]:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as opened:
        yield opened


def prober(ledger: Ledger, address: str, queue: str = "q", **more: object) -> Prober:
    async def connect() -> Client:
        return await Client.connect(address, lazy=True)

    return Prober(ledger, [queue], connect=connect, **more)  # type: ignore[arg-type]


def by_name(readings: list[Reading]) -> dict[str, Reading]:
    return {r.name: r for r in readings}


async def test_pollers_are_down_without_a_worker_and_up_with_one(servers: Stack, ledger: Ledger) -> None:
    queue = f"health-{secrets.token_hex(4)}"
    probe = prober(ledger, servers.temporal_address, queue)
    found = by_name(await probe.probe_once())
    assert (found["temporal"].state, found["ledger"].state) == ("up", "up")
    assert (found[f"pollers:{queue}"].state, found[f"pollers:{queue}"].blocks[:5]) == ("down", "tasks")
    client = await Client.connect(servers.temporal_address)
    worker = Worker(
        client, task_queue=queue, workflows=[Idle], activities=[nothing], workflow_runner=UnsandboxedWorkflowRunner()
    )
    async with worker:

        async def seen() -> bool:
            return by_name(await probe.probe_once())[f"pollers:{queue}"].state == "up"

        await eventually(seen, within_s=10, what="both kinds of pollers are seen", every_s=0.2)
    shown = {r["name"]: r["state"] for r in await records.list_dependencies(ledger)}
    assert shown == {"temporal": "up", "ledger": "up", f"pollers:{queue}": "up"}


async def test_waiting_task_shows_that_the_worker_is_gone_long_before_temporal_forgets_it(
    servers: Stack, ledger: Ledger
) -> None:
    queue = f"health-{secrets.token_hex(4)}"
    probe = prober(ledger, servers.temporal_address, queue, settings=ProbeSettings(waiting_s=1.0))
    client = await Client.connect(servers.temporal_address)
    worker = Worker(
        client, task_queue=queue, workflows=[Idle], activities=[nothing], workflow_runner=UnsandboxedWorkflowRunner()
    )
    async with worker:
        await client.execute_workflow("health.idle", id=f"{queue}-1", task_queue=queue)
    await client.start_workflow("health.idle", id=f"{queue}-2", task_queue=queue)

    async def noticed() -> Reading | None:
        found = by_name(await probe.probe_once())[f"pollers:{queue}"]
        return found if found.state == "down" else None

    reading = await eventually(noticed, within_s=40, what="nobody works", every_s=0.5)
    assert "nobody has asked for work since" in reading.detail


async def test_temporal_away_is_down_and_its_pollers_unknown(ledger: Ledger) -> None:
    found = by_name(await prober(ledger, "127.0.0.1:1").probe_once())
    assert (found["temporal"].state, found["pollers:q"].state) == ("down", "unknown")
    assert found["ledger"].state == "up"


async def test_temporal_that_comes_back_is_up_again(tmp_path: Path, ledger: Ledger) -> None:
    async with Stack.open(tmp_path, {"temporal"}) as stack:
        probe = prober(ledger, stack.temporal_address)
        assert by_name(await probe.probe_once())["temporal"].state == "up"
        await stack.part("temporal").kill()
        assert by_name(await probe.probe_once())["temporal"].state == "down"
        await stack.part("temporal").start()
        assert by_name(await probe.probe_once())["temporal"].state == "up"


def read(rows: int = 3, total: int | None = 3, *, status: str = "read", lag_s: float | None = 0.0) -> RouteReading:
    now = datetime.now(UTC)
    return RouteReading(
        route="list",
        status=status,
        rows_received=rows,
        declared_total=total,
        pages=1,
        complete=status == "read" and total in (None, rows),
        as_of=None if lag_s is None else now - timedelta(seconds=lag_s),
        started_at=now,
        finished_at=now,
    )


def answers(reading: RouteReading) -> RouteProbe:
    async def probe() -> RouteReading:
        return reading

    return probe


async def hangs() -> RouteReading:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def fails() -> RouteReading:
    raise RouteUnavailable("503 from the list")


async def test_route_that_hangs_or_fails_is_down_and_delays_no_other(ledger: Ledger) -> None:
    routes = {"pay.by_id": answers(read()), "pay.list": fails, "pay.search": hangs}
    probe = prober(ledger, "127.0.0.1:1", routes=routes, settings=ProbeSettings(deadline_s=0.3))
    found = by_name(await asyncio.wait_for(probe.probe_once(), 5))
    assert {n: found[f"route:{n}"].state for n in routes} == {
        "pay.by_id": "up",
        "pay.list": "down",
        "pay.search": "down",
    }
    assert "503 from the list" in found["route:pay.list"].detail
    assert "no answer within" in found["route:pay.search"].detail
    again = by_name(await probe.probe_once())
    assert "route:pay.by_id" not in again  # not so often


@pytest.mark.parametrize(
    ("reading", "state", "says"),
    [
        (read(), "up", "3 rows of 3 declared on 1 pages; as of"),
        (read(2), "degraded", "2 rows of 3 declared on 1 pages; incomplete"),
        (read(2, status="sampled"), "up", "more that were not read"),
        (read(lag_s=0.6), "up", "0.7 s are allowed"),  # declared 0.5 s, and 2 × 0.1 s of skew
        (read(lag_s=0.8), "degraded", "as of 0.8 s ago"),
        (read(lag_s=None), "up", "3 rows of 3 declared on 1 pages"),
        (read(lag_s=-5.0), "up", "as of 0.0 s ago"),
    ],
)
async def test_route_is_measured_against_its_contract(
    ledger: Ledger, reading: RouteReading, state: str, says: str
) -> None:
    contract = sandbox_contract(PAYMENTS, "bounded", SandboxSettings(listeners={}))
    probe = prober(ledger, "127.0.0.1:1", routes={"payments.list": answers(reading)}, contracts=[contract])
    found = by_name(await probe.probe_once())["route:payments.list"]
    assert found.state == state and says in found.detail
    [row] = [r for r in await records.list_dependencies(ledger) if r["name"] == "route:payments.list"]
    assert row["measures"] == found.measures
    assert ("complete" in row["measures"]) == (reading.status == "read")
    assert ("lag_s" in row["measures"]) == (reading.as_of is not None)


@pytest.mark.parametrize(
    ("probes", "state", "says"),
    [
        ({"by_id": read(), "list": read(), "search": read(), "log": read()}, "up", "4 of 4 routes answer"),
        ({"by_id": read(), "list": fails, "search": read(), "log": read()}, "degraded", "3 of 4 routes answer"),
        ({"by_id": fails, "list": fails, "search": fails, "log": fails}, "down", "0 of 4 routes answer"),
        ({"by_id": read(), "list": read(), "search": read()}, "unknown", "3 of 4 routes answer"),
    ],
)
async def test_destination_is_as_well_as_its_routes(
    ledger: Ledger, probes: dict[str, RouteReading | RouteProbe], state: str, says: str
) -> None:
    contract = sandbox_contract(PAYMENTS, "bounded", SandboxSettings(listeners={}))
    routes = {f"payments.{n}": answers(p) if isinstance(p, RouteReading) else p for n, p in probes.items()}
    probe = prober(ledger, "127.0.0.1:1", routes=routes, contracts=[contract])
    found = by_name(await probe.probe_once())["destination:payments"]
    assert (found.state, found.blocks) == (state, "refund at payments") and says in found.detail


async def test_destination_without_a_route_is_unknown(ledger: Ledger) -> None:
    contract = sandbox_contract(PAYMENTS, "bounded", SandboxSettings(listeners={}, completion="receipt"))
    blind = contract.model_copy(update={"routes": ()})
    found = by_name(await prober(ledger, "127.0.0.1:1", contracts=[blind]).probe_once())["destination:payments"]
    assert found.state == "unknown" and "no route" in found.detail
    shown = {r["name"]: believe(r, 60.0) for r in await records.list_dependencies(ledger)}
    assert shown["destination:payments"].nothing_to_ask, "it is told as what it is, and not as a trouble"


async def test_ledger_away_is_raised_for_it_cannot_be_written(ledger: Ledger) -> None:
    broken = Ledger("postgresql://nobody@127.0.0.1:1/none", deadline_s=0.5)
    async with broken:
        with pytest.raises(LedgerUnavailable):
            await prober(broken, "127.0.0.1:1").probe_once()
