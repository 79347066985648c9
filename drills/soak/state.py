"""What a soak must still know after its own process was killed: where it stands, and where its deployment lives.

Contract: written whole or not at all, after every window. The deployment's folder (Temporal's file, PostgreSQL, the
destinations' journal) is private and survives until the soak has ended; the evidence folder names it in `RESUME`. The
next window is not kept: it is the number of windows on record, so a window that was cut off is not played again. A soak
can be resumed until it begins to export.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel

from actonce.testing.parts import Access

STATE_FILE, POINTER = "soak.json", "RESUME"


class SoakState(BaseModel):
    """soak.json in the private folder."""

    seed: int
    minutes: float
    run_id: str
    secret: str  # of this run's challenge
    out: Path
    kinds: tuple[str, ...]  # of faults: those that are possible here
    log_disk: Path | None = None  # the file system that the audit log lies on
    memory_dsn: str | None = None
    access: Access | None = None  # to its ledger, which is as old as its first process
    played_s: float = 0.0
    lives: int = 0  # how many processes have played it

    def save(self, private: Path) -> None:
        """Write it beside the stack, and point to it from the evidence."""
        draft = private / f".{STATE_FILE}.{os.getpid()}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.write(self.model_dump_json(indent=1))
            out.flush()
            os.fsync(out.fileno())
        draft.replace(private / STATE_FILE)
        (self.out / POINTER).write_text(f"{private}\n", encoding="utf-8")

    @classmethod
    def find(cls, out: Path) -> tuple[SoakState, Path]:
        """The state and the private folder of the soak whose evidence is in `out`. Raises FileNotFoundError."""
        private = Path((out / POINTER).read_text(encoding="utf-8").strip())
        return cls.model_validate_json((private / STATE_FILE).read_text(encoding="utf-8")), private

    def done(self) -> None:
        """The soak has ended: nothing is left to resume."""
        (self.out / POINTER).unlink(missing_ok=True)
