"""A pager for a stack without one: keeps every page as a line of a file.

    python -m actonce.testing.page_log FILE [--host H --port P]

Promises: a page is in the file before its sender gets an answer. Tells the programs started after it where to page
(ACTONCE_PAGE_URLS, ACTONCE_PAGE_WARNING_URLS), unless the person has set channels of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import signal
from pathlib import Path

from actonce.testing.sink import Paged, Sink


async def serve(file: Path, host: str, port: int) -> None:
    """Until SIGTERM or SIGINT."""
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", buffering=1) as out:  # names customers

        def keep(page: Paged) -> None:
            out.write(json.dumps(dataclasses.asdict(page)) + "\n")
            print(f"page: {page.title}", flush=True)

        async with Sink(on_page=keep, host=host, port=port) as sink:
            settings = {name: sink.url("oncall") for name in ("ACTONCE_PAGE_URLS", "ACTONCE_PAGE_WARNING_URLS")}
            print(json.dumps({"event": "ready", "file": str(file), "settings": settings}), flush=True)
            await end.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m actonce.testing.page_log", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--host", default="127.0.0.1", help="interface to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: the operating system chooses")
    options = parser.parse_args()
    asyncio.run(serve(options.file, options.host, options.port))


if __name__ == "__main__":
    main()
