"""A restored ledger is older than the world: case g4, trap 10 and cell 14 of the protocol, rules R12 and R13.

The restore is a real one: the case's database is copied with everything in it (`CREATE DATABASE … TEMPLATE`), work goes
on, and the copy takes its place. Each control leaves the protection out and sees the duplicate.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from actonce.contracts.errors import DecisionRefused, LedgerUnavailable, NotSent, StaleWrite
from actonce.contracts.messages import DecisionRequest, TaskInput
from actonce.effects.decide import decide
from actonce.effects.perform import perform
from actonce.effects.reconcile import reconcile
from actonce.effects.system import System
from actonce.ledger import decisions
from actonce.ledger.restoring import Boundary, Restore, enter_quarantine, let_go
from actonce.testing.waiting import eventually
from actonce.trail.verify import verify
from tests.integration.cases.gates import Gate, before_fence
from tests.integration.cases.kit import Bench, Lab, key_of, lost, operation_id_of, settle, side_by_side
from tests.integration.cases.test_permits import NO_ROUTES, PATIENT, perform_at_gate
from tests.integration.cases.test_reading_after_writing import LOST_AFTER, LOST_BEFORE

CONTROL = pytest.mark.parametrize("protected", [True, False], ids=["protected", "control"])


@dataclass
class Backup:
    name: str
    at: datetime  # by the ledger's clock


async def take_backup(bench: Bench) -> Backup:
    """Copy the ledger's database. Its connections are ended for that, as a host's failure would."""
    async with await psycopg.AsyncConnection.connect(bench.dsn, row_factory=dict_row) as link:
        row = await (await link.execute("SELECT clock_timestamp() AS now")).fetchone()
    assert row is not None
    backup = Backup(f"{bench.database}_backup", row["now"])
    ours, copy = sql.Identifier(bench.database), sql.Identifier(backup.name)
    async with await psycopg.AsyncConnection.connect(bench.lab.parts.stack.ledger_dsn, autocommit=True) as admin:
        await admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(ours))
        await admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", (bench.database,)
        )
        await admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(copy, ours))
        await admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(ours))
    return backup


async def restore(bench: Bench, backup: Backup, *, protected: bool = True) -> Restore | None:
    """Put the copy in the place of the ledger and, unless a control leaves that out, enter quarantine."""
    ours, copy = sql.Identifier(bench.database), sql.Identifier(backup.name)
    async with await psycopg.AsyncConnection.connect(bench.lab.parts.stack.ledger_dsn, autocommit=True) as admin:
        await admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(ours))
        # Quarantined before it has the name by which anybody of ours reaches it.
        entered = await _enter(bench.lab.parts.dsn(backup.name), backup) if protected else None
        await admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(copy, ours))
    return entered


async def _enter(dsn: str, backup: Backup) -> Restore:
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as link:
        return await enter_quarantine(link, Boundary(backup.at))


async def release(bench: Bench) -> None:
    """What the operator's act does for every task at once."""
    async with await psycopg.AsyncConnection.connect(bench.dsn, row_factory=dict_row) as link:
        await link.execute("UPDATE actonce.identity SET quarantined = false")
        rows = await (await link.execute("SELECT task_id FROM actonce.task")).fetchall()
        await let_go(link, [row["task_id"] for row in rows])


@CONTROL
@side_by_side
async def test_effect_that_came_after_the_backup_is_found_and_not_sent_again(lab: Lab, protected: bool) -> None:
    """case g4, R12: the ledger has no row of it; its first issue after the restore is reconciled first."""
    async with lab.bench() as bench:
        backup = await take_backup(bench)
        assert (await perform(await bench.system(), bench.request())).status == "committed"
        await restore(bench, backup, protected=protected)
        assert await bench.rows("operation") == []
        system = await bench.system()
        again = await perform(system, bench.request())
        if not protected:
            assert (again.status, len(bench.effects())) == ("committed", 2), "the control saw no duplicate"
            return
        assert again.status == "unknown" and "may have been sent" in again.how
        seen = await settle(system, bench.request())
        assert (seen.verdict, seen.next) == ("committed", "done")
        assert len(bench.requests()) == len(bench.effects()) == 1
        (attempt,) = await bench.rows("attempt")
        assert (attempt["epoch"], attempt["outcome"]) == (2, "lost_interval")


@CONTROL
@side_by_side
async def test_effect_in_flight_at_the_restore_is_waited_for(lab: Lab, protected: bool) -> None:
    """cell 14: backup before the permit, the request still being worked on when the ledger is restored."""
    async with lab.bench(modes={"processing_delay_s": 2.0}) as bench:
        request = bench.request()
        backup = await take_backup(bench)
        old = asyncio.ensure_future(perform(await bench.system(), request))
        await eventually(lambda: bench.requests(), within_s=20, what="the request on its way")
        await restore(bench, backup, protected=protected)
        system = await bench.system()
        again = await perform(system, request)
        if not protected:
            await eventually(lambda: len(bench.effects()) == 2, within_s=20, what="the control's duplicate")
        else:
            assert again.status == "unknown"
            seen = await settle(system, request)
            assert (seen.verdict, seen.next) == ("committed", "done")
            assert len(bench.requests()) == len(bench.effects()) == 1
        await asyncio.gather(old, return_exceptions=True)


@side_by_side
async def test_what_was_not_sent_is_sent_once_and_only_after_its_release(lab: Lab) -> None:
    """R12: ready at the backup; absent only after restore time + the longest permit's life and every bound."""
    async with lab.bench() as bench:
        request = bench.request()
        unsent = Gate()
        unsent.go.set()
        first = await perform(await bench.system(change=before_fence(unsent, NotSent("no connection"))), request)
        assert (first.status, first.how) == ("ready", "not_sent")
        backup = await take_backup(bench)
        entered = await restore(bench, backup)
        assert entered is not None and entered.operations == 1 and entered.bounds_until > entered.not_after
        row = await bench.operation()
        assert (row["state"], row["epoch"], row["attempt"], row["attempts"]) == ("unknown", 2, 2, 2)
        assert row["not_after"] == entered.not_after and row["may_commit_until"] > entered.not_after
        system = await bench.system()
        seen = await settle(system, request)
        assert (seen.verdict, seen.next) == ("absent", "issue")
        (verdict,) = [v for v in await bench.rows("verdict") if v["applied"] and v["outcome"] == "absent"]
        assert verdict["at"] > row["may_commit_until"]
        refused = await perform(system, request)
        assert (refused.status, refused.quarantined) == ("ready", True)
        assert bench.requests() == []
        await release(bench)
        assert (await perform(system, request)).status == "committed"
        assert len(bench.requests()) == len(bench.effects()) == 1
        assert not (await verify(bench.dsn)).findings


@CONTROL
@side_by_side
async def test_destination_without_a_route_is_held(lab: Lab, protected: bool) -> None:
    """R13: nothing can tell whether it was sent, so a person decides, and not before the bounds."""
    async with lab.bench(contracts=NO_ROUTES) as bench:
        backup = await take_backup(bench)
        assert (await perform(await bench.system(), bench.request())).status == "committed"
        entered = await restore(bench, backup, protected=protected)
        system = await bench.system()
        again = await perform(system, bench.request())
        if entered is None:
            assert (again.status, len(bench.effects())) == ("committed", 2), "the control saw no duplicate"
            return
        assert (await reconcile(system, key_of(bench.request()))).next == "hold"
        row = await bench.operation()
        assert (row["state"], row["reason"]) == ("held", "no_route")
        assert row["decide_at"] > row["not_after"] > entered.at, "decisions are refused until then"
        assert len(bench.requests()) == 1


def decision(row: dict[str, object], action: str) -> DecisionRequest:
    return DecisionRequest.model_validate(
        {
            "action": action,
            "name": "ann",
            "reason": "asked them",
            "evidence": "a call",
            "expected_epoch": row["epoch"],
            "expected_version": row["version"],
        }
    )


@side_by_side
async def test_hold_stays_and_a_decision_from_before_the_restore_is_stale(lab: Lab) -> None:
    """trap 10: the restore keeps the hold, and what was decided about the old epoch permits nothing in the new one."""
    async with lab.bench(modes=LOST_AFTER, contracts=NO_ROUTES) as bench:
        request = bench.request()
        system = await bench.system()
        await lost(system, request)
        assert (await reconcile(system, key_of(request))).next == "hold"
        before = await bench.operation()
        await bench.until_decidable()
        waiting = await decisions.record(system.ledger, key_of(request), decision(before, "permit_one_retry"))
        backup = await take_backup(bench)
        entered = await restore(bench, backup)
        assert entered is not None
        row = await bench.operation()
        assert (row["state"], row["reason"], row["epoch"]) == ("held", "no_route", 2)
        assert row["version"] == before["version"] + 1 and row["not_after"] == entered.not_after
        system = await bench.system()
        with pytest.raises(DecisionRefused) as refused:
            await decisions.record(system.ledger, key_of(request), decision(before, "mark_absent"))
        assert refused.value.code == "stale"
        await decide(system, key_of(request))
        (kept,) = await bench.rows("decision")
        assert (kept["decision_id"], kept["result"]) == (waiting.decision_id, "stale")
        assert (await bench.operation())["state"] == "held"
        assert len(bench.requests()) == 1


async def reconnected(system: System) -> None:
    """The restore ended its connections; what it is told from here on is the restored ledger's answer."""

    async def check() -> bool:
        try:
            for _ in range(12):  # its pool has ten and lends them in turn
                await system.ledger.clock()
        except LedgerUnavailable:
            return False
        return True

    await eventually(check, within_s=20, what="an old process reached the restored ledger")


@pytest.mark.parametrize("known", [True, False], ids=["dispatched at the backup", "not in the backup"])
@side_by_side
async def test_owner_from_before_the_restore_cannot_send(lab: Lab, known: bool) -> None:
    """cell 14: a live old worker stands before its fence with a permit of the old epoch; its word changes nothing."""
    async with lab.bench() as bench:
        gate, request = Gate(), bench.request()
        if known:
            old, owner = await perform_at_gate(bench, gate, request)
            backup = await take_backup(bench)
        else:
            backup = await take_backup(bench)
            old, owner = await perform_at_gate(bench, gate, request)
        await restore(bench, backup)
        if not known:
            assert (await perform(await bench.system(), request)).status == "unknown"
        before = await bench.operation()
        assert (before["state"], before["epoch"]) == ("unknown", 2)
        await reconnected(old)
        gate.go.set()
        await owner
        assert await bench.operation() == before
        assert bench.requests() == []


@pytest.mark.parametrize("known", [True, False], ids=["dispatched at the backup", "not in the backup"])
@side_by_side
async def test_late_acknowledgement_of_an_old_owner_is_kept(lab: Lab, known: bool) -> None:
    """R6: it explains what the restore presumed, and is no second send; also of an operation the ledger lost."""
    async with lab.bench(modes={"answer_delay_s": 2.0}, timing=PATIENT) as bench:
        request = bench.request()
        backup = None if known else await take_backup(bench)
        owner = asyncio.ensure_future(perform(await bench.system(), request))
        await eventually(lambda: bench.effects(), within_s=20, what="the effect")
        backup = backup or await take_backup(bench)
        await restore(bench, backup)
        if known:
            assert (await owner).status == "committed"
        else:
            with pytest.raises(StaleWrite):
                await owner
            system = await bench.system()
            assert (await perform(system, request)).status == "unknown"
            assert (await settle(system, request)).verdict == "committed"
        (ack,) = await bench.rows("acknowledgement")
        assert (ack["epoch"], ack["contradicts"]) == (1, False)
        assert (await bench.operation())["state"] == "committed"
        assert len(bench.requests()) == len(bench.effects()) == 1


async def start(http: httpx.AsyncClient, task: TaskInput) -> None:
    """As a caller does: the same key again while the ledger is away."""

    async def accepted() -> bool:
        headers = {"Idempotency-Key": task.task_key}
        answer = await http.post(f"/v1/tasks/{task.task_type}", json=task.payload, headers=headers)
        assert answer.status_code in (200, 202, 409, 503), answer.text
        return answer.status_code < 300

    await eventually(accepted, within_s=30, what=f"task {task.task_key} accepted", every_s=0.2)


async def until_task(http: httpx.AsyncClient, task: TaskInput, state: str) -> dict[str, Any]:
    async def check() -> dict[str, Any] | None:
        answer = await http.get(f"/v1/tasks/{task.task_id}")
        told: dict[str, Any] = answer.json()
        return told if answer.status_code == 200 and told["state"] == state else None

    return await eventually(check, within_s=60, what=f"task {task.task_key} {state}", every_s=0.2)


@side_by_side
async def test_tasks_wait_in_quarantine_and_go_on_when_they_are_released(lab: Lab) -> None:
    """One task was unresolved at the backup, another was begun and done after it: its caller sends the same key again.

    Entry and worker are those from before the restore.
    """
    modes = {**LOST_BEFORE, "routes": {"*": "down"}}
    async with lab.bench(modes=modes, timing={"page_grace_s": 60.0}) as bench:
        entry, _ = await asyncio.gather(bench.entry(), bench.worker())
        waiting, done = bench.task("waiting"), bench.task("done")
        async with bench.caller(entry) as http:
            await start(http, waiting)
            await bench.until_state("unknown", operation_id=operation_id_of(waiting))
            backup = await take_backup(bench)
            await start(http, done)
            await until_task(http, done, "complete")
            await restore(bench, backup)
            await bench.configure(routes={"*": "healthy"})
            shown = await until_task(http, waiting, "quarantined")
            assert shown["reason"] == "ledger_restored"
            await start(http, done)
            again = await until_task(http, done, "complete")
            assert [o["state"] for o in again["operations"]] == ["committed"]
            await bench.until_state("ready", operation_id=operation_id_of(waiting))
            assert bench.effects(operation_id_of(waiting)) == []
            assert (await until_task(http, waiting, "quarantined"))["operations"][0]["state"] == "ready"
            await release(bench)
            await until_task(http, waiting, "complete")
        assert len(bench.effects(operation_id_of(done))) == len(bench.effects(operation_id_of(waiting))) == 1
