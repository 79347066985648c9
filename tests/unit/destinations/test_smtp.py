"""The mail adapter: against the sandbox's relay, and against raw sockets that stop at one step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from actonce.contracts.errors import NotAccepted, NotSent, PayloadError, Refused, SendFenced, Unknown
from actonce.destinations import Destination
from actonce.destinations.smtp import SmtpSettings, _Talk, mail_contract, mail_destination
from drills.world.client import World
from tests.unit.world.helpers import Window, destination, effects, eventually, make_call

MAIL = {"to": "jo@example.org", "subject": "Your refund", "text": "Done.\n.\n..and dots"}


async def test_a_mail_is_handed_over_once_with_its_marker(world: World) -> None:
    dest = destination(world, "acct", "mail")
    window = Window()
    call = make_call(dest.contract, MAIL, window=window)
    receipt = await dest.send(call)
    assert window.events == ["entered", "left"]
    (effect,) = effects(world, "acct")
    assert (effect["operation_id"], effect["digest"]) == (call.operation_id, call.digest)
    assert effect["object_id"] in receipt.object_id
    assert dest.contract.completion == "handover" and not dest.contract.routes


@pytest.mark.parametrize("how", ["close", "reset", "truncated", "garbage", "silent"])
async def test_a_lost_reply_to_the_dot_is_unknown(world: World, how: str) -> None:
    """case a8"""
    await world.configure("acct", "mail", answer={"kind": how})
    dest = destination(world, "acct", "mail")
    with pytest.raises(Unknown):
        await dest.send(make_call(dest.contract, MAIL, deadline_s=0.7))
    assert len(effects(world, "acct")) == 1


async def test_a_mail_is_accepted_although_its_sender_gave_up_before_the_commit(world: World) -> None:
    dest = destination(world, "acct", "mail")
    latch = await world.latch("acct", "arrived", "mail")
    with pytest.raises(Unknown):
        await dest.send(make_call(dest.contract, MAIL, deadline_s=0.5))
    await world.wait_latch("acct", latch, "mail")
    assert effects(world, "acct") == []
    await world.release("acct", latch, "mail")
    await eventually(lambda: len(effects(world, "acct")) == 1)
    await eventually(lambda: any(line["kind"] == "answer_failed" for line in world.journal()))


async def test_a_mail_dropped_at_arrived_has_no_effect_and_looks_the_same(world: World) -> None:
    dest = destination(world, "acct", "mail")
    latch = await world.latch("acct", "arrived", "mail")
    sending = asyncio.create_task(dest.send(make_call(dest.contract, MAIL)))
    await world.wait_latch("acct", latch, "mail")
    await world.release("acct", latch, "mail", action="drop")
    with pytest.raises(Unknown):
        await sending
    assert effects(world, "acct") == []


async def test_a_refused_recipient_is_final(world: World) -> None:
    await world.configure("acct", "mail", decline=["jo@example.org"])
    dest = destination(world, "acct", "mail")
    with pytest.raises(Refused):
        await dest.send(make_call(dest.contract, MAIL))


async def test_a_fenced_mail_writes_no_byte_of_the_message(world: World) -> None:
    dest = destination(world, "acct", "mail")
    with pytest.raises(SendFenced):
        await dest.send(make_call(dest.contract, MAIL, window=Window(SendFenced("late"))))
    incomplete = await eventually(lambda: [x for x in world.journal() if x["kind"] == "request_incomplete"])
    assert incomplete and effects(world, "acct") == []


@asynccontextmanager
async def stub(
    script: list[tuple[bytes, bytes]], greeting: bytes = b"220 hi\r\n", starttls: bool = False
) -> AsyncIterator[tuple[Destination, bytearray]]:
    """A relay that answers each expected prefix with fixed bytes; empty bytes close the connection."""
    received = bytearray()
    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        writer.write(greeting)
        for prefix, answer in script:
            while True:
                line = await reader.readline()
                received.extend(line)
                if not line or line.startswith(prefix):
                    break
            if not line or not answer:
                break
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = SmtpSettings("127.0.0.1", port, "acct@example.org", starttls=starttls)
    dest = mail_destination(mail_contract("mail", "acct"), settings)
    async with server:
        yield dest, received
        await asyncio.gather(*(task for task in served if task is not None))


OK = b"250 ok\r\n"
TO_DATA = [(b"EHLO", b"250-hi\r\n250 8BITMIME\r\n"), (b"MAIL", OK), (b"RCPT", OK), (b"DATA", b"354 go\r\n")]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
async def test_closed_before_data_is_provably_not_sent(steps: int) -> None:
    script = [*TO_DATA[:steps], (TO_DATA[steps][0], b"")]
    async with stub(script) as (dest, received):
        window = Window()
        with pytest.raises(NotSent):
            await dest.send(make_call(dest.contract, MAIL, window=window))
        assert window.events == []
        assert b"\r\n.\r\n" not in received


async def test_nobody_listening_is_not_sent() -> None:
    async with stub([]) as (dest, _):
        pass
    with pytest.raises(NotSent):
        await dest.send(make_call(dest.contract, MAIL))


@pytest.mark.parametrize(
    ("reply", "error"), [(b"451 later\r\n", NotAccepted), (b"554 never\r\n", Refused), (b"199 what\r\n", Unknown)]
)
async def test_the_reply_to_the_dot_decides(reply: bytes, error: type[Exception]) -> None:
    async with stub([*TO_DATA, (b".\r\n", reply)]) as (dest, received):
        with pytest.raises(error):
            await dest.send(make_call(dest.contract, MAIL))
        assert received.count(b"\r\n..\r\n") == 1  # dot-stuffed: a dot of the text does not end the mail
        assert received.endswith(b"\r\n.\r\n")


async def test_a_reply_that_comes_with_the_354_is_not_the_reply_to_the_dot() -> None:
    """It was there before the dot was written: it proves nothing, and the dot is left out."""
    early = [*TO_DATA[:3], (b"DATA", b"354 go\r\n250 2.0.0 queued as nothing\r\n"), (b".\r\n", b"")]
    async with stub(early) as (dest, received):
        with pytest.raises(Unknown, match="before the final dot"):
            await dest.send(make_call(dest.contract, MAIL))
        await eventually(lambda: b"X-Operation-Id" in received)
        assert not received.endswith(b"\r\n.\r\n")


@pytest.mark.parametrize("step", [0, 1, 2])
async def test_a_reply_to_what_was_not_asked_yet_ends_the_talk_before_the_message(step: int) -> None:
    script = list(TO_DATA)
    script[step] = (script[step][0], script[step][1] + OK)
    async with stub([*script, (b".\r\n", b"451 later\r\n")]) as (dest, received):
        with pytest.raises(NotSent, match="before anything was asked"):
            await dest.send(make_call(dest.contract, MAIL))
        assert b"X-Operation-Id" not in received


async def test_what_a_relay_says_in_the_clear_after_starttls_is_not_read_as_said_under_tls() -> None:
    script = [(b"EHLO", b"250 STARTTLS\r\n"), (b"STARTTLS", b"220 go\r\n250 injected\r\n")]
    async with stub(script, starttls=True) as (dest, _):
        with pytest.raises(NotSent, match="before anything was asked"):
            await dest.send(make_call(dest.contract, MAIL))


async def test_an_address_cannot_smuggle_a_command() -> None:
    async with stub(TO_DATA) as (dest, received):
        with pytest.raises(PayloadError):
            await dest.send(make_call(dest.contract, MAIL | {"to": "a@b.org>\r\nDATA"}))
        assert received == b""


async def test_a_relay_that_quotes_the_login_is_not_quoted() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"502 unknown command: " + await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        talk = await _Talk.open(SmtpSettings("127.0.0.1", server.sockets[0].getsockname()[1], sender="a@b"), 1.0)
        with pytest.raises(NotAccepted) as refused:
            await talk.ask("AUTH PLAIN s3cret", "op1", 235, secret=True)
        talk.close()
    assert "s3cret" not in str(refused.value)
