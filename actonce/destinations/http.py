"""One HTTP request per permit, and what its answer means.

`http_send` promises: exactly one request is written (no retry, no redirect); the fence window is entered after the
connection stands and before the first byte of the request, and left after its last byte or when writing failed;
when the window refuses, no byte of the request leaves; the wait for the answer ends at the sender's own deadline.
It raises `NotSent` only when the connection never stood, `SendFenced` as it comes, `Unknown` for the rest.

`accept` turns the answer into the contract's words. A decline counts only when it is the destination's own (a JSON
object that the adapter recognises): an error page of something on the way proves nothing.

`http_read` fetches one page of a route and raises `RouteUnavailable` for anything but an answer that can be read.
Use a client made by `http_client`. Bodies, headers and credentials are never logged or put into messages.
"""

from __future__ import annotations

import asyncio
import functools
import json as jsonlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from actonce.contracts.contract import Contract
from actonce.contracts.errors import (
    DuplicateRefused,
    NotAccepted,
    NotSent,
    Refused,
    RouteUnavailable,
    SendFenced,
    StoredErrorReplayed,
    Unknown,
)
from actonce.destinations.base import Call, answer_deadline

BODY_BYTES_MAX = 64 * 1024  # a receipt is bounded; more than this is no answer of a tool
PAGE_BYTES_MAX = 4 * 1024 * 1024
DEADLINE_HEADER = "Actonce-Deadline"


@dataclass(frozen=True)
class Answer:
    """A whole answer: status, lower-case headers and the body as JSON (None when it is none)."""

    status: int
    headers: Mapping[str, str]
    json: Any

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed", "").lower() == "true"

    @property
    def code(self) -> str | None:
        """The error code of `{"error": {"code": …}}`, if there is one."""
        error = self.json.get("error") if isinstance(self.json, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        return code if isinstance(code, str) else None


@functools.cache
def _trust() -> ssl.SSLContext:
    """The certificate authorities, read once for all clients: that takes longer than most requests."""
    return httpx.create_ssl_context(trust_env=False)


def http_client(*, keep_alive: bool = False, connections_max: int = 100) -> httpx.AsyncClient:
    """Return a client that does nothing on its own: no retry, no redirect, no proxy from the environment.

    Every request has a connection of its own. `keep_alive` saves the handshake, and trusts the other end never to
    write one answer too many: on a connection that is used again, that answer is taken for the next request's.
    """
    limits = httpx.Limits(
        max_connections=connections_max, max_keepalive_connections=connections_max if keep_alive else 0
    )
    transport = httpx.AsyncHTTPTransport(
        verify=_trust(), http1=True, http2=False, retries=0, limits=limits, trust_env=False
    )
    return httpx.AsyncClient(transport=transport, follow_redirects=False, trust_env=False)


class _Fence:
    """Opens the call's window at the first byte and closes it after the last, driven by the transport's trace.

    "Complete" means handed to the kernel: anyio, below httpx, keeps no write buffer of its own (its limit is 0).
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._window: AbstractAsyncContextManager[None] | None = None
        self._plain: Any = None  # the new connection, while it speaks no TLS
        self.entered = False

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._plain = info["return_value"]
        elif event == "connection.start_tls.started":
            self._plain = None  # readable by session tickets, which say nothing
        elif event.endswith(".send_request_headers.started"):
            if self._plain is not None and self._plain.get_extra_info("is_readable"):
                raise NotSent(f"{self._call.operation_id}: the other end closed or spoke before it was asked")
            window = self._call.window()
            await window.__aenter__()  # may raise SendFenced: nothing has been written yet
            self._window, self.entered = window, True
        elif event.endswith((".send_request_body.complete", ".send_request_body.failed", "_headers.failed")):
            await self.leave()

    async def leave(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            await window.__aexit__(None, None, None)


async def http_send(
    client: httpx.AsyncClient,
    call: Call,
    contract: Contract,
    method: str,
    url: str,
    *,
    json: Mapping[str, Any],
    headers: Mapping[str, str],
) -> Answer:
    """Send exactly one request under the call's permit and return its whole answer."""
    t = contract.timing
    own = {DEADLINE_HEADER: call.not_after.astimezone(UTC).isoformat()}
    if contract.keys is not None:
        own[contract.keys.header] = call.key
    # No `read` timeout: the wait for the answer ends at our own deadline, which lets a frozen process read it late.
    timeout = httpx.Timeout(connect=t.connect_timeout_s, write=t.write_timeout_s, pool=t.connect_timeout_s, read=None)
    fence = _Fence(call)
    request = client.build_request(method, url, json=json, headers={**headers, **own}, timeout=timeout)
    request.extensions["trace"] = fence.trace
    name = f"{call.operation_id} attempt {call.attempt}"
    try:
        async with answer_deadline(call.time_left_s()):
            answer = await _exchange(client, request, BODY_BYTES_MAX)
    except SendFenced as error:
        if fence.entered:  # a client that sends twice: the first request did leave
            raise Unknown(_lost(name, "the client tried to send a second time")) from error
        raise
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        if fence.entered:
            raise Unknown(_lost(name, error)) from error
        raise NotSent(f"{name}: no connection to {contract.name} ({type(error).__name__}); nothing was sent") from error
    except TimeoutError as error:
        if not fence.entered:
            raise NotSent(
                f"{name}: the send deadline passed before {contract.name} was connected; nothing was sent"
            ) from error
        raise Unknown(_lost(name, "no answer until the send deadline")) from error
    except (httpx.HTTPError, _TooLarge) as error:
        raise Unknown(_lost(name, error)) from error
    finally:
        await fence.leave()
    if not fence.entered:
        raise Unknown(f"{name}: was sent outside its fence; make the client with actonce.destinations.http.http_client")
    return answer


def _lost(name: str, why: Exception | str) -> str:
    fact = why if isinstance(why, str) else _named(why)
    return f"Outcome of {name} is unknown: {fact}. Reconcile; do not resend."


def _named(error: Exception) -> str:
    """An error in words that may be kept. A protocol error quotes headers, ours (a credential) or theirs: not it."""
    if isinstance(error, httpx.ProtocolError):
        return type(error).__name__
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _address(url: str) -> str:
    """The URL without what may be secret in it: login, query, fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class _TooLarge(Exception):
    """The answer is larger than any receipt."""


async def _exchange(client: httpx.AsyncClient, request: httpx.Request, bytes_max: int) -> Answer:
    response = await client.send(request, stream=True, follow_redirects=False)
    try:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > bytes_max:
                raise _TooLarge(f"answer of more than {bytes_max} bytes")
    finally:
        await response.aclose()
    try:
        parsed = jsonlib.loads(bytes(body))
    except ValueError:
        parsed = None
    return Answer(response.status_code, {k.lower(): v for k, v in response.headers.items()}, parsed)


def own_error(answer: Answer) -> bool:
    """Whether a decline is in the destination's own words: `{"error": {"code": …}}`."""
    return answer.code is not None


def accept(
    answer: Answer,
    contract: Contract,
    call: Call,
    *,
    recognises: Callable[[Answer], bool] = own_error,
    unknown_codes: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return the body of an answer that means applied; raise what every other answer means.

    `unknown_codes` are error codes that decide nothing although their status would (a key in progress, a key that
    came with another payload): they are reconciled.
    """
    name = f"{call.operation_id} attempt {call.attempt}"
    status, code, meaning = answer.status, answer.code, contract.answers
    if status in meaning.applied:
        if isinstance(answer.json, dict):
            return answer.json
        raise Unknown(_lost(name, f"status {status} with a body that is no object"))
    said = f"{contract.name} answered {status}" + (f" {code}" if code else "")
    if code in unknown_codes or not recognises(answer):
        raise Unknown(_lost(name, said))
    if status in meaning.duplicate:
        raise DuplicateRefused(_lost(name, f"{said}: it exists already"))
    if status in meaning.refused:
        words = f"{name}: {said}. This is final for the operation."
        raise Refused(words, status=status, code=code, replayed=answer.replayed)
    if answer.replayed:
        raise StoredErrorReplayed(_lost(name, f"{said}, a stored error replayed under our key"), status=status)
    if status in meaning.not_accepted:
        raise NotAccepted(
            f"{name}: {said}; it was not processed. Cure the cause, then take a new permit.",
            status=status,
            retry_after_s=_retry_after_s(answer.headers.get("retry-after")),
        )
    raise Unknown(_lost(name, said))


def _retry_after_s(raw: str | None) -> float | None:
    """Seconds of a Retry-After header (RFC 9110: a number or a date); None when absent or nonsense."""
    if raw is None:
        return None
    if raw.strip().isascii() and raw.strip().isdigit():
        return float(raw)
    try:
        return max((parsedate_to_datetime(raw) - datetime.now(UTC)).total_seconds(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None


async def http_read(
    client: httpx.AsyncClient,
    url: str,
    *,
    headers: Mapping[str, str],
    deadline_s: float,
    params: Sequence[tuple[str, str]] | None = None,
    method: str = "GET",
    json: Mapping[str, Any] | None = None,
    ok: frozenset[int] = frozenset({200}),
) -> Answer:
    """Fetch one page (or do one harmless act). Raises RouteUnavailable unless the status is in `ok` and the body JSON.

    `url` is named in errors without its query: a route's address is no secret, what is asked may be.
    """
    asked = f"{method} {_address(url)}"
    query = httpx.QueryParams(list(params)) if params else None
    request = client.build_request(method, url, params=query, headers=headers, json=json, timeout=deadline_s)
    try:
        async with asyncio.timeout(deadline_s):
            answer = await _exchange(client, request, PAGE_BYTES_MAX)
    except TimeoutError as error:
        raise RouteUnavailable(f"{asked}: no answer within {deadline_s} s") from error
    except (httpx.HTTPError, _TooLarge) as error:
        raise RouteUnavailable(f"{asked}: {_named(error)}") from error
    if answer.status not in ok:
        said = f"{asked}: status {answer.status} {answer.code or ''}".rstrip()
        raise RouteUnavailable(said, status=answer.status)
    if not isinstance(answer.json, (dict, list)):
        raise RouteUnavailable(f"{asked}: status {answer.status} with a body that is no JSON object or list")
    return answer
