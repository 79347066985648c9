"""Strikes beyond the table: processes that stop at an instant that no wire shows, and requests that are late or odd.

Contract: as in `strike`: every step waits for an event; `fault()` names the proofs. A process that stopped itself (see
`drills.controls.stops`) is stopped once more by the drill, so that the record has a signal and the kernel's word.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from actonce.evidence import Fault
from actonce.testing.export import FINAL, Row
from actonce.testing.faults import Installed, Stream, WireFault
from actonce.testing.processes import Process, state_of
from actonce.testing.site import Invalid
from actonce.testing.waiting import eventually
from drills.rig import Cell

POINT_S = 60.0  # until something is in flight or stands still, on a busy machine
OUTCOME_S = 120.0  # until the others have settled it: a reconciliation that froze is given up after 60 s
FROZEN_MIN_S = 0.5


class Special:
    """What special strikes share."""

    proof: tuple[str, ...] = ()
    anchor = "in_flight"
    signals: tuple[str, ...] = ()
    self_test: str | None = None
    frozen_min_s = FROZEN_MIN_S
    decides = False  # a person's decision is what this play is about: `operate` belongs to its controls too

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    async def prepare(self) -> None:
        """Nothing beforehand."""

    async def strike(self, operation_id: str) -> None:
        raise NotImplementedError

    async def operate(self, operation_id: str) -> None:
        """Nobody decides anything."""

    async def release(self) -> None:
        """Nothing is held."""

    def fault(self, operation_id: str) -> Fault:
        """The proofs of this kind of strike."""
        return self.planned(operation_id, [self.cell.proxies["payments.write"].name])

    @classmethod
    def planned(cls, operation_id: str, proxies: list[str] | None = None) -> Fault:
        """The same without a running cell."""
        data: dict[str, Any] = {
            "spec": {"fault": cls.__name__},
            "targets": [operation_id],
            "proof": list(cls.proof),
            "proxies": proxies or ["none"],
            "signals": list(cls.signals),
            "anchor": cls.anchor,
            "frozen_min_s": cls.frozen_min_s if "process_frozen" in cls.proof else 0.0,
            "self_test": cls.self_test,
        }
        return Fault.model_validate(data)

    # Steps.

    async def stood_still(self, number: int = 1, point: str | None = None) -> Process:
        """Wait for the process that stopped itself; stop it on record. Raises Invalid when it is none of the cell's, or
        stands at another point."""
        marker = Path(self.cell.env["ACTONCE_DRILL_STOP_FILE"] + ("" if number == 1 else f".{number}"))
        within_s = POINT_S if number == 1 else OUTCOME_S  # a later one waits for what the others make of the first
        await eventually(marker.exists, within_s=within_s, what=f"{self.cell.name}: a process stands at its point")
        at, where = marker.read_text(encoding="utf-8").split()
        pid = int(at)
        if point not in (None, where):
            raise Invalid(f"{self.cell.name}: pid {pid} stands {where}, wanted {point}")
        for process in (*self.cell.workers, *self.cell.others.values()):
            if process.pid == pid:
                await eventually(lambda: state_of(pid) in ("T", None), within_s=POINT_S, what=f"pid {pid} stands still")
                await process.stop()
                return process
        raise Invalid(f"{self.cell.name}: pid {pid} stopped itself and is no process of this cell")

    async def go_on(self, process: Process) -> None:
        """Let it go on, and see that it does (or that it died of what it found)."""
        process.signal(signal.SIGCONT)
        await eventually(lambda: state_of(process.pid) != "T", within_s=POINT_S, what=f"pid {process.pid} goes on")
        process.record_exit()

    async def go_on_alive(self, process: Process) -> None:
        """The same where it must not have died: a dead process would do nothing, rightly or wrongly."""
        await self.go_on(process)
        if not process.alive:
            raise Invalid(f"{self.cell.name}: pid {process.pid} died when it was to go on")

    def still_allowed(self, row: Row) -> None:
        """The current permit is alive, so that it is the ledger that stops its owner. Raises Invalid when it is not."""
        if datetime.now(UTC) >= row["not_after"]:
            raise Invalid(f"{self.cell.name}: the permit's life is over: the clock would stop its owner, not the hold")

    async def row(self, operation_id: str, when: Callable[[Row], bool], what: str, within_s: float = OUTCOME_S) -> Row:
        """Wait until the ledger's row of the operation is so."""

        async def look() -> Row | None:
            row = await self.cell.ledger.operation(operation_id)
            return row if row is not None and when(row) else None

        return await eventually(look, within_s=within_s, what=f"{self.cell.name}: {what}", every_s=0.1)

    async def task_over(self, task_id: str) -> None:
        """Wait until the ledger has an end of the task."""

        async def look() -> bool:
            rows = await self.cell.ledger.rows("task")
            return any(row["task_id"] == task_id and row["outcome"] for row in rows)

        await eventually(look, within_s=OUTCOME_S, what=f"{self.cell.name}: {task_id} over", every_s=0.2)

    async def paged(self, operation_id: str, reason: str) -> None:
        """Wait until a page says that the operation is held for this reason."""
        await eventually(
            lambda: any(
                operation_id in page.text and f"is held: {reason}" in page.title
                for page in self.cell.run.sink.of(self.cell.channel)
            ),
            within_s=OUTCOME_S,
            what=f"{self.cell.name}: a page about {reason}",
        )

    async def final(self, operation_id: str) -> Row:
        """Wait until it is settled."""
        return await self.row(operation_id, lambda row: row["state"] in FINAL, "settled by the others")

    async def settled_or_sent_again(self, operation_id: str) -> None:
        """Wait until it is settled; a control's second send is answered, and it may be held for it instead."""

        def answered_again() -> bool:
            return any(e.bytes_down > 0 or e.ended_by is not None for e in self.cell.write.sent(operation_id)[1:])

        await self.row(
            operation_id, lambda row: row["state"] in FINAL or answered_again(), "settled, or sent again and answered"
        )

    async def sent(self, operation_id: str, count: int = 1, within_s: float = POINT_S) -> None:
        """Wait until the tap has seen so many complete sends."""
        await eventually(
            lambda: len(self.cell.write.sent(operation_id)) >= count,
            within_s=within_s,
            what=f"{self.cell.name}: {count} sends on the wire",
        )

    async def install(self, fault: WireFault, stream: Stream, proxy: str = "payments.write") -> Installed:
        """A toxic on one of the cell's proxies."""
        return await self.cell.proxies[proxy].install(fault, stream)

    async def remove(self, installed: Installed, proxy: str = "payments.write") -> None:
        """Take it away again."""
        await self.cell.proxies[proxy].remove(installed)

    async def caller_ended(self, operation_id: str) -> None:
        """Wait until the caller's side of the first send is over."""
        await self.sent(operation_id)
        exchange = self.cell.write.sent(operation_id)[0]
        await eventually(lambda: exchange.ended_by is not None, within_s=POINT_S, what=f"{self.cell.name}: send ended")


class FrozenBehindFence(Special):
    """Stopped between the fence and the first byte; thawed when the operation is done without it."""

    proof = ("signal_delivered", "process_frozen")
    signals = ("SIGSTOP", "SIGCONT")
    anchor = "before_send"

    async def strike(self, operation_id: str) -> None:
        frozen = await self.stood_still()
        await self.final(operation_id)
        before = len(self.cell.write.sent(operation_id))
        await self.go_on(frozen)
        await eventually(
            lambda: not frozen.alive or len(self.cell.write.sent(operation_id)) > before,
            within_s=POINT_S,
            what=f"{self.cell.name}: the thawed process died, or sent",
        )
        frozen.record_exit()


class KilledBeforeAccept(Special):
    """SIGKILL after the last byte left and before it reached the destination, where it arrives after the death."""

    proof = ("request_sent", "signal_delivered", "process_exited", "effect_committed", "answer_not_delivered")
    signals = ("SIGKILL",)

    async def prepare(self) -> None:
        self.gate = self.cell.write.hold(lambda exchange: True)

    async def strike(self, operation_id: str) -> None:
        await eventually(self.gate.tripped.is_set, within_s=POINT_S, what=f"{self.cell.name}: a request is on its way")
        assert self.gate.exchange is not None
        owner = self.cell.owner_of(self.gate.exchange)
        owner.signal(signal.SIGKILL)
        await owner.ended()
        self.gate.open()


class PermitAnswerLost(Special):
    """The permit's transaction commits and its answer never arrives."""

    proof = ("signal_delivered", "process_frozen")
    signals = ("SIGSTOP", "SIGCONT")
    anchor = "before_send"
    frozen_min_s = 0.0
    self_test = "closed_downstream"

    async def strike(self, operation_id: str) -> None:
        frozen = await self.stood_still()
        toxic = await self.install(WireFault.CLOSED, "downstream", "ledger")
        try:
            await self.go_on(frozen)
            await self.row(operation_id, lambda row: row["attempts"] >= 1, "the permit is committed", POINT_S)
        finally:
            await self.remove(toxic, "ledger")


class ZombieBeforePermit(Special):
    """Stopped before its permit transaction; the successor is done before it goes on."""

    proof = ("process_frozen",)
    signals = ("SIGSTOP", "SIGCONT")

    async def strike(self, operation_id: str) -> None:
        zombie = await self.stood_still()
        await self.final(operation_id)
        await self.go_on_alive(zombie)


class ZombieTakesPermitFirst(Special):
    """Zombie and successor both stand before their permit transaction; the zombie goes first."""

    proof = ("process_frozen",)
    signals = ("SIGSTOP", "SIGCONT")

    async def strike(self, operation_id: str) -> None:
        zombie = await self.stood_still()
        successor = await self.stood_still(2)
        await self.go_on_alive(zombie)
        await self.sent(operation_id)
        await self.go_on_alive(successor)


class ReconcilerFrozen(Special):
    """Stopped between its readings (`absent`, of attempt 1) and its verdict; thawed while attempt 2 is out."""

    proof = ("request_sent", "request_not_arrived", "process_frozen")
    signals = ("SIGSTOP", "SIGCONT")
    self_test = "closed_upstream"

    async def prepare(self) -> None:
        self.toxic = await self.install(WireFault.CLOSED, "upstream")
        self.latch = await self.cell.run.world.latch(self.cell.account, "committed")
        # The workers read slowly and the watcher does not: so it is the watcher that concludes first, and freezes.
        await self.install(WireFault.SLOW, "downstream", "payments.log")

    async def strike(self, operation_id: str) -> None:
        await self.caller_ended(operation_id)
        await self.remove(self.toxic)
        frozen = await self.stood_still()
        answer = await self.install(WireFault.CLOSED, "downstream")
        await eventually(
            self._latched, within_s=OUTCOME_S, what=f"{self.cell.name}: attempt 2 is committed", every_s=0.2
        )
        before = await self._absents()
        await self.go_on_alive(frozen)

        async def spoke() -> bool:
            return await self._absents() > before  # with attempt 2 out, nobody else has reason to say so

        await eventually(
            spoke, within_s=POINT_S, what=f"{self.cell.name}: the frozen reconciler's verdict", every_s=0.1
        )
        await self.cell.run.world.release(self.cell.account, self.latch)
        exchange = self.cell.write.sent(operation_id)[1]
        await eventually(
            lambda: exchange.ended_by is not None, within_s=POINT_S, what=f"{self.cell.name}: answer 2 lost"
        )
        await self.remove(answer)

    async def _absents(self) -> int:
        return sum(row["outcome"] == "absent" for row in await self.cell.ledger.rows("verdict"))

    def _latched(self) -> bool:
        return any(
            line["kind"] == "latch" and line.get("latch_id") == self.latch
            for line in self.cell.run.tail.of(self.cell.account)
        )


class LateLoss(Special):
    """The owner saw its connection close and stands before it says so; by then the operation has moved on."""

    proof = ("request_sent", "request_not_arrived", "process_frozen")
    signals = ("SIGSTOP", "SIGCONT")
    self_test = "closed_upstream"

    async def prepare(self) -> None:
        self.toxic = await self.install(WireFault.CLOSED, "upstream")

    async def strike(self, operation_id: str) -> None:
        frozen = await self.stood_still()
        await self.remove(self.toxic)
        await self.row(operation_id, lambda row: row["state"] in {*FINAL, "held"}, "moved on without the owner")
        await self.go_on_alive(frozen)
        # It changes nothing, so the ledger shows nothing of it; that it was tried at all is only in the owner's log.
        await eventually(
            lambda: "record came too late" in frozen.log.read_text(encoding="utf-8", errors="replace"),
            within_s=POINT_S,
            what=f"{self.cell.name}: the owner said it, too late",
        )


class HoldBeforeFence(Special):
    """The owner stands before its fence; the operation is held meanwhile (a look-alike); then it goes on in time."""

    proof = ("signal_delivered", "process_frozen")
    signals = ("SIGSTOP", "SIGCONT")
    anchor = "before_send"

    async def strike(self, operation_id: str) -> None:
        fields = {"payment_id": "pay-other", "amount_minor": 1, "currency": "EUR", "reason": "other"}
        await self.cell.run.world.plant_look_alikes(self.cell.account, operation_id, "refund", fields)
        frozen = await self.stood_still()
        row = await self.row(operation_id, lambda row: row["state"] == "held", "held", POINT_S)
        self.still_allowed(row)
        await self.go_on_alive(frozen)


class TerminatedForGood(Special):
    """The workflow is terminated and not started again, its worker killed, with the effect committed."""

    proof = ("request_arrived", "signal_delivered", "process_exited", "effect_committed", "answer_not_delivered")
    signals = ("SIGKILL",)

    async def prepare(self) -> None:
        self.latch = await self.cell.run.world.latch(self.cell.account, "committed")

    async def strike(self, operation_id: str) -> None:
        await self.cell.run.world.wait_latch(self.cell.account, self.latch, wait_s=POINT_S)
        owner = self.cell.owner_of(self.cell.write.sent(operation_id)[0])
        row = await self.row(operation_id, lambda row: True, "on record", POINT_S)
        await self.cell.run.temporal.get_workflow_handle(row["task_id"]).terminate("the drill ends it for good")
        owner.signal(signal.SIGKILL)
        await owner.ended()
        await self.cell.run.world.release(self.cell.account, self.latch)


class StartedAgain(Special):
    """The workflow is terminated and started again under its id while its first send is committed and unanswered and
    its owner stands still, so that nobody takes the permit back."""

    proof = ("request_arrived", "effect_committed", "signal_delivered", "process_frozen")
    signals = ("SIGSTOP", "SIGCONT")
    frozen_min_s = 0.0

    async def prepare(self) -> None:
        self.latch = await self.cell.run.world.latch(self.cell.account, "committed")

    async def strike(self, operation_id: str) -> None:
        await self.cell.run.world.wait_latch(self.cell.account, self.latch, wait_s=POINT_S)
        owner = self.cell.owner_of(self.cell.write.sent(operation_id)[0])
        await owner.stop()
        row = await self.row(operation_id, lambda row: True, "on record", POINT_S)
        handle = self.cell.run.temporal.get_workflow_handle(row["task_id"])
        first = await handle.fetch_history()
        started = first.events[0].workflow_execution_started_event_attributes
        await handle.terminate("the drill starts it again")
        payload = started.input.payloads[0]
        argument = (await self.cell.run.temporal.data_converter.decode([payload]))[0]
        again = await self.cell.run.temporal.start_workflow(
            started.workflow_type.name, argument, id=row["task_id"], task_queue=self.cell.task_queue
        )

        async def issued_again() -> bool:
            if len(self.cell.write.sent(operation_id)) > 1:
                return True
            history = await again.fetch_history()
            names = [e.activity_task_scheduled_event_attributes.activity_type.name for e in history.events]
            return "actonce.reconcile.v1" in names

        await eventually(issued_again, within_s=POINT_S, what=f"{self.cell.name}: the new run issued", every_s=0.2)
        await self.go_on_alive(owner)
        await self.cell.run.world.release(self.cell.account, self.latch)


class KeyInProgress(Special):
    """The key is registered and its request still processed when the second attempt arrives."""

    proof = ("request_arrived", "effect_committed")

    async def prepare(self) -> None:
        self.latch = await self.cell.run.world.latch(self.cell.account, "processing")

    async def strike(self, operation_id: str) -> None:
        await self.cell.run.world.wait_latch(self.cell.account, self.latch, wait_s=POINT_S)
        await eventually(
            lambda: any(
                line["kind"] == "refused" and line.get("why") == "key_in_progress"
                for line in self.cell.run.tail.of(self.cell.account)
            ),
            within_s=POINT_S,
            what=f"{self.cell.name}: the second attempt met its own key in progress",
        )
        await self.cell.run.world.release(self.cell.account, self.latch)


class OddAnswer(Special):
    """The destination answers in a way that proves nothing (set by its modes): a redirect, a 202."""

    proof = ("request_arrived",)

    async def strike(self, operation_id: str) -> None:
        await self.sent(operation_id)
        exchange = self.cell.write.sent(operation_id)[0]
        await eventually(lambda: exchange.bytes_down > 0, within_s=POINT_S, what=f"{self.cell.name}: answered")


class SlowTransit(Special):
    """Held on the way for longer than a permit lives, within the bound that the contract declares; then it arrives."""

    proof = ("request_sent", "request_held")
    self_test = "held_upstream"
    TRANSIT_S = 22.0  # declared; the destination's ingress drops what is not complete after 20 s
    INGRESS_S = 20.0
    HELD_S = 17.0  # long past reconcile-after (6 s), before what may still arrive is dropped; this is the fault

    async def prepare(self) -> None:
        self.toxic = await self.install(WireFault.HELD, "upstream")

    async def strike(self, operation_id: str) -> None:
        await self.sent(operation_id)
        await self.cell.use_clean_write_path()
        first_ns = self.cell.write.sent(operation_id)[0].first_ns
        await eventually(
            lambda: len(self.cell.write.sent(operation_id)) > 1 or seconds_since(first_ns) >= self.HELD_S,
            within_s=self.HELD_S + 1,
            what=f"{self.cell.name}: a second send, or the end of the slow way",
        )
        await self.remove(self.toxic)


def seconds_since(mono_ns: int) -> float:
    """On the system-wide monotonic clock."""
    return (time.monotonic_ns() - mono_ns) / 1e9
