"""People are called while the ledger itself is away: directly, once per outage, repeated, closed when it is back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

import pytest

from actonce.contracts.errors import LedgerUnavailable
from actonce.paging import LedgerAlarm, PagingSettings
from actonce.testing.waiting import eventually
from tests.unit.paging.test_pager import Tongue

FULL = "could not extend file: No space left on device (the ledger did not answer)"


class Records:
    def __init__(self) -> None:
        self.rows: list[tuple[datetime, str]] = []
        self.refuses = False

    async def __call__(self, since: datetime, why: str) -> None:
        if self.refuses:
            raise LedgerUnavailable("not yet")
        self.rows.append((since, why))


async def away() -> None:
    raise LedgerUnavailable(FULL)


async def fine() -> None:
    return None


def alarm(*channels: Tongue, after_s: float = 0.0, repeat_s: float = 900.0) -> LedgerAlarm:
    return LedgerAlarm(channels, PagingSettings(page_repeat_s=repeat_s, page_deadline_s=0.1), after_s)


async def test_outage_is_told_once_over_every_channel_with_the_ledgers_own_words() -> None:
    one, two, records = Tongue("one"), Tongue("two"), Records()
    duty = alarm(one, two)
    for _ in range(5):
        await duty.look(away, records)
    assert len(one.got) == len(two.got) == 1
    message = one.got[0]
    assert FULL in message.body and "docs/operations/ledger_unavailable.md" in message.body
    assert (message.facts["reason"], message.facts["severity"]) == ("ledger_unavailable", "page")
    assert records.rows == []


async def test_short_outage_calls_nobody_and_leaves_no_record() -> None:
    one, records = Tongue("one"), Records()
    duty = alarm(one, after_s=60)
    await duty.look(away, records)
    await duty.look(fine, records)
    assert one.got == [] and records.rows == []


async def test_outage_is_repeated_while_it_lasts_and_put_on_record_when_it_is_over() -> None:
    one, records = Tongue("one"), Records()
    duty = alarm(one, repeat_s=0.01)
    await eventually(lambda: looked(duty, records, lambda: len(one.got) >= 3), within_s=5, what="two repetitions")
    records.refuses = True
    with pytest.raises(LedgerUnavailable):
        await duty.look(fine, records)
    records.refuses = False
    await duty.look(fine, records)
    await duty.look(fine, records)
    assert [why for _, why in records.rows] == [FULL]


async def looked(duty: LedgerAlarm, records: Records, done: Callable[[], bool]) -> bool:
    await duty.look(away, records)
    return done()


async def test_second_outage_is_a_second_incident() -> None:
    one, records = Tongue("one"), Records()
    duty = alarm(one)
    for state in (away, fine, away, fine):
        act: Callable[[], Awaitable[None]] = state
        await duty.look(act, records)
    assert len(one.got) == len(records.rows) == 2


async def test_channel_that_fails_or_hangs_stops_no_other_one_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actonce.paging.alarm._AGAIN_S", 0.01)
    good, bad, slow, records = Tongue("good"), Tongue("bad", "fails"), Tongue("slow", "hangs"), Records()
    duty = alarm(good, bad, slow)
    await duty.look(away, records)
    assert len(good.got) == 1
    bad.how = slow.how = "ok"
    await eventually(lambda: looked(duty, records, lambda: bool(bad.got and slow.got)), within_s=5, what="both got it")
    assert len(good.got) == 1
