"""One strike for each fault of the schedule.

Contract: every strike that needs an operation in flight waits for the event that shows it (`actonce.testing.strikes`);
those that need none leave a witness's observation. `proof_of` says beforehand which proofs must be on record. What a
strike raises means that it did not strike; `SoakCell.calm` cleans up after it, whatever it came to.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

from actonce.evidence import Fault
from actonce.testing import strikes, witness
from actonce.testing.faults import WireFault
from actonce.testing.tap import Tap
from drills.rig import READS
from drills.soak import around
from drills.soak.cell import SoakCell, Submit
from drills.soak.schedule import Window
from drills.strike import CUT_S, PERMIT_S, THAW_LATER_S

ROUTES_S = 8.0  # how long the routes lie: past reconcile-after (6 s), so that a reading meets them
MEMORY_S = 5.0  # longer than a recall may take (3 s)
SPEAK_S = 1.5  # beyond what `silent` must last to count
POSTGRES_HELLO = bytes.fromhex("0000000804d2162f")  # SSLRequest: any PostgreSQL answers with one byte


def fault_of(window: Window, cell: SoakCell) -> Fault:
    """The proofs that must be on record before this window counts."""
    write = [cell.proxies["payments.write"].name]
    kind, common = window.kind, {"targets": window.targets, "spec": {"fault": window.kind}}
    match window.fault:
        case "answer_lost":
            return Fault(**common, proof=list(strikes.LOST_ANSWER), proxies=write, self_test=f"{window.how}_downstream")
        case "request_lost":
            return Fault(**common, proof=list(strikes.LOST_REQUEST), proxies=write, self_test=f"{window.how}_upstream")
        case "worker" if window.how == "SIGSTOP":
            signals = ["SIGSTOP", "SIGCONT"]
            return Fault(**common, proof=list(strikes.FROZEN), proxies=write, signals=signals)
        case "worker":
            proof = [one for one in strikes.KILLED if window.how == "SIGKILL" or one != "answer_not_delivered"]
            return Fault(**common, proof=proof, proxies=write, signals=[window.how])
        case "cut":
            cut = [cell.proxies[name].name for name in cut_by(window)]
            return Fault(**common, proof=[*strikes.LOST_ANSWER, "cut_active"], proxies=write, cut_proxies=cut)
        case "routes":
            return Fault(**common, proof=list(strikes.LOST_ANSWER), proxies=write, self_test="closed_downstream")
        case "temporal":
            proof = ["request_arrived", "effect_committed", "observed"]
            return Fault(**common, proof=proof, proxies=write, observations=["refused"])
        case "consumers_stopped":
            return Fault(**common, proof=["observed"], observations=["accepted_while_nobody_worked"])
        case "memory":
            return Fault(**common, proof=["observed"], observations=["silent"])
        case "ledger":
            proof = ["request_arrived", "effect_committed", "observed"]
            return Fault(**common, proof=proof, proxies=write, observations=["store_refuses"])
        case "credential" if window.how == "turned_away":
            proof = [*strikes.LOST_ANSWER, "observed"]
            return Fault(**common, proof=proof, proxies=write, observations=["turned_away_everywhere"])
        case "audit" | "credential":
            return Fault(**common, proof=["observed"], observations=[_SEEN[window.kind]])
    raise ValueError(f"no strike is called {kind}")


def cut_by(window: Window) -> list[str]:
    """The proxies that a cut cuts."""
    return [f"payments.{name}" for name in READS] if window.how == "destination" else [window.how]


async def play(cell: SoakCell, window: Window, submit: Submit) -> None:
    """Submit the window's tasks and strike."""
    match window.fault:
        case "consumers_stopped":
            await _consumers_stopped(cell, window, submit)
        case "memory":
            await _memory_silent(cell, window, submit)
        case "audit":
            await (around.log_full if window.how == "full" else around.collector_hangs)(cell, window, submit)
        case "credential" if window.how == "expired":
            await around.expires(cell, window, submit)
        case "credential" if window.how == "narrower":
            await around.comes_back_narrower(cell, window, submit)
        case "request_lost":
            gate = strikes.gate_for(cell.write, window.targets[0])
            await submit(window.tasks)
            how = WireFault(window.how)
            await strikes.lose_request(cell.write, cell.proxies["payments.write"], window.targets[0], gate, how)
        case _:
            held = await cell.latch(window.targets[0])
            await submit(window.tasks)
            await _IN_FLIGHT[window.fault](cell, window, held)


async def _answer_lost(cell: SoakCell, window: Window, held: strikes.Standing) -> None:
    proxy = cell.proxies["payments.write"]
    await strikes.lose_answer(cell.write, proxy, window.targets[0], held, WireFault(window.how))


async def _worker(cell: SoakCell, window: Window, held: strikes.Standing) -> None:
    number = signal.Signals[window.how]
    if number is signal.SIGSTOP:
        frozen = asyncio.sleep(PERMIT_S + THAW_LATER_S)  # this duration is the fault: past the permit's life
        await strikes.freeze_sender(cell, cell.write, window.targets[0], held, frozen)
        return
    await strikes.kill_sender(cell, cell.write, window.targets[0], held, number)
    await cell.top_up()


async def _cut(cell: SoakCell, window: Window, held: strikes.Standing) -> None:
    await held.hit()
    for name in cut_by(window):
        await cell.proxies[name].cut()
    healed = asyncio.create_task(asyncio.sleep(CUT_S))  # how long the cut lasts
    try:
        await _answer_lost_now(cell, cell.write, window)
        await healed
    finally:
        for name in cut_by(window):
            await cell.proxies[name].heal()


async def _answer_lost_now(cell: SoakCell, tap: Tap, window: Window) -> None:
    """The operation stands at its latch already: its answer is lost."""
    proxy = cell.proxies["payments.write"]
    toxic = await proxy.install(WireFault.CLOSED, "downstream")
    await cell.run.world.release(cell.account)
    await strikes.given_up(tap, proxy, window.targets[0], toxic)


async def _routes(cell: SoakCell, window: Window, held: strikes.Standing) -> None:
    await held.hit()
    await cell.run.world.configure(cell.account, "payments", routes=dict.fromkeys(READS, window.how))
    over = asyncio.create_task(asyncio.sleep(ROUTES_S))  # how long they lie
    await _answer_lost_now(cell, cell.write, window)
    await over
    await cell.heal_routes()


async def _credential_turned_away(cell: SoakCell, window: Window, held: strikes.Standing) -> None:
    await held.hit()
    await around.turned_away(cell, lambda: _answer_lost_now(cell, cell.write, window))


async def _temporal(cell: SoakCell, window: Window, held: strikes.Standing) -> None:
    await held.hit()
    server = cell.run.stack.temporal
    await server.kill()
    try:
        facts = await witness.speak(*cell.behind("temporal"), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", wait_s=SPEAK_S)
        cell.run.writer.append(
            "witness", "observation", cell.name, name="refused", target="Temporal's frontend", facts=facts
        )
        await held.release()
    finally:
        await server.start()


async def _consumers_stopped(cell: SoakCell, window: Window, submit: Submit) -> None:
    for worker in list(cell.workers):
        if worker.alive:
            worker.signal(signal.SIGKILL)
            await worker.ended()
    accepted = await submit(window.tasks)
    alive = [worker.pid for worker in cell.workers if worker.alive]
    facts = {"alive": alive, "accepted": len(accepted)}
    cell.run.writer.append(
        "witness", "observation", cell.name, name="accepted_while_nobody_worked", target="the task queue", facts=facts
    )
    await cell.top_up()


async def _memory_silent(cell: SoakCell, window: Window, submit: Submit) -> None:
    proxy = cell.proxies["memory"]
    toxics = [await proxy.install(WireFault.SILENT, stream) for stream in ("upstream", "downstream")]
    over = asyncio.create_task(asyncio.sleep(MEMORY_S))  # how long it is silent
    try:
        facts = await witness.speak(*cell.front("memory"), POSTGRES_HELLO, wait_s=SPEAK_S)
        cell.run.writer.append("witness", "observation", cell.name, name="silent", target="the memory", facts=facts)
        await submit(window.tasks)
        await over
    finally:
        for toxic in toxics:
            await proxy.remove(toxic)


_IN_FLIGHT: dict[str, Callable[[SoakCell, Window, strikes.Standing], Awaitable[None]]] = {
    "answer_lost": _answer_lost,
    "worker": _worker,
    "cut": _cut,
    "routes": _routes,
    "temporal": _temporal,
    "ledger": around.ledger_refuses,
    "credential": _credential_turned_away,
}
_SEEN = {
    "audit:full": "write_failed",
    "audit:hangs": "silent",
    "credential:expired": "no_lease_in_force",
    "credential:narrower": "came_back_narrower",
}
