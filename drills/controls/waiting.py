"""Controls of the drill `consumer-stopped`: the entry service and the release with one protection taken out."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from actonce.testing.swapping import swap
from drills.controls.registry import control


@control
def entry_without_idempotency() -> None:
    """Every request is a new task, whatever its key says."""

    def make(real: Any) -> Any:
        async def accept(ledger: Any, tenant: str, task_type: str, task_key: str, payload: Any, **more: Any) -> Any:
            return await real(ledger, tenant, task_type, f"{task_key}-{secrets.token_hex(3)}", payload, **more)

        return accept

    swap("actonce.ledger.tasks", "accept", make)


@control
def uncontrolled_release() -> None:
    """Whatever waits is let go at once: no pause, no rate, no window, and also while nobody works."""

    def make(real: Any) -> Any:
        async def standing(*args: Any, **more: Any) -> Any:
            control, row = await real(*args, **more)
            free = {"paused": False, "rate_per_s": None, "window_max": 1_000_000, "nobody_works": False}
            return replace(control, **free), row

        return standing

    swap("actonce.ledger.release", "_standing", make)


@control
def status_says_running() -> None:
    """A task that is accepted is shown as running."""

    def make(real: Any) -> Any:
        def task_view(*args: Any) -> Any:
            view = real(*args)
            if view.state != "queued":
                return view
            return view.model_copy(update={"state": "running", "why": "it is being worked on", "what_to_do": []})

        return task_view

    swap("actonce.entry.routes_tasks", "task_view", make)
