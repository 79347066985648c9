"""The reference pages name what there is: every setting, every route, every command."""

from __future__ import annotations

import re
from pathlib import Path

import typer
from pydantic_settings import BaseSettings

from actonce import client
from actonce.audit import AuditSettings
from actonce.client import base
from actonce.console.settings import ConsoleSettings
from actonce.contracts.people import SCOPES_OF, Scope
from actonce.entry.app import create_app
from actonce.entry.settings import EntrySettings
from actonce.paging import PagingSettings
from actonce.settings import WorkerSettings

FOLDER = Path(__file__).parents[3] / "docs" / "reference"


def test_every_setting_is_named_and_every_named_one_exists() -> None:
    text = (FOLDER / "settings.md").read_text()
    named = set(re.findall(r"`(ACTONCE_[A-Z_]+)`", text))
    models: tuple[type[BaseSettings], ...] = (
        AuditSettings,
        ConsoleSettings,
        EntrySettings,
        PagingSettings,
        WorkerSettings,
    )
    there = {f"{m.model_config['env_prefix']}{field.upper()}" for m in models for field in m.model_fields}
    of_the_client = {
        "ACTONCE_STACK_FOLDER",
        "ACTONCE_OPERATOR",
        "ACTONCE_ENTRY_TOKEN",
        "ACTONCE_ENTRY_TOKEN_FILE",
    }
    assert named - of_the_client == there


def test_every_route_is_named() -> None:
    text = (FOLDER / "entry.md").read_text()
    app = create_app(EntrySettings(ledger_dsn="postgresql://nobody/none"))
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in text, f"{method} {path}"


def test_every_scope_and_role_is_named_with_what_it_opens() -> None:
    text = (FOLDER / "entry.md").read_text()
    for scope in Scope:
        assert f"| `{scope}` |" in text
    for role, scopes in SCOPES_OF.items():
        told = re.findall(rf"\| `{role}` \| (.*) \|", text)[-1]  # of the second table: there is a scope `admin` as well
        named = set(re.findall("`([a-z_]+)`", told))
        assert named == scopes or (told.startswith("all but") and named == set(Scope) - scopes)


def test_every_command_and_exit_status_is_named() -> None:
    text = (FOLDER / "client.md").read_text()
    for name in typer.main.get_command(client.app).commands:  # type: ignore[attr-defined]
        assert re.search(rf"`(?:[^`]*, )?{name}\b", text), name
    for status in (base.ENDED, base.REFUSED, base.UNREACHABLE, base.HELD, base.TIMEOUT):
        assert f"| {status} |" in text and f" {status} " in client.app.info.help.replace("\n", " ")
