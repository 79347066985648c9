"""The person who is paged for the memory, as a program: given a page and its procedure, nothing else.

    python -m drills.memory_operator < page.json > done.json

Standard input: {"title", "text"} of one page. Environment: that of a host of the deployment. Knows no fault, no task:
what to run comes from the page and from the procedure that it names, and which of its lines applies from what the
check says. Exit status 0 when the procedure led to an end: the memory is healthy, or it is said who must repair what.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from typing import Any

from drills.operator import ROOT, Lost, as_program, client, commands_of, procedure_of


def run(command: str) -> dict[str, Any]:
    """A command of the procedure, in a process of its own: its exit status and the JSON it prints."""
    words = shlex.split(command)
    if words[0] != "python":
        raise Lost(f"the procedure says `{command}`, which is no command of ours")
    ran = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False, cwd=ROOT)
    said = [line for line in ran.stdout.splitlines() if line.startswith("{") and '"status"' in line]
    if not said:
        raise Lost(f"`{command}` ended {ran.returncode} and said nothing: {ran.stderr.strip()[-500:]}")
    return {"command": command, "code": ran.returncode, "said": json.loads(said[-1])}


def follow(page: dict[str, str]) -> dict[str, Any]:
    """Follow the page and its procedure as far as they lead."""
    text = f"{page['title']}\n{page['text']}"
    path, whole = procedure_of(text)
    if ["dependencies"] not in commands_of(text):
        raise Lost(f"the page does not name the dependency page:\n{text}")
    readings = {one["name"]: one["state"] for one in client(["dependencies"])["dependencies"]}
    procedure = whole.partition("## What each decision does")[0]
    check = _command(procedure, "check")
    did = [run(check)]
    while did[-1]["code"] != 0:
        trouble = did[-1]["said"]["trouble"]
        line = next((one for one in _lines(procedure) if f"`{trouble}`" in one), None)
        if line is None:
            raise Lost(f"{path} has no line for `{trouble}`")
        command = next(iter(re.findall(r"`(python worker\.py memory rebuild)`", line)), None)
        if command is None or any(step["command"] == command for step in did):
            return {"dependency": readings.get("memory"), "trouble": trouble, "did": did, "to_repair": line}
        did += [run(command), run(check)]
    return {"dependency": readings.get("memory"), "trouble": did[0]["said"].get("trouble"), "did": did, "healthy": True}


def _command(procedure: str, verb: str) -> str:
    found = re.search(rf"`(python worker\.py memory {verb})`", procedure)
    if found is None:
        raise Lost(f"the procedure has no `python worker.py memory {verb}`")
    return found.group(1)


def _lines(procedure: str) -> list[str]:
    """The bullets of the procedure, each on one line."""
    return [" ".join(one.split()) for one in re.split(r"\n\s*(?:- |\d+\. )", procedure)]


if __name__ == "__main__":
    as_program(follow)
