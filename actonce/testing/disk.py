"""A small file system of its own that can be filled for real, so that "no space left" is the kernel's word.

Promises: `fill` leaves room for nothing, by a file beside the others; `free` takes that file away; `close` unmounts.
Needs the right to mount a tmpfs (root). Without it `Disk.mount` raises CannotMount; nothing stands in for it: a file of
a sink may be a link to `/dev/full` instead, a database has no such thing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_FILLER = "filler"


class CannotMount(RuntimeError):
    """This process may not mount a file system here."""


@dataclass
class Disk:
    """One mounted tmpfs."""

    path: Path
    size_bytes: int

    @classmethod
    def mount(cls, size_bytes: int, owner: tuple[int, int] | None = None) -> Disk:
        """Mount it at a path of its own that every account can reach, owned by (uid, gid). Raises CannotMount."""
        path = Path(tempfile.mkdtemp(prefix="actonce-disk-"))
        ran = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0755", "tmpfs", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode != 0:
            path.rmdir()
            raise CannotMount(f"cannot mount a tmpfs at {path}: {ran.stderr.strip()}; run as root")
        if owner is not None:
            os.chown(path, *owner)
        return cls(path, size_bytes)

    def fill(self) -> int:
        """Write until the kernel says ENOSPC. Returns the bytes written. Raises OSError for anything else."""
        written = 0
        with (self.path / _FILLER).open("ab", buffering=0) as file:
            for block in (1 << 16, 1 << 12, 1):
                try:
                    while took := file.write(b"\0" * block):
                        written += took
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        return written

    def free(self) -> None:
        """Make room again."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / _FILLER).unlink()

    def close(self) -> None:
        """Unmount, also while somebody still has a file open there."""
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=True)
        self.path.rmdir()


def full_device_as(path: Path) -> None:
    """Make the file a link to `/dev/full`, where every write ends with ENOSPC. Needs no privileges."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/full")
