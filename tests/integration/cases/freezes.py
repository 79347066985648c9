"""A process that stops itself (SIGSTOP) inside its armed window, between its fence and its first byte (rule R4)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

from actonce.contracts.messages import OperationRequest
from actonce.contracts.verdict import Receipt
from actonce.destinations.base import Call, Registry
from actonce.destinations.sandbox import load_sandbox
from actonce.effects.perform import perform
from actonce.effects.system import System, this_process
from actonce.ledger.store import Ledger


async def main() -> None:
    (payments,) = [d for d in load_sandbox(os.environ["ACTONCE_WORLD"]) if d.contract.name == "payments"]

    async def send(call: Call) -> Receipt:
        async with call.window():
            os.kill(os.getpid(), signal.SIGSTOP)
        return await payments.send(replace(call, window=call.window))  # the window is used up: this cannot send either

    request = OperationRequest.model_validate_json(Path(os.environ["TEST_REQUEST"]).read_text())
    print(json.dumps({"event": "ready"}), flush=True)
    async with Ledger(os.environ["ACTONCE_LEDGER_DSN"]) as ledger:
        system = System(ledger, Registry([replace(payments, send=send)]), this_process())
        print(await perform(system, request), flush=True)


asyncio.run(main())
