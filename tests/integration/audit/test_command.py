"""`actonce audit verify` as a person runs it: exit statuses and words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psycopg
from click.testing import Result
from typer.testing import CliRunner

from actonce.audit import AuditSettings, FileSink, Shipper
from actonce.cli import app
from actonce.ledger import audit_chain
from actonce.ledger.store import Ledger
from actonce.trail import LedgerJournal
from tests.integration.audit.work import work


async def run(*arguments: str) -> Result:
    """The command, in a thread: it runs a loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["audit", "verify", *arguments])


async def shipped(ledger: Ledger, folder: Path) -> None:
    await work(ledger)
    await audit_chain.seal_once(ledger)
    shipper = Shipper(LedgerJournal(ledger), FileSink(folder), AuditSettings())
    while await shipper.ship_once():
        pass


async def test_whole_trail_is_0_and_prints_an_end_to_keep(ledger: Ledger, tmp_path: Path) -> None:
    await shipped(ledger, tmp_path)
    said = await run("--dsn", ledger.dsn, "--sink", str(tmp_path))
    end = await audit_chain.chain_end(ledger)
    assert said.exit_code == 0, said.output
    assert f"end {end.seq}:{end.hash}" in said.output and said.output.endswith("whole\n")
    assert (await run("--dsn", ledger.dsn, "--anchor", f"{end.seq}:{end.hash}")).exit_code == 0
    other = await run("--dsn", ledger.dsn, "--anchor", f"{end.seq}:{'0' * 64}")
    assert other.exit_code == 1 and "anchor_differs" in other.output


async def test_findings_are_1_with_their_number_and_id(
    ledger: Ledger, tmp_path: Path, superuser: psycopg.AsyncConnection
) -> None:
    await shipped(ledger, tmp_path)
    await superuser.execute("UPDATE actonce.audit SET body = '{}' WHERE seq = 7")
    await superuser.execute("UPDATE actonce.decision SET name = 'mallory'")
    said = await run("--dsn", ledger.dsn, "--sink", str(tmp_path))
    assert said.exit_code == 1
    assert "altered seq=7" in said.output and "sink_differs seq=7" in said.output
    assert "decision.recorded" in said.output and "decision 1" in said.output


async def test_what_cannot_be_read_is_3_and_neither_whole_nor_not(ledger: Ledger, tmp_path: Path) -> None:
    nobody = await run("--dsn", "postgresql://nobody@127.0.0.1:1/none")
    assert nobody.exit_code == 3 and "whole" not in nobody.output
    nowhere = await run("--dsn", ledger.dsn, "--sink", str(tmp_path / "nowhere"))
    assert nowhere.exit_code == 3 and "whole" not in nowhere.output


async def test_wrong_usage_is_2(ledger: Ledger) -> None:
    assert (await run("--dsn", ledger.dsn, "--anchor", "yesterday")).exit_code == 2
