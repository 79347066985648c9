"""What a person does at the console: decide, vote, acknowledge, rotate, let tasks go, give another deadline.

Contract: each act loads the page it is about, reads what the page says, and sends the form that the page has: whoever
looks at an older page (`on`) sends what that page had. Where a page offers no button, that is what is answered
(`offered`), and the same is sent all the same, with what the page shows: a console that merely hides a button would be
found out. What was typed is what a person would type; no act knows more than page and caller say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from drills.console.pages import Form, Seen
from drills.console.visitors import Visitor

AGAIN_MAX = 3
UNKNOWN = frozenset({"ledger-unavailable", "answer-lost", "entry-unreachable"})  # codes of an outcome nobody knows


@dataclass(frozen=True)
class Pressed:
    """What became of a press."""

    seen: Seen  # the page that answered
    offered: bool  # was there a button for it?

    @property
    def done(self) -> bool:
        return self.seen.done

    def refused_as(self, *codes: str) -> bool:
        """Was it refused, and with one of these codes?"""
        return not self.done and self.seen.code in codes

    @property
    def answer(self) -> str:
        """What the console said, in a sentence."""
        return f"{'' if self.offered else 'no button is offered; sent all the same: '}{self.seen.answer}"[:600]


def operation_path(operation_id: str) -> str:
    return f"/operations/{quote(operation_id, safe='')}"


def task_path(task_id: str) -> str:
    return f"/tasks/{quote(task_id, safe='')}"


async def decide(
    who: Visitor,
    operation_id: str,
    action: str,
    *,
    why: str,
    saw: str,
    object_id: str = "",
    on: Seen | None = None,
) -> Pressed:
    """A decision about a held operation. `on`: the page that this person has had open since then."""
    seen = on or await who.open(operation_path(operation_id))
    form = seen.form(f"act-{action}")
    typed = {"reason": why, "evidence": saw, **({"object_id": object_id} if action == "mark_committed" else {})}
    if form is None:
        return Pressed(
            await who.post(
                f"{operation_path(operation_id)}/decisions",
                await _unoffered(who, seen, operation_id, {**typed, "action": action, "confirm": operation_id[-6:]}),
            ),
            offered=False,
        )
    typed |= _confirmation(form)
    if on is not None:
        return Pressed(await who.post(form.action, {**form.fields, **typed}), offered=True)
    answer = await who.press(form, typed, form.buttons[0].label)
    for _ in range(AGAIN_MAX):  # the page says that nobody knows, and that the same press again is safe
        same = answer.form(form.about) if answer.code in UNKNOWN else None
        if same is None or same.fields.get("press") != form.fields.get("press"):
            break
        answer = await who.press(same, typed, same.buttons[0].label)
    return Pressed(answer, offered=True)


def _confirmation(form: Form) -> dict[str, str]:
    """What a dangerous button wants typed, as its label says."""
    found = re.match(r"Type (\S+) to confirm", form.labels.get("confirm", ""))
    return {"confirm": found.group(1)} if found else {}


async def _unoffered(who: Visitor, seen: Seen, operation_id: str, typed: Mapping[str, str]) -> dict[str, str]:
    """The form that the page does not have, from what the console shows of the operation."""
    shown = await who.raw(f"/raw{operation_path(operation_id)}")
    known: dict[str, Any] = shown["records"][0]["operation"] if shown else {}
    named = {name: str(known.get(of, "")) for name, of in _NAMED.items()}
    stamp = {name: str(known.get(name, 1)) for name in ("epoch", "version")}
    return {"csrf": seen.csrf, **named, **stamp, **typed}


_NAMED = {"tenant": "tenant", "destination": "destination", "operation_action": "action"}


async def vote(who: Visitor, approval_id: str, verb: str, note: str, *, on: Seen | None = None) -> Pressed:
    """Approve, reject or renew, about exactly what the page shows."""
    path = f"/approvals/{quote(approval_id, safe='')}"
    seen = on or await who.open(path)
    form = next((f for f in seen.forms if _sends(f, f"{path}/{verb}")), None)
    if form is None:
        digest = next((f.fields["digest"] for f in seen.forms if "digest" in f.fields), _digest(seen))
        values = {"csrf": seen.csrf, "digest": digest, "note": note}
        return Pressed(await who.post(f"{path}/{verb}", values), offered=False)
    if on is not None:
        return Pressed(await who.post(f"{path}/{verb}", {**form.fields, "note": note}), offered=True)
    label = next(b.label for b in form.buttons if (b.action or form.action) == f"{path}/{verb}")
    return Pressed(await who.press(form, {"note": note}, label), offered=True)


def _sends(form: Form, path: str) -> bool:
    return any((button.action or form.action) == path for button in form.buttons)


def _digest(seen: Seen) -> str:
    found = re.search(r"Digest (\S+)", seen.words)
    return found.group(1) if found else ""


async def acknowledge(who: Visitor, about: str) -> tuple[Seen, Pressed | None]:
    """Say of every open page whose words contain this that it was seen. The list, and the last press (None: no page
    with a button was there)."""
    listed = await who.open("/alerts")
    seen, pressed = listed, None
    while (form := _page_about(seen, about)) is not None:
        answer = await who.press(form, {}, "I have seen it")
        pressed = Pressed(answer, offered=True)
        if not answer.done:
            break
        seen = answer
    return listed, pressed


def _page_about(seen: Seen, words: str) -> Form | None:
    for form in seen.forms:
        if form.action.endswith("/acknowledge") and words in seen.parts.get(form.about, ""):
            return form
    return None


async def release(who: Visitor, task_type: str, button: str, *, why: str, **values: str) -> Pressed:
    """Change the release of a task type by one of its buttons."""
    seen = await who.open("/release")
    form = seen.form(f"release-{task_type}")
    if form is None:
        return Pressed(seen, offered=False)
    return Pressed(await who.press(form, {**values, "why": why}, button), offered=True)


def credentials(seen: Seen) -> list[tuple[str, str]]:
    """The credentials on the console's list: name and state."""
    listed = [words for name, words in seen.parts.items() if re.fullmatch(r"cred-\d+", name)]
    named = [re.match(r"(\S+) (\S+) generation", words) for words in listed]
    return [(one.group(1), one.group(2)) for one in named if one is not None]


async def rotate(who: Visitor, credential: str, why: str) -> Pressed:
    """Rotate a credential, at the generation that the page shows."""
    seen = await who.open("/credentials")
    form = seen.form(f"credential-{credential}")
    if form is None:
        return Pressed(seen, offered=False)
    return Pressed(await who.press(form, {"reason": why}, "Rotate"), offered=True)


async def deadline(who: Visitor, task_id: str, at: str, why: str) -> Pressed:
    """Give a task another deadline. `at`: as the field takes it, in UTC."""
    seen = await who.open(task_path(task_id))
    form = seen.form("act-deadline")
    if form is None:
        return Pressed(seen, offered=False)
    return Pressed(await who.press(form, {"deadline": at, "why": why}, "Set the deadline"), offered=True)
