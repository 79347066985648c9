"""`actonce authority`: granted on a signed folder that shows this contract's promises, refused on every other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

from actonce.cli import app
from actonce.contracts.contract import Contract
from actonce.evidence import write_verdict
from actonce.evidence.signing import sign
from actonce.ledger.migrate import migrate
from actonce.version import __version__
from tests.unit.effects.builders import contract
from tests.unit.evidence import builders

REAL = contract(sandbox=False)
STAND_IN = contract(account="test", principal="prn-test")


@pytest.fixture
def dsn(fresh_dsn: str) -> str:
    """A ledger in which a worker has registered the real contract."""
    migrate(fresh_dsn)
    with psycopg.connect(fresh_dsn) as link:
        link.execute(
            "INSERT INTO actonce.contract (name, digest, version, body) VALUES (%s, %s, %s, %s)",
            (REAL.name, REAL.digest, REAL.version, Jsonb(REAL.model_dump(mode="json"))),
        )
    return fresh_dsn


def evidence(folder: Path, of: Contract = STAND_IN, release: str = __version__, *, only: str | None = None) -> Path:
    """A run that passed an hour ago; every operation, or those of one cell only, begun under the contract."""
    run = builders.good_run()
    run.drill["versions"] = {"actonce": release}
    run.add("caller", "contract", None, 20, name=of.name, digest=of.digest, body=of.model_dump(mode="json"))
    for event in run.events:
        if (event["source"], event["kind"]) == ("caller", "operation") and only in (None, event["cell"]):
            event["contract_digest"] = of.digest
    write_verdict(run.write(folder))
    return folder


def types(dsn: str, *words: str) -> Any:
    return CliRunner().invoke(app, ["authority", *words, "--dsn", dsn], env={"NO_COLOR": "1", "COLUMNS": "400"})


def grant(dsn: str, folder: Path) -> Any:
    caps = ("--per-hour", "10", "--count", "100", "--amount-max", "5000")
    who = ("--name", "Ada", "--reason", "first week")
    return types(dsn, "grant", "payments", "refund", "--evidence", str(folder), *caps, *who)


@pytest.fixture(autouse=True)
def an_hour_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "START", datetime.now(UTC) - timedelta(hours=1))


def test_granted_lowered_withdrawn_and_listed(dsn: str, tmp_path: Path) -> None:
    folder = evidence(tmp_path / "run")
    sign(folder, "Ada", "one refund each time")
    given = grant(dsn, folder)
    assert given.exit_code == 0, given.output
    assert "at most 5000 minor units each, 10 an hour, 100 in all" in given.stdout
    shown = types(dsn, "list").stdout
    assert all(words in shown for words in ("in force", "signed by Ada", "Ada: first week"))
    less = ("--per-hour", "1", "--count", "100", "--amount-max", "5000", "--name", "Ada", "--reason", "less")
    assert types(dsn, "lower", "payments", "refund", *less).exit_code == 0
    assert types(dsn, "withdraw", "payments", "refund", "--name", "Ada", "--reason", "strange").exit_code == 0
    assert "ended by Ada: strange" in types(dsn, "list").stdout


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"of": contract(clock_skew_s=0.2)}, "no stand-in with the promises of payments"),
        ({"of": contract(sandbox=False, account="test")}, "no stand-in with the promises of payments"),
        ({"release": "0.0.1"}, "run the drills again"),
        ({"only": "after"}, "after its commit and before it"),
    ],
    ids=["another promise", "no stand-in", "another release", "one loss only"],
)
def test_refused_on_evidence_of_something_else(dsn: str, tmp_path: Path, of: dict[str, Any], words: str) -> None:
    folder = evidence(tmp_path / "run", **of)
    sign(folder, "Ada", "one refund each time")
    refused = grant(dsn, folder)
    assert refused.exit_code == 1 and words in refused.output, refused.output
    assert types(dsn, "list").stdout.strip() == "none"


def test_refused_on_what_nobody_signed_or_what_changed_since(dsn: str, tmp_path: Path) -> None:
    folder = evidence(tmp_path / "run")
    assert "machine-witnessed only" in grant(dsn, folder).output
    sign(folder, "Ada", "one refund each time")
    (folder / "report.html").write_text("another")
    refused = grant(dsn, folder)
    assert refused.exit_code == 1 and "machine-witnessed only" in refused.output
