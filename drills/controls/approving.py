"""Controls of `scheduler-restart`: approvals that a restart forgets or prolongs, a server that is ready by its port."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from actonce.testing.swapping import swap
from drills.controls.registry import control


def _memory() -> Path:
    """What the processes of this cell remember, a file for each: it counts for as long as its process lives."""
    folder = Path(os.environ["ACTONCE_DRILL_STOP_FILE"]).parent / "memory"
    folder.mkdir(exist_ok=True)
    return folder


def _remembered() -> set[str]:
    living = [file for file in _memory().iterdir() if psutil.pid_exists(int(file.name))]
    return {line for file in living for line in file.read_text().split()}


@control
def approvals_in_worker_memory() -> None:
    """Who is asked for what is in the memory of the worker that asked, and ends with it."""

    def make_ask(real: Any) -> Any:
        async def ask(*args: Any) -> Any:
            asked = await real(*args)
            with (_memory() / str(os.getpid())).open("a") as file:
                file.write(f"{asked.approval_id}\n")
            return asked

        return ask

    def make_listing(real: Any) -> Any:
        async def listing(*args: Any, **more: Any) -> Any:
            found = await real(*args, **more)
            return type(found)([one for one in found if one.approval_id in _remembered()], found.next)

        return listing

    swap("actonce.ledger.approvals", "ask", make_ask)
    swap("actonce.ledger.listing", "approvals", make_listing)


@control
def deadline_rearmed() -> None:
    """Its time begins again with every process that reads it, as a timer does that is kept in memory."""
    started = datetime.now(UTC)
    started_s = time.monotonic()

    def make_of(real: Any) -> Any:
        def of(row: dict[str, Any]) -> Any:
            approval = real(row)
            valid_s = approval.proposal.terms.valid_s
            ends = max(approval.expires_at, started + timedelta(seconds=valid_s))
            left_s = max(approval.seconds_left, valid_s - (time.monotonic() - started_s))
            return replace(approval, state=row["state"], expires_at=ends, seconds_left=left_s)

        return of

    async def nobody(*_: Any) -> int:
        return 0

    swap("actonce.ledger.approvals:Approval", "of", lambda real: staticmethod(make_of(real)))
    swap("actonce.ledger.approvals", "expire_due", lambda real: nobody)


@control
def ready_by_port() -> None:
    """Temporal is there when somebody takes a connection at its address."""

    def make(real: Any) -> Any:
        async def temporal(self: Any) -> Any:
            parts = urlsplit(f"//{os.environ['TEMPORAL_ADDRESS']}")
            reading = await real(self)
            try:
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            except OSError as error:
                return replace(reading, state="down", how="connected to it", detail=str(error))
            writer.close()
            return replace(reading, state="up", how="connected to it", detail="its port is open")

        return temporal

    swap("actonce.health.prober:Prober", "_temporal", make)
