"""The clock that bounds a send: it goes on while the process is stopped or the machine sleeps, and never jumps."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Seconds of the boot-time clock (Linux), of the monotonic clock elsewhere."""
    return time.clock_gettime(_CLOCK)
