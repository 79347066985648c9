"""How a cell of the table is struck: what is installed beforehand, what the struck moment triggers, what is undone.

Contract: every step waits for an event on record (a latch of the destination, a gate of the tap, the end of the
caller's connection, the kernel's word on a process), never for time to pass; the only durations are those that belong
to the fault itself (how long a cut lasts, until when a process stays frozen). The attempt that is struck is the first
one. `fault()` names the proofs that must be on record; it is the judge who looks for them.

    commit_then_drop    the destination commits, then holds at its latch `committed`: the exact moment to kill or cut;
                        a downstream toxic (or the gateway) takes the answer away
    drop_before_commit  the tap holds the complete request: the exact moment to kill or cut;
                        an upstream toxic (or the gateway) takes the request away
"""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime
from typing import Any

from actonce.evidence import Fault
from actonce.testing.faults import Installed, Stream, WireFault
from actonce.testing.processes import Process
from actonce.testing.site import Invalid
from actonce.testing.tap import Exchange, Gate
from actonce.testing.waiting import eventually
from drills.cells import Axes
from drills.rig import READS, Cell

POINT_S = 45.0  # until the operation is in flight; workers of 10 cells start at once on two cores
ENDED_S = 20.0  # until the caller's connection ends; its send deadline is 3 s
CUT_S = 2.5  # longer than the heartbeat timeout (2 s), so that Temporal notices; over before reconcile-after (6 s)
HELD_AT_TAP_S = 60.0
PERMIT_S = 3.0  # how long a permit lives in the sandbox's contract
THAW_LATER_S = 0.3  # past not_after by more than the declared clock skew (0.1 s)

_WIRE = {
    "closed": WireFault.CLOSED,
    "truncated": WireFault.TRUNCATED,
    "reset": WireFault.RESET,
    "silent": WireFault.SILENT,
    "held_released_late": WireFault.HELD,
}


def route_modes(routes: str) -> dict[str, Any]:
    """The world's modes for one value of the routes axis."""
    match routes:
        case "list_short_by_one":
            return {"list": "short_by_one"}
        case "short_without_total":
            return {"list": "short_no_total"}
        case "canonical_denies":
            return {"by_id": "denies", "list": "denies"}
        case "stale" | "masked":
            return dict.fromkeys(READS, routes)
        case "all_but_one_down":
            return {name: "down" for name in READS if name != "search"}
        case "all_down":
            return dict.fromkeys(READS, "down")
        case _:
            return {}


def answer_mode(axes: Axes) -> dict[str, Any] | None:
    """Where no toxic can do it: what the world's own gateway answers to the first write."""
    when = "after_commit" if axes.committed_first else "before_commit"
    if axes.fault.startswith("gateway_"):
        return {"kind": "gateway", "status": int(axes.fault.removeprefix("gateway_")), "when": when, "times": 1}
    if axes.fault == "truncated" and not axes.committed_first:
        # A request cut short looks otherwise to the caller than an answer cut short; an answer cut after nine bytes,
        # "HTTP/1.1 ", looks the same whatever stood behind it.
        return {"kind": "gateway", "status": 502, "when": when, "times": 1}
    return None


def modes_of(axes: Axes) -> dict[str, Any]:
    """The world's modes for a cell, set before its processes start."""
    modes: dict[str, Any] = {"routes": route_modes(axes.routes)}
    if axes.routes in ("masked", "all_but_one_down", "all_down"):
        modes["revoked"] = {"probe": "403"}  # the reference probe is a route too
    if not axes.committed_first and not axes.arrives_late:
        # The tap holds the request for a moment; that must not be for the sandbox's ingress to end (1 s).
        modes["request_read_timeout_s"] = HELD_AT_TAP_S
    answer = answer_mode(axes)
    return modes if answer is None else {**modes, "answer": answer}


def stream_of(axes: Axes) -> Stream:
    """Which direction the toxic is in."""
    return "downstream" if axes.committed_first or axes.fault == "truncated" else "upstream"


class Strike:
    """Strikes one operation of one cell as its axes say."""

    decides = False

    def __init__(self, cell: Cell, axes: Axes) -> None:
        self.cell = cell
        self.axes = axes
        self.exchange: Exchange | None = None
        self.owner: Process | None = None
        self._toxic: Installed | None = None
        self._faulted = cell.proxies["payments.write"]
        self._gate: Gate | None = None
        self._latch: str | None = None
        self._cut: list[str] = []
        self._healed = False

    async def prepare(self) -> None:
        """Install the toxic and arm the point at which the operation is in flight."""
        wire = _WIRE.get(self.axes.fault)
        if wire is not None:
            self._toxic = await self._faulted.install(wire, stream_of(self.axes))
        if self.axes.committed_first:
            self._latch = await self.cell.run.world.latch(self.cell.account, "committed")
        else:
            self._gate = self.cell.write.hold(lambda exchange: True)

    async def strike(self, operation_id: str) -> None:
        """Wait until the operation is in flight, strike it, and heal what belongs to the strike."""
        await self._in_flight(operation_id)
        healing = asyncio.create_task(self._heal_after(await self._start_cut()))
        try:
            if self.axes.process != "none":
                await self._signal()
            await self._let_go()
            await self._struck(operation_id)
            await self._take_away()
            if self.axes.process in ("SIGKILL", "SIGTERM"):
                assert self.owner is not None
                await self.owner.ended()
        finally:
            await healing

    async def operate(self, operation_id: str) -> None:
        """Nobody decides anything in the table."""

    async def release(self) -> None:
        """Release what is held on the way, after the verdict."""
        if self.axes.fault != "held_released_late" or self._toxic is None:
            return
        before = len(self._writes())
        await self._faulted.remove(self._toxic)
        self._toxic = None
        if self.axes.arrives_late:
            # Complete, or dropped by what enforces its bound: either way it is no longer on its way.
            kinds = ("request", "request_incomplete", "connection_failed")
            await eventually(
                lambda: any(line["kind"] in kinds for line in self._writes()[before:]),
                within_s=ENDED_S,
                what=f"{self.cell.name}: the released request arrived",
            )

    def fault(self, operation_id: str) -> Fault:
        """What must be on record before this cell counts."""
        cut = [self.cell.proxies[name].name for name in self._cut]
        return _fault(self.axes, operation_id, [self._faulted.name], cut)

    @staticmethod
    def planned_fault(axes: Axes, operation_id: str) -> Fault:
        """The same for a cell that broke off before anything was installed: its proofs will be missing."""
        return _fault(axes, operation_id, ["none"], ["none"] if axes.cut != "none" else [])

    async def _in_flight(self, operation_id: str) -> None:
        """The destination has committed and holds, or the tap holds the whole request."""
        if self._latch is not None:
            hit = await self.cell.run.world.wait_latch(self.cell.account, self._latch, wait_s=POINT_S)
            if hit["operation_id"] not in (operation_id, None):
                raise Invalid(f"{self.cell.name}: {hit['operation_id']} was in flight, {operation_id} was wanted")
        elif self._gate is not None:
            try:
                await asyncio.wait_for(self._gate.tripped.wait(), POINT_S)
            except TimeoutError as error:
                raise Invalid(f"{self.cell.name}: no request was sent within {POINT_S:g} s") from error
        sent = [e for e in self.cell.write.exchanges if e.complete_ns is not None]
        if not sent:
            raise Invalid(f"{self.cell.name}: the destination holds a request that the tap never saw")
        self.exchange = sent[0]
        if self.axes.process != "none":
            self.owner = self.cell.owner_of(self.exchange)

    async def _start_cut(self) -> float:
        """Cut before anything else happens. Returns when (loop time) it is over."""
        parts = {"temporal": ["temporal"], "ledger": ["ledger"], "destination": [], "all": ["temporal", "ledger"]}
        wanted = list(parts.get(self.axes.cut, []))
        if self.axes.cut in ("destination", "all"):
            wanted += [name for name in self.cell.proxies if name.startswith("payments.") and "write" not in name]
        for name in wanted:
            await self.cell.proxies[name].cut()
            self._cut.append(name)
        return asyncio.get_running_loop().time() + CUT_S

    async def _heal_after(self, over: float) -> None:
        """The cut's own length, then everything is whole again."""
        if not self._cut:
            return
        await asyncio.sleep(max(0.0, over - asyncio.get_running_loop().time()))
        self._healed = True
        for name in self._cut:
            await self.cell.proxies[name].heal()
        await self.cell.write.listen()

    async def _signal(self) -> None:
        assert self.owner is not None
        if self.axes.process == "SIGSTOP":
            await self.owner.stop()
        else:
            self.owner.signal(signal.Signals[self.axes.process])

    async def _let_go(self) -> None:
        if self._latch is not None:
            await self.cell.run.world.release(self.cell.account, self._latch)
        if self._gate is not None:
            self._gate.open()

    async def _struck(self, operation_id: str) -> None:
        """Wait until the wire has done its part."""
        exchange, owner = self.exchange, self.owner
        if self.axes.process in ("SIGKILL", "SIGTERM"):
            await eventually(
                lambda: (
                    (exchange is not None and exchange.ended_by is not None) or (owner is not None and not owner.alive)
                ),
                within_s=ENDED_S,
                what=f"{self.cell.name}: the caller's connection, or the caller, ended",
            )
        elif self.axes.process == "SIGSTOP":
            await self._answer_lost_or_request_gone()
            await self._past_not_after(operation_id)
            assert self.owner is not None
            self.owner.signal(signal.SIGCONT)
            await self._caller_ended()
        else:
            await self._caller_ended()

    async def _answer_lost_or_request_gone(self) -> None:
        """While the caller stands still its connection does not end: the destination or the proxy is asked instead."""
        if self.axes.committed_first or answer_mode(self.axes) is not None:
            await eventually(
                self._journal_has_answer, within_s=ENDED_S, what=f"{self.cell.name}: answer begun", every_s=0.1
            )
        elif self.axes.fault in ("closed", "reset"):
            exchange = self.exchange
            await eventually(
                lambda: exchange is not None and exchange.ended_by is not None,
                within_s=ENDED_S,
                what=f"{self.cell.name}: the proxy closed the held request's connection",
            )

    def _journal_has_answer(self) -> bool:
        kinds = ("answer_begun", "answer_replaced", "answer_withheld", "answer_failed")
        return any(line["kind"] in kinds for line in self._writes())

    def _writes(self) -> list[dict[str, Any]]:
        """What the destination's write listener has on record of this cell."""
        return [line for line in self.cell.run.tail.of(self.cell.account) if line.get("listener") == "payments.write"]

    async def _past_not_after(self, operation_id: str) -> None:
        """The permit's own end, as the ledger has it; this duration is the fault (a late riser)."""
        attempts = [a for a in await self.cell.ledger.rows("attempt") if a["operation_id"] == operation_id]
        if not attempts and self.cell.spec.watch is None:  # an arm without a ledger has no permit either
            await asyncio.sleep(PERMIT_S + THAW_LATER_S)
            return
        if not attempts:
            raise Invalid(f"{self.cell.name}: the frozen process holds no permit")
        end: datetime = attempts[0]["not_after"]
        await asyncio.sleep(max(0.0, (end - datetime.now(UTC)).total_seconds()) + THAW_LATER_S)

    async def _caller_ended(self) -> None:
        """The caller's side of the struck request is over: closed, given up, or answered by the gateway."""
        exchange, gateway = self.exchange, self.axes.fault.startswith("gateway_")
        assert exchange is not None
        await eventually(
            lambda: exchange.ended_by is not None or (gateway and exchange.bytes_down > 0),
            within_s=ENDED_S,
            what=f"{self.cell.name}: the caller's connection ended",
        )

    async def _take_away(self) -> None:
        """Only the first attempt is struck: what comes later finds a clean path (or, for a while, a cut)."""
        if self._toxic is not None and self.axes.fault != "held_released_late":
            await self._faulted.remove(self._toxic)
            self._toxic = None
        if self.axes.fault == "held_released_late":
            await self.cell.use_clean_write_path()
        elif self.axes.cut in ("destination", "all") and not self._healed:
            await self.cell.write.refuse()


def _fault(axes: Axes, operation_id: str, proxies: list[str], cut: list[str]) -> Fault:
    proof = _wire_proof(axes)
    signals = {"none": [], "SIGSTOP": ["SIGSTOP", "SIGCONT"]}.get(axes.process, [axes.process])
    if axes.process != "none":
        proof += ["signal_delivered", "process_frozen" if axes.process == "SIGSTOP" else "process_exited"]
    if axes.cut != "none":
        proof.append("cut_active")
    wire = _WIRE.get(axes.fault)
    return Fault(
        spec={"fault": axes.fault, "twin": axes.twin, "process": axes.process, "cut": axes.cut, "cut_s": CUT_S},
        targets=[operation_id],
        proof=proof,
        proxies=proxies,
        cut_proxies=cut or (["none"] if axes.cut != "none" else []),
        signals=signals,
        self_test=None if wire is None else f"{wire}_{stream_of(axes)}",
    )


def _wire_proof(axes: Axes) -> list[Any]:
    gateway = axes.fault.startswith("gateway_")
    heard = axes.process in ("none", "SIGSTOP")  # a dead caller hears neither the gateway nor anyone else
    if axes.committed_first:
        return [
            "request_arrived",
            "effect_committed",
            "answer_replaced" if gateway and heard else "answer_not_delivered",
        ]
    if gateway or axes.fault == "truncated":
        return ["request_arrived", "effect_not_committed"]
    if axes.fault == "held_released_late":
        return ["request_sent", "request_held"]
    return ["request_sent", "request_not_arrived"]
