"""The person who is paged, as a program: starts fresh and is given what a page and its procedure show, nothing else.

    python -m drills.operator < page.json > done.json

Standard input: {"title", "text"} of one page, as it reached its channel. Environment: ACTONCE_ENTRY_URL (the client's
setting, as in any shell of a deployment) and ACTONCE_OPERATOR_DASHBOARD, a JSON file with the destination's own
dashboard (URL and login), which the procedure sends a person to. Knows no operation, no task and no drill: the
commands are taken from the page, the decision's command line from the procedure that the page names, the versions from
`show`, and what to decide from what the dashboard shows. Exit status 0 when a decision is recorded.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
NAME = "operator on call"
COMMAND = "python -m actonce.client"  # how pages and procedures begin what a person types


class Lost(RuntimeError):
    """The page or the procedure does not say how to go on: that is a finding about them."""


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


def decide(page: dict[str, str]) -> dict[str, Any]:
    """Follow the page and its procedure to a recorded decision."""
    text = f"{page['title']}\n{page['text']}"
    show = next((c for c in commands_of(text) if c[:1] == ["show"]), None)
    path, procedure = procedure_of(text)
    if show is None:
        raise Lost(f"the page names no `show` command:\n{text}")
    operation_id = show[1]
    record = client(["show", operation_id])["records"][0]
    rows = seen_at_destination(operation_id)
    action = "mark_committed" if rows else "permit_one_retry"
    template = next((c for c in lines_of(procedure) if c[:1] == ["resolve"] and action in c), None)
    if template is None:
        raise Lost(f"{path} has no command line for {action}")
    values = {
        "OPERATION_ID": operation_id,
        "V": str(record["version"]),
        "E": str(record["epoch"]),
        "YOU": NAME,
        "WHY": "the destination shows it" if rows else "the destination does not show it; a refund can be reversed",
        "WHAT_YOU_SAW": f"dashboard: {[row['id'] for row in rows] or 'nothing under our marker'}",
        "OBJECT_ID": rows[0]["id"] if rows else "",
    }
    arguments = [values.get(word, word) for word in template]
    recorded = client(arguments)
    return {"operation_id": operation_id, "action": action, "arguments": arguments, "recorded": recorded, "by": NAME}


def as_program(follow: Callable[[dict[str, str]], dict[str, Any]]) -> None:
    """One page in, what was done out. Exit status 1 and the finding where page and procedure did not lead to an end."""
    try:
        print(json.dumps(follow(json.load(sys.stdin))))
    except Lost as error:
        print(json.dumps({"lost": str(error)}))
        raise SystemExit(1) from error


if __name__ == "__main__":
    as_program(decide)
