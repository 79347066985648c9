"""A worker that stops itself (SIGSTOP) once at a named point, and is otherwise the real one.

    python -m drills.controls.stops run|watch       ACTONCE_DRILL_STOP=POINT[,POINT]  ACTONCE_DRILL_STOP_FILE=PATH

Some instants lie between two instructions of one process and show on no wire: between the fence and the first byte,
between a reading and its verdict. Nothing is taken out and no result is changed: a function of the system is called,
and before or after it the process stands still until the drill lets it go on. The first process that gets to one of
the points writes its pid and the point to PATH (`.2`, … for ACTONCE_DRILL_STOPS > 1) and stops; the others pass.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from actonce.testing.swapping import swap

POINTS = (
    "before_permit",
    "before_permit_commit",
    "before_fence",
    "before_first_byte",
    "before_absent_verdict",
    "before_loss",
    "before_acknowledgement",
    "before_next_permit",
    "before_next_fence",
    "before_decision",
)


def stand_still(point: str) -> None:
    """Stop this process here, unless as many as were asked for have stopped."""
    path = os.environ["ACTONCE_DRILL_STOP_FILE"]
    for number in range(1, int(os.environ.get("ACTONCE_DRILL_STOPS", "1")) + 1):
        mine = Path(path if number == 1 else f"{path}.{number}")
        draft = Path(f"{path}.draft-{os.getpid()}")
        draft.write_text(f"{os.getpid()} {point}", encoding="utf-8")
        try:
            os.link(draft, mine)  # whole, or not there; one process only
        except FileExistsError:
            if mine.read_text(encoding="utf-8").split()[0] == str(os.getpid()):
                return  # this process has stood here before
            continue
        finally:
            draft.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
        return


Stop = Callable[[], None]
Async = Callable[..., Awaitable[Any]]


def before(stop: Stop, function: Async, when: Callable[..., bool] = lambda *a, **k: True) -> Any:
    """The same function, with a stop before it."""

    async def stopping(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            stop()
        return await function(*args, **kwargs)

    return stopping


def after(stop: Stop, function: Async) -> Any:
    """The same function, with a stop after it."""

    async def stopping(*args: Any, **kwargs: Any) -> Any:
        result = await function(*args, **kwargs)
        stop()
        return result

    return stopping


def before_next(stop: Stop, take_permit: Async) -> Any:
    """The same function, with a stop before it once the operation has a permit behind it. Holds no lock meanwhile."""
    from actonce.ledger.store import read_operation

    async def stopping(ledger: Any, intent: Any, *rest: Any) -> Any:
        async with ledger.transaction() as connection:
            found = await read_operation(connection, intent.key)
        if found is not None and found.attempts:
            stop()
        return await take_permit(ledger, intent, *rest)

    return stopping


def before_call(stop: Stop, function: Callable[..., Any], when: Callable[..., bool] = lambda *a: True) -> Any:
    """The same for a function that is not awaited."""

    def stopping(*args: Any) -> Any:
        if when(*args):
            stop()
        return function(*args)

    return stopping


def absent(ledger: Any, case: Any, verdict: Any, *rest: Any) -> bool:
    """Is it this verdict that is to be recorded?"""
    return bool(verdict.outcome == "absent")


def later_attempt(system: Any, destination: Any, permit: Any, *rest: Any) -> bool:
    """Is it not the first permit that is to be used?"""
    return bool(permit.attempt > 1)


def refund_leaves(transport: Any, data: Any) -> bool:
    """Are these the first bytes of a refund?"""
    head = bytes(data[:200])
    return head.startswith(b"POST ") and b"/refunds HTTP" in head


def install(point: str) -> None:
    """Put the stop in place. Raises ValueError for a point that does not exist."""
    stop = partial(stand_still, point)
    match point:
        case "before_permit":
            swap("actonce.ledger.permits", "take_permit", partial(before, stop))
        case "before_permit_commit":
            swap("actonce.ledger.permits", "_dispatch", partial(after, stop))
        case "before_fence":
            swap("actonce.effects.fence:Window", "__call__", lambda real: before_call(stop, real))
        case "before_first_byte":
            # Below every await: after the fence, and the very next thing is the system call that sends.
            transport = "asyncio.selector_events:_SelectorSocketTransport"
            swap(transport, "write", lambda real: before_call(stop, real, refund_leaves))
        case "before_absent_verdict":
            swap("actonce.ledger.verdicts", "record_verdict", lambda real: before(stop, real, absent))
        case "before_loss":
            swap("actonce.ledger.outcomes", "record_loss", partial(before, stop))
        case "before_acknowledgement":
            swap("actonce.ledger.outcomes", "acknowledge", partial(before, stop))
        case "before_next_permit":
            swap("actonce.ledger.permits", "take_permit", partial(before_next, stop))
        case "before_next_fence":
            # The permit is committed and nothing else has happened: the fence comes next.
            swap("actonce.effects.perform", "send_and_record", lambda real: before(stop, real, later_attempt))
        case "before_decision":
            # The fresh reading is done; what it shows, and the decision, are about to be compared and applied.
            swap("actonce.ledger.decisions", "consume", partial(before, stop))
        case _:
            raise ValueError(f"there is no point {point!r}; there are: {', '.join(POINTS)}")


def install_from_environment() -> None:
    """For programs that may be given a stop."""
    for point in filter(None, os.environ.get("ACTONCE_DRILL_STOP", "").split(",")):
        install(point)


def main() -> None:
    """Install the stop, then be the worker."""
    import worker

    install_from_environment()
    worker.main(sys.argv[1:])


if __name__ == "__main__":
    main()
