"""Every due page goes to every channel; channels fail apart; what each said is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actonce.paging import ChannelError, Pager, PagingSettings
from actonce.paging.channels import Message


@dataclass
class Box:
    """A page box in memory that keeps the rule: sent once one channel took it."""

    pages: list[dict[str, Any]]
    told: dict[str, tuple[str, str]] = field(default_factory=dict)

    async def due(self, channels: Sequence[str], repeat_s: float) -> list[dict[str, Any]]:
        return [
            {**p, "delivery": dict(p["delivery"]), "everywhere": p["sent_at"] is None}
            for p in self.pages
            if p["sent_at"] is None or any(p["delivery"].get(c) != "ok" for c in channels)
        ]

    async def sent(self, page: Mapping[str, Any], channel: str, said: str) -> None:
        [row] = [p for p in self.pages if p["page_id"] == page["page_id"]]
        row["delivery"][channel] = said
        row["sent_at"] = "now" if said == "ok" else row["sent_at"]

    async def tell(self, name: str, state: str, detail: str) -> None:
        self.told[name] = (state, detail)


@dataclass
class Tongue:
    """A channel that does what it is told."""

    name: str
    how: str = "ok"
    got: list[Message] = field(default_factory=list)

    async def send(self, message: Message) -> None:
        if self.how == "hangs":
            await asyncio.Event().wait()
        if self.how == "fails":
            raise ChannelError("the line is dead")
        if self.how == "breaks":
            raise ZeroDivisionError("a plugin's own bug")
        self.got.append(message)


def page(number: int) -> dict[str, Any]:
    return {
        "page_id": number,
        "title": f"page {number}",
        "body": "Do: …",
        "delivery": {},
        "sent_at": None,
        "closed_at": None,
        "reason": "not_visible",
    }


QUICK = PagingSettings(page_urls=(), page_deadline_s=0.1, page_retry_s=0.05, entry_url="http://entry")


async def test_channels_that_fail_hang_or_break_stop_no_other_one() -> None:
    box = Box([page(1), page(2)])
    good = Tongue("good")
    pager = Pager(box, QUICK, [Tongue("bad", "fails"), Tongue("slow", "hangs"), Tongue("odd", "breaks"), good])
    began = time.monotonic()
    assert await pager.deliver_once() == 2
    assert time.monotonic() - began < 5
    assert [m.title for m in good.got] == ["page 1", "page 2"]
    assert box.pages[0]["delivery"] == {
        "bad": "the line is dead",
        "slow": "no answer within 0.1 s",
        "odd": "ZeroDivisionError: a plugin's own bug",
        "good": "ok",
    }
    assert box.told["paging"] == ("degraded", "1 of 4 channels took their last page")
    assert box.told["page:bad"] == ("down", "the line is dead")


async def test_failed_channel_gets_the_page_when_it_is_back_and_the_others_not_again() -> None:
    box, good, bad = Box([page(1)]), Tongue("good"), Tongue("bad", "fails")
    pager = Pager(box, QUICK, [good, bad])
    await pager.deliver_once()
    bad.how = "ok"
    while not bad.got:
        await pager.deliver_once()
        await asyncio.sleep(0.01)
    assert (len(good.got), len(bad.got)) == (1, 1)
    assert box.told["paging"][0] == "up"


async def test_failed_channel_is_left_alone_for_a_while() -> None:
    box, bad = Box([page(1)]), Tongue("bad", "fails")
    pager = Pager(box, PagingSettings(page_retry_s=60), [bad])
    await pager.deliver_once()
    bad.how = "ok"
    await pager.deliver_once()
    assert bad.got == []


async def test_no_channel_and_no_working_channel_are_down() -> None:
    box = Box([page(1)])
    await Pager(box, QUICK, []).deliver_once()
    assert box.told["paging"][0] == "down" and "ACTONCE_PAGE_URLS" in box.told["paging"][1]
    await Pager(box, QUICK, [Tongue("bad", "fails")]).deliver_once()
    assert box.told["paging"] == ("down", "0 of 1 channels took their last page")
    assert box.pages[0]["sent_at"] is None


async def test_channel_that_was_never_used_is_not_said_to_be_up() -> None:
    box = Box([])
    await Pager(box, QUICK, [Tongue("good")]).deliver_once()
    assert box.told["paging"][0] == box.told["page:good"][0] == "unknown"


async def test_page_tells_how_to_acknowledge_it_and_where_the_entry_is() -> None:
    box, good = Box([page(4)]), Tongue("good")
    await Pager(box, QUICK, [good]).deliver_once()
    assert "python client.py ack 4 --name YOU" in good.got[0].body
    assert "http://entry" in good.got[0].body
