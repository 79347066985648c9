"""The fence: the last question before the first byte, and the timer that answers it for a frozen process.

A permit passes its fence when the ledger was seen to allow the send at most `FENCE_FRESH_S` ago and its life is not
over. Normally that is the permit's own commit; an owner that was slower than that (connecting, paused) asks the
ledger again. Either way the check is not the send: between them the process may be stopped. So before the check a
kernel timer with default action is armed at the end of the permit's life (rule R4). A process that was frozen past it
dies when it thaws, before it can write. The armed window ends with the last byte written.

What this does not close: bytes already written may still travel. That is what `may_commit_until` is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from actonce.contracts import clocks
from actonce.contracts.errors import LedgerUnavailable, SendFenced

FENCE_FRESH_S = 0.05  # a commit this young is the fence itself; beyond it the ledger is asked again
_LAST_SHARE = 0.1  # of a permit's life, its end: no window opens in it, so that a busy process is fenced, not killed
_TIMER_ABSTIME = 1
_CLOCK_BOOTTIME = 7


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class _Sigevent(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_byte * 48),
    ]


class FreezeTimer:
    """One timer per process, set to the earliest end of life of the permits in their armed window.

    Linux: a POSIX timer on the boot-time clock, which also goes on while the machine sleeps. Elsewhere:
    `setitimer`, which covers a stopped process only.
    """

    def __init__(self) -> None:
        self._deadlines: dict[object, float] = {}
        self._timer: ctypes.c_void_p | None = None
        self._libc: ctypes.CDLL | None = None

    def arm(self, token: object, deadline_s: float) -> None:
        """Die at `deadline_s` (boot-time clock) unless disarmed before."""
        if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:  # each time: a tool may bring its own alarm
            raise SendFenced("SIGALRM has a handler in this process; the freeze timer needs its default action")
        self._deadlines[token] = deadline_s
        self._set()

    def disarm(self, token: object) -> None:
        if self._deadlines.pop(token, None) is not None:
            self._set()

    def _set(self) -> None:
        earliest = min(self._deadlines.values(), default=None)
        if sys.platform == "linux":
            self._set_posix(earliest)
        else:
            left = 0.0 if earliest is None else max(earliest - clocks.now_s(), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left)

    def _set_posix(self, earliest: float | None) -> None:
        if self._timer is None:
            self._create()
        assert self._libc is not None
        spec = _Itimerspec()
        if earliest is not None:
            spec.value.seconds = int(earliest)
            spec.value.nanoseconds = max(1, int((earliest % 1) * 1e9))
        if self._libc.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise SendFenced(f"the freeze timer could not be set (errno {ctypes.get_errno()}); nothing was sent")

    def _create(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        event = _Sigevent(signo=signal.SIGALRM, notify=0)  # SIGEV_SIGNAL
        timer = ctypes.c_void_p()
        if self._libc.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(timer)) != 0:
            raise SendFenced(f"the freeze timer could not be created (errno {ctypes.get_errno()}); nothing was sent")
        self._timer = timer


_ASKING: set[asyncio.Future[None]] = set()  # the loop itself keeps no task alive


def _ended(asking: asyncio.Future[None]) -> None:
    _ASKING.discard(asking)
    if not asking.cancelled():
        asking.exception()  # of no interest any more where nobody waits for it


class Window:
    """The armed window of one permit, single use. `entered`: a byte may have left; `written`: all of them may have."""

    def __init__(
        self,
        name: str,
        timer: FreezeTimer,
        deadline_s: float,
        allowed_at_s: float,
        ask_ledger: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = name
        self.entered = False
        self.written = False
        self._used = False
        self._closed = False
        self._timer = timer
        self._deadline_s = deadline_s
        self._open_until_s = deadline_s - _LAST_SHARE * (deadline_s - allowed_at_s)
        self._allowed_at_s = allowed_at_s
        self._ask_ledger = ask_ledger

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        if self._used:
            raise SendFenced(f"{self.name}: a permit is good for one send, this one is used; nothing more was sent")
        self._used = True  # before anything is awaited: of two that enter side by side one is refused
        self._check_life()  # a process that merely is late is fenced, not killed
        self._timer.arm(self, self._deadline_s)
        try:
            await self._check()
            if self._closed:
                raise SendFenced(f"{self.name}: its send function has ended already; nothing was sent")
            self.entered = True
            yield
            self.written = True
        finally:
            self._timer.disarm(self)

    def close(self) -> None:
        """The send function has ended: nothing that it left running may enter any more."""
        self._used = self._closed = True

    async def _check(self) -> None:
        now_s = clocks.now_s()
        if now_s - self._allowed_at_s > FENCE_FRESH_S:
            try:
                # A ledger that is slow fences this send; the timer is for a process that is frozen, and would kill.
                await self._ask(within_s=self._open_until_s - now_s)
            except (LedgerUnavailable, TimeoutError) as error:
                raise SendFenced(f"{self.name}: the ledger cannot confirm the permit; nothing was sent") from error
        self._check_life()

    async def _ask(self, within_s: float) -> None:
        """Ask beside us: a database driver that is cancelled tidies up first, for longer than a permit may live."""
        asking = asyncio.ensure_future(self._ask_ledger())
        _ASKING.add(asking)
        asking.add_done_callback(_ended)
        try:
            done, _ = await asyncio.wait([asking], timeout=within_s)
        finally:
            asking.cancel()
        if not done:
            raise TimeoutError
        asking.result()

    def _check_life(self) -> None:
        if clocks.now_s() >= self._open_until_s:
            raise SendFenced(f"{self.name}: the permit's life was over before the send; nothing was sent")
