"""A production-shaped task in a cell: refund the payment, open a ticket, tell the customer; its worker is stopped.

    request leaves ─ workers stopped ─ looked at by everyone ─ workers again ─ task resumes through recorded state

Contract: the task is started, looked at and followed through the client only, each time by a fresh process. While no
worker is up the unresolved operation must be shown as what it is, and an early resume must be refused.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from actonce.contracts.identity import derive_operation_id
from actonce.evidence import PlannedOperation
from actonce.testing.export import FINAL
from actonce.testing.faults import WireFault
from actonce.testing.waiting import eventually
from drills import doors
from drills.console.seeing import DONE, Wanted, see
from drills.plays import OUTCOME_S, POINT_S, Special
from drills.rig import Cell
from drills.table import TENANT, PlannedCell

STEPS = (("refund", "payments", "refund"), ("ticket", "tickets", "open"), ("notice", "mail", "send"))
CUSTOMER = "customer@example.org"


@dataclass(frozen=True)
class RefundCell(PlannedCell):
    """A cell whose task is `refund`."""

    @property
    def task_type(self) -> str:
        return "refund"

    @property
    def operation_id(self) -> str:
        return derive_operation_id(TENANT, self.task_id, "refund", 0)

    def task_payload(self) -> dict[str, Any]:
        return {**self.payload(), "customer": CUSTOMER}

    def operations(self) -> list[PlannedOperation]:
        return [
            PlannedOperation(
                operation_id=derive_operation_id(TENANT, self.task_id, step, 0),
                tenant=TENANT,
                destination=destination,
                action=action,
                task_id=self.task_id,
                step=step,
                subject=f"acct-{self.number}",
                amount_minor=self.amount_minor if step == "refund" else None,
            )
            for step, destination, action in STEPS
        ]


class WorkersStopped(Special):
    """The worker is stopped after its request has left and before the answer is stored; then so is the other one."""

    how = signal.SIGKILL
    committed = True  # the destination has committed and holds its answer; else the request is still on its way
    dropped = False  # the request never arrives
    proof: tuple[str, ...] = (
        "request_arrived",
        "signal_delivered",
        "process_exited",
        "effect_committed",
        "answer_not_delivered",
    )
    signals = ("SIGKILL",)

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.toxic: Any = None

    async def prepare(self) -> None:
        await self.cell.console.be_there()
        if self.committed:
            self.latch = await self.cell.run.world.latch(self.cell.account, "committed")
        else:
            self.held = self.cell.write.hold(lambda exchange: True)
        if self.dropped:
            self.toxic = await self.install(WireFault.CLOSED, "upstream")

    async def strike(self, operation_id: str) -> None:
        if self.committed:
            await self.cell.run.world.wait_latch(self.cell.account, self.latch, wait_s=POINT_S)
        else:
            await eventually(self.held.tripped.is_set, within_s=POINT_S, what=f"{self.cell.name}: the request has left")
        owner = self.cell.owner_of(self.cell.write.exchanges[0])
        owner.signal(self.how)
        await owner.ended()
        for other in [worker for worker in self.cell.workers if worker.alive]:
            other.signal(signal.SIGKILL)
            await other.ended()
        await self._let_go()
        await self._look(operation_id)
        await self.cell.add_workers()

    async def _let_go(self) -> None:
        if self.committed:
            await self.cell.run.world.release(self.cell.account, self.latch)
            return
        self.held.open()
        if self.dropped:
            exchange = self.held.exchange
            assert exchange is not None
            await eventually(
                lambda: exchange.ended_by is not None, within_s=POINT_S, what=f"{self.cell.name}: it is lost"
            )
            await self.remove(self.toxic)

    async def _look(self, operation_id: str) -> None:
        """With no worker up: what the user, the ledger and the pager show, and what may not be done yet."""
        row = await self.cell.ledger.operation(operation_id)
        assert row is not None
        task = await doors.user_view(self.cell, row["task_id"], state={"running", "queued"})
        first = next(o for o in task["operations"] if o["operation_id"] == operation_id)
        open_states = ("dispatched", "unknown")
        doors.record_view(
            self.cell,
            "user",
            first,
            ("the unresolved operation is shown as unresolved", first["state"] in open_states, str(first["state"])),
            ("and until when it may still happen", bool(first["may_commit"]), str(first["may_commit"])),
        )
        doors.record_view(
            self.cell,
            "state",
            {name: str(row[name]) for name in ("state", "issued_at", "committed_at", "acknowledged_at", "not_after")},
            (
                "issued, neither committed nor acknowledged: three facts",
                row["issued_at"] is not None and row["committed_at"] is None and row["acknowledged_at"] is None,
                f"{row['state']} since {row['issued_at']}",
            ),
        )
        open_ = Wanted(frozenset({"running", "queued"}), frozenset(open_states))
        await see(self.cell, "hold", row["task_id"], operation_id, open_)
        await doors.try_to_resume(self.cell, operation_id, "no worker answers", "not_held")

    async def operate(self, operation_id: str) -> None:
        """The task goes on through what is recorded; nobody has to decide anything."""
        row = await self.row(operation_id, lambda row: row["state"] in FINAL, "settled", OUTCOME_S)
        task_id = row["task_id"]
        followed = await doors.client(self.cell, "follow", task_id, "--timeout-s", "100", "--json")
        await doors.user_view(self.cell, task_id, state={"complete"})
        await see(self.cell, "after", task_id, operation_id, DONE)
        await doors.alerts_view(self.cell, operation_id, paged=False)
        await doors.dependencies_view(self.cell)
        decisions = await self.cell.ledger.rows("decision")
        pages = self.cell.run.sink.of(self.cell.channel)
        doors.record_view(
            self.cell,
            "operator",
            {"followed": followed.code, "decisions": len(decisions)},
            (
                "the task ends complete without anyone's decision",
                followed.code == 0 and not decisions,
                followed.err[-200:],
            ),
        )
        doors.record_view(
            self.cell,
            "alerts",
            [page.title for page in pages],
            ("nobody is woken for what settles by itself", not pages, f"{len(pages)} pages"),
        )


class KilledOnTheWay(WorkersStopped):
    """The request has left the worker and not arrived when the worker dies; it arrives afterwards (case c5)."""

    committed = False
    proof = ("request_sent", "signal_delivered", "process_exited", "effect_committed", "answer_not_delivered")


class KilledAndLost(WorkersStopped):
    """The twin: the request never arrives."""

    committed = False
    dropped = True
    proof = ("request_sent", "request_not_arrived", "signal_delivered", "process_exited")
    self_test = "closed_upstream"


class AskedToStop(WorkersStopped):
    """SIGTERM while the destination holds a committed answer (case c4)."""

    how = signal.SIGTERM
    signals = ("SIGTERM",)
