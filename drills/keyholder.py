"""The owner of a credential who is paged, as a program: starts fresh, is given one page, and follows its procedure.

    python -m drills.keyholder < page.json > done.json

Knows no operation, no credential and no drill: the operation is named by the page, the credentials by the client's
`credentials`, the command lines by the procedure that the page names, and whether to go on by what the new
authorisation check says. Exit status 0 when everything that the procedure says was done.
"""

from __future__ import annotations

import time
from typing import Any

from drills.operator import Lost, as_program, client, commands_of, lines_of, procedure_of

NAME = "owner of the credential"
CHECK_S = 40.0  # a renewal tick, and fresh processes on a busy machine


def template(procedure: str, *words: str) -> list[str]:
    """The procedure's command line that begins so, split."""
    found = next((c for c in lines_of(procedure) if c[0] == words[0] and set(words) <= set(c)), None)
    if found is None:
        raise Lost(f"the procedure has no command line with {' '.join(words)}")
    return found


def filled(words: list[str], values: dict[str, str]) -> list[str]:
    return [values.get(word, word) for word in words]


def follow(page: dict[str, str]) -> dict[str, Any]:
    """From the page to rotated credentials and, where the procedure says so, to a recorded decision."""
    text = f"{page['title']}\n{page['text']}"
    _, procedure = procedure_of(text)
    show = next((c for c in commands_of(text) if c[:1] == ["show"]), None)
    if show is None:
        raise Lost(f"the page names no `show` command:\n{text}")
    rotated = []
    for one in client(["credentials"]):
        if one["state"] == "active":
            continue
        values = {"CREDENTIAL": one["name"], "G": str(one["generation"]), "YOU": NAME, "WHY": f"{one['state']}"}
        client(filled(template(procedure, "rotate"), values))
        rotated.append(one["name"])
    done: dict[str, Any] = {"operation_id": show[1], "rotated": rotated, "by": NAME, "action": "rotated"}
    if "--action resume" not in procedure:
        return done  # evidence ends this hold: the operation is read again by itself
    action, record = decision(show[1])
    values = {
        "OPERATION_ID": show[1],
        "V": str(record["version"]),
        "E": str(record["epoch"]),
        "YOU": NAME,
        "WHY": "its new authorisation check passed" if action == "resume" else "its new authorisation check refused it",
        "WHAT_YOU_SAW": "the list of credentials",
    }
    return {**done, "action": action, "recorded": client(filled(template(procedure, "resolve", action), values))}


def decision(operation_id: str) -> tuple[str, dict[str, Any]]:
    """Wait for the new check: `resume` when it passed, `mark_absent` when it refused."""
    until = time.monotonic() + CHECK_S
    while True:
        record = client(["show", operation_id])["records"][0]
        offered = {one["action"]: one for one in record["decisions_now"]}
        if "resume" not in offered:
            raise Lost(f"{operation_id} is {record['state']}; resume is not offered")
        if offered["resume"]["allowed"]:
            return "resume", record
        why = str(offered["resume"]["refused_because"])
        if "authorisation check refused it" in why:
            return "mark_absent", record
        if time.monotonic() > until:
            raise Lost(f"{operation_id} cannot be resumed after {CHECK_S:g} s: {why}")


if __name__ == "__main__":
    as_program(follow)
