"""Which token the client shows, and to whom: what belongs to a stack's entry is never shown to another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actonce.client.base import Entry, Failure, Given, _token_for, given

OURS = "http://127.0.0.1:8123"


@pytest.fixture(autouse=True)
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "stack.json").write_text(json.dumps({"parts": {"entry": {"values": {"url": OURS}}}}))
    (tmp_path / "client.token").write_text("of the stack\n")
    monkeypatch.setenv("ACTONCE_STACK_FOLDER", str(tmp_path))
    monkeypatch.setattr("actonce.client.base.given", Given())
    return tmp_path


def test_the_stacks_token_is_shown_at_its_own_entry_and_nowhere_else() -> None:
    assert _token_for(OURS) == "of the stack"
    for other in (
        "http://127.0.0.1:8124",
        "https://127.0.0.1:8123",
        "http://entry.example:8123",
        "http://127.0.0.1.example:8123",
    ):
        assert _token_for(other) is None
        assert "authorization" not in Entry(other).http.headers


def test_what_is_said_comes_first_then_the_file_then_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine"
    file.write_text("of a file\n")
    monkeypatch.setattr("actonce.client.base.given", Given(token_file=file))
    assert _token_for("http://entry.example") == _token_for(OURS) == "of a file"
    monkeypatch.setattr("actonce.client.base.given", Given(token="said", token_file=file))
    assert Entry("http://entry.example").http.headers["authorization"] == "Bearer said"


def test_a_file_that_cannot_be_read_is_said_and_nothing_is_shown_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actonce.client.base.given", Given(token_file=tmp_path / "none"))
    with pytest.raises(Failure):
        _token_for(OURS)


def test_without_a_stack_and_without_a_word_none_is_shown(stack: Path) -> None:
    (stack / "stack.json").unlink()
    assert _token_for(OURS) is None and given == Given()
