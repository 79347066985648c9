"""The world's journal, followed while it grows: each line is read and parsed once, however many cells look at it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any


class JournalTail:
    """Complete lines only; a line that is still being written is left for the next look. `kinds`: keep only these."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._by_account: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.lines = 0
        self.kinds: frozenset[str] | None = None

    def of(self, account: str) -> list[dict[str, Any]]:
        """Everything on record so far about one account, in order."""
        self._read()
        return self._by_account[account]

    def count(self) -> int:
        """How many lines there are by now."""
        self._read()
        return self.lines

    def _read(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for raw in whole.splitlines():
            line = json.loads(raw)
            self.lines += 1
            if line.get("account") and (self.kinds is None or line["kind"] in self.kinds):
                self._by_account[line["account"]].append(line)
