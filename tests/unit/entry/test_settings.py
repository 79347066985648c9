"""Settings of the entry: short forms, addresses, and a password that is not shown."""

from __future__ import annotations

import pytest

from actonce.deployment import TaskType
from actonce.entry.settings import EntrySettings


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("ACTONCE_ENTRY_URL", "ACTONCE_ENTRY_PORT", "ACTONCE_TASK_TYPES", "ACTONCE_TASK_QUEUE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACTONCE_LEDGER_DSN", "postgresql://u:hush@h/db")
    return monkeypatch


def test_password_is_not_shown(env: pytest.MonkeyPatch) -> None:
    """case c12"""
    assert "hush" not in repr(EntrySettings())


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, ("127.0.0.1", 0)),
        ({"ACTONCE_ENTRY_URL": "http://127.0.0.1:8123"}, ("127.0.0.1", 8123)),
        ({"ACTONCE_ENTRY_URL": "https://entry.example"}, ("127.0.0.1", 0)),
        ({"ACTONCE_ENTRY_URL": "http://127.0.0.1:8123", "ACTONCE_ENTRY_PORT": "0"}, ("127.0.0.1", 0)),
        ({"ACTONCE_ENTRY_HOST": "127.0.0.2", "ACTONCE_ENTRY_PORT": "80"}, ("127.0.0.2", 80)),
    ],
)
def test_where_it_listens(env: pytest.MonkeyPatch, given: dict[str, str], address: tuple[str, int]) -> None:
    for name, value in given.items():
        env.setenv(name, value)
    assert EntrySettings().address == address


def test_task_types_in_short_and_long_form(env: pytest.MonkeyPatch) -> None:
    env.setenv("ACTONCE_TASK_QUEUE", "q")
    env.setenv("ACTONCE_TASK_TYPES", '{"a": "a.v1", "b": {"workflow": "b.v2", "task_queue": "slow"}}')
    settings = EntrySettings()
    assert settings.task_types["a"] == TaskType(workflow="a.v1")
    assert (settings.queue_of("a"), settings.queue_of("b")) == ("q", "slow")
