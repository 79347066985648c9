"""The fence and its timer, with real processes and real signals (rule R4, trap 2)."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from actonce.contracts import clocks
from actonce.contracts.errors import LedgerUnavailable, SendFenced
from actonce.effects.fence import FENCE_FRESH_S, FreezeTimer, Window

SENDER = """
    import socket, sys
    from actonce.contracts import clocks
    from actonce.effects.fence import FreezeTimer
    port, life_s, armed = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "armed"
    connection = socket.create_connection(("127.0.0.1", port))
    timer = FreezeTimer()
    if armed:
        timer.arm("permit", clocks.now_s() + life_s)
    print("before the write", flush=True)
    sys.stdin.readline()
    connection.sendall(b"POST")
    timer.disarm("permit")
    print("after the write", flush=True)
    sys.stdin.readline()
"""


def sender(port: int, life_s: float, armed: bool) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", textwrap.dedent(SENDER), str(port), str(life_s), "armed" if armed else "unarmed"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def freeze_past_its_life(armed: bool) -> tuple[int | None, bytes]:
    """Stop the sender before its write, let its permit's life pass, tell it to write, thaw it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        sender(server.getsockname()[1], 0.5, armed) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        connection, _ = server.accept()
        with connection:
            assert process.stdout.readline() == "before the write\n"
            process.send_signal(signal.SIGSTOP)
            stopped_until = clocks.now_s() + 0.6
            while clocks.now_s() < stopped_until:
                assert Path(f"/proc/{process.pid}").exists() or sys.platform != "linux"
            process.stdin.write("write\n")
            process.stdin.flush()
            process.send_signal(signal.SIGCONT)
            connection.settimeout(10)
            received = connection.recv(16)
        process.stdin.close()
        return process.wait(10), received


def test_a_process_frozen_past_its_permit_dies_on_thaw_before_its_write() -> None:
    code, received = freeze_past_its_life(armed=True)
    assert (code, received) == (-signal.SIGALRM, b"")


def test_without_the_timer_the_thawed_process_sends() -> None:
    """The negative control: the same freeze, no timer, and the old write goes out."""
    code, received = freeze_past_its_life(armed=False)
    assert (code, received) == (0, b"POST")


def test_a_disarmed_timer_kills_nobody() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        sender(server.getsockname()[1], 0.3, armed=True) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        connection, _ = server.accept()
        with connection:
            process.stdout.readline()
            process.stdin.write("write\n")
            process.stdin.flush()
            assert process.stdout.readline() == "after the write\n"
            later = clocks.now_s() + 0.5
            while clocks.now_s() < later:
                assert process.poll() is None
            process.stdin.close()
            assert process.wait(10) == 0


def test_a_signal_handler_in_the_way_is_refused() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        with pytest.raises(SendFenced, match="SIGALRM"):
            FreezeTimer().arm("permit", clocks.now_s() + 60)
    finally:
        signal.signal(signal.SIGALRM, before)


def window(life_s: float, age_s: float, answer: Exception | None = None) -> tuple[Window, list[str]]:
    """A window whose permit was allowed `age_s` ago; records whether the ledger was asked."""
    asked: list[str] = []

    async def ask() -> None:
        asked.append("asked")
        if answer is not None:
            raise answer

    now = clocks.now_s()
    return Window("op attempt 1", FreezeTimer(), now + life_s, now - age_s, ask), asked


async def test_a_young_permit_is_its_own_fence() -> None:
    gate, asked = window(10, 0)
    async with gate():
        assert gate.entered
    assert asked == []


async def test_an_older_permit_asks_the_ledger_again() -> None:
    gate, asked = window(10, 2 * FENCE_FRESH_S)
    async with gate():
        assert asked == ["asked"]


@pytest.mark.parametrize("answer", [SendFenced("held"), LedgerUnavailable("away")])
async def test_no_byte_leaves_when_the_ledger_says_no_or_nothing(answer: Exception) -> None:
    gate, _ = window(10, 2 * FENCE_FRESH_S, answer)
    with pytest.raises(SendFenced):
        async with gate():
            raise AssertionError("the window opened")
    assert not gate.entered


async def test_a_permit_past_its_life_is_fenced() -> None:
    """Case c1: an attempt that wakes up late."""
    gate, _ = window(0.001, 0)
    await asyncio.sleep(0.002)  # its life; the timer is armed only on entry, in the past: it must not kill a checker
    with pytest.raises(SendFenced, match="over"):
        async with gate():
            raise AssertionError("the window opened")


async def test_a_permit_is_good_for_one_send() -> None:
    gate, _ = window(10, 0)
    async with gate():
        pass
    with pytest.raises(SendFenced, match="one send"):
        async with gate():
            raise AssertionError("the window opened twice")


async def test_a_slow_ledger_fences_the_send_and_kills_nobody() -> None:
    """The timer is for a process that was frozen; one that only waits for the ledger must live."""
    gate, _ = window(2.0, 2 * FENCE_FRESH_S)

    async def slow_to_be_cancelled() -> None:  # as a database driver is
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            raise

    gate._ask_ledger = slow_to_be_cancelled
    with pytest.raises(SendFenced, match="cannot confirm"):
        async with gate():
            raise AssertionError("the window opened")
    await asyncio.sleep(0.5)  # past the end of the permit's life: still here
