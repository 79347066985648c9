"""One account at one destination: its modes, its truth, its keys, and the write that everything here is about.

The order inside `write` is the contract of the sandbox, and each step is a documented mode: complete request →
`arrived` → credential → checks on arrival (deadline, key) → `processing` → one atomic commit (cancelled key, deadline,
natural key, decline) → `committed` → answer. There is no await between the checks at commit and the commit itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from actonce.testing.journal import Journal, iso_utc
from actonce.testing.latches import AnswerFaultMode, Latches
from actonce.testing.listener import Discard, Reply, Request
from drills.world.leases import LeaseManager
from drills.world.modes import Modes, RouteName, merge_modes
from drills.world.truth import Thing, Truth, View, principal_of

# The business fact by which a judge matches a request that carries no operation_id.
SUBJECT_FIELDS = {"payments": "payment_id", "tickets": "reference", "stripe_like": "charge", "github_like": "title"}


@dataclass(frozen=True)
class Shape:
    """What one destination makes."""

    destination: str
    kind: str  # the type of object an effect is
    collection: str  # in its paths
    fields: dict[str, type]  # required in a body; a name with `?` is optional
    natural: tuple[str, ...]  # the fields that are unique when `natural_key` is on
    render: Callable[[Thing], dict[str, Any]] = Thing.render
    defaults: Mapping[str, Any] = field(default_factory=dict)  # modes of an account that nobody configured
    metadata_of: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # where a body hides our marker
    reads: Callable[[Desk, RouteName, Request, View], Reply] | None = None  # its own read interface
    error: Callable[[Reply], Reply] | None = None  # its own way to say no


@dataclass
class KeyRecord:
    body_digest: str
    registered_ns: int
    reply: tuple[int, Any] | None = None  # None: still being processed
    stored_error: bool = False


@dataclass
class Draft:
    """A parsed write on its way to its commit."""

    request: Request
    kind: str
    fields: dict[str, Any]
    metadata: dict[str, Any]
    key: str | None
    operation_id: str | None
    answer: AnswerFaultMode | None = None
    on_commit: Callable[[Thing], None] | None = None
    text: str | None = None

    @property
    def body_digest(self) -> str:
        return body_digest(self.kind, self.fields)


def body_digest(kind: str, fields: dict[str, Any]) -> str:
    """What tells one payload under a key from another."""
    return hashlib.sha256(json.dumps([kind, fields], sort_keys=True).encode()).hexdigest()


def problem(status: int, code: str, detail: str, **headers: str) -> Reply:
    return Reply(status, {"error": {"code": code, "detail": detail}}, dict(headers))


class Desk:
    """All state of (destination, account). Commits are atomic because one event loop makes them."""

    def __init__(self, shape: Shape, account: str, journal: Journal, leases: LeaseManager) -> None:
        self.shape = shape
        self._leases = leases
        self.account = account
        self.modes = merge_modes(Modes(), dict(shape.defaults), 0)
        self.truth = Truth(shape.kind, account)
        self.latches = Latches(self.note)
        self.latch_count = 0
        self._journal = journal
        self._keys: dict[str, KeyRecord] = {}
        self._cancelled: set[str] = set()
        self._faults_used = 0
        self._errors_used = 0
        self._late: set[asyncio.Task[None]] = set()

    def note(self, kind: str, **fields: Any) -> int:
        return self._journal.write(kind, destination=self.shape.destination, account=self.account, **fields)

    def configure(self, modes: Modes) -> None:
        self.modes = modes
        self._faults_used = 0
        self._errors_used = 0
        self.seed()

    def seed(self) -> None:
        """Rows of other principals that were there long before, so that no list is ever empty by nature."""
        if self.truth.things:
            return
        for number in range(self.modes.seed_rows):
            fields = {name.removesuffix("?"): _filler(kind, number) for name, kind in self.shape.fields.items()}
            thing = self.truth.add(self.shape.kind, fields, {}, author="prn-somebody-else")
            thing.mono_ns -= 86_400 * 10**9

    # credentials ------------------------------------------------------------------------------------------------

    def refuse_credential(self, request: Request, purpose: str) -> Reply | None:
        """Return the refusal of a wrong or revoked credential, or None; `masked` is the route's business."""
        revoked = self.modes.revocation(purpose)
        if revoked in ("401", "403"):
            status = int(revoked)
            self.note("refused", request_id=request.request_id, why=f"credential {purpose} {revoked}")
            return problem(status, "credential_refused", f"the credential for {purpose} is not accepted any more")
        if self.modes.leased:
            return self._refuse_lease(request, purpose)
        # Rotated credentials carry a number: `tok-acct-write`, then `tok-acct-write.2`, ...
        name, _, number = request.headers.get("authorization", "").partition(f"-{purpose}")
        if name != f"Bearer tok-{self.account}" or not (number == "" or re.fullmatch(r"\.\d+", number)):
            self.note("refused", request_id=request.request_id, why=f"credential {purpose} is wrong")
            return problem(401, "credential_refused", f"this is not the credential for {purpose}")
        return None

    def _refuse_lease(self, request: Request, purpose: str) -> Reply | None:
        given = request.headers.get("authorization", "")
        if purpose != "write" and given == f"Bearer desk-{self.account}":
            return None  # a person's own login at the dashboard
        refused = self._leases.refusal(self.account, self.shape.destination, purpose, given)
        if refused is None:
            if purpose == "write":
                self.note("credential", request_id=request.request_id, lease_id=self._leases.lease_id(given))
            return None
        status, why = refused
        self.note("refused", request_id=request.request_id, why=f"credential {why}", status=status)
        return problem(status, "credential_refused", f"the credential for {purpose} is not accepted")

    # the write --------------------------------------------------------------------------------------------------

    async def write(self, draft: Draft) -> Reply:
        """Do one write as the modes say. Never raises for what a caller can cause, except Discard."""
        request_id = draft.request.request_id
        await self.latches.reach("arrived", request_id, draft.operation_id, draft.key)
        refusal = self._check_arrival(draft)
        if refusal is not None:
            return refusal
        draft.answer = draft.answer or self.take_fault(draft.operation_id, "before_commit")
        if draft.answer is not None and draft.answer.when == "before_commit":
            self._forget_key(draft)
            self.note("dropped", request_id=request_id, why=f"{draft.answer.kind} before commit", key=draft.key)
            return self._spoil(problem(502, "bad_gateway", "the gateway could not reach the service"), draft)
        if self.modes.applies_late_s is not None:
            task = asyncio.get_running_loop().create_task(self._commit_late(draft, self.modes.applies_late_s))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            return Reply(202, self._pending(draft))
        try:
            await self.latches.reach("processing", request_id, draft.operation_id, draft.key)
        except Discard:
            self._forget_key(draft)
            raise
        if self.modes.processing_delay_s:
            await asyncio.sleep(self.modes.processing_delay_s)
        reply, thing = self._commit(draft)
        if thing is not None:
            held = await self.latches.reach(
                "committed", request_id, draft.operation_id, draft.key, object_id=thing.object_id
            )
            if held is not None and held.answer is not None:
                draft.answer = held.answer
        if self.modes.answer_delay_s:
            await asyncio.sleep(self.modes.answer_delay_s)
        draft.answer = draft.answer or self.take_fault(draft.operation_id, "after_commit")
        return self._spoil(reply, draft)

    def _pending(self, draft: Draft) -> dict[str, Any]:
        """What a 202 shows looks like the object, which is the trap: nothing is committed yet."""
        now = self.truth.now(self.modes.clock_skew_s)
        author = principal_of(self.account)
        meant = Thing("pending", draft.kind, self.account, author, draft.fields, draft.metadata, now, 0, 0, "pending")
        return self.shape.render(meant)

    def restore_thing(self, thing: Thing, key: str | None) -> None:
        """Put back what the journal shows was committed before this process began."""
        self.truth.things.append(thing)
        if key is not None and self.modes.keys != "ignored":
            digest = body_digest(thing.kind, thing.fields)
            self._keys[f"\n{key}"] = KeyRecord(digest, thing.mono_ns, (201, self.shape.render(thing)))

    def restore_cancelled(self, key: str) -> None:
        self._cancelled.add(key)

    def _check_arrival(self, draft: Draft) -> Reply | None:
        request, modes = draft.request, self.modes
        refusal = self.refuse_credential(request, "write")
        if refusal is not None:
            return refusal
        if modes.revocation("write") == "masked":
            self.note("refused", request_id=request.request_id, why="credential write masked")
            return problem(404, "not_found", "there is no such account")
        if modes.deadline == "arrival" and self._too_late(request):
            return self._refuse_late(draft, "on arrival")
        if modes.keys == "ignored" or draft.key is None:
            return None
        return self._check_key(draft)

    def _check_key(self, draft: Draft) -> Reply | None:
        assert draft.key is not None
        name = self._key_name(draft)
        record = self._keys.get(name)
        now_ns = time.monotonic_ns()
        if record is not None and now_ns - record.registered_ns > self.modes.key_retention_s * 1e9:
            self.note("key_expired", request_id=draft.request.request_id, key=draft.key)
            del self._keys[name]
            record = None
        if record is None:
            if self.modes.keys == "arrival":
                self._keys[name] = KeyRecord(draft.body_digest, now_ns)
            return None
        if record.body_digest != draft.body_digest:
            self.note("refused", request_id=draft.request.request_id, why="key_reused", key=draft.key)
            return problem(422, "idempotency_key_reused", "this key came with another payload before")
        if record.reply is None:
            self.note("refused", request_id=draft.request.request_id, why="key_in_progress", key=draft.key)
            return problem(409, "request_in_progress", "a request with this key is in progress", **{"Retry-After": "1"})
        status, body = record.reply
        self.note("replayed", request_id=draft.request.request_id, key=draft.key, status=status)
        return Reply(status, body, {"Idempotent-Replayed": "true"})

    def _commit(self, draft: Draft) -> tuple[Reply, Thing | None]:
        """The atomic part: no await in here."""
        refusal = self._check_commit(draft)
        if refusal is not None:
            self._store(draft, refusal, error=True)
            return refusal, None
        thing = self.truth.add(
            draft.kind, draft.fields, draft.metadata, skew_s=self.modes.clock_skew_s, text=draft.text
        )
        self.note(
            # A reversal is told apart by its own kind of line, `reversed`, which `on_commit` writes.
            "effect" if thing.kind == self.shape.kind else "object",
            object_id=thing.object_id,
            object_kind=thing.kind,
            request_id=draft.request.request_id,
            key=draft.key,
            operation_id=draft.operation_id,
            subject=draft.fields.get(SUBJECT_FIELDS.get(self.shape.destination, "")),
            digest=draft.metadata.get("digest"),
            amount_minor=draft.fields.get("amount_minor"),
            state=thing.state,
            thing=thing.record(),
        )
        if draft.on_commit is not None:
            draft.on_commit(thing)
        reply = Reply(201, self.shape.render(thing))
        self._store(draft, reply, error=False)
        return reply, thing

    def _check_commit(self, draft: Draft) -> Reply | None:
        modes, request_id = self.modes, draft.request.request_id
        if draft.key in self._cancelled:
            self.note("refused", request_id=request_id, why="key_cancelled", key=draft.key)
            return problem(410, "key_cancelled", "this key was cancelled and can never take effect")
        if modes.deadline == "commit" and self._too_late(draft.request):
            return self._refuse_late(draft, "at commit")
        wrong = modes.processing_error
        if wrong is not None and (wrong.times is None or self._errors_used < wrong.times):
            self._errors_used += 1
            self.note("refused", request_id=request_id, why=f"processing_error {wrong.status}", key=draft.key)
            return problem(wrong.status, "processing_error", "the destination failed before it did anything")
        if draft.fields.get("payment_id") in modes.decline:
            self.note("refused", request_id=request_id, why="declined", key=draft.key)
            return problem(402, "declined", "the bank declines this refund for good")
        if modes.natural_key:
            twin = self._natural_twin(draft)
            if twin is not None:
                self.note("refused", request_id=request_id, why="natural_key", key=draft.key, twin=twin.object_id)
                return Reply(409, {"error": {"code": "already_exists", "detail": "it exists already"}})
        return None

    def _natural_twin(self, draft: Draft) -> Thing | None:
        wanted = [draft.fields.get(n) for n in self.shape.natural]
        for thing in self.truth.things:
            live = thing.kind == draft.kind and thing.state != "reversed"
            if live and [thing.fields.get(n) for n in self.shape.natural] == wanted:
                return thing
        return None

    async def _commit_late(self, draft: Draft, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._commit(draft)

    # keys, deadlines, answers -----------------------------------------------------------------------------------

    def _key_name(self, draft: Draft) -> str:
        credential = draft.request.headers.get("authorization", "") if self.modes.key_scope == "credential" else ""
        return f"{credential}\n{draft.key}"

    def _store(self, draft: Draft, reply: Reply, *, error: bool) -> None:
        """Remember the outcome under the key; an error only where the destination replays stored errors."""
        if self.modes.keys == "ignored" or draft.key is None:
            return
        name = self._key_name(draft)
        if error and not self.modes.replays_stored_errors:
            self._keys.pop(name, None)
            return
        old = self._keys.get(name)
        registered = old.registered_ns if old is not None else time.monotonic_ns()
        self._keys[name] = KeyRecord(draft.body_digest, registered, (reply.status, reply.body), error)

    def _forget_key(self, draft: Draft) -> None:
        record = self._keys.get(self._key_name(draft))
        if record is not None and record.reply is None:
            del self._keys[self._key_name(draft)]

    def cancel_key(self, key: str, request: Request) -> Reply:
        """Atomic: afterwards this key can never take effect, or it already has."""
        made = next(
            (t for t in self.truth.things if t.metadata.get("key") == key and t.author == principal_of(self.account)),
            None,
        )
        if made is not None:
            return Reply(200, {"cancelled": False, "object_id": made.object_id})
        self._cancelled.add(key)
        self.note("key_cancelled", request_id=request.request_id, key=key)
        return Reply(200, {"cancelled": True, "object_id": None})

    def _too_late(self, request: Request) -> bool:
        raw = request.headers.get("actonce-deadline")
        if raw is None:
            return False
        return self.truth.now(self.modes.clock_skew_s) > datetime.fromisoformat(raw)

    def _refuse_late(self, draft: Draft, where: str) -> Reply:
        self._forget_key(draft)
        clock = iso_utc(self.truth.now(self.modes.clock_skew_s))
        self.note("refused", request_id=draft.request.request_id, why=f"deadline_passed {where}", key=draft.key)
        return problem(412, "deadline_passed", f"the deadline had passed {where}, by our clock it was {clock}")

    def take_fault(self, operation_id: str | None, when: str) -> AnswerFaultMode | None:
        """Return the configured fault if it applies to this answer, and count it."""
        fault = self.modes.answer
        if fault is None or fault.when != when:
            return None
        if fault.operation_id not in (None, operation_id):
            return None
        if fault.times is not None and self._faults_used >= fault.times:
            return None
        self._faults_used += 1
        return fault

    def _spoil(self, reply: Reply, draft: Draft) -> Reply:
        async def responding() -> None:
            await self.latches.reach("responding", draft.request.request_id, draft.operation_id, draft.key)

        reply.before_body = responding
        fault = draft.answer
        if fault is None:
            return reply
        if fault.kind == "gateway":
            return Reply(fault.status, {"message": "upstream did not answer"}, by_gateway=True)
        if fault.kind == "redirect":
            return Reply(307, {}, {"Location": draft.request.path}, by_gateway=True)
        reply.fault = fault.kind
        return reply


def _filler(kind: type, number: int) -> Any:
    return number if kind is int else f"other-{number}"
