"""Looks for itself: raw facts about a socket or a file, taken where a fault was put, for the record of a drill.

Every function measures and decides nothing; what the facts prove is for `actonce.evidence.observations`.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any


async def speak(host: str, port: int, said: bytes, *, wait_s: float) -> dict[str, Any]:
    """Connect, say something and wait: how many bytes came back, whether the other side ended it, for how long.

    Returns {connected, error, bytes_down, ended, waited_s}; `ended` is null while the connection is still open.
    """
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), wait_s)
    except (OSError, TimeoutError) as error:
        return {"connected": False, "error": f"{type(error).__name__}: {error}", "bytes_down": 0, "waited_s": 0.0}
    begun, received, ended = time.monotonic(), 0, None
    try:
        writer.write(said)
        await writer.drain()
        while ended is None and (left := begun + wait_s - time.monotonic()) > 0:
            data = await asyncio.wait_for(reader.read(4096), left)
            received += len(data)
            ended = None if data else "closed"
            if data:
                break
    except TimeoutError:
        ended = None
    except OSError as error:
        ended = f"{type(error).__name__}: {error}"
    finally:
        writer.close()
    waited_s = round(time.monotonic() - begun, 3)
    return {"connected": True, "error": None, "bytes_down": received, "ended": ended, "waited_s": waited_s}


def write(path: Path, size: int = 4096) -> dict[str, Any]:
    """Try to append `size` bytes to a file of its own, down to the disk. Returns {path, errno, error}."""
    error: OSError | None = None
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, b"w" * size)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as caught:
        error = caught
    return {"path": str(path), "errno": error.errno if error else None, "error": str(error) if error else None}
