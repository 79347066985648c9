"""Tasks of several operations: one that is held or declined, and cancellation with a request in flight (rule R8)."""

from __future__ import annotations

import asyncio
from typing import Any

from actonce.contracts.identity import derive_operation_id
from actonce.testing.waiting import eventually
from tests.integration.cases.kit import REFUND, Lab, operation_id_of, side_by_side

ROOMY = {"permit_lifetime_s": 4.0, "send_deadline_s": 4.0, "activity_timeout_s": 6.0, "reconcile_after_s": 7.0}


def batch_of(*names: str) -> dict[str, Any]:
    steps = [
        {"step": name, "destination": "payments", "action": "refund", "payload": REFUND | {"payment_id": name}}
        for name in names
    ]
    return {"steps": steps, "concurrency": 3}


@side_by_side
async def test_held_operation_of_a_batch_stops_no_other(lab: Lab) -> None:
    """SPEC 1, hold: so does every step that needs it; independent batch steps go on, and the task waits."""
    async with lab.bench(late_arrival="none") as bench:
        task = bench.task("1", "batch", batch_of("one", "two", "three"))
        held_id = operation_id_of(task, "two")
        await bench.configure(answer={"kind": "close", "when": "before_commit", "times": 1, "operation_id": held_id})
        await bench.worker()
        handle = await bench.start_task(task)
        row = await bench.until_state("held", operation_id=held_id)
        assert row["reason"] == "late_commit_possible"
        for name in ("one", "three"):
            await bench.until_state("committed", operation_id=operation_id_of(task, name))
        assert (await handle.describe()).close_time is None
        assert len(bench.effects()) == 2 and len(bench.requests()) == 3
        (page,) = await bench.rows("page")
        assert page["operation_id"] == held_id
        await handle.terminate("the case is over")


@side_by_side
async def test_declined_step_ends_the_task_and_undoes_nothing_silently(lab: Lab) -> None:
    """A batch with a definite decline fails, with what was done on record."""
    async with lab.bench(modes={"decline": ["two"]}) as bench:
        await bench.worker()
        task = bench.task("1", "batch", batch_of("one", "two"))
        result = await (await bench.start_task(task)).result()
        assert result["state"] == "failed" and "1 of 2 operations did not happen" in result["summary"]
        states = {r["step"]: r["state"] for r in await bench.rows("operation")}
        assert states == {"one": "committed", "two": "refused"}
        assert len(bench.effects()) == 1


@side_by_side
async def test_cancelled_with_a_request_in_flight_is_settled_first(lab: Lab) -> None:
    """R8: what may have been sent is named, reconciled, and part of the task's end. No next step begins."""
    async with lab.bench(timing=ROOMY) as bench:
        task = bench.task("1", "refund", {**REFUND, "customer": "ada@customer.invalid"})
        latch = await bench.world.latch(bench.account, "committed")
        entry, _ = await asyncio.gather(bench.entry(), bench.worker())
        async with bench.caller(entry) as http:
            headers = {"Idempotency-Key": task.task_key}
            assert (await http.post("/v1/tasks/refund", json=task.payload, headers=headers)).status_code == 202
            await bench.world.wait_latch(bench.account, latch)
            cancelled = (await http.post(f"/v1/tasks/{task.task_id}/cancel")).json()
            operation_id = derive_operation_id(task.tenant, task.task_id, "refund", 0)
            assert cancelled["in_flight"] == [operation_id]
            await bench.world.release(bench.account, latch)

            async def ended() -> dict[str, Any] | None:
                shown: dict[str, Any] = (await http.get(f"/v1/tasks/{task.task_id}")).json()
                return shown if shown["outcome"] else None

            shown = await eventually(ended, within_s=30, what="the cancelled task ended", every_s=0.2)
        assert shown["state"] == "cancelled"
        row = await bench.operation(operation_id)
        assert (row["state"], len(bench.effects())) == ("committed", 1)
        assert await bench.rows("operation", dsn=bench.dsn) == [row], "the ticket and the notice were never begun"


@side_by_side
async def test_refund_waits_for_its_first_step_and_goes_on(lab: Lab) -> None:
    """The shipped task: two lost answers are settled from the destination, the mail is handed over. One effect each."""
    lost = {"kind": "close", "times": 1}
    async with lab.bench(modes={"answer": lost}) as bench:
        await bench.configure("tickets", answer=lost)
        await bench.worker()
        task = bench.task("1", "refund", {**REFUND, "customer": "ada@customer.invalid"})
        result = await (await bench.start_task(task)).result()
        ends = [(o["state"], o["completion"]) for o in result["operations"]]
        assert ends == [("committed", "read_back"), ("committed", "read_back"), ("committed", "handover")]
        for destination in ("payments", "tickets", "mail"):
            assert len(bench.requests(destination=destination)) == len(bench.effects(destination=destination)) == 1
