"""A mail relay: real SMTP (aiosmtpd), no keys, no route to read, an accepted mail is an effect.

The account is the local part of MAIL FROM, the marker the X-Operation-Id header. `arrived`: the final dot is here,
nothing is accepted. `committed`: the mail is accepted, the 250 has not left. A mail whose final dot arrived is accepted
even when the sender is gone by then, as relays do. The challenge is the verb `XCHALLENGE <run id> <nonce>`.
"""

from __future__ import annotations

import asyncio
import email
import email.policy
from collections.abc import Callable
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session, syntax

from actonce.testing.journal import Journal
from actonce.testing.latches import AnswerFaultMode
from actonce.testing.listener import Discard
from drills.world.desk import Desk, Shape

MAIL = Shape(
    destination="mail",
    kind="mail",
    collection="",
    fields={"to": str, "subject": str, "text": str},
    natural=(),
)
NAME = "mail"


class Relay:
    """One listener that speaks SMTP."""

    def __init__(
        self,
        desk_of: Callable[[str], Desk],
        journal: Journal,
        answer_challenge: Callable[[str, str], str | None],
    ) -> None:
        self._desk_of = desk_of
        self._journal = journal
        self._note = journal.write
        self._answer_challenge = answer_challenge
        self._server: asyncio.Server | None = None
        self._connections = 0
        self._mails = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.name = NAME
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        # As in every listener: a journal may be older than this process, and no number comes twice in it.
        self._connections = self._journal.lines
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connection(self) -> SMTP:
        self._connections += 1
        connection_id = f"{NAME}#{self._connections}"
        self._note("connection", destination=NAME, listener=NAME, connection_id=connection_id)
        return _Speaker(self, connection_id)

    def challenge(self, run_id: str, nonce: str) -> str | None:
        answer = self._answer_challenge(run_id, nonce)
        if answer is not None:
            self._note("challenge", destination=NAME, listener=NAME, run_id=run_id)
        return answer

    def incomplete(self, connection_id: str, sender: str | None) -> None:
        account = (sender or "").partition("@")[0] or None
        self._note(
            "request_incomplete",
            destination=NAME,
            listener=NAME,
            connection_id=connection_id,
            account=account,
            why="closed",
        )

    async def take(self, connection_id: str, envelope: Envelope) -> tuple[str, AnswerFaultMode | None, Desk, str]:
        """Handle one complete mail; return (reply line, fault, desk, request id). Goes on when the sender is gone."""
        message = email.message_from_bytes(envelope.original_content or b"", policy=email.policy.SMTP)
        assert isinstance(message, EmailMessage)
        account = str(envelope.mail_from or "").partition("@")[0] or "unknown"
        desk = self._desk_of(account)
        self._mails += 1
        request_id = f"{connection_id}/{self._mails}"
        op = _header(message, "X-Operation-Id")
        recipient = str(envelope.rcpt_tos[0]) if envelope.rcpt_tos else ""
        desk.note(
            "request",
            listener=NAME,
            request_id=request_id,
            connection_id=connection_id,
            method="DATA",
            path="/mail",
            role="effect",
            key=None,
            operation_id=op,
            subject=recipient,
            bytes=len(envelope.original_content or b""),
        )
        await desk.latches.reach("arrived", request_id, op, None)
        before = desk.take_fault(op, "before_commit")
        if before is not None:
            desk.note("dropped", request_id=request_id, why=f"{before.kind} before commit", operation_id=op)
            return "451 4.3.0 try again later", before, desk, request_id
        if recipient in desk.modes.decline:
            desk.note("refused", request_id=request_id, why="declined", operation_id=op)
            return "554 5.7.1 this recipient is refused for good", None, desk, request_id
        thing = self._accept(desk, message, recipient, request_id, op)
        held = await desk.latches.reach("committed", request_id, op, None, object_id=thing)
        if desk.modes.answer_delay_s:
            await asyncio.sleep(desk.modes.answer_delay_s)
        fault = held.answer if held is not None and held.answer is not None else desk.take_fault(op, "after_commit")
        return f"250 2.0.0 OK queued as {thing}", fault, desk, request_id

    def _accept(self, desk: Desk, message: EmailMessage, recipient: str, request_id: str, op: str | None) -> str:
        metadata = {"operation_id": op, "key": op, "digest": _header(message, "X-Actonce-Digest")}
        fields = {"to": recipient, "subject": str(message["Subject"])}
        thing = desk.truth.add("mail", fields, metadata, skew_s=desk.modes.clock_skew_s)
        desk.note(
            "effect",
            object_id=thing.object_id,
            object_kind="mail",
            request_id=request_id,
            key=None,
            operation_id=op,
            subject=recipient,
            digest=metadata["digest"],
            amount_minor=None,
            state="accepted",
            thing=thing.record(),
        )
        return thing.object_id

    def keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _header(message: EmailMessage, name: str) -> str | None:
    value = message[name]
    return str(value).strip() if value else None  # a folded header begins with a blank


class _Speaker(SMTP):
    """aiosmtpd's protocol, plus the challenge, cut answers, and mails that outlive their sender."""

    def __init__(self, relay: Relay, connection_id: str) -> None:
        super().__init__(self, hostname="mail.sandbox.invalid", ident="sandbox", loop=asyncio.get_running_loop())
        self._relay = relay
        self._connection_id = connection_id
        self._complete = False

    async def smtp_DATA(self, arg: str) -> None:
        self._complete = False
        sender = self.envelope.mail_from if self.envelope is not None else None
        try:
            await super().smtp_DATA(arg)
        except asyncio.CancelledError:
            if not self._complete:
                self._relay.incomplete(self._connection_id, sender)
            raise

    @syntax("XCHALLENGE run nonce")
    async def smtp_XCHALLENGE(self, arg: str | None) -> None:
        run_id, _, nonce = (arg or "").partition(" ")
        answer = self._relay.challenge(run_id, nonce) if nonce else None
        await self.push(f"250 {answer}" if answer else "550 this relay belongs to another run")

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:
        self._complete = True
        work = asyncio.get_running_loop().create_task(self._relay.take(self._connection_id, envelope))
        self._relay.keep(work)
        try:
            line, fault, desk, request_id = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_sender_gone)
            raise
        except Discard:
            return await self._cut(None)
        if fault is None:
            desk.note("answer_begun", request_id=request_id, status=int(line[:3]))
            return line
        if fault.kind == "gateway":
            desk.note("answer_replaced", request_id=request_id, status=451)
            return "451 4.4.2 the gateway lost the relay"
        desk.note("answer_failed", request_id=request_id, why=f"{fault.kind} on order")
        return await self._cut(fault)

    async def _cut(self, fault: AnswerFaultMode | None) -> str:
        """Spoil the answer and wait for the end of this connection."""
        transport = self.transport
        if isinstance(transport, asyncio.WriteTransport):
            if fault is not None and fault.kind in ("truncated", "garbage"):
                transport.write(b"25" if fault.kind == "truncated" else b"\x00\x01 no reply\r\n")
            if fault is not None and fault.kind == "reset":
                transport.abort()
            elif fault is None or fault.kind != "silent":
                transport.close()
        await asyncio.Event().wait()  # aiosmtpd cancels us when the connection is gone
        raise AssertionError("unreachable")


def _sender_gone(work: asyncio.Task[tuple[str, AnswerFaultMode | None, Desk, str]]) -> None:
    if work.cancelled() or work.exception() is not None:
        return
    _, _, desk, request_id = work.result()
    desk.note("answer_failed", request_id=request_id, why="the sender had closed its connection")


__all__ = ["MAIL", "Relay"]
