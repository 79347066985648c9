"""`python -m drills.world --folder F`: start the world, say where it is, serve until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
from pathlib import Path

from drills.world.app import World


async def serve(options: argparse.Namespace) -> None:
    """Serve until asked to stop. The run's id and secret come from the environment, never from the command line."""
    run_id = os.environ.get("ACTONCE_RUN_ID") or "local"
    secret = os.environ.get("ACTONCE_RUN_SECRET") or secrets.token_hex(32)
    world = World(options.folder, run_id, secret)
    path = await world.start(options.host, options.base_port, options.shown_host)
    print(json.dumps({"event": "ready", "world": str(path), "pid": os.getpid()}), flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await world.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m drills.world", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where world.json and journal.jsonl go")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--shown-host", default=None, help="host name that world.json tells others")
    parser.add_argument("--base-port", type=int, default=0, help="consecutive ports from here; 0 takes free ones")
    asyncio.run(serve(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
