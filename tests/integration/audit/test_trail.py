"""The chain in a real ledger: gapless, in causal order, complete; and every way to spoil it is found."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path

import psycopg
import pytest

from actonce.audit import AuditSettings, FileSink, Shipper, read_folder
from actonce.audit.files import files_of
from actonce.contracts.audit import End, Event, parse, seal
from actonce.ledger import audit_chain, listing, records, watch
from actonce.ledger.audit_facts import REQUIRED
from actonce.ledger.restoring import Boundary, enter_quarantine
from actonce.ledger.store import Ledger, audit, one
from actonce.trail import AuditKeeper, LedgerJournal, Report, verify
from actonce.trail.journal import report_lag
from tests.integration.audit.work import work


async def seal_all(ledger: Ledger) -> int:
    return sum([n async for n in _turns(ledger)])


async def _turns(ledger: Ledger) -> AsyncIterator[int]:
    while n := await audit_chain.seal_once(ledger):
        yield n


async def kinds(ledger: Ledger) -> set[str]:
    async with ledger.transaction() as connection:
        cursor = await connection.execute("SELECT DISTINCT kind FROM actonce.audit")
        return {row["kind"] for row in await cursor.fetchall()}


async def ship_all(ledger: Ledger, folder: Path, bytes_max: int = 2000) -> None:
    sink = FileSink(folder, bytes_max)
    shipper = Shipper(LedgerJournal(ledger), sink, AuditSettings(batch_max=7))
    while await shipper.ship_once():
        pass
    sink.close()
    assert await audit_chain.cursor_of(ledger, sink.name) == (await audit_chain.chain_end(ledger)).seq


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings}


async def test_every_required_kind_is_written_and_the_whole_trail_verifies(ledger: Ledger, tmp_path: Path) -> None:
    await work(ledger)
    written = await kinds(ledger)
    of_a_restore = {"ledger.epoch", "restore.began", "restore.closed", "restore.swept", "restore.released"}
    others = {"task.<state>", "page.changed", "hold.reason"}
    assert {r.kind for r in REQUIRED if r.trigger} - of_a_restore - others <= written
    assert {"task.running", "task.held", "task.complete", "task.cancelled", "operation.permit"} <= written
    sealed = await seal_all(ledger)
    await ship_all(ledger, tmp_path)
    report = await verify(ledger.dsn, tmp_path)
    assert report.findings == []
    assert report.sealed == report.shipped == sealed == report.end.seq and report.unsealed == 0
    assert len(files_of(tmp_path)) > 2, "the folder was rotated"


async def test_restore_skips_numbers_and_the_trail_says_so(ledger: Ledger, tmp_path: Path) -> None:
    await work(ledger)
    sealed = await seal_all(ledger)
    async with ledger.transaction() as connection:  # not sealed yet; after the backup it may have been
        await audit(connection, "test.note", None, {})
        now = await one(connection, "SELECT clock_timestamp() AS now")
        assert now is not None
    async with ledger.transaction() as connection:
        await enter_quarantine(connection, Boundary(now["now"], highest={"audit_seq": 2_000_000}))
        await connection.execute("UPDATE actonce.restore SET closed_at = clock_timestamp(), closed_by = 'ann'")
    await seal_all(ledger)
    assert {"ledger.epoch", "restore.began", "restore.closed"} <= await kinds(ledger)
    await ship_all(ledger, tmp_path)
    report = await verify(ledger.dsn, tmp_path)
    assert report.findings == [] and report.restored == [(sealed, 2_000_001)]
    async with ledger.transaction() as connection:
        row = await one(connection, "SELECT min(seq) AS seq FROM actonce.audit WHERE kind = 'test.note'")
        assert row is not None and row["seq"] == 2_000_001


async def test_unsealed_events_are_counted_and_are_no_finding(ledger: Ledger) -> None:
    await work(ledger)
    report = await verify(ledger.dsn)
    assert report.findings == [] and report.sealed == 0 and report.unsealed > 20


async def test_numbers_have_no_gap_though_transactions_are_rolled_back(ledger: Ledger) -> None:
    async def note(number: int) -> None:
        async with ledger.transaction() as connection:
            await audit(connection, "test.note", None, {"number": number})
            if number % 3 == 0:
                raise RuntimeError("rolled back")

    async def sealing() -> None:
        for _ in range(20):
            await audit_chain.seal_once(ledger, 5)

    await asyncio.gather(*(note(n) for n in range(60)), *(sealing() for _ in range(3)), return_exceptions=True)
    await seal_all(ledger)
    events = await audit_chain.sealed_after(ledger, 0, 1000)
    notes = [json.loads(e.line) for e in events if e.kind == "test.note"]
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert sorted(n["body"]["number"] for n in notes) == [n for n in range(60) if n % 3]
    assert len({n["audit_id"] for n in notes}) == 40 < max(n["audit_id"] for n in notes), "the ids have gaps"
    assert (await verify(ledger.dsn)).findings == []


async def test_event_of_an_open_transaction_is_sealed_after_it_and_its_effects_still_later(ledger: Ledger) -> None:
    """The open transaction drew the lower id first; what depends on it comes after it all the same."""
    async with ledger.transaction() as early:
        await audit(early, "test.early", None, {})
        async with ledger.transaction() as other:
            await audit(other, "test.other", None, {})
        await seal_all(ledger)
    async with ledger.transaction() as late:
        await audit(late, "test.depends_on_early", None, {})
    await seal_all(ledger)
    order = [e.kind for e in await audit_chain.sealed_after(ledger, 0, 100) if e.kind.startswith("test.")]
    assert order == ["test.other", "test.early", "test.depends_on_early"]


async def test_only_one_sealer_works_at_a_time(ledger: Ledger) -> None:
    async with ledger.transaction() as connection:
        await audit(connection, "test.note", None, {})
    async with ledger.transaction() as holder:
        await holder.execute("SELECT pg_advisory_xact_lock(hashtext('actonce.audit.seal'))")
        assert await audit_chain.seal_once(ledger) == 0
    assert await audit_chain.seal_once(ledger) > 0


async def test_an_event_can_be_neither_changed_nor_sealed_twice(ledger: Ledger) -> None:
    await work(ledger)
    await seal_all(ledger)
    for change in ("body = '{}'", "kind = 'x'", "seq = seq + 1000", "hash = ''"):
        with pytest.raises(psycopg.errors.RaiseException, match="never changed"):
            async with ledger.transaction() as connection:
                await connection.execute(f"UPDATE actonce.audit SET {change} WHERE seq = 3")  # type: ignore[arg-type]


# What a superuser can do to the ledger, with triggers off, and the finding that names it.
SPOILED = {
    "a body is edited": ("UPDATE actonce.audit SET body = body || '{\"edited\": 1}' WHERE seq = 5", {"altered"}),
    "an event is deleted": ("DELETE FROM actonce.audit WHERE kind = 'decision.recorded'", {"gap", "event_missing"}),
    "two events change places": (
        "UPDATE actonce.audit SET seq = -seq WHERE seq IN (4, 5);"
        "UPDATE actonce.audit SET seq = 9 + seq WHERE seq IN (-4, -5)",
        {"broken_link", "altered"},
    ),
    "the end is cut off": ("DELETE FROM actonce.audit WHERE seq > 20", {"truncated", "event_missing", "event_differs"}),
    "an operation is moved without its event": (
        "UPDATE actonce.operation SET state = 'closed', version = version + 1 WHERE operation_id = 'op1_two'",
        {"event_missing"},
    ),
    "an operation is moved without its version": (
        "UPDATE actonce.operation SET state = 'closed' WHERE operation_id = 'op1_two'",
        {"event_differs"},
    ),
    "a decision is slipped in": (
        "INSERT INTO actonce.decision (tenant, destination, action, operation_id, decision, name, reason, evidence,"
        " expected_epoch, expected_version, expires_at) VALUES ('default', 'payments', 'refund', 'op1_one',"
        " 'mark_absent', 'mallory', 'r', 'e', 1, 1, now())",
        {"event_missing"},
    ),
    "a decision changes hands": ("UPDATE actonce.decision SET name = 'mallory'", {"event_differs"}),
    "a hold is closed quietly": (
        "UPDATE actonce.hold SET closed_by = 'nobody' WHERE operation_id = 'op1_two'",
        {"event_differs"},
    ),
    "an acknowledgement is taken away": ("DELETE FROM actonce.acknowledgement", {"event_without_fact"}),
    "an event tells of what never was": (
        "INSERT INTO actonce.audit (kind, body) VALUES ('page.closed', '{\"page_id\": 999}')",
        {"event_without_fact"},
    ),
    "a task is called complete": (
        "UPDATE actonce.task SET state = 'complete' WHERE task_key = 'held'",
        {"event_differs"},
    ),
    "an alert is silenced": ("UPDATE actonce.alert SET state = 'resolved' WHERE name = 'Fires'", {"event_differs"}),
    "an alert fires unheard": (
        "UPDATE actonce.alert SET state = 'firing', firings = 1 WHERE name = 'Waits'",
        {"event_missing", "event_differs"},
    ),
    "a hash is taken away": ("UPDATE actonce.audit SET hash = NULL WHERE seq = 5", {"altered", "broken_link"}),
    "the hash before it is taken away": (
        "UPDATE actonce.audit SET previous_hash = NULL WHERE seq = 5",
        {"altered", "broken_link"},
    ),
    "an approver changes hands": ("UPDATE actonce.approval_vote SET name = 'mallory'", {"event_differs"}),
    "an approver is slipped in": (
        "INSERT INTO actonce.approval_vote (approval_id, name, decision, effect, note)"
        " SELECT approval_id, 'mallory', 'approve', 'counted', '' FROM actonce.approval",
        {"event_missing"},
    ),
    "a trigger is switched off": ("ALTER TABLE actonce.hold DISABLE TRIGGER audit_hold_closed", {"trigger_off"}),
    "a trigger is dropped": ("DROP TRIGGER audit_change ON actonce.operation", {"trigger_off"}),
}


@pytest.mark.parametrize("spoil", SPOILED)
async def test_what_a_superuser_does_to_the_ledger_is_found(
    ledger: Ledger, superuser: psycopg.AsyncConnection, tmp_path: Path, spoil: str
) -> None:
    await work(ledger)
    await seal_all(ledger)
    await ship_all(ledger, tmp_path)
    statements, expected = SPOILED[spoil]
    for statement in statements.split(";"):
        await superuser.execute(statement)  # type: ignore[arg-type]
    assert codes(await verify(ledger.dsn)) == expected


async def test_chain_that_was_written_anew_is_betrayed_by_the_shipped_copy_and_by_a_noted_end(
    ledger: Ledger, superuser: psycopg.AsyncConnection, tmp_path: Path
) -> None:
    """A superuser who knows the rules can make the ledger whole again. What was noted elsewhere tells."""
    await work(ledger)
    await seal_all(ledger)
    await ship_all(ledger, tmp_path)
    noted = (await verify(ledger.dsn)).end
    rows = await (await superuser.execute(f"SELECT {audit_chain.COLUMNS} FROM actonce.audit ORDER BY seq")).fetchall()
    previous = await audit_chain.hash_at(ledger, 0)
    await superuser.execute("UPDATE actonce.audit SET seq = NULL")
    for seq, row in enumerate(rows, 1):
        event = Event(*row)
        if event.kind == "page.opened":
            event = Event(*row[:6], {**event.body, "severity": "none"})
        sealed = seal(event, seq, str(previous))
        await superuser.execute(
            "UPDATE actonce.audit SET seq = %s, hash = %s, previous_hash = %s, body = %s WHERE audit_id = %s",
            (seq, sealed.hash, previous, json.dumps(event.body), event.audit_id),
        )
        previous = sealed.hash
    assert (await verify(ledger.dsn)).whole, "nothing in the ledger alone tells"
    assert codes(await verify(ledger.dsn, anchor=noted)) == {"anchor_differs"}
    assert codes(await verify(ledger.dsn, tmp_path)) == {"sink_differs"}


def lines_of(folder: Path) -> list[str]:
    return [text for _, _, text, _ in read_folder(folder)]


def rewrite(folder: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Put other lines into one file of the folder."""
    path = files_of(folder)[1]
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))


def forge(line: str) -> str:
    """The same event with another body and a hash that fits it."""
    content = json.loads(line)
    event = Event(
        content["audit_id"],
        datetime.fromisoformat(content["at"]),
        content["kind"],
        content["tenant"],
        content["task_id"],
        content["operation_id"],
        {**content["body"], "forged": True},
    )
    return seal(event, content["seq"], content["previous_hash"]).line


COPIES = {
    "a line is missing": (lambda lines: lines[:1] + lines[2:], {"sink_missing"}),
    "the file is cut short": (lambda lines: lines[:-2], {"sink_missing"}),
    "two lines change places": (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], {"sink_out_of_order"}),
    "a line is there twice": (lambda lines: [*lines[:2], lines[1], *lines[2:]], set()),
    "a line is edited": (
        lambda lines: [lines[0].replace('"kind":"', '"kind":"x'), *lines[1:]],
        {"sink_damaged", "sink_missing"},
    ),
    "a line is forged with a hash that fits": (lambda lines: [lines[0], forge(lines[1]), *lines[2:]], {"sink_differs"}),
    "a second, other copy is slipped in": (lambda lines: [*lines, forge(lines[1])], {"sink_differs"}),
    "the file is emptied": (lambda lines: [], {"sink_missing"}),
}


@pytest.mark.parametrize("spoil", COPIES)
async def test_what_somebody_does_to_the_copy_is_found(ledger: Ledger, tmp_path: Path, spoil: str) -> None:
    await work(ledger)
    await seal_all(ledger)
    await ship_all(ledger, tmp_path)
    change, expected = COPIES[spoil]
    rewrite(tmp_path, change)
    assert codes(await verify(ledger.dsn, tmp_path)) == expected


async def test_a_forged_tail_is_foreign(ledger: Ledger, tmp_path: Path) -> None:
    await work(ledger)
    await seal_all(ledger)
    await ship_all(ledger, tmp_path, 10**9)
    last = parse(lines_of(tmp_path)[-1])
    body = {"page_id": 1, "incident": "nothing happened"}
    forged = seal(
        Event(10**6, datetime.now().astimezone(), "page.closed", None, None, None, body),
        last.seq + 1,
        last.hash,
    )
    with files_of(tmp_path)[0].open("a") as file:
        file.write(forged.line + "\n")
    report = await verify(ledger.dsn, tmp_path)
    assert [(f.code, f.seq) for f in report.findings] == [("sink_foreign", last.seq + 1)]


async def test_archived_files_are_no_finding_when_it_is_said_where_the_rest_begins(
    ledger: Ledger, tmp_path: Path
) -> None:
    await work(ledger)
    await seal_all(ledger)
    await ship_all(ledger, tmp_path)
    first, second, *_ = files_of(tmp_path)
    begins = parse(second.read_text().splitlines()[0]).seq
    first.unlink()
    assert codes(await verify(ledger.dsn, tmp_path)) == {"sink_missing"}
    assert (await verify(ledger.dsn, tmp_path, folder_from=begins)).findings == []


async def test_work_goes_on_while_the_trail_is_verified(ledger: Ledger, tmp_path: Path) -> None:
    """A verification reads one moment: what is sealed or shipped meanwhile is no finding."""
    await work(ledger)
    await seal_all(ledger)
    keeper = AuditKeeper(ledger, AuditSettings(sinks=(f"file://{tmp_path}",), batch_max=3))
    [ship] = [act for name, _, act in keeper.duties() if name.startswith("audit shipper")]

    async def busy() -> None:
        for number in range(30):
            async with ledger.transaction() as connection:
                await audit(connection, "test.note", None, {"number": number})
            await keeper.seal()
            await ship()

    await ship()
    task = asyncio.create_task(busy())
    while not task.done():
        assert (await verify(ledger.dsn, tmp_path)).findings == []
        await asyncio.sleep(0)
    await task
    assert (await verify(ledger.dsn, tmp_path)).findings == []


async def test_keeper_pages_a_gap_once_and_closes_it_when_the_trail_is_whole_again(
    ledger: Ledger, superuser: psycopg.AsyncConnection
) -> None:
    await work(ledger)
    keeper = AuditKeeper(ledger, AuditSettings())
    await keeper.seal()
    await superuser.execute("ALTER TABLE actonce.hold DISABLE TRIGGER audit_hold_closed")
    await keeper.verify_once()
    await keeper.verify_once()
    [page] = [p for p in await listing.pages(ledger) if p["incident"] == "audit:gap"]
    assert (page["reason"], page["severity"], page["seen_again"]) == ("audit_gap", "page", 1)
    assert "trigger_off: trigger audit_hold_closed of hold is switched off" in page["body"]
    await superuser.execute("ALTER TABLE actonce.hold ENABLE TRIGGER audit_hold_closed")
    await keeper.verify_once()
    assert [p for p in await listing.pages(ledger) if p["incident"] == "audit:gap"] == []


async def test_lag_is_shown_warned_of_and_paged_by_age_and_closed_when_it_is_over(
    ledger: Ledger, tmp_path: Path
) -> None:
    await work(ledger)
    await seal_all(ledger)
    name = f"file:{tmp_path}"
    for warn_s, page_s, severity in ((3600.0, 7200.0, None), (0.0, 3600.0, "warning"), (0.0, 0.0, "page")):
        lag = await report_lag(ledger, name, warn_s=warn_s, page_s=page_s)
        shown = [p["severity"] for p in await listing.pages(ledger) if p["reason"] == "audit_lag"]
        assert shown == ([severity] if severity else []) and lag.waiting >= lag.head > 0
    due = await watch.undelivered_pages(ledger, 900)
    assert "audit_lag" in [p["reason"] for p in due]
    await ship_all(ledger, tmp_path)
    await seal_all(ledger)  # the page's own events
    await ship_all(ledger, tmp_path)
    await report_lag(ledger, name, warn_s=3600, page_s=7200)
    assert [p for p in await listing.pages(ledger) if p["reason"] == "audit_lag"] == []
    [row] = [r for r in await records.list_dependencies(ledger) if r["kind"] == "audit_sink"]
    assert (row["name"], row["state"]) == (f"audit:{name}", "up")


async def test_one_whole_folder_does_not_end_the_alarm_about_another(ledger: Ledger, tmp_path: Path) -> None:
    await work(ledger)
    spoilt, whole = tmp_path / "spoilt", tmp_path / "whole"
    keeper = AuditKeeper(ledger, AuditSettings(sinks=(f"file://{spoilt}", f"file://{whole}"), file_bytes_max=2000))
    await keeper.seal()
    for name, _, ship in keeper.duties():
        if name.startswith("audit shipper"):
            await ship()
    keeper.close()
    rewrite(spoilt, lambda lines: lines[:-2])
    await keeper.verify_once()
    [page] = [p for p in await listing.pages(ledger) if p["incident"] == "audit:gap"]
    assert page["closed_at"] is None and str(spoilt) in page["body"] and "sink_missing" in page["body"]
    assert "audit.verified" not in await kinds(ledger)


async def test_a_folder_is_measured_by_whatever_path_it_is_named(ledger: Ledger, tmp_path: Path) -> None:
    """Else a copy that was cut short is whole for whoever reaches it through a link."""
    await work(ledger)
    await seal_all(ledger)
    folder, link = tmp_path / "audit", tmp_path / "link"
    folder.mkdir()
    await ship_all(ledger, folder)
    link.symlink_to(folder)
    assert codes(await verify(ledger.dsn, link)) == set()
    files_of(folder)[-1].unlink()
    for path in (folder, link, folder / ".." / "audit"):
        assert codes(await verify(ledger.dsn, path)) == {"sink_missing"}, path


async def test_a_copy_that_no_cursor_tells_of_is_not_called_whole(ledger: Ledger, tmp_path: Path) -> None:
    await work(ledger)
    await seal_all(ledger)
    await ship_all(ledger, tmp_path / "audit")
    shutil.copytree(tmp_path / "audit", tmp_path / "copy")
    files_of(tmp_path / "copy")[-1].unlink()
    assert codes(await verify(ledger.dsn, tmp_path / "copy")) == {"sink_unknown"}


async def test_folder_that_this_ledger_never_shipped_to_is_a_finding(ledger: Ledger, tmp_path: Path) -> None:
    """Or a mistyped path would be called whole."""
    await work(ledger)
    await seal_all(ledger)
    assert codes(await verify(ledger.dsn, tmp_path)) == {"sink_unknown"}


async def test_anchor_beyond_the_end_is_a_truncated_chain(ledger: Ledger) -> None:
    await work(ledger)
    await seal_all(ledger)
    report = await verify(ledger.dsn, anchor=End(10_000, "0" * 64))
    assert codes(report) == {"truncated"}
