"""What is done to one operation in flight: its answer lost, its request lost, its sender killed or frozen.

Contract: each takes the moment from an event (a latch of the destination, a gate of the tap), strikes, waits until the
caller's side of the struck request is over, and leaves a clean path. Whether it struck is not for it to say: the proofs
that must be on record are named beside each, and the judge looks for them. Raises NeverHappened or Invalid when the
operation never got there.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import Protocol

from actonce.evidence.record import Proof
from actonce.testing.faults import Installed, Proxied, WireFault
from actonce.testing.processes import Process
from actonce.testing.site import Invalid, Site
from actonce.testing.tap import Exchange, Gate, Tap
from actonce.testing.waiting import eventually

HIT_S = 45.0  # workers that start on a busy machine need seconds before anything is sent
OVER_S = 30.0  # until the caller's connection ends: beyond any send deadline that suits a drill

LOST_ANSWER: tuple[Proof, ...] = ("request_arrived", "effect_committed", "answer_not_delivered")
LOST_REQUEST: tuple[Proof, ...] = ("request_sent", "request_not_arrived")
KILLED: tuple[Proof, ...] = (*LOST_ANSWER, "signal_delivered", "process_exited")
FROZEN: tuple[Proof, ...] = ("request_arrived", "effect_committed", "signal_delivered", "process_frozen")


class Standing(Protocol):
    """A request that is to stand still at its destination, at the point `committed`."""

    def hit(self) -> Awaitable[object]: ...

    def release(self) -> Awaitable[object]: ...


def gate_for(tap: Tap, operation_id: str) -> Gate:
    """Hold this operation's next complete request back at the tap."""
    return tap.hold(lambda exchange: exchange.operation_id == operation_id)


def last_sent(tap: Tap, operation_id: str) -> Exchange:
    """The last complete request of an operation that the tap saw. Raises Invalid when there is none."""
    sent = tap.sent(operation_id)
    if not sent:
        raise Invalid(f"no request of {operation_id} was seen on its way")
    return sent[-1]


async def lose_answer(tap: Tap, proxy: Proxied, operation_id: str, held: Standing, how: WireFault) -> None:
    """The destination has committed; its answer is lost on the way. Proofs: LOST_ANSWER."""
    await held.hit()
    toxic = await proxy.install(how, "downstream")
    await held.release()
    await given_up(tap, proxy, operation_id, toxic)


async def lose_request(tap: Tap, proxy: Proxied, operation_id: str, gate: Gate, how: WireFault) -> None:
    """The request leaves its sender, complete, and never arrives. Proofs: LOST_REQUEST."""
    try:
        await asyncio.wait_for(gate.tripped.wait(), HIT_S)
    except TimeoutError as error:
        gate.open()
        raise Invalid(f"{operation_id} sent nothing within {HIT_S:g} s") from error
    toxic = await proxy.install(how, "upstream")
    gate.open()
    await given_up(tap, proxy, operation_id, toxic)


async def kill_sender(site: Site, tap: Tap, operation_id: str, held: Standing, number: signal.Signals) -> Process:
    """The process that sent it is ended between commit and answer. Proofs: KILLED."""
    await held.hit()
    owner = site.owner_of(last_sent(tap, operation_id))
    owner.signal(number)
    if number is signal.SIGKILL:
        await owner.ended()
        await held.release()
    else:  # it may wait for what is in flight, for as long as its grace
        await held.release()
        await owner.ended()
    return owner


async def freeze_sender(site: Site, tap: Tap, operation_id: str, held: Standing, frozen: Awaitable[object]) -> Process:
    """The process that sent it stands still from commit until `frozen` is over. Proofs: FROZEN."""
    await held.hit()
    owner = site.owner_of(last_sent(tap, operation_id))
    await owner.stop()
    try:
        await held.release()
        await frozen
    finally:
        owner.signal(signal.SIGCONT)
    return owner


async def given_up(tap: Tap, proxy: Proxied, operation_id: str, toxic: Installed) -> None:
    """The struck request is over on the caller's side; what comes later finds a clean path."""
    exchange = last_sent(tap, operation_id)
    try:
        await eventually(
            lambda: exchange.ended_by is not None, within_s=OVER_S, what=f"the caller of {operation_id} gave it up"
        )
    finally:
        await proxy.remove(toxic)
