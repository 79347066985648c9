"""One mail per permit, spoken step by step so that "not sent" can be proven.

A relay takes a mail over when it answers the final dot of DATA; before that dot is written nothing has happened, and
every failure until then is `NotSent` (or what the relay says: 4xx not accepted, 5xx refused). From the dot on, only the
relay's own reply counts; its loss is unknown for ever, for nobody can be asked: the contract has no route, so an
operator decides. A 250 completes as `handover`: the relay has it, nothing is said about delivery.

A reply belongs to what was asked before it. One that is there already when the next thing is about to be written was
said about something else and proves nothing: before the message that is `NotSent`, after it `Unknown`, and the dot is
not written.

The window is entered after 354, before the first byte of the message, and left when the dot is with the kernel.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any, SupportsIndex

from actonce.contracts.contract import Contract, Timing, Unbounded, WritePath
from actonce.contracts.errors import NotAccepted, NotSent, PayloadError, Refused, Unknown
from actonce.contracts.verdict import Receipt
from actonce.destinations.base import Call, Destination, answer_deadline

LINE_BYTES_MAX = 8 * 1024
_POLICY = SMTP.clone(max_line_length=200)  # a folded digest is no digest to a reader that does not unfold
MAIL_FIELDS = ("to", "subject", "text")


@dataclass(frozen=True)
class SmtpSettings:
    """Where the relay is and who we are. `login` is asked at every send and its result is kept nowhere."""

    host: str
    port: int
    sender: str  # MAIL FROM, also the acting account
    starttls: bool = False
    login: Callable[[], Awaitable[tuple[str, str]]] | None = None  # (user, password), sent over TLS only
    tls: ssl.SSLContext | None = None


def mail_contract(name: str, account: str, timing: Timing | None = None, **changes: Any) -> Contract:
    """No keys, no routes: an unknown outcome is always held."""
    declared: dict[str, Any] = {
        "name": name,
        "version": 1,
        "actions": frozenset({"send"}),
        "account": account,
        "object_kind": "mail",
        "business_fields": MAIL_FIELDS,
        "late_arrival": Unbounded(),
        "completion": "handover",
        "write": WritePath(network=f"{name}.smtp", store=f"{name}.queue", credential=f"{account}/smtp"),
        "timing": timing or Timing(),
    }
    return Contract.model_validate(declared | changes)


def mail_destination(contract: Contract, settings: SmtpSettings) -> Destination:
    async def send(call: Call) -> Receipt:
        return await smtp_send(call, contract, settings)

    return Destination(contract, send=send)


async def smtp_send(call: Call, contract: Contract, settings: SmtpSettings) -> Receipt:
    """Hand one mail over. Raises NotSent, NotAccepted, Refused, SendFenced or Unknown."""
    name = f"{call.operation_id} attempt {call.attempt}"
    recipient = str(call.payload["to"])
    content = _message(call, settings.sender)
    talk: _Talk | None = None
    dot_written = False
    try:
        async with answer_deadline(call.time_left_s()):
            talk = await _Talk.open(settings, contract.timing.connect_timeout_s)
            await _greet(talk, settings, name)
            await talk.ask(f"MAIL FROM:<{settings.sender}>", name, 250)
            await talk.ask(f"RCPT TO:<{recipient}>", name, 250, 251)
            await talk.ask("DATA", name, 354)
            async with call.window():
                await talk.write(content)
                if await talk.heard():
                    raise Unknown(
                        f"Outcome of {name} is unknown: the relay replied before the final dot was written, which "
                        "proves nothing. The dot was left out. Nobody can be asked; hold."
                    )
                dot_written = True  # from here on the relay may take the mail over
                await talk.write(b".\r\n")
            code, text = await talk.reply()
    except TimeoutError as error:
        raise _lost(name, dot_written, "no reply in time") from error
    except (OSError, _Garbled) as error:
        raise _lost(name, dot_written, f"{type(error).__name__}: {error}") from error
    finally:
        if talk is not None:
            talk.close()
    if 200 <= code < 300:
        return Receipt(object_id=text[-200:], digest=call.digest, at=datetime.now(UTC), detail={"reply": code})
    _raise_reply(name, code, text)
    raise Unknown(f"Outcome of {name} is unknown: the relay replied {code} to the final dot. Hold; do not resend.")


def _lost(name: str, dot_written: bool, why: str) -> Exception:
    if not dot_written:
        return NotSent(f"{name}: {why}; the final dot was never written, so no mail was handed over")
    return Unknown(f"Outcome of {name} is unknown: {why} after the final dot. Nobody can be asked; hold.")


def _raise_reply(name: str, code: int, text: str) -> None:
    """A relay's refusal, in its own words: 4xx it did not take it now, 5xx it never will."""
    if code in (530, 534, 535, 538):
        raise NotAccepted(f"{name}: the relay refused the credential ({code}); rotate it, then retry", status=401)
    if 400 <= code < 500:
        raise NotAccepted(f"{name}: the relay did not take the mail now ({code} {text[:200]})", status=code)
    if 500 <= code < 600:
        raise Refused(f"{name}: the relay refuses the mail for good ({code} {text[:200]})", status=code)


async def _greet(talk: _Talk, settings: SmtpSettings, name: str) -> None:
    await talk.expect(name, 220)
    await talk.ask("EHLO actonce.invalid", name, 250)
    if settings.starttls:
        await talk.ask("STARTTLS", name, 220)
        await talk.silence()  # what was said in the clear must not be read as said under TLS
        await talk.start_tls(settings)
        await talk.ask("EHLO actonce.invalid", name, 250)
    if settings.login is not None:
        if not settings.starttls:
            raise NotSent(f"{name}: a login is configured without TLS; set starttls, nothing was sent")
        user, password = await settings.login()
        token = base64.b64encode(f"\0{user}\0{password}".encode()).decode("ascii")
        await talk.ask(f"AUTH PLAIN {token}", name, 235, secret=True)


def _message(call: Call, sender: str) -> bytes:
    """Render the mail, dot-stuffed, ending in CRLF. Raises PayloadError for what no header can carry."""
    message = EmailMessage(policy=_POLICY)
    try:
        message["From"] = sender
        message["To"] = str(call.payload["to"])
        message["Subject"] = str(call.payload["subject"])
        # Stable over attempts, so that a receiver may drop a second copy.
        message["Message-ID"] = f"<{call.operation_id}@{sender.partition('@')[2] or 'actonce.invalid'}>"
        message["X-Operation-Id"] = call.operation_id
        message["X-Actonce-Digest"] = call.digest
        message.set_content(str(call.payload["text"]))
    except (ValueError, KeyError) as error:
        raise PayloadError(f"{call.operation_id}: this mail cannot be rendered: {error}; nothing was sent") from error
    if any(c in str(call.payload["to"]) for c in "<>\r\n ") or not str(call.payload["to"]).isascii():
        raise PayloadError(f"{call.operation_id}: `to` is not one plain address; nothing was sent")
    lines = message.as_bytes().split(b"\r\n")
    body = b"\r\n".join(b"." + line if line.startswith(b".") else line for line in lines)
    return body if body.endswith(b"\r\n") else body + b"\r\n"


class _Garbled(Exception):
    """The relay sent something that is no SMTP reply, or closed in the middle of one."""


class _Reader(asyncio.StreamReader):
    """Counts what has arrived, so that it is known whether something lies there unread."""

    arrived_bytes = 0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.arrived_bytes += len(bytes(data))
        super().feed_data(data)


class _Talk:
    """One SMTP conversation."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._read_bytes = 0
        self._reader = reader
        self._writer = writer
        writer.transport.set_write_buffer_limits(0)  # drain() then means: it is with the kernel

    @classmethod
    async def open(cls, settings: SmtpSettings, connect_timeout_s: float) -> _Talk:
        async with asyncio.timeout(connect_timeout_s):
            loop = asyncio.get_running_loop()
            reader = _Reader(limit=LINE_BYTES_MAX, loop=loop)
            protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
            transport, _ = await loop.create_connection(lambda: protocol, settings.host, settings.port)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    async def start_tls(self, settings: SmtpSettings) -> None:
        await self._writer.start_tls(settings.tls or ssl.create_default_context(), server_hostname=settings.host)

    def close(self) -> None:
        """Close without QUIT: after the reply to the dot nothing more is wanted."""
        with contextlib.suppress(OSError):
            self._writer.close()

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def heard(self) -> bool:
        """Is there a reply to something that was not asked yet? Looks at what the kernel holds, too."""
        await asyncio.sleep(0)  # the loop polls its sockets at its next turn and hands over what is there in the same
        await asyncio.sleep(0)
        return self._reader.arrived_bytes > self._read_bytes

    async def silence(self) -> None:
        if await self.heard():
            raise _Garbled("a reply before anything was asked")

    async def ask(self, command: str, name: str, *wanted: int, secret: bool = False) -> None:
        await self.silence()
        await self.write(command.encode("ascii", "strict") + b"\r\n")
        await self.expect(name, *wanted, secret=secret)

    async def expect(self, name: str, *wanted: int, secret: bool = False) -> None:
        """Wait for a reply before the mail itself; any other reply is the relay's refusal, nothing was sent.

        Some relays quote the command that they refuse: the words about a login are kept out, and say nothing about
        the mail.
        """
        code, text = await self.reply()
        if code not in wanted:
            if secret and code >= 400:
                raise NotAccepted(f"{name}: the relay refused the login ({code}); cure it, then retry", status=401)
            _raise_reply(name, code, text)
            raise _Garbled(f"reply {code} where {wanted} was due")

    async def reply(self) -> tuple[int, str]:
        texts: list[str] = []
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                raise _Garbled(f"closed after {len(error.partial)} bytes of a reply") from error
            except asyncio.LimitOverrunError as error:
                raise _Garbled("a reply line without an end") from error
            self._read_bytes += len(line)
            code, rest = line[:3], line[3:].decode("utf-8", "replace").strip("\r\n")
            if not code.isdigit() or rest[:1] not in ("", " ", "-"):
                raise _Garbled("a line that is no reply")
            texts.append(rest[1:])
            if rest[:1] != "-":
                return int(code), " ".join(texts)[:500]
