"""Strikes at what is around an operation: where its audit events go, the ledger's own store, the credential it needs.

Contract: as in `strikes`: an operation that must be in flight stands at its latch, every other fault is there before
the window's tasks are submitted; a witness outside the system leaves its observation before anything is healed. Each
lasts until what must follow has been seen (a page, a hold), not for a time. What they raise means that they did not
strike.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from actonce.testing import strikes, witness
from actonce.testing.export import Row
from actonce.testing.faults import WireFault
from actonce.testing.waiting import eventually
from drills import doors, leasing
from drills.auditing import COLLECTOR_ASKED
from drills.rig import READS
from drills.soak import ground, people
from drills.soak.cell import SoakCell, Submit
from drills.soak.schedule import Window
from drills.world.leases import default_token, scope_of

STEP_S = 60.0  # one step, on a busy machine
SPEAK_S = 1.5  # beyond what `silent` must last to count
WRITE = scope_of("payments", "write")
NARROW = ["payments:look"]
REFUSALS = ("condition_not_met",)


def _observe(cell: SoakCell, name: str, target: str, facts: dict[str, Any]) -> None:
    cell.run.writer.append("witness", "observation", cell.name, name=name, target=target, facts=facts)


# where audit events go, and where everything is stored ----------------------------------------------------------------


async def log_full(cell: SoakCell, window: Window, submit: Submit) -> None:
    """The folder's file system has no room: work goes on, its events wait, a person is called."""
    log = cell.extras["log"]
    _observe(cell, "write_failed", str(log.folder), log.fill())
    try:
        await _goes_on_while(cell, window, submit)
    finally:
        log.free()


async def collector_hangs(cell: SoakCell, window: Window, submit: Submit) -> None:
    """The collector accepts and says nothing: the same."""
    proxy = cell.proxies["collector"]
    silent = await proxy.install(WireFault.SILENT, "upstream")
    try:
        facts = await witness.speak(proxy.host, proxy.port, COLLECTOR_ASKED, wait_s=SPEAK_S)
        _observe(cell, "silent", "the log collector", facts)
        await _goes_on_while(cell, window, submit)
    finally:
        await proxy.remove(silent)


async def _goes_on_while(cell: SoakCell, window: Window, submit: Submit) -> None:
    since_ns = time.monotonic_ns()
    await submit(window.tasks)
    await _settled(cell, window.targets[0])
    await called(cell, "audit_lag", since_ns)


async def ledger_refuses(cell: SoakCell, window: Window, held: strikes.Standing) -> None:
    """The ledger takes no writes between the call and its outcome: the outcome is kept, a person is called past it."""
    await held.hit()
    since_ns = time.monotonic_ns()
    await ground.writable(cell, now=False)
    try:
        _observe(cell, "store_refuses", "the ledger", await ground.try_to_write(cell.parts.dsn(cell.database)))
        await held.release()
        await called(cell, "ledger_unavailable", since_ns)
    finally:
        await ground.writable(cell, now=True)


async def called(cell: SoakCell, reason: str, since_ns: int) -> None:
    """Wait until somebody is called about it: a page since then, or one from before that is still open."""

    async def told() -> bool:
        if any(f"{reason}.md" in p.text and p.mono_ns >= since_ns for p in cell.run.sink.of(cell.channel)):
            return True
        return any(row["reason"] == reason for row in await cell.ledger.rows("page_open"))

    await eventually(told, within_s=STEP_S, what=f"{cell.name}: a page about {reason}", every_s=0.3)


# the credential -------------------------------------------------------------------------------------------------------


async def expires(cell: SoakCell, window: Window, submit: Submit) -> None:
    """The manager gives and prolongs no more; what comes then is held, a person rotates, and it goes on."""
    await cell.run.world.lease(cell.account, deny=["issue", "renew"])
    try:

        def over() -> bool:
            facts = leasing.standing(cell)
            return bool(facts["had"] and not facts["in_force"] and facts["denied"])

        await eventually(over, within_s=STEP_S, what=f"{cell.name}: no lease in force", every_s=0.1)
        _observe(cell, "no_lease_in_force", f"{cell.account}/write", leasing.standing(cell))
        await submit(window.tasks)
        await _held(cell, window.targets[0])
        await doors.try_to_resume(cell, window.targets[0], "it takes so long", *REFUSALS, action="resume")
    finally:
        await cell.run.world.lease(cell.account, deny=[])
    await leasing.key_holder(cell, window.targets[0])
    await _keys_are_well(cell)


async def comes_back_narrower(cell: SoakCell, window: Window, submit: Submit) -> None:
    """Its leases are revoked, it comes back with less: a person rotates, the new check refuses, the person ends it."""
    world = cell.run.world
    await world.lease(cell.account, scope={"write": NARROW})
    try:
        ended: list[str] = []

        async def over() -> bool:
            """A process may have leased anew before it learned that the credential is revoked: that ends too."""
            ended.extend(await world.end_leases(cell.account, purpose="write"))
            return not leasing.standing(cell)["in_force"]

        await eventually(over, within_s=STEP_S, what=f"{cell.name}: no lease in force", every_s=0.2)
        gives = await _what_it_gives(cell)
        facts = {"ended": ended, "in_force": leasing.standing(cell)["in_force"], "needed": WRITE, "gives": gives}
        _observe(cell, "came_back_narrower", f"{cell.account}/write", facts)
        await submit(window.tasks)
        await _held(cell, window.targets[0])
        await leasing.key_holder(cell, window.targets[0])
    finally:
        await world.lease(cell.account, scope={})
        await leasing.rotate(cell)  # with too little scope it is active, and of no use
    await _keys_are_well(cell)


async def _what_it_gives(cell: SoakCell) -> list[str]:
    """The scope of a lease that the witness gets for itself, and gives back."""
    base, headers = cell.run.world.listeners["leases"], {"X-Vault-Token": default_token(cell.account)}
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=STEP_S, trust_env=False) as http:
        lease = (await http.get(f"/v1/{cell.account}/creds/write")).raise_for_status().json()
        await http.put("/v1/sys/leases/revoke", json={"lease_id": lease["lease_id"]})
    return list(lease["data"]["scope"])


async def turned_away(cell: SoakCell, lose: Callable[[], Awaitable[None]]) -> None:
    """The answer is lost and every read route answers 401: never "not there"; rotated, it is read again."""
    before = leasing.turned_away(cell)
    await cell.run.world.configure(cell.account, "payments", revoked=dict.fromkeys(READS, "401"))
    try:
        await lose()

        def since() -> dict[str, int]:
            return {route: count - before[route] for route, count in leasing.turned_away(cell).items()}

        what = f"{cell.name}: every route answered 401"
        await eventually(lambda: all(since().values()), within_s=STEP_S, what=what, every_s=0.2)
        _observe(cell, "turned_away_everywhere", cell.account, {"routes": since()})
    finally:
        await cell.heal_routes()
    await _keys_are_well(cell)


async def _keys_are_well(cell: SoakCell) -> None:
    """Everybody does what there is to do until no credential is ended and none holds anything."""
    await eventually(
        lambda: people.tend(cell), within_s=STEP_S, what=f"{cell.name}: nothing waits for a key", every_s=0.5
    )


async def _held(cell: SoakCell, operation_id: str) -> Row:
    """Wait until it is held for a key and a page about it has arrived."""

    async def look() -> Row | None:
        row = await cell.ledger.operation(operation_id)
        told = any(operation_id in f"{p.title} {p.text}" for p in cell.run.sink.of(cell.channel))
        held = row is not None and row["state"] == "held" and row["reason"] in people.KEY_REASONS
        return row if held and told else None

    return await eventually(look, within_s=STEP_S, what=f"{operation_id}: held for a key and paged", every_s=0.2)


async def _settled(cell: SoakCell, operation_id: str) -> None:
    async def look() -> bool:
        row = await cell.ledger.operation(operation_id)
        return row is not None and row["state"] == "committed"

    await eventually(look, within_s=STEP_S, what=f"{operation_id}: committed all the same", every_s=0.2)
