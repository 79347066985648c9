"""The person who is paged, as a program: starts fresh and is given what a page and its procedure show, nothing else.

    python -m drills.operator < page.json > done.json

Standard input: {"title", "text"} of one page, as it reached its channel. Environment: ACTONCE_CONSOLE_LOGIN, a private
file with the console's address (a bookmark) and this person's sign-in, and ACTONCE_OPERATOR_DASHBOARD, a JSON file with
the destination's own dashboard (URL and login), which the procedure sends a person to. Knows no operation, no task and
no drill: the operation and its procedure are named by the page, found among the console's alerts and read there; what
may be pressed is what the operation's page offers, and what to decide comes from what the dashboard shows. Exit status
0 when a decision is recorded.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from drills.console import acts
from drills.console.visitors import Visitor, from_file

ROOT = Path(__file__).resolve().parent.parent
NAME = "operator on call"
COMMAND = "python -m actonce.client"  # how pages and procedures begin what a person types


class Lost(RuntimeError):
    """The page, the console or the procedure does not say how to go on: that is a finding about them."""


def commands_of(page: str) -> list[list[str]]:
    """What a page tells to do with the client: the arguments of each command."""
    found = re.findall(rf"{re.escape(COMMAND)} ([^\n`]+?)(?=\s{{3,}}|`|\n|$)", page)
    return [shlex.split(line) for line in found]


def procedure_of(page: str) -> tuple[str, str]:
    """The procedure that a page names: its path, and what it says."""
    named = re.search(r"Procedure: (docs/operations/[a-z_]+\.md)", page)
    if named is None:
        raise Lost(f"the page names no procedure:\n{page}")
    return named.group(1), (ROOT / named.group(1)).read_text(encoding="utf-8")


def lines_of(procedure: str) -> list[list[str]]:
    """The arguments of each command line that a procedure has on a line of its own, with its words in capitals."""
    lines = [line for line in procedure.splitlines() if line.startswith(f"{COMMAND} ")]
    return [shlex.split(line.removeprefix(COMMAND)) for line in lines]


def client(arguments: list[str]) -> Any:
    """Run the client in a process of its own and return what it prints as JSON."""
    ran = run_client(arguments)
    if ran.returncode != 0:
        raise Lost(f"{COMMAND} {shlex.join(arguments)} ended {ran.returncode}: {ran.stderr.strip()[-500:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def run_client(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Type the command as it is told, in this environment."""
    command = [sys.executable, *shlex.split(COMMAND)[1:], *arguments, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def named_by(page: dict[str, str]) -> tuple[str, str]:
    """The operation that a page is about, and the reason code whose procedure it names."""
    text = f"{page['title']}\n{page['text']}"
    show = next((c for c in commands_of(text) if c[:1] == ["show"]), None)
    if show is None:
        raise Lost(f"the page names no operation to look at:\n{text}")
    path, _ = procedure_of(text)
    return show[1], Path(path).stem


async def procedure_at(who: Visitor, reason: str, operation_id: str) -> str:
    """From the console's alerts to the procedure: the operation must be among them, and the procedure must be there."""
    alerts = await who.open("/alerts")
    if acts.operation_path(operation_id) not in alerts.links:
        raise Lost(f"the console's alerts do not lead to {operation_id}: {alerts.words[:500]}")
    procedure = await who.open(f"/procedures/{quote(reason, safe='')}")
    if procedure.status != 200:
        raise Lost(f"the console has no procedure {reason}: {procedure.words[:300]}")
    return procedure.words


def seen_at_destination(operation_id: str) -> list[dict[str, Any]]:
    """What the destination's dashboard shows under our marker."""
    dashboard = json.loads(Path(os.environ["ACTONCE_OPERATOR_DASHBOARD"]).read_text(encoding="utf-8"))
    answer = httpx.get(dashboard["url"], headers=dashboard["headers"], timeout=10.0, trust_env=False)
    answer.raise_for_status()
    rows = answer.json()["data"]
    ours = [row for row in rows if (row.get("metadata") or {}).get("operation_id") == operation_id]
    return [
        row for row in ours if row.get("author") == dashboard["author"] and row.get("object") == dashboard["object"]
    ]


async def decide(page: dict[str, str]) -> dict[str, Any]:
    """Follow the page, the console and the procedure to a recorded decision."""
    operation_id, reason = named_by(page)
    async with from_file(Path(os.environ["ACTONCE_CONSOLE_LOGIN"])) as who:
        procedure = await procedure_at(who, reason, operation_id)
        await acts.acknowledge(who, operation_id)
        rows = seen_at_destination(operation_id)
        action = "mark_committed" if rows else "permit_one_retry"
        if action not in procedure:
            raise Lost(f"the procedure of {reason} does not say what {action} does")
        pressed = await acts.decide(
            who,
            operation_id,
            action,
            why="the destination shows it" if rows else "the destination does not show it; a refund can be reversed",
            saw=f"dashboard: {[row['id'] for row in rows] or 'nothing under our marker'}",
            object_id=rows[0]["id"] if rows else "",
        )
        if not pressed.done or not pressed.offered:
            raise Lost(f"{action} was not taken by the console: {pressed.answer}")
        done = {"operation_id": operation_id, "action": action, "by": NAME}
        return {**done, "door": who.door, "answer": pressed.answer}


def as_program(follow: Callable[[dict[str, str]], Any]) -> None:
    """One page in, what was done out. Exit status 1 and the finding where page and procedure did not lead to an end."""
    try:
        done = follow(json.load(sys.stdin))
        print(json.dumps(asyncio.run(done) if asyncio.iscoroutine(done) else done))
    except Lost as error:
        print(json.dumps({"lost": str(error)}))
        raise SystemExit(1) from error


if __name__ == "__main__":
    as_program(decide)
