"""A destination's journal: one JSON line for everything that happened, in one order, flushed before it is told.

Promise: a line is in the file (handed to the kernel) before the event it describes becomes visible to anybody
else, so what a reader sees on the wire is never ahead of the journal. It does not promise to survive a power cut.
Nothing of it is offered over the control interface: the system under test cannot read it.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def iso_utc(moment: datetime) -> str:
    """Render a moment as ISO-8601 UTC with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Journal:
    """Appends to one file, which only its owner may read. Orders continue where an existing file stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._order = 0
        if path.exists():
            with path.open("rb") as old:
                self._order = sum(1 for _ in old)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.fchmod(descriptor, 0o600)  # one that was there before, too: what it holds is about people
        self._file = os.fdopen(descriptor, "a", encoding="utf-8")

    def write(self, kind: str, **fields: Any) -> int:
        """Append one event and return its order."""
        self._order += 1
        line = {
            "order": self._order,
            "mono_ns": time.monotonic_ns(),
            "at": iso_utc(datetime.now(UTC)),
            "kind": kind,
            **fields,
        }
        self._file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
        self._file.flush()
        return self._order

    @property
    def lines(self) -> int:
        """How many lines the file has: what a reader must have received."""
        return self._order

    def close(self) -> None:
        self._file.close()
