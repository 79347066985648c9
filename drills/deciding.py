"""Cells in which a person decides: too early, twice, and as the page and its procedure say.

These have an entry service and a console: the task is started through the client, looked at through both, and decided
about at the console, by whoever is called in a fresh process. All five views are captured here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from actonce.testing.export import FINAL
from actonce.testing.faults import WireFault
from actonce.testing.parts import HURRIED
from actonce.testing.waiting import eventually
from drills import doors
from drills.console import acts
from drills.console.seeing import Wanted, see
from drills.plays import OUTCOME_S, POINT_S, Special

# How the same decision again is refused: it is on record, or it has been applied and the operation has moved on.
DECIDED = ("decided", "stale", "not_held")


class EarlyDecision(Special):
    """Held at once (a look-alike) while the request is still held on its way: a retry is tried before its time."""

    proof = ("request_sent", "request_held")
    self_test = "held_upstream"

    async def prepare(self) -> None:
        await self.cell.console.be_there()
        self.toxic = await self.install(WireFault.HELD, "upstream")

    async def strike(self, operation_id: str) -> None:
        fields = {"payment_id": "pay-other", "amount_minor": 1, "currency": "EUR", "reason": "other"}
        await self.cell.run.world.plant_look_alikes(self.cell.account, operation_id, "refund", fields)
        await self.sent(operation_id)
        await self.cell.use_clean_write_path()
        await self.row(operation_id, lambda row: row["state"] == "held", "held", POINT_S)
        if await doors.try_to_resume(self.cell, operation_id, "it is taking so long", "too_early"):
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
        await self.cell.console.be_there()
        self.toxic = await self.install(WireFault.CLOSED, "upstream" if self.stream == "upstream" else "downstream")

    async def strike(self, operation_id: str) -> None:
        await self.caller_ended(operation_id)
        await self.remove(self.toxic)
        await doors.try_to_resume(self.cell, operation_id, "before anything is known", "not_held")

    async def operate(self, operation_id: str) -> None:
        """After the hold and its page: the five views, the decision, and the same decision again."""
        row = await self.row(operation_id, lambda row: row["state"] == "held", "held", OUTCOME_S)
        await doors.user_view(self.cell, row["task_id"], state={"held"})
        await doors.alerts_view(self.cell, operation_id, paged=True)
        await doors.dependencies_view(self.cell)
        held = Wanted.held(str(row["reason"]))
        await see(self.cell, "hold", row["task_id"], operation_id, held, also=("/alerts", "/dependencies"))
        # When a person gets there, the destination's own list can be read again, if by nobody else yet.
        await self.cell.run.world.configure(self.cell.account, "payments", routes={"list": "healthy"})
        other = await self.cell.console.visitor(HURRIED, acts=False)
        page = await other.open(acts.operation_path(operation_id))  # this one has it open meanwhile
        done = await doors.on_call(self.cell, operation_id)
        if "lost" in done:
            return
        same = {"why": "the same", "saw": "the same", "object_id": "the same"}
        again = await acts.decide(other, operation_id, done["action"], **same, on=page)
        doors.record_act(self.cell, other, again, "deciding twice is refused", again.refused_as(*DECIDED))
        await self.row(operation_id, lambda row: row["state"] in FINAL, "settled by the decision", OUTCOME_S)
        await doors.alerts_view(self.cell, operation_id, paged=False)
        await self.task_over(row["task_id"])
        over = Wanted(frozenset({"complete", "complete by a person's word"}), frozenset(FINAL))
        await see(self.cell, "after", row["task_id"], operation_id, over)


class OperatorConfirms(OperatorDecides):
    """The same after the commit, with every route down: the person finds the object and says so."""

    proof = ("request_arrived", "effect_committed", "answer_not_delivered")
    self_test = "closed_downstream"
    stream = "downstream"


class CancelledZombie(Special):
    """The owner stands before its permit transaction while its task is cancelled through the entry; then it goes on."""

    proof = ("process_frozen",)
    signals = ("SIGSTOP", "SIGCONT")
    frozen_min_s = 0.0  # for as long as the cancellation takes, which is asserted instead

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
        await self.go_on_alive(zombie)


class RetryOnOldEvidence(Special):
    """A person permits one retry on what the page said. By then the destination shows the effect, and nobody has read
    it: the reading that goes with the decision does, and the decision falls to it."""

    decides = True
    proof: tuple[str, ...] = ("request_arrived", "effect_committed", "answer_not_delivered")
    self_test = "closed_downstream"
    ends = frozenset({"superseded_by_evidence"})

    async def prepare(self) -> None:
        await self.cell.console.be_there()
        self.toxic = await self.install(WireFault.CLOSED, "downstream")

    async def strike(self, operation_id: str) -> None:
        await self.caller_ended(operation_id)
        await self.remove(self.toxic)

    async def operate(self, operation_id: str) -> None:
        await self.row(operation_id, lambda row: row["state"] == "held", "held")
        await eventually(
            self._read_since_the_hold, within_s=OUTCOME_S, what=f"{self.cell.name}: the workflow waits", every_s=0.1
        )
        await self.decided(operation_id)
        await self.settled_or_sent_again(operation_id)
        (decision,) = await self.cell.ledger.rows("decision")
        sends = len(self.cell.write.sent(operation_id))
        doors.record_view(
            self.cell,
            "operator",
            {"decision": decision["decision"], "result": decision["result"]},
            (f"it ends {' or '.join(sorted(self.ends))}", decision["result"] in self.ends, str(decision["result"])),
            ("and nothing is sent for it", sends == 1, f"{sends} sends"),
        )

    async def _read_since_the_hold(self) -> bool:
        """The workflow reads once more when it begins to wait; only after that nobody reads by himself."""
        (hold,) = await self.cell.ledger.rows("hold")
        # Two: the verdict that opened it is written a moment after the hold, in the same transaction.
        since = [row for row in await self.cell.ledger.rows("verdict") if row["at"] > hold["opened_at"]]
        return len(since) >= 2

    async def decided(self, operation_id: str) -> None:
        """The decision and the evidence, in the order of this cell."""
        await self.cell.heal_routes()
        await doors.decide(self.cell, operation_id, "permit_one_retry", "every route is down")


class RetryRacesVerdict(RetryOnOldEvidence):
    """The decision's own reading shows nothing, and whoever made it stands before applying the decision; meanwhile the
    watcher reads the effect and its verdict is recorded. The decision is about a hold that is over."""

    proof = ("request_arrived", "effect_committed", "answer_not_delivered", "process_frozen")
    signals = ("SIGSTOP", "SIGCONT")
    frozen_min_s = 0.0  # for as long as the verdict takes, which is asserted instead
    # The second where Temporal took the frozen activity back before it could apply anything: its retry reads anew.
    ends = frozenset({"stale", "superseded_by_evidence"})

    async def decided(self, operation_id: str) -> None:
        # Beside us: the decision is in force well before its client has ended, and who applies it must not stand long.
        decision = asyncio.ensure_future(
            doors.decide(self.cell, operation_id, "permit_one_retry", "every route is down")
        )
        try:
            decider = await self.stood_still(1, "before_decision")
            await self.cell.heal_routes()
            await self.row(operation_id, lambda row: row["state"] == "committed", "the watcher's verdict")
            await self.go_on_alive(decider)
        finally:
            await decision

        async def consumed() -> bool:
            return all(row["consumed_at"] is not None for row in await self.cell.ledger.rows("decision"))

        await eventually(consumed, within_s=OUTCOME_S, what=f"{self.cell.name}: the decision is consumed", every_s=0.1)
