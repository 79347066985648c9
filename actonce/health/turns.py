"""The loops of a watching process, on the dependency page like everything else: when did each last get round?

A loop that fails is `down` with its error; one that hangs, or whose process is gone, has an old reading, and an old
reading is never `up`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from actonce.contracts.errors import LedgerUnavailable
from actonce.ledger import watch
from actonce.ledger.store import Ledger

TELL_EVERY_S = 5.0  # well inside the age at which a reading is stale

BLOCKS = {
    "watcher": "settling and holding what nobody else looks after",
    "pager": "calling a person",
    "prober": "every other reading on this page",
    "nudger": "telling tasks at once that their hold is closed; they also look by themselves",
    "problems": "paging workflows that workers cannot continue",
    "evaluator": "alerts",
    "ledger alarm": "calling a person when the ledger takes no writes",
}


class Turns:
    """Records how the loops of this process fare."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._told: dict[str, tuple[str, float]] = {}

    def watched(self, loop: str, every_s: float, act: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
        """`act`, and a record of how it ended. Its error is raised again."""

        async def turn() -> None:
            try:
                await act()
            except LedgerUnavailable:
                raise  # nor could this be written
            except Exception as error:
                await self._tell(loop, every_s, f"{type(error).__name__}: {error}")
                raise
            await self._tell(loop, every_s, "")

        return turn

    async def _tell(self, loop: str, every_s: float, error: str) -> None:
        """Changes at once; otherwise often enough to stay believed."""
        before, now = self._told.get(loop), time.monotonic()
        if before is not None and before[0] == error and now - before[1] < TELL_EVERY_S:
            return
        await watch.set_dependency(
            self._ledger,
            name=f"watch:{loop}",
            kind="watch",
            state="down" if error else "up",
            how="its last turn" + (" failed" if error else " came to its end"),
            detail=error or f"a turn every {every_s:g} s",
            blocks=BLOCKS.get(loop, ""),
            measures={"every_s": every_s},
        )
        self._told[loop] = (error, now)
