"""What the routes of one console process share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from starlette.requests import Request

from actonce.console.settings import ConsoleSettings
from actonce.ledger.store import Ledger

if TYPE_CHECKING:
    from actonce.console.acting import Acting
    from actonce.console.events import Pulse
    from actonce.console.provider import Provider


@dataclass
class Console:
    """One per process. `stopping` is set when the process was asked to end: event streams let go then."""

    settings: ConsoleSettings
    ledger: Ledger
    pulse: Pulse
    stopping: asyncio.Event
    acting: Acting
    provider: Provider | None
    namespace: str = "default"


def console_of(request: Request) -> Console:
    """FastAPI dependency: what this process shares."""
    return cast(Console, request.app.state.console)
