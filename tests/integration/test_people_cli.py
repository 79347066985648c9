"""`actonce people` and `actonce tokens`, and what a new deployment is given: as commands, on a real ledger."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from click.testing import Result
from typer.testing import CliRunner

from actonce import cli_people
from actonce.cli import app
from actonce.contracts.people import Role, Scope
from actonce.ledger import people, sessions, tokens
from actonce.ledger.migrate import migrate
from actonce.ledger.store import Ledger

PASSWORD = "correct horse battery"


@dataclass
class Desk:
    """A ledger, and the command line on it."""

    ledger: Ledger

    async def says(self, *words: str, given: str = "", code: int = 0) -> str:
        """Run a command; return what it prints, on either stream."""
        env = {"ACTONCE_LEDGER_DSN": self.ledger.dsn, "ACTONCE_OPERATOR": "Ada", "COLUMNS": "200"}
        done: Result = await asyncio.to_thread(CliRunner().invoke, app, list(words), input=given, env=env)
        assert done.exit_code == code, done.output
        return done.output

    async def provision(self, folder: Path) -> list[str]:
        said = await self.says("tokens", "provision", str(folder))
        made: list[str] = json.loads(said)["made"]
        return made


@pytest_asyncio.fixture
async def desk(fresh_dsn: str) -> AsyncIterator[Desk]:
    migrate(fresh_dsn)
    async with Ledger(fresh_dsn) as ledger:
        yield Desk(ledger)


async def test_people_are_added_changed_disabled_and_listed(desk: Desk) -> None:
    await desk.says("people", "add", "dana", "--role", "operator", "--role", "approver", given=PASSWORD + "\n")
    await sessions.sign_in(desk.ledger, "dana", PASSWORD, "192.0.2.1")
    await desk.says("people", "roles", "dana", "--role", "viewer")
    await desk.says("people", "password", "dana", given="another horse battery")
    await sessions.sign_in(desk.ledger, "dana", "another horse battery", "192.0.2.1")
    assert "viewer" in await desk.says("people", "list")
    await desk.says("people", "disable", "dana")
    [dana] = await people.list_people(desk.ledger)
    assert dana.disabled_at is not None and dana.roles == {Role.VIEWER}
    await desk.says("people", "enable", "dana")
    assert "there is no person 'eve'" in await desk.says("people", "disable", "eve", code=1)
    assert "12 to" in await desk.says("people", "add", "eve", "--role", "viewer", given="short", code=1)
    assert "is no role" in await desk.says("people", "add", "eve", "--role", "root", given=PASSWORD, code=1)


async def test_a_token_is_printed_once_and_listed_without_its_value(desk: Desk) -> None:
    said = await desk.says("tokens", "create", "nightly", "--scope", "start", "--scope", "read")
    value = said.splitlines()[-1]
    shown = await tokens.presented(desk.ledger, value)
    assert shown is not None and shown.token.scopes == {Scope.START, Scope.READ}
    assert shown.token.created_by == "Ada" and shown.token.expires_at is not None
    listed = await desk.says("tokens", "list")
    assert "nightly" in listed and value not in listed
    await desk.says("tokens", "revoke", str(shown.token.token_id))
    shown = await tokens.presented(desk.ledger, value)
    assert shown is not None and shown.token.revoked_by == "Ada"
    assert "there is no token 99" in await desk.says("tokens", "revoke", "99", code=1)
    assert "is no scope" in await desk.says("tokens", "create", "x", "--scope", "write", code=1)


async def test_a_new_deployment_is_given_tokens_and_a_first_person_in_private_files(desk: Desk, tmp_path: Path) -> None:
    assert await desk.provision(tmp_path) == ["client.token", "console.token", "admin.password"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    client = await tokens.presented(desk.ledger, (tmp_path / "client.token").read_text().strip())
    console = await tokens.presented(desk.ledger, (tmp_path / "console.token").read_text().strip())
    assert client is not None and client.token.scopes == set(Scope) - {Scope.ACT_FOR}
    assert console is not None and console.token.scopes == {Scope.ACT_FOR}
    name, password = (tmp_path / "admin.password").read_text().split()
    session, _ = await sessions.sign_in(desk.ledger, name, password, "127.0.0.1")
    assert Scope.ADMIN in session.person.scopes
    assert await desk.provision(tmp_path) == [], "what is there and good stays"
    await tokens.revoke_token(desk.ledger, client.token.token_id, by="Ada")
    (tmp_path / "console.token").unlink()
    assert await desk.provision(tmp_path) == ["client.token", "console.token"]
    lost = await tokens.list_tokens(desk.ledger)
    assert [token.revoked_at is not None for token in lost] == [True, True, False, False]


async def test_an_empty_ledger_is_brought_up_to_date_and_a_foreign_one_is_left_alone(
    fresh_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Ledger(fresh_dsn) as ledger:
        desk = Desk(ledger)
        monkeypatch.setenv("ACTONCE_LEDGER_ID", "00000000-0000-0000-0000-000000000001")
        assert "holds no ledger" in await desk.says("tokens", "provision", str(tmp_path), code=1)
        monkeypatch.delenv("ACTONCE_LEDGER_ID")
        assert len(await desk.provision(tmp_path)) == 3
        monkeypatch.setenv("ACTONCE_LEDGER_ID", "00000000-0000-0000-0000-000000000001")
        assert "this deployment's is" in await desk.says("people", "list", code=1)


async def test_the_ledger_of_the_stack_here_is_used_where_none_is_named(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTONCE_STACK_FOLDER", str(tmp_path))
    monkeypatch.delenv("ACTONCE_LEDGER_DSN", raising=False)
    none = await asyncio.to_thread(CliRunner().invoke, cli_people.people_app, ["list"])
    assert none.exit_code == 2 and "ACTONCE_LEDGER_DSN" in none.output
    (tmp_path / "env.json").write_text(json.dumps({"ACTONCE_LEDGER_DSN": desk.ledger.dsn}))
    found = await asyncio.to_thread(CliRunner().invoke, cli_people.people_app, ["list"])
    assert found.exit_code == 0 and found.output.strip() == "none"
