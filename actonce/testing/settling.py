"""When a drill may end: operations final or held, tasks at their ends, then nothing moves any more.

Contract: it only reads the ledger, and never raises because something did not happen: what did not goes on record as a
note, and what that means is for the judge.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from actonce.testing.export import FINAL
from actonce.testing.site import Site
from actonce.testing.waiting import NeverHappened, eventually

QUIET_S = 1.0  # 2 × the pause between two readings (0.5 s)
RECOUNT_S = 40.0  # rule R10: after the last bound (about 6 s) and a beacon


async def tasks_ended(site: Site, ends: Mapping[str, Iterable[str]], *, within_s: float) -> bool:
    """Wait until the ledger has each task in one of its ends (`state` or `state:reason`). False, and a note, if not."""

    async def look() -> bool:
        rows = {row["task_id"]: row for row in await site.ledger.rows("task_state")}
        return all(task in rows and is_end(rows[task], wanted) for task, wanted in ends.items())

    try:
        await eventually(look, within_s=within_s, what=f"{site.name}: tasks at their ends", every_s=0.3)
    except NeverHappened as error:
        site.writer.append("drill", "note", site.name, text=str(error))
        return False
    return True


def is_end(row: Mapping[str, Any], ends: Iterable[str]) -> bool:
    """Is the task's row at one of these ends?"""
    form = f"{row['state']}:{row['reason']}" if row["reason"] else row["state"]
    return bool({form, row["state"]} & set(ends))


async def quiet(site: Site, operation_ids: set[str], *, for_run: bool = False) -> None:
    """Recounts that are due are done, then nothing moves for a while; what is still open is on record.

    `for_run`: it speaks for the whole run and not for the site's cell alone.
    """
    begun = time.monotonic()
    state: dict[str, Any] = {"versions": None, "since": begun}

    async def still() -> bool:
        rows = [row for row in await site.ledger.rows("operation_state") if row["operation_id"] in operation_ids]
        versions = {row["operation_id"]: row["version"] for row in rows}
        if versions != state["versions"]:
            state.update(versions=versions, since=time.monotonic())
        due = [r for r in rows if r["state"] == "committed" and r["recount_at"] and not r["recounted_at"]]
        return not due and time.monotonic() - state["since"] >= QUIET_S

    try:
        await eventually(still, within_s=RECOUNT_S, what=f"{site.name} quiet", every_s=0.2)
    except NeverHappened as error:
        site.writer.append("drill", "note", site.name, text=str(error))
    rows = {row["operation_id"]: row for row in await site.ledger.rows("operation_state")}
    still_open = [
        operation_id
        for operation_id in sorted(operation_ids)
        if operation_id not in rows or rows[operation_id]["state"] not in {*FINAL, "held"}
    ]
    seconds = round(time.monotonic() - begun, 3)
    place = None if for_run else site.name
    site.writer.append("drill", "quiet", place, seconds=seconds, still_open=still_open)
