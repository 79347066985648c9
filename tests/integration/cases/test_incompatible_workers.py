"""case c10: a worker with incompatible code takes over in the middle of an operation."""

from __future__ import annotations

import signal
from typing import Any

from temporalio.common import WorkflowIDReusePolicy

from actonce.testing.waiting import eventually
from tests.integration.cases.kit import Bench, Lab, operation_id_of, side_by_side

CHANGED = "tests/workflows/changed_worker.py"


async def page_about(bench: Bench, task_id: str, *, closed: bool) -> dict[str, Any] | None:
    rows = [r for r in await bench.rows("page") if r["incident"] == f"workflow:{task_id}"]
    assert len(rows) <= 1, "one incident, however often its workflow task fails"
    return rows[0] if rows and (rows[0]["closed_at"] is not None) == closed else None


@side_by_side
async def test_incompatible_worker_is_paged_and_the_operation_is_readable_and_settled_without_it(lab: Lab) -> None:
    """case c10: page, operation readable outside the workflow; restart keeps the ids; one effect."""
    async with lab.bench() as bench:
        task = bench.task()
        operation_id = operation_id_of(task)
        latch = await bench.world.latch(bench.account, "committed")
        compatible = await bench.worker()
        await bench.watch(ACTONCE_PROBE_EVERY_S="0.5")
        handle = await bench.start_task(task)
        await bench.world.wait_latch(bench.account, latch)
        compatible.signal(signal.SIGKILL)
        await compatible.ended()
        await bench.world.release(bench.account, latch)
        changed = await bench.worker(CHANGED)

        page = await eventually(
            lambda: page_about(bench, task.task_id, closed=False), within_s=60, what="a page about it", every_s=0.3
        )
        assert page["reason"] == "incompatible_worker" and "docs/operations/incompatible_worker.md" in page["body"]
        # the ledger watcher settles the operation without the workflow
        row = await bench.until_state("committed", operation_id=operation_id)
        assert row["completion"] == "read_back"

        changed.signal(signal.SIGKILL)
        await changed.ended()
        await handle.terminate("no release knows this history any more")
        await bench.worker()
        again = await bench.start_task(task, id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE)
        report = await again.result()
        assert report["state"] == "complete"
        assert [o["operation_id"] for o in report["operations"]] == [operation_id]
        assert len(bench.requests()) == len(bench.effects()) == 1
        await eventually(
            lambda: page_about(bench, task.task_id, closed=True), within_s=20, what="the page is closed", every_s=0.3
        )


@side_by_side
async def test_workflow_goes_on_and_the_page_closes_when_a_compatible_worker_is_deployed_again(lab: Lab) -> None:
    """case c10: the release is rolled back: no restart is needed."""
    async with lab.bench() as bench:
        task = bench.task()
        latch = await bench.world.latch(bench.account, "committed")
        compatible = await bench.worker()
        await bench.watch(ACTONCE_PROBE_EVERY_S="0.5")
        handle = await bench.start_task(task)
        await bench.world.wait_latch(bench.account, latch)
        compatible.signal(signal.SIGKILL)
        await compatible.ended()
        await bench.world.release(bench.account, latch)
        changed = await bench.worker(CHANGED)
        await eventually(
            lambda: page_about(bench, task.task_id, closed=False), within_s=60, what="a page about it", every_s=0.3
        )
        changed.signal(signal.SIGKILL)
        await changed.ended()
        await bench.worker()
        assert (await handle.result())["state"] == "complete"
        assert len(bench.effects()) == 1
        await eventually(
            lambda: page_about(bench, task.task_id, closed=True), within_s=20, what="the page is closed", every_s=0.3
        )
