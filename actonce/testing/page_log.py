"""A pager for a stack without one: `python -m actonce.testing.page_log FILE` keeps every page as a line of FILE.

Promises: a page is in the file before its sender gets an answer. Tells the programs started after it where to page
(ACTONCE_PAGE_URLS), unless the person has set channels of their own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import sys
from pathlib import Path

from actonce.testing.sink import Paged, Sink


async def serve(file: Path) -> None:
    """Until SIGTERM or SIGINT."""
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    with file.open("a", buffering=1) as out:

        def keep(page: Paged) -> None:
            out.write(json.dumps(dataclasses.asdict(page)) + "\n")
            print(f"page: {page.title}", flush=True)

        async with Sink(on_page=keep) as sink:
            settings = {"ACTONCE_PAGE_URLS": sink.url("oncall")}
            print(json.dumps({"event": "ready", "file": str(file), "settings": settings}), flush=True)
            await end.wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
