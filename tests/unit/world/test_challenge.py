"""A drill touches only what proves that it belongs to its run."""

from __future__ import annotations

import asyncio

import pytest

from actonce.testing.challenge import NotControlled, prove_controlled
from drills.world.client import World
from tests.unit.world.helpers import SECRET


async def test_every_listener_proves_itself_and_the_journal_says_so(world: World) -> None:
    await world.prove_controlled(SECRET)
    proven = {line["listener"] for line in world.journal() if line["kind"] == "challenge"}
    assert proven == set(world.listeners)


@pytest.mark.parametrize("listener", ["payments.write", "mail"])
async def test_another_secret_or_run_is_refused(world: World, listener: str) -> None:
    url = world.listeners[listener]
    with pytest.raises(NotControlled):
        await prove_controlled(url, world.run_id, "another secret")
    with pytest.raises(NotControlled):
        await prove_controlled(url, "another-run", SECRET)


@pytest.mark.parametrize("scheme", ["http", "smtp"])
async def test_a_destination_that_knows_no_challenge_is_not_controlled(scheme: str) -> None:
    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n" if scheme == "smtp" else b"")
        await reader.readline()
        writer.write(b"500 what\r\n" if scheme == "smtp" else b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(stranger, "127.0.0.1", 0)
    async with server:
        with pytest.raises(NotControlled):
            await prove_controlled(f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}", "run", SECRET)


async def test_nobody_listening_is_not_controlled() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    with pytest.raises(NotControlled):
        await prove_controlled(f"http://127.0.0.1:{port}", "run", SECRET)
