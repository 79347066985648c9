"""From a press to the entry and back: the answer is a redirect to what is now, or a page that says why not.

Promises: a press that was done leads to a page that can be loaded again without doing it again; one that was refused
leads to a page that says what changed since, with a fresh form and what was typed, under the status that the entry
gave. A press whose outcome is not known keeps its key, so pressing again is the same press.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from actonce.console.acting import Answer, Refused
from actonce.console.csrf import Form
from actonce.console.notices import DONE
from actonce.console.person import Press
from actonce.console.rendering import page
from actonce.console.state import console_of
from actonce.ledger.changes import Change


@dataclass(frozen=True)
class Kept:
    """What a refused form had in it, so that nobody types it twice; empty for a fresh one."""

    about: str = ""  # which of the forms on the page
    values: dict[str, str] = field(default_factory=dict)

    def of(self, about: str, name: str, default: object = "") -> str:
        """What a field begins with."""
        if about != self.about or name not in self.values:
            return "" if default is None else str(default)
        return self.values[name]


def fresh_press() -> str:
    """The key of a form that is made now."""
    return secrets.token_urlsafe(16)


def press_for(form: Form, refused: Refused) -> str:
    """The key of the form after a refusal: the same one while nobody knows whether it was done."""
    return fresh_press() if refused.known or not form["press"] else form["press"]


async def ask(request: Request, press: Press, path: str, body: dict[str, Any], *, key: str | None = None) -> Answer:
    """Ask the entry in the name of who pressed. Raises Refused."""
    said = {"name": press.person.name, **body}
    return await console_of(request).acting.post(press.person.name, path, said, press=key)


def done(address: str, what: str) -> Response:
    """Go and see. `what` is one of DONE: no words of anybody are in an address."""
    assert what in DONE, what
    return RedirectResponse(f"{address}?done={what}", 303)


def missing(form: Form, *names: str) -> Refused | None:
    """What a person left out."""
    empty = [name for name in names if not form[name]]
    if not empty:
        return None
    return Refused(422, "Something is missing", f"Fill in: {', '.join(empty)}. Nothing was recorded.", "missing")


async def refused_page(
    request: Request,
    refused: Refused,
    template: str,
    *,
    back: str,
    changes: Sequence[Change] = (),
    **values: Any,
) -> Response:
    """Say why not and what changed since, and offer a fresh form where there is still something to press."""
    answer = await page(request, template, status=refused.status, refused=refused, changes=changes, back=back, **values)
    if refused.retry_after_s is not None:
        answer.headers["Retry-After"] = refused.retry_after_s
    return answer
