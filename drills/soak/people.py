"""The people of a soak: who approves, who holds the keys, who lets go on what a dead credential held.

Contract: they act through the entry service, as anyone would, and only as it permits: a rotation of what is not active,
`resume` where the entry says that it would be accepted now. Each decision is on record. What fails is tried again by
the next call; what is never done stays held, and that is for the judge.
"""

from __future__ import annotations

from typing import Any

import httpx

from drills import doors, leasing
from drills.script import SUBMIT_S
from drills.soak.cell import SoakCell

KEY_REASONS = frozenset({"credential_expired", "credential_revoked", "credential_unavailable", "not_authorised"})
KEY_HOLDER = "owner of the credential"


def _entry(cell: SoakCell) -> httpx.AsyncClient:
    return doors.http(cell, SUBMIT_S)


async def approve_all(cell: SoakCell) -> None:
    """Somebody approves what people are asked for."""
    async with _entry(cell) as http:
        asked = await http.get("/v1/approvals?state=pending&limit=1000")
        for one in asked.json() if asked.status_code == 200 else []:
            body = {"name": "Ada", "note": "soak", "digest": one["digest"]}
            await http.post(f"/v1/approvals/{one['approval_id']}/approve", json=body)


async def allow(cell: SoakCell) -> None:
    """The owner of the access policy puts one in force that allows what a soak does, unless an earlier life did."""
    async with _entry(cell) as http:
        in_force = (await http.get("/v1/access-policy")).status_code == 200
    if not in_force:
        await leasing.set_policy(cell, 1, allows=True, for_run=True)


async def rotate_all(cell: SoakCell, *, narrow: bool) -> list[str]:
    """Every credential that is not active is rotated; `narrow`: the write's too, for what it gave was refused.

    Returns their names, or "not known" while the entry does not tell.
    """
    async with _entry(cell) as http:
        listed = await http.get("/v1/credentials")
        if listed.status_code != 200:
            return ["not known"]
        write = f"{cell.account}/write" if narrow else ""
        ended = [one for one in listed.json() if one["state"] != "active" or one["name"] == write]
        for one in ended:
            body = {"credential": one["name"], "expected_generation": one["generation"], "name": KEY_HOLDER}
            await http.post("/v1/credentials/rotations", json={**body, "reason": f"soak: {one['state']}"})
    return [str(one["name"]) for one in ended]


async def resume_all(cell: SoakCell) -> tuple[list[str], bool]:
    """What a credential held goes on, where a new authorisation check allows it.

    Returns what was held for one, and whether a check refused any of it.
    """
    held = [str(row["operation_id"]) for row in await cell.ledger.rows("held") if row["reason"] in KEY_REASONS]
    refused = False
    if held:
        async with _entry(cell) as http:
            for operation_id in held:
                refused |= "authorisation check refused it" in await _resume(cell, http, operation_id)
    return held, refused


async def _resume(cell: SoakCell, http: httpx.AsyncClient, operation_id: str) -> str:
    """Why it may not be resumed now; nothing when it was, or moved meanwhile."""
    shown = await http.get(f"/v1/operations/{operation_id}")
    if shown.status_code != 200:
        return f"status {shown.status_code}"
    record: dict[str, Any] = shown.json()["records"][0]
    offered = next((one for one in record["decisions_now"] if one["action"] == "resume"), None)
    if offered is None or not offered["allowed"]:
        return str(offered["refused_because"]) if offered else ""
    body = {"action": "resume", "name": KEY_HOLDER, "reason": "its new authorisation check passed", "evidence": "soak"}
    stamp = {"expected_version": record["version"], "expected_epoch": record["epoch"]}
    said = await http.post(f"/v1/operations/{operation_id}/decisions", json={**body, **stamp})
    if said.status_code == 201:
        line: dict[str, Any] = {"operation_id": operation_id, "action": "resume", "by": KEY_HOLDER}
        cell.run.writer.append("drill", "decision", cell.run.place(operation_id, None), **line)
    return ""


async def tend(cell: SoakCell) -> bool:
    """One round of everybody. True when nothing waited for a key any more; False too while the entry is not there."""
    try:
        await approve_all(cell)
        held, refused = await resume_all(cell)
        ended = await rotate_all(cell, narrow=refused)
    except httpx.HTTPError as error:
        text = f"the entry could not be asked: {type(error).__name__}: {error}"
        cell.run.writer.append("drill", "note", cell.name, text=text)
        return False
    return not ended and not held
