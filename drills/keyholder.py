"""The owner of a credential who is paged, as a program: starts fresh, is given one page, and follows its procedure.

    python -m drills.keyholder < page.json > done.json

Environment: ACTONCE_CONSOLE_LOGIN, a private file with the console's address and this person's sign-in. Knows no
operation, no credential and no drill: the operation and the procedure are named by the page, the credentials by the
console's list, and whether to go on by what the operation's page offers once the new authorisation check has been made.
Exit status 0 when everything that the procedure says was done.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from actonce.testing.waiting import NeverHappened, eventually
from drills.console import acts
from drills.console.visitors import Visitor, from_file
from drills.operator import Lost, as_program, named_by, procedure_at

NAME = "owner of the credential"
NO_CHECK = re.compile(r"no new authorisation check was made for (\S+) since it was held")
CHECK_S = 40.0  # a renewal tick on a busy machine


async def follow(page: dict[str, str]) -> dict[str, Any]:
    """From the page to rotated credentials and, where the procedure says so, to a recorded decision."""
    operation_id, reason = named_by(page)
    async with from_file(Path(os.environ["ACTONCE_CONSOLE_LOGIN"])) as who:
        procedure = await procedure_at(who, reason, operation_id)
        if "rotate" not in procedure:
            raise Lost(f"the procedure of {reason} does not say to rotate anything")
        rotated = [await _rotated(who, name, state) for name, state in await _ended(who)]
        done: dict[str, Any] = {"operation_id": operation_id, "rotated": rotated, "by": NAME, "door": who.door}
        if "--action resume" not in procedure:
            return {**done, "action": "rotated"}  # evidence ends this hold: the operation is read again by itself
        action = await decision(who, operation_id, rotated)
        why = "its new authorisation check passed" if action == "resume" else "its new authorisation check refused it"
        pressed = await acts.decide(who, operation_id, action, why=why, saw="the list of credentials")
        if not pressed.done or not pressed.offered:
            raise Lost(f"{action} was not taken by the console: {pressed.answer}")
        return {**done, "action": action, "answer": pressed.answer}


async def _ended(who: Visitor) -> list[tuple[str, str]]:
    return [(name, state) for name, state in acts.credentials(await who.open("/credentials")) if state != "active"]


async def _rotated(who: Visitor, name: str, state: str) -> str:
    pressed = await acts.rotate(who, name, why=state)
    if not pressed.done:
        raise Lost(f"{name} was not rotated at the console: {pressed.answer}")
    return name


async def decision(who: Visitor, operation_id: str, rotated: list[str]) -> str:
    """Wait for the new check: `resume` when the page offers it, `mark_absent` when it says that the check refused.

    Where none is made by itself (it is held for what an active credential gives), a rotation asks for one.
    """
    said = ""

    async def look() -> str | None:
        nonlocal said
        seen = await who.open(acts.operation_path(operation_id))
        said = seen.parts.get("decide", seen.now)[-800:]
        if seen.state != "held":
            raise Lost(f"{operation_id} is {seen.state}; there is nothing to decide")
        if "resume" in seen.offered:
            return "resume"
        lacks = NO_CHECK.search(said)
        if lacks is not None and lacks[1] not in rotated:
            rotated.append(await _rotated(who, lacks[1], "a new authorisation check is needed"))
        return "mark_absent" if "authorisation check refused it" in said else None

    try:
        found: str = await eventually(look, within_s=CHECK_S, what=f"{operation_id} may be resumed", every_s=0.5)
    except NeverHappened as error:
        raise Lost(f"{operation_id} cannot be resumed after {CHECK_S:g} s: {said}") from error
    return found


if __name__ == "__main__":
    as_program(follow)
