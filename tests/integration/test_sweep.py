"""The sweep of a restored ledger, both ways: what it finds, that it adds up, and that it may die anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from actonce.contracts.errors import RestoreRefused
from actonce.contracts.identity import derive_operation_id
from actonce.contracts.messages import IssueResult, OperationRequest
from actonce.destinations.base import Destination
from actonce.effects.reconcile import settle_step
from actonce.effects.sweep import sweep
from actonce.effects.system import System
from actonce.ledger import quarantine as release_of
from actonce.ledger import tasks
from actonce.ledger.audit_facts import check_facts
from actonce.ledger.migrate import migrate
from actonce.ledger.records import snapshot
from actonce.ledger.restoring import Restore
from actonce.ledger.store import Ledger
from actonce.ledger.sweeping import Sweep, Totals
from tests.integration.odd_bench import key_of, request
from tests.integration.restore_bench import (
    LISTABLE,
    Crash,
    Shelf,
    copy_of,
    now_of,
    past_bounds,
    process,
    quarantine,
    rows,
    run_sql,
    send,
)

DIGEST = LISTABLE.digest_of("do", {"amount": 1})


def id_of(number: int) -> str:
    return key_of(request(number)).operation_id


async def lost_interval(
    dsn: str, shelf: Shelf, before: Sequence[int] = (), after: Sequence[int] = ()
) -> tuple[str, Restore]:
    """Send some, back up, send more, restore: the DSN of the restored ledger, its bounds passed."""
    migrate(dsn)
    async with process(dsn, shelf.destination()) as system:
        for number in before:
            await send(system, request(number))
    boundary, restored = await now_of(dsn), await copy_of(dsn)
    async with process(dsn, shelf.destination()) as system:
        for number in after:
            await send(system, request(number))
    restore = await quarantine(restored, boundary)
    await past_bounds(restored, restore)
    return restored, restore


async def swept(dsn: str, *destinations: Destination, without: Sequence[str] = ()) -> Sweep:
    async with process(dsn, *destinations) as system:
        return await sweep(system, without=without)


async def facts(dsn: str) -> list[Any]:
    async with Ledger(dsn) as ledger, snapshot(ledger) as connection:
        return [finding async for finding in check_facts(connection)]


async def test_what_was_sent_in_the_lost_interval_is_adopted_and_not_sent_again(fresh_dsn: str) -> None:
    shelf = Shelf()
    restored, _ = await lost_interval(fresh_dsn, shelf, before=[1], after=[2, 3])
    done = await swept(restored, shelf.destination())
    assert done.totals == [Totals("odd", 1, 0, 0, 2, 2, 0, ledger_side=1, destination_side=3)]
    adopted = [o for o in await rows(restored, "operation") if o["completion"] == "adopted"]
    assert {o["operation_id"] for o in adopted} == {id_of(2), id_of(3)}
    assert {(o["state"], o["attempts"], o["payload_digest"]) for o in adopted} == {("committed", 0, DIGEST)}
    assert [r["destination"] for r in await rows(restored, "restore_listed")] == ["odd"]
    async with process(restored, shelf.destination()) as system:
        await release_of.release(system.ledger, "resumable", expected_epoch=2, name="ada", reason="compared")
        await release_of.close(system.ledger, expected_epoch=2, name="ada", reason="all is known")
        again = await send(system, request(2))
        assert again.status != "committed" or again.how.startswith("not sent")
        await send(system, request(4))
    assert shelf.sent.count(id_of(2)) == 1 and shelf.sent.count(id_of(4)) == 1
    assert await facts(restored) == []


async def test_without_the_way_from_the_destination_the_same_effect_is_made_twice(fresh_dsn: str) -> None:
    """The control: the sweep leaves this destination out, and its person closes the restore all the same."""
    shelf = Shelf()
    restored, _ = await lost_interval(fresh_dsn, shelf, after=[2])
    done = await swept(restored, shelf.destination(), without=["odd"])
    assert done.not_swept == {"odd": "left out on purpose (--without)"} and done.totals == []
    async with process(restored, shelf.destination()) as system:
        await release_of.release(system.ledger, "resumable", expected_epoch=2, name="ada", reason="in a hurry")
        closed = await release_of.close(system.ledger, expected_epoch=2, name="ada", reason="in a hurry")
        assert closed.close_risk is not None and "not listed completely: odd" in closed.close_risk
        await send(system, request(2))
    assert shelf.sent == [id_of(2), id_of(2)]


async def test_every_kind_of_difference_is_named_and_both_sides_add_up(fresh_dsn: str) -> None:
    shelf = Shelf(page_size=2)
    migrate(fresh_dsn)
    async with process(fresh_dsn, shelf.destination()) as system:
        for number in range(1, 6):
            await send(system, request(number))
        shelf.loses_answers = True
        await send(system, request(6))  # nobody knows, at the boundary
        shelf.loses_answers = False
    gone = shelf.things.pop(0)  # the destination does not show the first any more
    assert gone.marker == id_of(1)
    boundary, restored = await now_of(fresh_dsn), await copy_of(fresh_dsn)
    shelf.things[0] = shelf.things[0].model_copy(update={"digest": "d1:edited"})  # of 2
    shelf.put(id_of(3), DIGEST)  # a second object of 3
    shelf.put(id_of(7), DIGEST)  # sent in the lost interval
    shelf.put(id_of(8), DIGEST, by_us=False)
    shelf.put(id_of(9), None)
    shelf.put("no-key-of-ours", DIGEST)
    shelf.put(id_of(10), DIGEST, account="other")
    shelf.put(id_of(11), DIGEST, kind="note")  # no effect
    shelf.put(id_of(12), DIGEST, own_field=False)  # somebody's words
    restore = await quarantine(restored, boundary)
    await past_bounds(restored, restore)
    done = await swept(restored, shelf.destination())
    assert done.totals == [
        Totals(
            "odd",
            matched=3,  # 4, 5 and 6, which was reconciled
            ledger_only=1,
            ledger_only_committed=1,
            destination_only=5,
            adopted=1,
            conflict=2,
            ledger_side=6,
            destination_side=10,
        )
    ]
    found = {e["marker"]: e["words"] for e in await rows(restored, "restore_effect") if e["outcome"] != "matched"}
    assert "digest" in found[id_of(2)] and found[id_of(3)] == "2 objects carry its key"
    assert found[id_of(7)] == "adopted" and "principal" in found[id_of(8)] and "computed" in found[id_of(9)]
    assert "none that this system makes" in found["no-key-of-ours"] and "in account other" in found[id_of(10)]
    assert await rows(restored, "restore_listed") == [], "a destination with a conflict has not shown everything"
    again = await swept(restored, shelf.destination())
    assert (again.run, again.totals) == (2, done.totals)
    assert await facts(restored) == []


async def test_totals_that_do_not_add_up_end_no_sweep(fresh_dsn: str) -> None:
    """The control of the balance: two records of one operation_id at one destination are counted on one side only."""
    shelf = Shelf()
    restored, _ = await lost_interval(fresh_dsn, shelf, before=[1])
    await run_sql(
        restored,
        "CREATE TEMP TABLE o AS SELECT * FROM actonce.operation; UPDATE o SET action = 'other';"
        " INSERT INTO actonce.operation SELECT * FROM o",
    )
    with pytest.raises(RestoreRefused, match="do not add up"):
        await swept(restored, shelf.destination())
    assert [s["done_at"] for s in await rows(restored, "sweep")] == [None]


async def test_a_sweep_that_dies_at_any_page_goes_on_where_it_stood(fresh_dsn: str) -> None:
    shelf = Shelf(page_size=3)
    restored, _ = await lost_interval(fresh_dsn, shelf, before=[1, 2], after=[3, 4, 5, 6, 7])
    pages = 3 * 2  # of seven objects, on two routes
    for number in range(pages):
        shelf.crash_at = number  # each page that was answered before is in the ledger, and not asked for again
        with pytest.raises(Crash):
            await swept(restored, shelf.destination())
        shelf.pages_read = number
    shelf.crash_at = None
    done = await swept(restored, shelf.destination())
    assert (done.run, shelf.pages_read) == (1, pages)
    assert done.totals == [Totals("odd", 2, 0, 0, 5, 5, 0, ledger_side=2, destination_side=7)]


async def test_a_route_that_gives_no_answer_keeps_the_sweep_open_until_it_does(fresh_dsn: str) -> None:
    shelf = Shelf(page_size=2)
    restored, _ = await lost_interval(fresh_dsn, shelf, after=[1, 2, 3])
    shelf.down = {1}
    with pytest.raises(RestoreRefused, match="odd list: RouteUnavailable") as refused:
        await swept(restored, shelf.destination())
    assert refused.value.code == "incomplete"
    assert [r["swept_at"] for r in await rows(restored, "restore")] == [None]
    done = await swept(restored, shelf.destination())
    assert done.run == 1 and done.totals[0].adopted == 3


async def test_it_does_not_begin_before_the_bounds_have_passed_nor_without_a_restore(fresh_dsn: str) -> None:
    shelf = Shelf()
    migrate(fresh_dsn)
    with pytest.raises(RestoreRefused, match="no restore is open"):
        await swept(fresh_dsn, shelf.destination())
    await quarantine(fresh_dsn, await now_of(fresh_dsn))
    with pytest.raises(RestoreRefused, match="may begin at") as refused:
        await swept(fresh_dsn, shelf.destination())
    assert refused.value.code == "too_early" and shelf.pages_read == 0


async def test_a_destination_that_cannot_list_is_named_as_not_swept(fresh_dsn: str) -> None:
    shelf = Shelf()
    restored, _ = await lost_interval(fresh_dsn, shelf, after=[1])
    mute = Destination(LISTABLE, send=shelf.send, routes={r.name: shelf.read for r in LISTABLE.routes})
    done = await swept(restored, mute)
    assert done.not_swept == {"odd": "no route of it can list what is ours"} and done.totals == []
    assert await rows(restored, "restore_listed") == []


async def test_some_thousands_are_swept_page_by_page(fresh_dsn: str) -> None:
    shelf = Shelf(page_size=250)
    restored, _ = await lost_interval(fresh_dsn, shelf)
    for number in range(3000):
        shelf.put(derive_operation_id("t", f"t/odd/lost-{number}", "only", 0), DIGEST)
    done = await swept(restored, shelf.destination())
    assert done.totals == [Totals("odd", 0, 0, 0, 3000, 3000, 0, ledger_side=0, destination_side=3000)]
    assert [r["pages"] for r in await rows(restored, "sweep_route")] == [12, 12]


# release --------------------------------------------------------------------------------------------------------------


async def with_tasks(dsn: str, shelf: Shelf) -> tuple[str, dict[str, str]]:
    """At the boundary: a task that has done everything, one that has not begun, and one whose outcome nobody knows."""
    migrate(dsn)
    ids: dict[str, str] = {}
    async with process(dsn, shelf.destination()) as system:
        for name in ("settled", "resumable", "held"):
            task, _ = await tasks.accept(system.ledger, "t", "odd", name, {"n": name})
            ids[name] = task.task_id
        await send(system, request(task_id=ids["settled"]))
        shelf.loses_answers = True
        await send(system, request(task_id=ids["held"]))
        shelf.loses_answers = False
    shelf.put(key_of(request(task_id=ids["held"])).operation_id, DIGEST)  # two objects: only a person explains that
    boundary, restored = await now_of(dsn), await copy_of(dsn)
    restore = await quarantine(restored, boundary)
    await past_bounds(restored, restore)
    return restored, ids


async def issue(system: System, asked: OperationRequest) -> IssueResult:
    """Ask for it as its workflow does: a first send of an open restore is read for before."""
    result = await send(system, asked)
    if result.status == "unknown":
        assert (await settle_step(system, key_of(asked))).verdict == "absent"
        result = await send(system, asked)
    return result


async def test_release_is_a_persons_act_for_each_group_after_the_sweep(fresh_dsn: str) -> None:
    shelf = Shelf()
    restored, ids = await with_tasks(fresh_dsn, shelf)
    told = {"name": "ada", "reason": "compared", "expected_epoch": 2}
    begin = request(task_id=ids["resumable"])
    async with process(restored, shelf.destination()) as system:
        ledger = system.ledger
        with pytest.raises(RestoreRefused) as early:
            await release_of.release(ledger, "resumable", **told)
        assert early.value.code == "not_swept" and (await ledger.identity())[2] is True
        await sweep(system)
        assert (await release_of.standing(ledger)).waiting == {"settled": 1, "resumable": 1, "held": 1}
        with pytest.raises(RestoreRefused) as stale:
            await release_of.release(ledger, "resumable", **{**told, "expected_epoch": 1})
        assert stale.value.code == "stale" and (await ledger.identity())[2] is True

        settled = await release_of.release(ledger, "settled", **told, press="p1")
        assert (settled.tasks, settled.again) == (1, False) and (await ledger.identity())[2] is False
        again = await release_of.release(ledger, "settled", **told, press="p1")
        assert (again.release_id, again.tasks, again.again) == (settled.release_id, 1, True)
        with pytest.raises(RestoreRefused) as reused:
            await release_of.release(ledger, "held", **told, press="p1")
        assert reused.value.code == "press_reused"

        sent = len(shelf.sent)
        refused = await issue(system, begin)
        assert refused.how.startswith("not sent") and len(shelf.sent) == sent, "its group was not released"
        with pytest.raises(RestoreRefused) as waits:
            await release_of.close(ledger, **told)
        assert waits.value.code == "quarantined"
        await release_of.release(ledger, "resumable", **told, press="p2")
        await issue(system, begin)
        assert len(shelf.sent) == sent + 1
        await release_of.release(ledger, "held", **told, press="p3")
        closed = await release_of.close(ledger, **told)
        assert closed.closed_by == "ada" and await release_of.close(ledger, **told) == closed
        states = {t["task_id"]: t["state"] for t in await rows(restored, "task")}
        assert states[ids["held"]] == "held"
    assert await facts(restored) == []


async def test_without_the_tasks_own_quarantine_it_sends_before_its_group_is_released(fresh_dsn: str) -> None:
    """The control: the mark on the task is what refuses it after another group was released."""
    shelf = Shelf()
    restored, ids = await with_tasks(fresh_dsn, shelf)
    async with process(restored, shelf.destination()) as system:
        await sweep(system)
        await release_of.release(system.ledger, "settled", name="ada", reason="compared", expected_epoch=2)
        sent = len(shelf.sent)
        await run_sql(restored, "UPDATE actonce.task SET quarantined_epoch = NULL")
        await issue(system, request(task_id=ids["resumable"]))
        assert len(shelf.sent) == sent + 1
