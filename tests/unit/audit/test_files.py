"""A folder of files keeps every event once, through full disks, crashes in the middle of a line and rotation."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from actonce.audit import FileSink, SinkError, read_folder
from actonce.audit.files import files_of
from actonce.audit.sink import SinkDamaged
from actonce.contracts.audit import End, parse
from tests.unit.audit.builders import chain


def seqs(folder: Path) -> list[int]:
    return [parse(text).seq for _, _, text, whole in read_folder(folder) if whole]


def end_of(count: int) -> End:
    last = chain(count)[-1]
    return End(last.seq, last.hash)


def test_empty_folder_is_at_the_beginning_and_is_made_when_it_is_not_there(tmp_path: Path) -> None:
    assert FileSink(tmp_path / "a" / "b").end() == End(0, "")


def test_what_was_written_is_found_again_by_the_next_process(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    sink.write(chain(3))
    assert sink.end() == end_of(3)
    sink.close()
    again = FileSink(tmp_path)
    assert again.end() == end_of(3)
    again.write(chain(5))  # the first three were confirmed already
    assert seqs(tmp_path) == [1, 2, 3, 4, 5]


def test_file_is_ended_by_size_and_named_by_its_first_event(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, bytes_max=2 * len(chain(1)[0].line))
    sink.write(chain(5))
    assert [path.name for path in files_of(tmp_path)] == [
        "audit-000000000001.jsonl",
        "audit-000000000003.jsonl",
        "audit-000000000005.jsonl",
    ]
    sink.close()
    assert FileSink(tmp_path).end() == end_of(5)
    assert seqs(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_torn_last_line_is_cut_off_and_written_again(tmp_path: Path, cut: int) -> None:
    first = FileSink(tmp_path)
    first.write(chain(3))
    first.close()
    [path] = files_of(tmp_path)
    whole = path.read_bytes()
    third = len(chain(3)[2].line) + 1
    path.write_bytes(whole[: len(whole) - third + (cut if cut > 0 else third + cut)])
    sink = FileSink(tmp_path)
    assert sink.end() == end_of(2)
    sink.write(chain(3)[2:])
    assert path.read_bytes() == whole


def test_file_that_another_program_cut_is_noticed_between_two_batches(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    sink.write(chain(3))
    [path] = files_of(tmp_path)
    path.write_bytes(path.read_bytes()[: len(chain(1)[0].line) + 1])
    assert sink.end() == end_of(1)


def test_file_that_was_removed_is_noticed_between_two_batches(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    sink.write(chain(3))
    files_of(tmp_path)[0].unlink()
    assert sink.end() == End(0, "")


def test_line_that_is_no_event_is_not_built_upon(tmp_path: Path) -> None:
    (tmp_path / "audit-000000000001.jsonl").write_text("hello\n")
    with pytest.raises(SinkDamaged, match="damaged"):
        FileSink(tmp_path).end()


def test_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    first, second = FileSink(tmp_path), FileSink(tmp_path)
    first.write(chain(1))
    with pytest.raises(SinkError, match="another process"):
        second.write(chain(2))
    first.close()
    second.write(chain(2))
    assert seqs(tmp_path) == [1, 2]


def full_after(count: int) -> Callable[[int, bytes], int]:
    """A disk that takes so many bytes in all."""
    real, left = os.write, [count]

    def write(number: int, data: bytes) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        took = real(number, data[: left[0]])
        left[0] -= took
        return took

    return write


def test_disk_that_fills_in_the_middle_of_a_line_leaves_only_whole_confirmed_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FileSink(tmp_path)
    sink.write(chain(2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_after(int(1.5 * len(chain(1)[0].line))))
        with pytest.raises(SinkError, match="No space left on device"):
            sink.write(chain(5))
        assert seqs(tmp_path) == [1, 2] and sink.end() == end_of(2)
    sink.write(chain(5))
    assert seqs(tmp_path) == [1, 2, 3, 4, 5]


def test_failed_fsync_confirms_nothing_and_the_batch_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FileSink(tmp_path)
    sink.write(chain(2))

    def fail(number: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(SinkError, match="Input/output error"):
            sink.write(chain(3))
    assert sink.end() == end_of(2), "it was not confirmed, and the kernel may have dropped it"
    sink.write(chain(3))
    assert seqs(tmp_path) == [1, 2, 3]


def test_dev_full_is_an_error_with_the_systems_own_words(tmp_path: Path) -> None:
    (tmp_path / "audit-000000000001.jsonl").symlink_to("/dev/full")
    with pytest.raises(SinkError, match=r"No space left on device \(errno 28\)"):
        FileSink(tmp_path).write(chain(1))
