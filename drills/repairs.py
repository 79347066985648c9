"""The person who is called because something is full, as a program: starts fresh, knows a page and its procedure.

    python -m drills.repairs < page.json > done.json

Standard input: {"title", "text"} of one page. Environment: ACTONCE_ENTRY_URL, and VOLUMES, the paths (colon separated)
that this host's `df` would list. Runs the command that the page names, reads the procedure that it names, and makes
room on each volume that has none: by taking away what is neither the system's nor PostgreSQL's, as the procedure asks.
Exit status 0 when there is room.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from drills.operator import Lost, as_program, commands_of, procedure_of, run_client

_OURS = re.compile(r"audit-\d+\.jsonl")


def follow(page: dict[str, str]) -> dict[str, Any]:
    """Do what the page and its procedure say."""
    text = f"{page['title']}\n{page['text']}"
    path, procedure = procedure_of(text)
    looks = [command for command in commands_of(text) if command[:1] == ["dependencies"]]
    if not looks:
        raise Lost(f"the page names no command to look with:\n{text}")
    if "room" not in procedure:
        raise Lost(f"{path} does not say what to do about a full disk")
    ran = run_client(looks[0])
    return {
        "procedure": path,
        "looked": (ran.stdout or ran.stderr)[-4000:],
        "removed": [path for volume in os.environ["VOLUMES"].split(":") for path in make_room(Path(volume))],
    }


def make_room(volume: Path) -> list[str]:
    """Take foreign files off a volume without room. Returns what was removed."""
    removed = []
    for path in sorted(volume.rglob("*")):
        foreign = path.is_symlink() or (path.parent == volume and path.is_file() and not _OURS.fullmatch(path.name))
        if foreign and (path.is_symlink() or os.statvfs(volume).f_bavail == 0):
            path.unlink()
            removed.append(str(path))
    return removed


if __name__ == "__main__":
    as_program(follow)
