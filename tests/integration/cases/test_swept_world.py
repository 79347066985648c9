"""The sweep as an operator runs it, at the sandbox destinations, killed in the middle of a page and run again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import psycopg

from actonce.effects.perform import perform
from actonce.effects.system import System
from actonce.ledger.migrate import migrate
from actonce.testing.waiting import eventually
from tests.integration.cases.kit import ROOT, Bench, Lab, key_of, lost, side_by_side
from tests.integration.cases.test_reading_after_writing import LOST_AFTER
from tests.integration.cases.test_restored_ledger import restore, take_backup
from tests.integration.restore_bench import send


async def command(bench: Bench, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "worker.py",
        "restore",
        *arguments,
        cwd=ROOT,
        env={**os.environ, **bench.environment(), "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def said(bench: Bench, *arguments: str) -> dict[str, Any]:
    """Run it to its end; what it printed."""
    process = await command(bench, *arguments)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    found: dict[str, Any] = json.loads(out)
    return found


async def kill_in_a_page(bench: Bench) -> None:
    """Start a sweep, and SIGKILL it while it is writing down what a page showed: nobody lets it."""
    async with await psycopg.AsyncConnection.connect(bench.dsn) as link:
        await link.execute("LOCK TABLE actonce.restore_effect IN SHARE MODE")
        process = await command(bench, "sweep")

        async def waits() -> bool:
            row = await (
                await link.execute(
                    "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
                    " WHERE c.relname = 'restore_effect' AND NOT l.granted AND l.database ="
                    " (SELECT oid FROM pg_database WHERE datname = current_database())"
                )
            ).fetchone()
            return bool(row and row[0])

        await eventually(waits, within_s=60, what="the sweep in the middle of a page", every_s=0.1)
        process.kill()
        await process.communicate()
        await link.rollback()


@side_by_side
async def test_a_killed_sweep_of_the_world_goes_on_and_what_it_adopts_is_not_sent_again(lab: Lab) -> None:
    async with lab.bench(modes={"page_size": 2}) as bench:
        before: System = await bench.system()
        first, second, third = (bench.request(name) for name in ("1", "2", "3"))
        await send(before, first)
        backup = await take_backup(bench)
        before = await bench.system()
        await send(before, second)
        await bench.configure(**LOST_AFTER, page_size=2)
        await lost(before, third)
        await bench.configure(answer=None, page_size=2)
        entered = await restore(bench, backup)
        assert entered is not None

        async def passed() -> bool:
            async with await psycopg.AsyncConnection.connect(bench.dsn) as link:
                row = await (await link.execute("SELECT clock_timestamp() > %s", (entered.bounds_until,))).fetchone()
            return bool(row and row[0])

        await eventually(passed, within_s=60, what="the bounds of the restore passed", every_s=0.1)
        await asyncio.to_thread(
            migrate, bench.dsn
        )  # a process may run the last step again, and would wait for the lock
        await kill_in_a_page(bench)
        assert await bench.rows("restore_effect") == [] and (await bench.rows("sweep"))[0]["done_at"] is None

        found = await said(bench, "sweep")
        assert found["sweep"]["run"] == 1 and found["sweep"]["done_at"] is not None
        totals = {t["destination"]: t for t in found["sweep"]["totals"]}
        sides = {name: totals["payments"][name] for name in ("matched", "adopted", "conflict", "ledger_only")}
        assert sides == {"matched": 1, "adopted": 2, "conflict": 0, "ledger_only": 0}
        assert set(totals) == {"payments", "reversals", "tickets"} and "payments" in found["listed"]
        assert found["sweep"]["not_swept"] == {"mail": "no route of it can list what is ours"}
        adopted = {o["operation_id"]: o for o in await bench.rows("operation") if o["completion"] == "adopted"}
        assert set(adopted) == {key_of(second).operation_id, key_of(third).operation_id}

        after = await bench.system()
        assert (await perform(after, second)).how.startswith("not sent")
        assert len(bench.effects()) == 3
