"""The people of a soak: who approves, who holds the keys, who lets go on what a dead credential held.

Contract: they act at the console, by its forms, and only as it permits: a rotation of what is not active, `resume`
where it has a button for it now. (The access policy is set with the client: the console has no button for it.) Each
decision is on record. What fails is tried again by
the next call; what is never done stays held, and that is for the judge.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import httpx

from actonce.testing.parts import APPROVER, OWNER
from drills import doors, leasing
from drills.console import acts
from drills.script import SUBMIT_S
from drills.soak.cell import SoakCell

KEY_REASONS = frozenset({"credential_expired", "credential_revoked", "credential_unavailable", "not_authorised"})


def _entry(cell: SoakCell) -> httpx.AsyncClient:
    return doors.http(cell, SUBMIT_S)


async def approve_all(cell: SoakCell) -> None:
    """Somebody approves what people are asked for."""
    approver = await cell.console.visitor(APPROVER, acts=False)
    asked = await approver.open("/approvals?state=pending")
    for address in asked.links:
        if address.startswith("/approvals/"):
            await acts.vote(approver, unquote(address.removeprefix("/approvals/")), "approve", "soak")


async def allow(cell: SoakCell) -> None:
    """The owner of the access policy puts one in force that allows what a soak does, unless an earlier life did."""
    async with _entry(cell) as http:
        in_force = (await http.get("/v1/access-policy")).status_code == 200
    if not in_force:
        await leasing.set_policy(cell, 1, allows=True, for_run=True)


async def rotate_all(cell: SoakCell, *, narrow: bool) -> list[str]:
    """Every credential that the console shows as not active is rotated there; `narrow`: the write's too, for what it
    gave was refused.

    Returns their names, or "not known" while the console does not tell.
    """
    owner = await cell.console.visitor(OWNER, acts=False)
    seen = await owner.open("/credentials")
    if seen.status != 200:
        return ["not known"]
    write = f"{cell.account}/write" if narrow else ""
    ended = [(name, state) for name, state in acts.credentials(seen) if state != "active" or name == write]
    for name, state in ended:
        await acts.rotate(owner, name, f"soak: {state}")
    return [name for name, _ in ended]


async def resume_all(cell: SoakCell) -> tuple[list[str], bool]:
    """What a credential held goes on, where a new authorisation check allows it.

    Returns what was held for one, and whether a check refused any of it.
    """
    held = [str(row["operation_id"]) for row in await cell.ledger.rows("held") if row["reason"] in KEY_REASONS]
    refused = False
    for operation_id in held:
        refused |= "authorisation check refused it" in await _resume(cell, operation_id)
    return held, refused


async def _resume(cell: SoakCell, operation_id: str) -> str:
    """What the console offers about it, after it was resumed where that is offered."""
    owner = await cell.console.visitor(OWNER, acts=False)
    seen = await owner.open(acts.operation_path(operation_id))
    if "resume" not in seen.offered:
        return seen.parts.get("decide", "")
    why = "its new authorisation check passed"
    pressed = await acts.decide(owner, operation_id, "resume", why=why, saw="soak", on=seen)
    if pressed.done:
        line: dict[str, Any] = {"operation_id": operation_id, "action": "resume", "by": OWNER, "door": owner.door}
        cell.run.writer.append("drill", "decision", cell.run.place(operation_id, None), **line)
    return ""


async def tend(cell: SoakCell) -> bool:
    """One round of everybody. True when nothing waited for a key any more; False too while the entry is not there."""
    try:
        await approve_all(cell)
        held, refused = await resume_all(cell)
        ended = await rotate_all(cell, narrow=refused)
    except httpx.HTTPError as error:
        text = f"the console could not be asked: {type(error).__name__}: {error}"
        cell.run.writer.append("drill", "note", cell.name, text=text)
        return False
    return not ended and not held
