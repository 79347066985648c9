"""Cells in which a person decides: too early, twice, and as the page and its procedure say.

These have an entry service: the task is started, looked at and decided about through the client, each time by a fresh
process. All five views are captured here.
"""

from __future__ import annotations

from typing import Any

from actonce.testing.faults import WireFault
from actonce.testing.waiting import eventually
from drills import doors
from drills.export import FINAL
from drills.plays import OUTCOME_S, POINT_S, Special


class EarlyDecision(Special):
    """Held at once (a look-alike) while the request is still held on its way: a retry is tried before its time."""

    proof = ("request_sent", "request_held")
    self_test = "held_upstream"

    async def prepare(self) -> None:
        self.toxic = await self.install(WireFault.HELD, "upstream")

    async def strike(self, operation_id: str) -> None:
        fields = {"payment_id": "pay-other", "amount_minor": 1, "currency": "EUR", "reason": "other"}
        await self.cell.run.world.plant_look_alikes(self.cell.account, operation_id, "refund", fields)
        await self.sent(operation_id)
        await self.cell.use_clean_write_path()
        await self.row(operation_id, lambda row: row["state"] == "held", "held", POINT_S)
        if await doors.try_to_resume(self.cell, operation_id, "it is taking so long"):
            await self.sent(operation_id, 2)
            await self.row(operation_id, lambda row: row["acknowledged_at"] is not None, "acknowledged", POINT_S)

    async def release(self) -> None:
        before = len(self._arrivals())
        await self.remove(self.toxic)
        await eventually(
            lambda: len(self._arrivals()) > before,
            within_s=POINT_S,
            what=f"{self.cell.name}: the released request arrived",
        )

    def _arrivals(self) -> list[dict[str, Any]]:
        return [
            line
            for line in self.cell.run.tail.of(self.cell.account)
            if line["kind"] == "request" and line.get("listener") == "payments.write"
        ]


class OperatorDecides(Special):
    """Held and paged; a fresh process given only page and procedure decides; deciding twice is refused."""

    proof: tuple[str, ...] = ("request_sent", "request_not_arrived")
    self_test = "closed_upstream"
    stream = "upstream"

    async def prepare(self) -> None:
        self.toxic = await self.install(WireFault.CLOSED, "upstream" if self.stream == "upstream" else "downstream")

    async def strike(self, operation_id: str) -> None:
        await self.caller_ended(operation_id)
        await self.remove(self.toxic)
        await doors.try_to_resume(self.cell, operation_id, "before anything is known")

    async def operate(self, operation_id: str) -> None:
        """After the hold and its page: the five views, the decision, and the same decision again."""
        row = await self.row(operation_id, lambda row: row["state"] == "held", "held", OUTCOME_S)
        await doors.user_view(self.cell, row["task_id"], state={"held"})
        await doors.dependencies_view(self.cell)
        # When a person gets there, the destination's own list can be read again, if by nobody else yet.
        await self.cell.run.world.configure(self.cell.account, "payments", routes={"list": "healthy"})
        done = await doors.on_call(self.cell, operation_id)
        if "arguments" not in done:
            return
        again = await doors.client(self.cell, *done["arguments"], "--json")
        doors.record_view(
            self.cell,
            "operator",
            {"again": again.err[-400:] or again.out[-400:]},
            ("deciding twice is refused", again.code != 0, again.err.strip()[-200:]),
        )
        await self.row(operation_id, lambda row: row["state"] in FINAL, "settled by the decision", OUTCOME_S)


class OperatorConfirms(OperatorDecides):
    """The same after the commit, with every route down: the person finds the object and says so."""

    proof = ("request_arrived", "effect_committed", "answer_not_delivered")
    self_test = "closed_downstream"
    stream = "downstream"


class CancelledZombie(Special):
    """The owner stands before its permit transaction while its task is cancelled through the entry; then it goes on."""

    proof = ("process_frozen",)
    signals = ("SIGSTOP", "SIGCONT")

    async def strike(self, operation_id: str) -> None:
        zombie = await self.stood_still()
        tasks = await self.cell.ledger.rows("task")
        said = await doors.client(self.cell, "cancel", str(tasks[0]["task_id"]), "--json")
        doors.record_view(
            self.cell,
            "user",
            {"out": said.out[-400:], "err": said.err[-400:]},
            ("the cancellation is taken", said.code == 0, said.err.strip()[-200:]),
        )
        await self.go_on(zombie)


class AcknowledgedAfterMarkedAbsent(Special):
    """The owner has its answer and stands before it says so; a person who sees nothing ends the operation; then it
    says so. The person was wrong, honestly, and the late answer must not be lost: it is an incident."""

    proof = ("request_arrived", "effect_committed", "process_frozen")
    signals = ("SIGSTOP", "SIGCONT")

    async def strike(self, operation_id: str) -> None:
        frozen = await self.stood_still()
        row = await self.row(operation_id, lambda row: row["state"] == "held", "held", OUTCOME_S)
        await doors.user_view(self.cell, row["task_id"], state={"held"})
        shown = (await doors.client(self.cell, "show", operation_id, "--json")).json["records"][0]
        said = await doors.client(
            self.cell,
            *("resolve", operation_id, "--action", "mark_absent", "--name", "operator on call"),
            *("--reason", "every route is down and the destination's own desk says that it has nothing"),
            *("--expected-version", str(shown["version"]), "--expected-epoch", str(shown["epoch"]), "--json"),
        )
        doors.record_view(
            self.cell,
            "operator",
            {"out": said.out[-400:], "err": said.err[-400:]},
            ("after the last bound the decision is taken", said.code == 0, said.err.strip()[-200:]),
        )
        self.cell.run.writer.append(
            "drill", "decision", self.cell.name, operation_id=operation_id, action="mark_absent", by="operator on call"
        )
        await self.row(operation_id, lambda row: row["state"] == "closed", "closed by the decision", OUTCOME_S)
        await self.go_on(frozen)
        await self.row(operation_id, lambda row: row["state"] == "held", "an incident by the late answer", OUTCOME_S)
