"""Every due page goes to every channel; channels fail apart; what each said is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from actonce.paging import ChannelError, Pager, PagingSettings
from actonce.paging.channels import Message
from actonce.paging.pager import open_settings


@dataclass
class Box:
    """A page box in memory that keeps the rule: sent once one channel took it."""

    pages: list[dict[str, Any]]
    told: dict[str, tuple[str, str]] = field(default_factory=dict)

    async def due(self, channels: Mapping[str, Sequence[str]], repeat_s: float) -> list[dict[str, Any]]:
        return [
            {**p, "delivery": dict(p["delivery"]), "everywhere": p["sent_at"] is None}
            for p in self.pages
            if p["sent_at"] is None or any(p["delivery"].get(c) != "ok" for c in channels[p["severity"]])
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


def page(number: int, severity: str = "page") -> dict[str, Any]:
    return {
        "page_id": number,
        "severity": severity,
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
    assert "python -m actonce.client ack 4 --name YOU" in good.got[0].body
    assert "http://entry" in good.got[0].body


@pytest.mark.parametrize(
    ("about", "path"),
    [
        ({"operation_id": "op1_a b", "task_id": "t/refund/1"}, "/operations/op1_a%20b"),
        ({"operation_id": None, "task_id": "t/refund/1"}, "/tasks/t%2Frefund%2F1"),
        ({}, "/alerts"),
    ],
)
async def test_page_links_to_what_it_is_about_where_there_is_a_console(about: dict[str, Any], path: str) -> None:
    box, with_, without = Box([page(4) | about]), Tongue("with"), Tongue("without")
    settings = PagingSettings(page_urls=(), console_url="https://ops.example/")
    await Pager(box, settings, [with_]).deliver_once()
    assert f"Console: https://ops.example{path}\n" in with_.got[0].body
    await Pager(Box([page(4) | about]), QUICK, [without]).deliver_once()
    assert "Console:" not in without.got[0].body


async def test_channel_that_hangs_keeps_no_later_page_from_the_others() -> None:
    box, good, slow = Box([page(1)]), Tongue("good"), Tongue("slow", "hangs")
    pager = Pager(box, PagingSettings(page_deadline_s=60), [slow, good])
    began = time.monotonic()
    assert await pager.deliver_once() == 1
    box.pages.append(page(2))
    assert await pager.deliver_once() == 1
    assert time.monotonic() - began < 20  # the hanging one has 60 s
    assert [m.title for m in good.got] == ["page 1", "page 2"]
    [task] = pager._busy.values()  # and it is not asked a second time meanwhile
    task.cancel()


async def test_warning_goes_to_channels_that_want_it_and_to_no_other() -> None:
    box = Box([page(1), page(2, "warning")])
    night, day, both = Tongue("night"), Tongue("day"), Tongue("both")
    pager = Pager(box, QUICK, [night, both], [day, both])
    await pager.deliver_once()
    assert {c.name: [m.page_id for m in c.got] for c in (night, day, both)} == {
        "night": [1],
        "day": [2],
        "both": [1, 2],
    }
    assert box.told["paging"] == ("up", "2 of 2 channels took their last page")


async def test_channels_for_warnings_alone_call_nobody_at_night() -> None:
    box = Box([page(2, "warning")])
    await Pager(box, QUICK, [], [Tongue("day")]).deliver_once()
    assert box.told["paging"][0] == "down" and box.told["page:day"][0] == "up"


def test_url_in_both_lists_is_one_channel(tmp_path: Path) -> None:
    one, two, three = (f"actonce-file://{tmp_path}/{n}" for n in "abc")
    settings = PagingSettings(page_urls=(one, two), page_warning_urls=(two, three))
    pages, warnings = open_settings(settings)
    assert [c.name for c in pages] == [one, two] and [c.name for c in warnings] == [two, three]
    assert warnings[0] is pages[1]
