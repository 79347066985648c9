"""The controlled-target challenge: a drill touches only destinations that prove they belong to its run.

A destination proves it by answering `HMAC-SHA256(run secret, run_id + "\\n" + nonce)`. A production destination does
not know the secret, so no drill can be pointed at it by a wrong address.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from urllib.parse import urlsplit

import httpx


class NotControlled(Exception):
    """A destination did not prove that it is a controlled one of this run. Touch nothing."""


def proof(secret: str, run_id: str, nonce: str) -> str:
    """Return the answer that a controlled destination gives."""
    return hmac.new(secret.encode(), f"{run_id}\n{nonce}".encode(), hashlib.sha256).hexdigest()


async def prove_controlled(base_url: str, run_id: str, secret: str, timeout_s: float = 5.0) -> None:
    """Raise NotControlled unless the destination at `base_url` (http:// or smtp://) answers this run's challenge."""
    nonce = secrets.token_hex(16)
    try:
        if base_url.startswith("smtp://"):
            answer = await asyncio.wait_for(_ask_smtp(base_url, run_id, nonce), timeout_s)
        else:
            answer = await _ask_http(base_url, run_id, nonce, timeout_s)
    except (OSError, httpx.HTTPError, TimeoutError, ValueError) as error:
        raise NotControlled(
            f"{base_url} did not answer the challenge of run {run_id} ({type(error).__name__}: {error}); "
            "start the world of this run and use its addresses"
        ) from error
    if not hmac.compare_digest(answer, proof(secret, run_id, nonce)):
        raise NotControlled(
            f"{base_url} answered the challenge of run {run_id} wrongly: it is not a controlled destination of this "
            "run; nothing was sent to it"
        )


async def _ask_http(base_url: str, run_id: str, nonce: str, timeout_s: float) -> str:
    async with httpx.AsyncClient(timeout=timeout_s, trust_env=False) as client:
        response = await client.post(f"{base_url}/challenge", json={"run_id": run_id, "nonce": nonce})
    if response.status_code != 200:
        raise ValueError(f"status {response.status_code}")
    body = response.json()
    return str(body.get("proof", "")) if isinstance(body, dict) else ""


async def _ask_smtp(base_url: str, run_id: str, nonce: str) -> str:
    parts = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        await reader.readline()
        writer.write(f"XCHALLENGE {run_id} {nonce}\r\n".encode())
        await writer.drain()
        line = (await reader.readline()).decode("ascii", "replace").split()
    finally:
        writer.close()
    if len(line) < 2 or line[0] != "250":
        raise ValueError(f"answer {' '.join(line) or 'nothing'}")
    return line[1]
