"""The prober reaches each part, and says `up` only after it answered."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from actonce.contracts.errors import LedgerUnavailable, RouteUnavailable
from actonce.health import Prober, ProbeSettings, Reading
from actonce.ledger import records
from actonce.ledger.migrate import migrate
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


async def test_route_that_hangs_or_fails_is_down_and_delays_no_other(ledger: Ledger) -> None:
    async def reads() -> str:
        return "3 rows"

    async def fails() -> str:
        raise RouteUnavailable("503 from the list")

    async def hangs() -> str:
        await asyncio.Event().wait()
        return ""

    routes = {"pay.by_id": reads, "pay.list": fails, "pay.search": hangs}
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


async def test_ledger_away_is_raised_for_it_cannot_be_written(ledger: Ledger) -> None:
    broken = Ledger("postgresql://nobody@127.0.0.1:1/none", deadline_s=0.5)
    async with broken:
        with pytest.raises(LedgerUnavailable):
            await prober(broken, "127.0.0.1:1").probe_once()
