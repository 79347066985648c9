"""Run the bench: guarded operations beside bare activities that make the same HTTP call.

Both sides run on the same Temporal server, PostgreSQL and sandbox, in turns (bare, guarded, bare, ...), so that noise
of the machine falls on both. Writes runs/bench.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql
from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from actonce.leaving import run_and_leave
from actonce.stack import Stack
from actonce.stack.process import Child, spawn
from drills.world.client import World

ROUNDS = 7  # enough for a median on a noisy machine, short enough to wait for
OPERATIONS_LATENCY = 20  # in a row, per round
OPERATIONS_THROUGHPUT = 100  # per round, CONCURRENCY at a time
CONCURRENCY = 10
OPERATIONS_COUNTED = 50
KILLS = 5
STATISTICS_S = 11.0
READY_S = 60.0
console = Console(stderr=True)


@dataclass
class Bench:
    """The parts of one run."""

    folder: Path
    stack: Stack
    client: Client
    world: World
    facts: dict[str, Any]
    serial: int = 0

    def payload(self) -> dict[str, Any]:
        self.serial += 1
        return {"payment_id": f"pay_{self.serial}", "amount_minor": 500, "currency": "EUR", "reason": "bench"}

    def settings(self, account: str, completion: str) -> Path:
        """A world file for one worker; connections are kept, as the bare side keeps them."""
        path = self.folder / f"world-{account}.json"
        facts = {
            **self.facts,
            "account": account,
            "completion": completion,
            "late_arrival": "bounded",
            "keep_alive": True,
        }
        path.write_text(json.dumps(facts), encoding="utf-8")
        return path

    def database(self, name: str) -> str:
        """A ledger of its own: two accounts are two contracts, and a ledger refuses two under one version."""
        with psycopg.connect(self.stack.ledger_dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return urlunsplit(urlsplit(self.stack.ledger_dsn)._replace(path=f"/{name}"))

    async def start(self, name: str, command: list[str], **env: str) -> Child:
        return await started(self.folder, name, command, {**os.environ, **self.stack.env(), **env})


async def started(folder: Path, name: str, command: list[str], env: dict[str, str]) -> Child:
    """Start a program and wait for its ready line."""
    log = folder / f"{name}.log"
    child = spawn(name, command, log=log, env=env)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and child.poll() is None:
        if '"event": "ready"' in log.read_text(encoding="utf-8", errors="replace"):
            return child
        await asyncio.sleep(0.02)
    await child.stop()
    raise RuntimeError(f"{name} was not ready within {READY_S} s; its log ends: {log.read_text()[-2000:]}")


async def guarded_batch(bench: Bench, queue: str, steps: int, concurrency: int) -> float:
    """Seconds for one batch workflow of guarded operations."""
    bench.serial += 1
    key = f"bench-{bench.serial}"
    task = {
        "tenant": "default",
        "task_id": f"default/batch/{key}",
        "task_type": "batch",
        "task_key": key,
        "payload": {
            "concurrency": concurrency,
            "steps": [
                {"step": f"s{i}", "destination": "payments", "action": "refund", "payload": bench.payload()}
                for i in range(steps)
            ],
        },
    }
    return await timed(bench.client, "batch.v1", task, queue)


async def bare_batch(bench: Bench, queue: str, steps: int, concurrency: int) -> float:
    """Seconds for one workflow of bare activities."""
    account = "bench-bare"
    url = f"{bench.facts['listeners']['payments.write']}/v1/{account}/refunds"
    headers = {"Authorization": f"Bearer tok-{account}-write"}
    calls = [{"url": url, "json": {**bench.payload(), "metadata": {}}, "headers": headers} for _ in range(steps)]
    return await timed(bench.client, "bench.bare", {"calls": calls, "concurrency": concurrency}, queue)


async def timed(client: Client, workflow: str, argument: dict[str, Any], queue: str) -> float:
    began = time.perf_counter()
    await client.execute_workflow(
        workflow, argument, id=argument.get("task_id", f"bare-{time.monotonic_ns()}"), task_queue=queue
    )
    return time.perf_counter() - began


def counters(dsn: str) -> tuple[int, int]:
    """(transaction ids used, transactions committed) of the ledger's server and database so far.

    Only transactions that write use an id. The statistics of an idle session are flushed after 10 s at the latest.
    """
    time.sleep(STATISTICS_S)
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, xact_commit FROM pg_stat_database"
            " WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


async def compare(bench: Bench, guarded: str, bare: str) -> dict[str, Any]:
    """Latency and throughput, in turns; the ratio is the median of the rounds' ratios."""
    latency: list[tuple[float, float]] = []
    throughput: list[tuple[float, float]] = []
    await guarded_batch(bench, guarded, 5, 1)  # warm both sides up
    await bare_batch(bench, bare, 5, 1)
    for turn in range(ROUNDS):
        console.print(f"round {turn + 1} of {ROUNDS}")
        pair = []
        for concurrency, steps in ((1, OPERATIONS_LATENCY), (CONCURRENCY, OPERATIONS_THROUGHPUT)):
            order = [(guarded_batch, guarded), (bare_batch, bare)]
            seconds: dict[Any, float] = {}
            for batch, queue in order if turn % 2 else reversed(order):
                seconds[batch] = await batch(bench, queue, steps, concurrency)
            pair.append((seconds[guarded_batch] / steps, seconds[bare_batch] / steps))
        latency.append(pair[0])
        throughput.append(pair[1])
    return {
        "latency_ratio": statistics.median(g / b for g, b in latency),
        "latency_guarded_ms": 1000 * statistics.median(g for g, _ in latency),
        "latency_bare_ms": 1000 * statistics.median(b for _, b in latency),
        "throughput_ratio": statistics.median(b / g for g, b in throughput),
        "throughput_guarded_per_s": statistics.median(1 / g for g, _ in throughput),
        "throughput_bare_per_s": statistics.median(1 / b for _, b in throughput),
    }


@contextmanager
def without_autovacuum(dsn: str) -> Iterator[None]:
    """The server's housekeeping commits in our database too, when it likes; it is no part of an operation."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute("ALTER SYSTEM RESET autovacuum")
            connection.execute("SELECT pg_reload_conf()")


async def count_transactions(bench: Bench, queue: str, dsn: str) -> dict[str, float]:
    """Ledger transactions per clean operation, the task's own (plan, report) taken off: all, and those that write."""
    with without_autovacuum(dsn):
        before = counters(dsn)
        await guarded_batch(bench, queue, 1, 1)
        middle = counters(dsn)
        await guarded_batch(bench, queue, OPERATIONS_COUNTED + 1, 1)
        after = counters(dsn)
    spent = [(a - m) - (m - b) for b, m, a in zip(before, middle, after, strict=True)]
    return {
        "ledger_transactions": spent[1] / OPERATIONS_COUNTED,
        "ledger_transactions_that_write": spent[0] / OPERATIONS_COUNTED,
    }


async def kill_to_verdict(bench: Bench, number: int) -> float:
    """Seconds from SIGKILL of the worker that holds a committed, unanswered request to `committed` in the ledger."""
    account, queue = f"bench-kill-{number}", f"bench-kill-{number}"
    dsn = bench.database(f"kill_{number}")
    env = {"ACTONCE_WORLD": str(bench.settings(account, "receipt")), "ACTONCE_TASK_QUEUE": queue}
    env["ACTONCE_LEDGER_DSN"] = dsn
    workers = [await bench.start(f"kill-{number}-{name}", [sys.executable, "worker.py", "run"], **env) for name in "ab"]
    try:
        await bench.world.latch(account, "committed")
        task_id = f"default/single/kill-{number}"
        payload = {"destination": "payments", "action": "refund", "payload": bench.payload()}
        task = {"tenant": "default", "task_id": task_id, "task_type": "single", "task_key": f"kill-{number}"}
        argument = {**task, "payload": payload}
        handle = await bench.client.start_workflow("single.v1", argument, id=task_id, task_queue=queue)
        await bench.world.wait_latch(account)
        pid = owner_of(dsn, task_id)
        (victim,) = (worker for worker in workers if worker.pid == pid)
        began = time.perf_counter()
        victim.send_signal(signal.SIGKILL)
        seconds = await until_committed(dsn, task_id, began)
        await bench.world.release(account)
        await handle.result()
        return seconds
    finally:
        for worker in workers:
            await worker.stop()


def owner_of(dsn: str, task_id: str) -> int:
    """The pid that holds the permit of a task's only operation."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT (a.owner->>'pid')::int FROM actonce.attempt a JOIN actonce.operation o USING (tenant, destination,"
            " action, operation_id) WHERE o.task_id = %s AND o.state = 'dispatched'",
            (task_id,),
        ).fetchone()
    assert row is not None, f"{task_id} holds no permit"
    return int(row[0])


async def until_committed(dsn: str, task_id: str, began: float) -> float:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        while time.perf_counter() - began < READY_S:
            cursor = await connection.execute("SELECT state FROM actonce.operation WHERE task_id = %s", (task_id,))
            row = await cursor.fetchone()
            if row and row[0] == "committed":
                return time.perf_counter() - began
            await asyncio.sleep(0.02)
    raise TimeoutError(f"{task_id} was not committed within {READY_S} s of the kill; see the logs")


@asynccontextmanager
async def parts(folder: Path) -> AsyncIterator[Bench]:
    async with await Stack.start(folder, parts={"temporal", "postgres"}) as stack:
        world = await started(
            folder, "world", [sys.executable, "-m", "drills.world", "--folder", str(folder / "world")], dict(os.environ)
        )
        try:
            path = folder / "world" / "world.json"
            async with World.load(path) as door:
                client = await Client.connect(stack.temporal_address)
                yield Bench(folder, stack, client, door, json.loads(path.read_text(encoding="utf-8")))
        finally:
            await world.stop()


async def run(folder: Path) -> dict[str, Any]:
    """The whole bench. Returns what runs/bench.json holds."""
    result: dict[str, Any] = {}
    async with parts(folder) as bench:
        workers: list[Child] = []
        try:
            dsns = {completion: bench.database(completion) for completion in ("receipt", "read_back")}
            for completion in dsns:
                env = {
                    "ACTONCE_WORLD": str(bench.settings(f"bench-{completion.replace('_', '-')}", completion)),
                    "ACTONCE_TASK_QUEUE": completion,
                    "ACTONCE_LEDGER_DSN": dsns[completion],
                }
                workers.append(await bench.start(completion, [sys.executable, "worker.py", "run"], **env))
            for account in ("bench-receipt", "bench-read-back", "bench-bare"):
                await bench.world.configure(account, late_arrival="none")  # a bounded one closes every connection
            bare = [sys.executable, "-m", "drills.bench.bare"]
            workers.append(await bench.start("bare", bare, ACTONCE_TASK_QUEUE="bare"))
            result |= await compare(bench, "receipt", "bare")
            read_back = await compare(bench, "read_back", "bare")
            result["read_back"] = {k: read_back[k] for k in ("latency_ratio", "throughput_ratio")}
            result |= await count_transactions(bench, "receipt", dsns["receipt"])
        finally:
            for worker in workers:
                await worker.stop()
        kills = [await kill_to_verdict(bench, number) for number in range(KILLS)]
    result |= {"kill_to_verdict_s": statistics.median(kills), "kill_to_verdict_all_s": kills}
    return result


def show(result: dict[str, Any]) -> None:
    table = Table("what", "measured", "aim", title="What the guarantee costs (one run, in turns)")
    table.add_row("latency, guarded / bare", f"{result['latency_ratio']:.2f}", "≤ 1.25")
    table.add_row("throughput, guarded / bare", f"{result['throughput_ratio']:.2f}", "≥ 0.75")
    table.add_row("ledger transactions per operation", f"{result['ledger_transactions']:.2f}", "≤ 2")
    table.add_row("of these, that write", f"{result['ledger_transactions_that_write']:.2f}", "")
    table.add_row("SIGKILL to verdict, median s", f"{result['kill_to_verdict_s']:.2f}", "≤ 3.5")
    table.add_row(
        "with read_back: latency, throughput",
        "{latency_ratio:.2f}, {throughput_ratio:.2f}".format(**result["read_back"]),
        "",
    )
    Console().print(table)


def main() -> int:
    out = Path("runs")
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="actonce-bench-") as folder:
        result = asyncio.run(run(Path(folder)))
    (out / "bench.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    show(result)
    print(f"written: {out / 'bench.json'}")
    return 0


if __name__ == "__main__":
    run_and_leave(main)
