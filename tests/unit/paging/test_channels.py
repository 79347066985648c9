"""Channels take a page or say why not; none shows its credential."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from actonce.paging.channels import BrokenChannel, ChannelError, Message, open_channels
from actonce.testing.sink import Sink

# Apprise's own import, on Python 3.11 and 3.12.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

MESSAGE = Message(7, "refund is held", "Do: python -m actonce.client show op1_x", {"reason": "not_visible"})


async def test_page_reaches_an_http_channel_whole() -> None:
    async with Sink() as sink:
        [channel] = open_channels([sink.url("oncall")])
        await channel.send(MESSAGE)
        [page] = sink.of("oncall")
        assert (page.title, page.text) == (MESSAGE.title, MESSAGE.body)


async def test_refusal_says_what_the_other_end_said() -> None:
    async with Sink(fail=True) as sink:
        [channel] = open_channels([sink.url("oncall")])
        with pytest.raises(ChannelError, match="503"):
            await channel.send(MESSAGE)


async def test_file_channel_appends_lines(tmp_path: Path) -> None:
    [channel] = open_channels([f"actonce-file://{tmp_path}/pages%20of%20today.jsonl"])
    await channel.send(MESSAGE)
    await channel.send(MESSAGE)
    lines = [json.loads(line) for line in (tmp_path / "pages of today.jsonl").read_text().splitlines()]
    assert [(line["page_id"], line["title"], line["reason"]) for line in lines] == [
        (7, "refund is held", "not_visible")
    ] * 2


async def test_file_channel_in_a_folder_that_is_not_there_says_so(tmp_path: Path) -> None:
    [channel] = open_channels([f"actonce-file://{tmp_path}/none/pages.jsonl"])
    with pytest.raises(ChannelError, match="No such file"):
        await channel.send(MESSAGE)


@pytest.mark.parametrize("url", ["nonsense", "noscheme://x", "actonce-file://host/path", "actonce-file:///", ""])
async def test_url_that_names_no_channel_is_a_channel_that_fails(url: str) -> None:
    [channel] = open_channels([url])
    assert isinstance(channel, BrokenChannel)
    with pytest.raises(ChannelError):
        await channel.send(MESSAGE)


def test_name_never_shows_a_credential() -> None:
    """case c12"""
    names = [
        c.name for c in open_channels(["json://user:hush-1@127.0.0.1:1/x", "discord://hush-1234567/hush-abcdefgh"])
    ]
    assert len(set(names)) == 2 and not any("hush-" in name for name in names)


def test_one_channel_twice_is_said() -> None:
    first, second = open_channels(["json://127.0.0.1:1/x", "json://127.0.0.1:1/x"])
    assert first.name != second.name and isinstance(second, BrokenChannel)


async def test_hanging_channel_gets_nothing_more_until_it_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says a word
        [channel] = open_channels([f"json://127.0.0.1:{silent.getsockname()[1]}/?rto=1.0"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await channel.send(MESSAGE)
        with pytest.raises(ChannelError, match="still busy"):
            await channel.send(MESSAGE)
