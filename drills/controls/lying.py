"""A control of what people are shown: a console that takes what was sent for what has happened.

Only the cell's console is run with it; worker, watcher and entry are the real ones. Run as those of `broken`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actonce.testing.swapping import swap
from drills.controls.registry import control


@control
def console_takes_sent_for_committed() -> None:
    """An operation that is on its way, or unknown, is shown as committed, and its light is lit."""
    from actonce.contracts.lifecycle import State

    def make(real: Any) -> Any:
        async def shown(request: Any, record: Any) -> Any:
            o = record.operation
            if o.state in (State.DISPATCHED, State.UNKNOWN):
                o = replace(o, state=State.COMMITTED, committed_at=o.issued_at, completion="receipt")
            return await real(request, replace(record, operation=o))

        return shown

    swap("actonce.console.pages_operations", "shown", make)
