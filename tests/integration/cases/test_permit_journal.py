"""The journal outside the backup (rule R14): before the first byte, or nothing is sent; a restore is noticed by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from actonce.contracts.verdict import Receipt
from actonce.destinations.base import Call, Destination, Registry
from actonce.destinations.sandbox import build_sandbox
from actonce.effects.perform import perform
from actonce.effects.system import System, compose
from actonce.ledger.journal import SUFFIX, Journal, _newest_first, notice_restore
from tests.integration.cases.kit import Bench, Lab, operation_id_of, settle, side_by_side
from tests.integration.cases.test_restored_ledger import restore, take_backup


async def journaling(bench: Bench, folder: Path, name: str = "one", **settings: Any) -> System:
    system = await bench.system(**settings)
    ledger_id, _, _ = await system.ledger.identity()
    system.journal = Journal(folder, ledger_id, name)
    return system


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob(f"*{SUFFIX}") for line in file.read_text().splitlines()]


def looking(folder: Path, seen: list[list[str]]) -> Callable[[Destination], Destination]:
    """Before it sends, it notes which operations the journal names."""

    def change(destination: Destination) -> Destination:
        async def send(call: Call) -> Receipt:
            seen.append([line["operation_id"] for line in lines(folder)])
            return await destination.send(call)

        return replace(destination, send=send) if destination.contract.name == "payments" else destination

    return change


@side_by_side
async def test_permit_is_in_the_journal_before_its_first_byte(lab: Lab) -> None:
    """R14; the control keeps no journal."""
    async with lab.bench() as bench:
        folder, seen = bench.folder / "journal", list[list[str]]()
        system = await journaling(bench, folder, change=looking(folder, seen))
        assert (await perform(system, bench.request())).status == "committed"
        system.journal = None
        assert (await perform(system, bench.request("2"))).status == "committed"
        assert seen == [[operation_id_of(bench.request())]] * 2, "the second permit is in no journal"
        (line,) = lines(folder)
        (attempt,) = await bench.rows("attempt", operation_id_of(bench.request()))
        assert (line["nonce"], line["epoch"], line["attempt"]) == (str(attempt["nonce"]), 1, 1)


@side_by_side
async def test_nothing_is_sent_while_the_journal_cannot_be_written(lab: Lab) -> None:
    """R14: no room for the line: provably not sent, and sent once when there is room."""
    async with lab.bench() as bench:
        folder = bench.folder / "journal"
        folder.mkdir()
        (folder / f"full{SUFFIX}").symlink_to("/dev/full")
        full = await journaling(bench, folder, "full")
        result = await perform(full, bench.request())
        assert (result.status, result.how) == ("ready", "not_sent") and "No space left" in result.detail
        assert bench.requests() == []
        assert (await perform(await journaling(bench, folder), bench.request())).status == "committed"
        assert len(bench.requests()) == len(bench.effects()) == 1


def test_journal_is_read_from_its_end_across_blocks_and_torn_lines(tmp_path: Path) -> None:
    def line(number: int, ledger_id: str = "ours") -> str:
        names = ("tenant", "destination", "action", "operation_id", "task_id")
        moments = dict.fromkeys(("issued_at", "not_after"), "2026-01-01T00:00:00+00:00")
        told = {"ledger_id": ledger_id, "epoch": 1, "nonce": f"n{number}", **moments, **dict.fromkeys(names, "x" * 60)}
        return json.dumps(told)

    whole = [line(number) for number in range(600)]
    path = tmp_path / f"one{SUFFIX}"
    path.write_text("\n".join([*whole[:300], whole[300][:40], line(999, "theirs"), *whole[301:]]) + "\n" + whole[0][:9])
    found = [int(one.nonce.removeprefix("n")) for one in _newest_first(path, "ours")]
    assert found == [number for number in range(599, -1, -1) if number != 300]


@side_by_side
async def test_restore_that_nobody_told_of_is_noticed_at_the_next_start(lab: Lab) -> None:
    """case g4, R14. The control has no journal and notices nothing; `test_restored_ledger` shows what comes of that."""
    async with lab.bench() as bench:
        folder = bench.folder / "journal"
        system = await journaling(bench, folder)
        assert (await perform(system, bench.request("before"))).status == "committed"
        backup = await take_backup(bench)
        system = await journaling(bench, folder, "two")
        assert (await perform(system, bench.request())).status == "committed"
        assert await notice_restore(bench.dsn, folder) is None, "the ledger knows them all"
        await restore(bench, backup, protected=False)
        assert await notice_restore(bench.dsn, bench.folder / "none") is None
        registry = Registry(build_sandbox(bench.settings))
        async with compose(bench.dsn, registry, ledger_id=lines(folder)[0]["ledger_id"], journal=folder) as started:
            (row,) = await bench.rows("restore")
            assert (row["epoch"], row["kind"]) == (2, "noticed")
            (named,) = await bench.rows("restore_permitted")
            assert (named["epoch"], named["operation_id"]) == (2, operation_id_of(bench.request()))
            (page,) = await bench.rows("page")
            assert page["reason"] == "ledger_restored"
            again = await perform(started, bench.request())
            assert again.status == "unknown", again
            assert (await settle(started, bench.request())).verdict == "committed"
        assert await notice_restore(bench.dsn, folder) is None, "it is noticed once"
        assert len(bench.effects(operation_id_of(bench.request()))) == 1


@side_by_side
async def test_what_a_restore_lost_is_named_from_the_journal(lab: Lab) -> None:
    """R14: the restore was told of; the journal names what was permitted in the lost interval, and nothing else."""
    async with lab.bench() as bench:
        folder = bench.folder / "journal"
        assert (await perform(await journaling(bench, folder), bench.request("before"))).status == "committed"
        backup = await take_backup(bench)
        assert (await perform(await journaling(bench, folder, "two"), bench.request())).status == "committed"
        await restore(bench, backup)
        assert await notice_restore(bench.dsn, folder) is None, "its epoch explains them"
        assert await notice_restore(bench.dsn, folder) is None
        (named,) = await bench.rows("restore_permitted")
        assert (named["epoch"], named["operation_id"]) == (2, operation_id_of(bench.request()))
        assert len(await bench.rows("restore")) == 1
