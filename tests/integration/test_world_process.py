"""The world as a process of its own, found through the files that everybody else uses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from actonce.contracts.errors import Unknown
from actonce.destinations import Registry
from actonce.destinations.sandbox import LateArrivalKind, load_sandbox
from drills.world.client import World
from drills.world.modes import LateArrivalKind as WorldKind
from tests.unit.world.helpers import lookup_for, make_call, read_all

ROOT = Path(__file__).parents[2]
SECRET = "run-secret"


@asynccontextmanager
async def world_process(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, World]]:
    env = os.environ | {"ACTONCE_RUN_ID": "run-7", "ACTONCE_RUN_SECRET": SECRET}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "drills.world", "--folder", str(folder), cwd=ROOT, env=env, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            ready = json.loads(await process.stdout.readline())
        assert ready["event"] == "ready" and ready["pid"] == process.pid
        async with World.load(ready["world"]) as world:
            yield process, world
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


def write_settings(path: Path, world: World, **settings: Any) -> Path:
    path.write_text(json.dumps({"listeners": world.listeners, "account": "acct", **settings}), encoding="utf-8")
    return path


async def test_worker_and_drill_meet_the_world_through_its_file(tmp_path: Path) -> None:
    async with world_process(tmp_path / "world") as (process, world):
        await world.prove_controlled(SECRET)
        registry = Registry(load_sandbox(write_settings(tmp_path / "cell.json", world)))
        assert {d.contract.name for d in registry} == {"payments", "reversals", "tickets", "mail"}
        payments = registry.get("payments", "refund")
        latch = await world.latch("acct", "committed")
        call = make_call(payments.contract)
        sending = asyncio.create_task(payments.send(call))
        held = await world.wait_latch("acct", latch)
        assert held["operation_id"] == call.operation_id
        await world.release("acct", latch, answer={"kind": "reset"})
        with pytest.raises(Unknown):
            await sending
        rows, _ = await read_all(payments, "list", lookup_for(call))
        assert [r.digest for r in rows] == [call.digest]
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    lines = world.journal()
    assert lines[-1]["kind"] == "world_stopped"
    assert [x["order"] for x in lines] == list(range(1, len(lines) + 1))


async def test_the_worlds_own_file_is_enough_for_a_worker(tmp_path: Path) -> None:
    async with world_process(tmp_path / "world") as (_, world):
        registry = Registry(load_sandbox(tmp_path / "world" / "world.json"))
        payments = registry.get("payments")
        call = make_call(payments.contract)
        receipt = await payments.send(call)
        rows, _ = await read_all(payments, "log", lookup_for(call))
        assert [r.object_id for r in rows] == [receipt.object_id]
        assert {line["account"] for line in world.journal() if line["kind"] == "effect"} == {"main"}


async def test_what_was_committed_survives_sigkill_in_the_journal(tmp_path: Path) -> None:
    async with world_process(tmp_path / "world") as (process, world):
        (payments,) = load_sandbox(write_settings(tmp_path / "cell.json", world, destinations=["payments"]))
        call = make_call(payments.contract)
        await payments.send(call)
        process.kill()
        await process.wait()
    effects = [x for x in world.journal() if x["kind"] == "effect"]
    assert [x["operation_id"] for x in effects] == [call.operation_id]


async def test_a_restarted_world_still_has_what_it_committed(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    async with world_process(folder) as (process, world):
        await world.configure("acct", late_arrival="key_on_arrival", seed_rows=7, routes={"log": {"lag_s": 0.1}})
        file = write_settings(tmp_path / "cell.json", world, late_arrival="key_on_arrival")
        first = Registry(load_sandbox(file))
        call = make_call(first.get("payments").contract)
        receipt = await first.get("payments").send(call)
        back = make_call(first.get("reversals").contract, {"reverses": receipt.object_id, "reason": "mistake"})
        await first.get("reversals").send(back)
        process.kill()
        await process.wait()
    async with world_process(folder) as (_, world):
        again = Registry(load_sandbox(write_settings(tmp_path / "cell.json", world, late_arrival="key_on_arrival")))
        payments = again.get("payments")
        rows, pages = await read_all(payments, "list", lookup_for(call, back.key))
        assert [(r.object_id, r.state, r.digest) for r in rows if r.kind == "refund"] == [
            (receipt.object_id, "reversed", call.digest)
        ]
        assert pages[-1].declared_total == 7 + 2
        replayed = await payments.send(make_call(payments.contract, operation_id=call.operation_id))
        assert replayed.object_id == receipt.object_id and replayed.detail["replayed"]
        fresh = await payments.send(make_call(payments.contract))
        assert fresh.object_id not in {r.object_id for r in rows}
    lines = world.journal()
    assert [x["order"] for x in lines] == list(range(1, len(lines) + 1))


@pytest.mark.parametrize("kind", get_args(LateArrivalKind))
def test_every_kind_of_late_arrival_has_a_contract_and_four_independent_routes(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cell.json"
    listeners = {"mail": "smtp://127.0.0.1:1"}
    path.write_text(json.dumps({"listeners": listeners, "account": "acct", "late_arrival": kind}), encoding="utf-8")
    payments = Registry(load_sandbox(path)).get("payments")
    assert len(payments.contract.independent_groups()) == 4
    expected = {"key_on_arrival": "key_honoured", "key_at_commit": "key_honoured"}.get(kind, kind)
    assert payments.contract.late_arrival.kind == expected
    assert payments.contract.resends_same_key is (kind == "key_on_arrival")


def test_the_world_and_the_contracts_know_the_same_kinds() -> None:
    assert set(get_args(WorldKind)) == set(get_args(LateArrivalKind))
