"""The restore page: how the last restore stands, what its sweep found, and the buttons that let tasks go on."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from actonce.console.acting import Refused, path
from actonce.console.acts import Kept, ask, done, fresh_press, missing, press_for, refused_page
from actonce.console.person import Press, person_of, pressed
from actonce.console.rendering import page
from actonce.console.state import console_of
from actonce.contracts.people import Scope
from actonce.ledger import origins, quarantine, sweep_totals
from actonce.ledger.store import Ledger

router = APIRouter()  # its page and its buttons each say who may
Decides = Annotated[Press, Depends(pressed(Scope.DECIDE))]
FINDINGS_MAX, TASKS_MAX = 100, 20  # the first ones; the counts beside them are whole
GROUP_WORDS = {
    "settled": "All that they did is established, and nothing is left but to end.",
    "resumable": "Nothing of them is in doubt; they go on, or begin.",
    "held": "Something of them waits for a decision, which it still needs after their release.",
}


@router.get("/restore", dependencies=[Depends(person_of)])
async def restore(request: Request) -> HTMLResponse:
    """What the ledger knows of itself, what the sweep found, and what waits for a person."""
    return await page(
        request, "restore.html", press=fresh_press(), kept=Kept(), **await _values(console_of(request).ledger)
    )


async def _values(ledger: Ledger) -> dict[str, Any]:
    now = await quarantine.standing(ledger)
    is_open = now.restore is not None and now.restore.closed_at is None
    groups = quarantine.GROUPS if is_open else ()
    return {
        "o": await origins.origins(ledger),
        "now": now,
        "is_open": is_open,
        "found": await sweep_totals.findings(ledger, now.epoch, FINDINGS_MAX) if now.restore is not None else [],
        "groups": [(g, GROUP_WORDS[g], await quarantine.waiting_tasks(ledger, g, TASKS_MAX)) for g in groups],
    }


@router.post("/restore/release/{group}")
async def release(group: str, request: Request, press: Decides) -> Response:
    """Let the tasks of one group go, on what the page showed."""
    if group not in quarantine.GROUPS:
        raise HTTPException(404, "There is no such group of tasks; nothing was recorded.")
    return await _ask(request, press, group, path("restore", "release"), {"group": group}, "restore-released")


@router.post("/restore/close")
async def close(request: Request, press: Decides) -> Response:
    """From here on a first send needs no reading before it."""
    return await _ask(request, press, "close", path("restore", "close"), {}, "restore-closed")


async def _ask(request: Request, press: Press, about: str, to: str, body: dict[str, Any], word: str) -> Response:
    form = press.form
    refused = missing(form, "reason")
    if refused is None:
        said = {"expected_epoch": form.number("epoch"), "reason": form["reason"], **body}
        try:
            await ask(request, press, to, said, key=f"{form['press']}-{about}" if form["press"] else None)
        except Refused as error:
            refused = error
        else:
            return done("/restore", word)
    return await refused_page(
        request,
        refused,
        "refused_restore.html",
        back="/restore",
        kept=Kept(about, form.values),
        press=press_for(form, refused),
        **await _values(console_of(request).ledger),
    )
