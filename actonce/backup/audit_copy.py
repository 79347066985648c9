"""The folder of shipped audit events, copied up to the event with which the ledger's dump ends.

What was shipped later is not in the dump: in a restored deployment it would be an event that the ledger does not know.
"""

from __future__ import annotations

import os
from pathlib import Path

from actonce.audit.files import files_of
from actonce.contracts.audit import AuditDamaged, parse

FOLDER = "audit"


def copy_events(source: Path, target: Path, upto: int) -> list[Path]:
    """Copy the lines of events up to number `upto`, each verified. Returns the files. Raises AuditDamaged, OSError."""
    target.mkdir(mode=0o700)
    copied = []
    for file in files_of(source):
        kept = target / file.name
        with (
            file.open("rb") as lines,
            os.fdopen(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out,
        ):
            for number, raw in enumerate(lines, 1):
                if not raw.endswith(b"\n"):
                    break  # its write is under way: later than the dump
                try:
                    event = parse(raw[:-1].decode())
                except (AuditDamaged, UnicodeDecodeError) as error:
                    raise AuditDamaged(f"{file} line {number}: {error}") from error
                if event.seq <= upto:
                    out.write(raw)
            size = out.tell()
        if size:
            copied.append(kept)
        else:
            kept.unlink()
    return copied
