"""A controlled HTTP destination for anyone's drills: commits, tells, and waits where it is told to.

    POST /v1/{account}/{kind}                    on `write`: any JSON object; 201 with the object it made
    GET  /v1/{account}/{kind}?cursor=N           on `list`: {"data": [...], "total": n, "next": cursor|null, "as_of": t}
    GET  /v1/{account}/{kind}/by-key/{key}       on `by_key`: {"data": [...], "as_of": t}
    GET  /v1/{account}/{kind}/{id}               on `by_key`: the object, or 404

An object is what was sent, with `id`, `object` (its kind), `author`, `created_at`. The three are ports of their own, so
that a drill can break one and leave the others. The write path drops a request that is not complete within
`read_timeout_s` of its connection: that is what may enforce a contract's `Bounded`.

Promises: an append-only journal in which a line stands before anybody can know of what it tells; a committed object is
on `list` and `by_key` at once; latches `arrived` (nothing done yet), `committed` (no byte of an answer yet) and
`responding` (the head is out, the body is not). Does not honour keys unless asked, forgets nothing, authorises nobody.
Only the witness reads the journal: nothing of it is served.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from actonce.testing.challenge import proof, prove_controlled
from actonce.testing.journal import Journal, iso_utc
from actonce.testing.latches import Latch, Latches, LatchOrder, LatchPoint, Match, Release
from actonce.testing.listener import Discard, Listener, Reply, Request
from actonce.testing.strikes import HIT_S
from actonce.testing.waiting import eventually

ROUTES = ("write", "list", "by_key")


@dataclass
class Held:
    """One armed latch: `await held.hit()`, look, break something, `await held.release()`."""

    latch: Latch
    _latches: Latches

    async def hit(self, within_s: float = HIT_S) -> dict[str, Any]:
        """Wait until a request stands there: {request_id, operation_id, key, object_id?}. Raises NeverHappened."""
        what = f"a request at latch {self.latch.order.point} (of {self.latch.order.match.operation_id or 'any'})"
        return await eventually(lambda: self.latch.hit, within_s=within_s, what=what)

    async def release(self, action: str = "continue") -> None:
        """Let it go on. `drop` forgets it without a trace, which is only possible at `arrived`."""
        self._latches.release(Release(latch_id=self.latch.latch_id, action=action))


class LatchDestination:
    """Use `async with`. `urls` are where its three ports are, without the account: a drill puts proxies there."""

    def __init__(
        self,
        name: str,
        folder: Path,
        run_id: str,
        *,
        account: str = "acme",
        honours_keys: bool = False,
        page_size: int = 100,
        read_timeout_s: float = 1.0,
        subject_field: str | None = None,
    ) -> None:
        self.name = name
        self.account = account
        self.journal = Journal(folder / f"{name}.jsonl")
        self.honours_keys = honours_keys
        self._run_id = run_id
        self._secret = secrets.token_hex(32)
        self._page_size = page_size
        self._objects: list[dict[str, Any]] = []
        self._keys: dict[str, Reply | None] = {}  # None: still being processed
        self._latches = Latches(
            lambda kind, **facts: self.journal.write(kind, destination=name, account=account, **facts)
        )
        self._listeners = {
            route: Listener(
                f"{name}.{route}", self._serve, self.journal, lambda *_: read_timeout_s, subject_field=subject_field
            )
            for route in ROUTES
        }

    async def __aenter__(self) -> LatchDestination:
        for listener in self._listeners.values():
            await listener.start("127.0.0.1", 0)
            await prove_controlled(f"http://127.0.0.1:{listener.port}", self._run_id, self._secret)
        return self

    async def __aexit__(self, *_: object) -> None:
        for listener in self._listeners.values():
            await listener.stop()
        self.journal.close()

    def _note(self, kind: str, **facts: Any) -> int:
        return self.journal.write(kind, destination=self.name, account=self.account, **facts)

    @property
    def urls(self) -> dict[str, str]:
        """Route → http://host:port."""
        return {route: f"http://127.0.0.1:{listener.port}" for route, listener in self._listeners.items()}

    def latch(self, point: LatchPoint, operation_id: str | None = None, *, nth: int = 1) -> Held:
        """Arm a latch for the n-th send (of one operation, or of any)."""
        order = LatchOrder(destination=self.name, point=point, match=Match(operation_id=operation_id, nth=nth))
        return Held(self._latches.set(order, f"{self.name}-{secrets.token_hex(3)}"), self._latches)

    async def _serve(self, request: Request) -> Reply:
        route = request.listener.rpartition(".")[2]
        if request.path == "/challenge" and request.method == "POST":
            return self._challenge(request)
        tail = request.segments[2:]
        if request.account != self.account or not tail:
            return _problem(404, "not_found", f"paths here start with /v1/{self.account}/KIND")
        kind, rest = tail[0], tail[1:]
        if route == "write" and request.method == "POST" and not rest:
            return await self._write(kind, request)
        if route == "list" and request.method == "GET" and not rest:
            return self._list(kind, request)
        if route == "by_key" and request.method == "GET" and len(rest) == 2 and rest[0] == "by-key":
            found = [o for o in self._of(kind) if o["metadata"].get("key") == rest[1]]
            return Reply(200, {"data": found, "as_of": iso_utc(datetime.now(UTC))})
        if route == "by_key" and request.method == "GET" and len(rest) == 1:
            one = next((o for o in self._of(kind) if o["id"] == rest[0]), None)
            return Reply(200, one) if one else _problem(404, "not_found", f"there is no {kind} {rest[0]}")
        return _problem(405, "wrong_method", f"{request.method} {request.path} does not exist on {request.listener}")

    def _challenge(self, request: Request) -> Reply:
        body = request.json()
        run_id, nonce = str(body.get("run_id", "")), str(body.get("nonce", ""))
        if not nonce or run_id != self._run_id:
            return _problem(403, "not_this_run", f"this destination belongs to another run than {run_id!r}")
        self.journal.write("challenge", destination=self.name, listener=request.listener, run_id=run_id)
        return Reply(200, {"run_id": run_id, "proof": proof(self._secret, run_id, nonce)})

    async def _write(self, kind: str, request: Request) -> Reply:
        """One write. Between the key's check and the commit nothing is awaited but the latch `arrived`."""
        fields = request.json()
        raw = fields.pop("metadata", None)
        metadata: dict[str, Any] = dict(raw) if isinstance(raw, dict) else {}
        operation_id = str(metadata["operation_id"]) if metadata.get("operation_id") else None
        key = request.headers.get("idempotency-key") or metadata.get("key")
        if self.honours_keys and key and (known := self._known(str(key))) is not None:
            return known
        try:
            await self._latches.reach("arrived", request.request_id, operation_id, key)
        except Discard:
            self._keys.pop(str(key), None)
            raise
        made = self._commit(kind, fields, metadata, request, operation_id, key)
        reply = Reply(201, made)
        if self.honours_keys and key:
            self._keys[str(key)] = reply
        await self._latches.reach("committed", request.request_id, operation_id, key, object_id=made["id"])

        async def responding() -> None:
            await self._latches.reach("responding", request.request_id, operation_id, key)

        return Reply(201, made, before_body=responding)

    def _known(self, key: str) -> Reply | None:
        """The answer to a key that came before; None registers it, on arrival."""
        if key not in self._keys:
            self._keys[key] = None
            return None
        reply = self._keys[key]
        if reply is None:
            return _problem(409, "request_in_progress", "a request with this key is in progress")
        return Reply(reply.status, reply.body, {"Idempotent-Replayed": "true"})

    def _commit(
        self,
        kind: str,
        fields: dict[str, Any],
        metadata: dict[str, Any],
        request: Request,
        operation_id: str | None,
        key: str | None,
    ) -> dict[str, Any]:
        made = {
            **fields,
            "id": f"{kind[:3]}_{len(self._objects) + 1:05d}",
            "object": kind,
            "author": f"prn-{self.account}",
            "created_at": iso_utc(datetime.now(UTC)),
            "metadata": metadata,
        }
        self._objects.append(made)
        subject = self._listeners["write"].subject_field
        self._note(
            "effect",
            object_id=made["id"],
            object_kind=kind,
            request_id=request.request_id,
            key=key,
            operation_id=operation_id,
            subject=fields.get(subject) if subject else None,
            digest=metadata.get("digest"),
            amount_minor=fields.get("amount_minor"),
            state="made",
        )
        return made

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self._objects if one["object"] == kind]

    def _list(self, kind: str, request: Request) -> Reply:
        rows = self._of(kind)
        raw = request.query.get("cursor", ["0"])[0]
        start = int(raw) if raw.isascii() and raw.isdigit() else 0
        upto = start + self._page_size
        following = str(upto) if upto < len(rows) else None
        as_of = iso_utc(datetime.now(UTC))
        return Reply(200, {"data": rows[start:upto], "total": len(rows), "next": following, "as_of": as_of})


def _problem(status: int, code: str, detail: str) -> Reply:
    return Reply(status, {"error": {"code": code, "detail": detail}})
