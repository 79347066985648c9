"""The embedded servers, for real: started, killed, found again, ended."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import psycopg
import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from actonce.stack import Stack, StackError, eventually, health, postgres
from actonce.stack.part import NotReady, Part
from actonce.stack.ports import HOST, is_free
from actonce.stack.temporal import missing_search_attributes


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
async def test_temporal_serves_the_same_workflows_after_it_was_stopped(tmp_path: Path, sig: signal.Signals) -> None:
    """case j1: ready only after start + describe + poll, on the same file, at the same address."""
    async with Stack.open(tmp_path, {"temporal"}) as stack:
        client = await Client.connect(stack.temporal_address)
        waiting = await client.start_workflow("waits", id="waits-1", task_queue="nobody")
        address, pid = stack.temporal_address, stack.temporal.pid

        status = await stack.part("temporal").kill(sig)
        assert status == (-signal.SIGKILL if sig == signal.SIGKILL else 0)
        assert is_free(stack.temporal.ports["grpc"])
        await stack.part("temporal").start()

        assert stack.temporal_address == address and stack.temporal.pid != pid
        client = await Client.connect(address)
        found = await client.get_workflow_handle(waiting.id).describe()
        assert found.run_id == waiting.result_run_id and found.close_time is None
        assert await missing_search_attributes(client) == []


async def test_temporal_is_not_ready_while_it_only_listens(tmp_path: Path) -> None:
    """case j1: an open port, even one that speaks, is no readiness."""
    async with Stack.open(tmp_path, {"temporal"}) as stack:
        part = stack.temporal
        await part.stop()
        with socket.create_server((HOST, part.ports["grpc"])), pytest.raises(NotReady):
            await part.check_ready()


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
async def test_postgres_keeps_what_was_committed(tmp_path: Path, sig: signal.Signals) -> None:
    async with Stack.open(tmp_path, {"postgres"}) as stack:
        async with await psycopg.AsyncConnection.connect(stack.ledger_dsn) as connection:
            await connection.execute("CREATE EXTENSION vector")
            await connection.execute("CREATE TABLE kept AS SELECT 42 AS n")
        await stack.part("postgres").kill(sig)
        await stack.part("postgres").start()
        for dsn in (stack.ledger_dsn, stack.postgres.socket_dsn):
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                settings = await (
                    await connection.execute(
                        "SELECT n, current_setting('fsync'), current_setting('synchronous_commit'),"
                        " current_setting('full_page_writes') FROM kept"
                    )
                ).fetchone()
            assert settings == (42, "on", "on", "on")


async def test_postgres_asks_for_its_password_on_every_path(tmp_path: Path) -> None:
    async with Stack.open(tmp_path, {"postgres"}) as stack:
        password = stack.postgres.recorded.values["password"]
        for dsn in (stack.ledger_dsn, stack.postgres.socket_dsn):
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                await psycopg.AsyncConnection.connect(dsn.replace(password, "guess"))


async def test_parts_start_alone(tmp_path: Path) -> None:
    async with postgres(tmp_path) as dsn, await psycopg.AsyncConnection.connect(dsn) as connection:
        assert await (await connection.execute("SELECT 1")).fetchone() == (1,)


async def test_second_start_resumes_the_folder_with_the_same_identity(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        async with Stack.open(tmp_path, {"postgres", "toxiproxy"}) as stack:
            seen.append((stack.run_id, stack.task_queue, stack.ledger_dsn, stack.toxiproxy_url, stack.entry_url))
    assert seen[0] == seen[1]


async def test_resumed_folder_takes_other_ports_when_its_own_are_taken(tmp_path: Path) -> None:
    async with Stack.open(tmp_path, {"toxiproxy"}) as stack:
        port = stack.part("toxiproxy").ports["api"]
    with socket.create_server((HOST, port)):
        async with Stack.open(tmp_path, {"toxiproxy"}) as stack:
            assert stack.part("toxiproxy").ports["api"] != port


async def test_part_that_others_know_does_not_move_to_another_port(tmp_path: Path) -> None:
    async with Stack.open(tmp_path, {"toxiproxy"}) as stack:
        part = stack.part("toxiproxy")
        await part.kill()
        with socket.create_server((HOST, part.ports["api"])), pytest.raises(StackError, match="someone else listens"):
            await part.start()


async def test_port_lost_between_choosing_and_binding_is_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The neighbour speaks HTTP like Toxiproxy would: only our own living process makes the part ready."""
    thieves: list[socket.socket] = []
    launch = Part._launch

    def steal_then_launch(part: Part) -> None:
        if not thieves:
            thieves.append(socket.create_server((HOST, part.ports["api"])))
        launch(part)

    monkeypatch.setattr(Part, "_launch", steal_then_launch)
    try:
        async with Stack.open(tmp_path, {"toxiproxy"}) as stack:
            assert stack.part("toxiproxy").ports["api"] != thieves[0].getsockname()[1]
    finally:
        thieves[0].close()


async def test_orphans_of_a_dead_supervisor_are_ended_before_anything_starts(tmp_path: Path) -> None:
    stack = await Stack.start(tmp_path, {"postgres", "toxiproxy"})
    old = [part.child.proc for part in stack.parts.values() if part.child is not None]
    stack._lock.release()  # as the kernel does for a killed supervisor
    said: list[str] = []
    async with Stack.open(tmp_path, {"postgres", "toxiproxy"}, say=said.append) as again:
        assert again.ledger_dsn == stack.ledger_dsn if stack._state else True
        assert [proc.alive() for proc in old if proc is not None] == [False, False]
    assert sum("left by an earlier supervisor" in line for line in said) == 2
    for part in stack.parts.values():  # reap: they were children of this very process
        assert part.child is not None and await part.child.wait(5) is not None


async def test_stopped_orphan_is_ended_too(tmp_path: Path) -> None:
    stack = await Stack.start(tmp_path, {"toxiproxy"})
    child = stack.part("toxiproxy").child
    assert child is not None and child.send_signal(signal.SIGSTOP)
    stack._lock.release()
    async with Stack.open(tmp_path, {"toxiproxy"}):
        assert child.poll() is not None


async def test_part_that_dies_at_start_shows_its_log_and_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "temporal.db").write_text("this is no database" * 100)
    with pytest.raises(StackError, match=r"temporal ended with status 1 before it was ready\. Log .*temporal\.log"):
        await Stack.start(tmp_path, {"postgres", "temporal"})
    async with Stack.open(tmp_path, {"postgres"}):
        pass


async def test_parts_set_elsewhere_are_checked_and_used(
    servers: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTONCE_LEDGER_DSN", servers.ledger_dsn)
    monkeypatch.setenv("TEMPORAL_ADDRESS", servers.temporal_address)
    monkeypatch.setenv("ACTONCE_TOXIPROXY_URL", servers.toxiproxy_url)
    async with Stack.open(tmp_path, {"postgres", "temporal", "toxiproxy"}) as stack:
        assert stack.parts == {}
        env = stack.env()
        assert env["ACTONCE_LEDGER_DSN"] == servers.ledger_dsn
        assert env["TEMPORAL_ADDRESS"] == stack.temporal_address == servers.temporal_address
        assert env["ACTONCE_TOXIPROXY_URL"] == servers.toxiproxy_url
        with pytest.raises(StackError, match="not a part that this stack started"):
            stack.part("temporal")


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("ACTONCE_LEDGER_DSN", "postgresql://nobody@127.0.0.1:1/none", "postgres"),
        ("TEMPORAL_ADDRESS", "127.0.0.1:1", "temporal"),
        ("ACTONCE_TOXIPROXY_URL", "http://127.0.0.1:1", "toxiproxy"),
    ],
)
async def test_part_set_elsewhere_that_is_not_there_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, part: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StackError, match=f"{name}.* cannot be used"):
        await asyncio.wait_for(Stack.start(tmp_path, {part}), 30)


@workflow.defn(sandboxed=False)
class Nothing:
    @workflow.run
    async def run(self) -> None:
        return


async def test_worker_is_healthy_only_while_it_polls(servers: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", servers.temporal_address)
    monkeypatch.setenv("ACTONCE_TASK_QUEUE", "health-check")
    assert "nobody on" in str(await health.worker())
    async with Worker(await Client.connect(servers.temporal_address), task_queue="health-check", workflows=[Nothing]):

        async def healthy() -> bool:
            return await health.worker() is None

        await eventually(healthy, within_s=20, what="seen by Temporal")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    assert "Temporal cannot be asked" in str(await health.worker())


async def test_ledger_check_tells_reachable_from_not(servers: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTONCE_LEDGER_DSN", servers.ledger_dsn)
    assert await health.ledger() is None
    monkeypatch.setenv("ACTONCE_LEDGER_DSN", "postgresql://127.0.0.1:1/x")
    assert "cannot be asked" in str(await health.ledger())
