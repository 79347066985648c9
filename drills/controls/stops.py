"""A worker that stops itself (SIGSTOP) once at a named point, and is otherwise the real one.

    python -m drills.controls.stops run|watch       ACTONCE_DRILL_STOP=POINT  ACTONCE_DRILL_STOP_FILE=PATH

Some instants lie between two instructions of one process and show on no wire: between the fence and the first byte,
between a reading and its verdict. Nothing is taken out and no result is changed: a function of the system is called,
and before or after it the process stands still until the drill lets it go on. The first process that gets there
writes its pid to PATH (`.2`, … for ACTONCE_DRILL_STOPS > 1) and stops; the others pass.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from drills.controls.swapping import swap

POINTS = (
    "before_permit",
    "before_permit_commit",
    "before_fence",
    "before_first_byte",
    "before_absent_verdict",
    "before_loss",
    "before_acknowledgement",
)


def stand_still() -> None:
    """Stop this process here, unless as many as were asked for have stopped."""
    path = os.environ["ACTONCE_DRILL_STOP_FILE"]
    for number in range(1, int(os.environ.get("ACTONCE_DRILL_STOPS", "1")) + 1):
        mine = Path(path if number == 1 else f"{path}.{number}")
        draft = Path(f"{path}.draft-{os.getpid()}")
        draft.write_text(str(os.getpid()), encoding="utf-8")
        try:
            os.link(draft, mine)  # whole, or not there; one process only
        except FileExistsError:
            if mine.read_text(encoding="utf-8") == str(os.getpid()):
                return  # this process has stood here before
            continue
        finally:
            draft.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
        return


def before(function: Callable[..., Awaitable[Any]], when: Callable[..., bool] = lambda *a, **k: True) -> Any:
    """The same function, with a stop before it."""

    async def stopping(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            stand_still()
        return await function(*args, **kwargs)

    return stopping


def after(function: Callable[..., Awaitable[Any]]) -> Any:
    """The same function, with a stop after it."""

    async def stopping(*args: Any, **kwargs: Any) -> Any:
        result = await function(*args, **kwargs)
        stand_still()
        return result

    return stopping


def install(point: str) -> None:
    """Put the stop in place. Raises ValueError for a point that does not exist."""

    def absent(ledger: Any, case: Any, verdict: Any, *rest: Any) -> bool:
        return bool(verdict.outcome == "absent")

    def call(real: Any) -> Any:
        def stopping(window: Any) -> Any:
            stand_still()
            return real(window)

        return stopping

    def write(real: Any) -> Any:
        def stopping(transport: Any, data: Any) -> Any:
            head = bytes(data[:200])
            if head.startswith(b"POST ") and b"/refunds HTTP" in head:
                stand_still()
            return real(transport, data)

        return stopping

    match point:
        case "before_permit":
            swap("actonce.ledger.permits", "take_permit", before)
        case "before_permit_commit":
            swap("actonce.ledger.permits", "_dispatch", after)
        case "before_fence":
            swap("actonce.effects.fence:Window", "__call__", call)
        case "before_first_byte":
            # Below every await: after the fence, and the very next thing is the system call that sends.
            swap("asyncio.selector_events:_SelectorSocketTransport", "write", write)
        case "before_absent_verdict":
            swap("actonce.ledger.verdicts", "record_verdict", lambda real: before(real, absent))
        case "before_loss":
            swap("actonce.ledger.outcomes", "record_loss", before)
        case "before_acknowledgement":
            swap("actonce.ledger.outcomes", "acknowledge", before)
        case _:
            raise ValueError(f"there is no point {point!r}; there are: {', '.join(POINTS)}")


def install_from_environment() -> None:
    """For programs that may be given a stop."""
    point = os.environ.get("ACTONCE_DRILL_STOP")
    if point:
        install(point)


def main() -> None:
    """Install the stop, then be the worker."""
    import worker

    install_from_environment()
    worker.main(sys.argv[1:])


if __name__ == "__main__":
    main()
