"""A folder of files, one line of canonical JSON for each event: `audit-<first seq>.jsonl`.

Promises: `write` returns after fsync; a batch that did not fit is cut off again, down to the last whole batch; a torn
last line (a crash in the middle of a write) is cut off when the folder is opened again; a file is named by its first
event, appears in order, and no other is begun before it is `bytes_max` long. One writer per folder, by a lock that dies
with its process. Does not delete or compress anything: whoever archives old files tells `verify` where the rest begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from actonce.audit.sink import SinkDamaged, SinkError
from actonce.contracts.audit import AuditDamaged, End, Sealed, parse

BYTES_MAX = 64 * 1024 * 1024
_NAME = re.compile(r"audit-(\d{12,})\.jsonl")
_TAIL_BYTES = 1024 * 1024  # more than the longest event: its body is bounded by what an operation may carry


def file_name(first_seq: int) -> str:
    return f"audit-{first_seq:012d}.jsonl"


def files_of(folder: Path) -> list[Path]:
    """The files of a sink, in order. Raises OSError when there is no such folder."""
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


@dataclass
class _Open:
    """The file that is appended to, as this process left it."""

    path: Path
    number: int
    size: int
    confirmed: int  # on disk; a batch that fails is cut off down to here
    end: End


class FileSink:
    """Implements `Sink`."""

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self.name = f"file:{folder}"
        self._lock: int | None = None
        self._file: _Open | None = None

    def end(self) -> End:
        with _as_sink_error(self.folder):
            self._take_lock()
            if self._file is not None and not self._untouched(self._file):
                self._forget()
            if self._file is None:
                self._file = self._find_end()
            return self._file.end if self._file else End(0, "")

    def write(self, events: Sequence[Sealed]) -> None:
        end = self.end()
        with _as_sink_error(self.folder):
            try:
                for event in events:
                    if event.seq <= end.seq:
                        continue  # a batch whose confirmation was lost
                    file = self._room(event.seq, end)
                    self._append(file, event)
                    end = file.end
                self._sync()
            except OSError:
                self._take_back()
                raise

    def close(self) -> None:
        """Let another process write here."""
        self._forget()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _append(self, file: _Open, event: Sealed) -> None:
        data = event.line.encode() + b"\n"
        file.size += len(data)
        while data:
            data = data[os.write(file.number, data) :]
        file.end = End(event.seq, event.hash)

    def _sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.number)
            self._file.confirmed = self._file.size

    def _take_back(self) -> None:
        """Cut a failed batch off, to write it anew: after a failed fsync the kernel may call lost pages clean.

        What cannot be cut off now is an event that is there twice, or a torn line that the next opening cuts off.
        """
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.number, self._file.confirmed)
            self._forget()

    def _room(self, first_seq: int, end: End) -> _Open:
        """The file that the next event goes to: the present one, or a new one where that is long enough."""
        if self._file is not None and self._file.size < self.bytes_max:
            return self._file
        self._sync()
        self._forget()
        path = self.folder / file_name(first_seq)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        size = os.fstat(number).st_size
        self._file = _Open(path, number, size, size, end)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return self._file

    def _find_end(self) -> _Open | None:
        """The last file that holds an event, its torn last line cut off. None: there is none."""
        for path in reversed(files_of(self.folder)):
            number = os.open(path, os.O_RDWR | os.O_APPEND)
            try:
                size = os.fstat(number).st_size
                if not size:
                    os.close(number)
                    continue
                tail = os.pread(number, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
                whole, newline, torn = tail.rpartition(b"\n")
                if torn:
                    size -= len(torn)
                    os.ftruncate(number, size)
                os.fsync(number)  # whoever wrote it may have died before it did
                if not newline:
                    os.close(number)
                    continue
                try:
                    last = parse(whole.rpartition(b"\n")[2].decode())
                except (AuditDamaged, UnicodeDecodeError) as error:
                    raise SinkDamaged(f"the last line of {path} is damaged: {error}") from error
                return _Open(path, number, size, size, End(last.seq, last.hash))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.close(number)
                raise
        return None

    def _untouched(self, file: _Open) -> bool:
        there = os.stat(file.path) if file.path.exists() else None
        mine = os.fstat(file.number)
        return there is not None and there.st_ino == mine.st_ino and mine.st_size == file.size

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        number = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(number)
            raise SinkError(f"another process writes to {self.folder}; one shipper at a time") from error
        self._lock = number

    def _forget(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file.number)
            self._file = None


@contextlib.contextmanager
def _as_sink_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkError(f"{folder}: {error.strerror or error} (errno {error.errno})") from error


def read_folder(folder: Path, sizes: dict[Path, int] | None = None) -> Iterator[tuple[Path, int, str, bool]]:
    """Every line as (file, line number, text, whole). `sizes`: read each file only up to there.

    Raises OSError when it cannot be read.
    """
    for path in files_of(folder):
        left = None if sizes is None else sizes.get(path)
        if sizes is not None and left is None:
            continue  # begun after the sizes were taken
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if left is not None:
                    if left <= 0:
                        break
                    raw = raw[:left]
                    left -= len(raw)
                whole = raw.endswith(b"\n")
                yield path, number, raw.removesuffix(b"\n").decode(errors="replace"), whole
