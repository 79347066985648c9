"""The people of the drills find what pages and procedures tell them to type, and nothing else."""

from __future__ import annotations

import pytest

from actonce.contracts.commands import CLIENT
from drills.operator import ROOT, Lost, commands_of, lines_of, named_by

PAGE = f"""Operation op1_x is held: not_visible. no route shows it
Do: {CLIENT} show op1_x   then   {CLIENT} resolve op1_x --expected-version 4 --expected-epoch 1 …
Compare both with `{CLIENT} show`, then start a new task.
Procedure: docs/operations/not_visible.md"""


def procedure(reason: str) -> str:
    return (ROOT / f"docs/operations/{reason}.md").read_text(encoding="utf-8")


def test_every_command_of_a_page_is_found_without_the_words_around_it() -> None:
    assert commands_of(PAGE) == [
        ["show", "op1_x"],
        ["resolve", "op1_x", "--expected-version", "4", "--expected-epoch", "1", "…"],
        ["show"],
    ]


def test_a_page_that_tells_another_command_tells_nothing() -> None:
    assert commands_of(PAGE.replace(CLIENT, "python client.py")) == []


@pytest.mark.parametrize("action", ["mark_committed", "permit_one_retry"])
def test_the_procedure_of_an_unseen_effect_has_a_line_for_each_decision(action: str) -> None:
    (line,) = [c for c in lines_of(procedure("not_visible")) if c[0] == "resolve" and action in c]
    assert {"OPERATION_ID", "V", "E", "YOU", "WHY"} <= set(line)


@pytest.mark.parametrize("reason", ["credential_expired", "credential_revoked", "credential_unavailable"])
def test_the_owner_of_a_credential_finds_how_to_rotate_and_to_decide(reason: str) -> None:
    lines = lines_of(procedure(reason))
    assert any(line[:2] == ["rotate", "CREDENTIAL"] for line in lines)
    for action in ("resume", "mark_absent"):
        assert any(line[:4] == ["resolve", "OPERATION_ID", "--action", action] for line in lines)


def test_a_page_names_the_operation_and_its_procedure_or_nobody_knows_what_to_do() -> None:
    page = {"title": "refund at payments is held: not_visible", "text": PAGE}
    assert named_by(page) == ("op1_x", "not_visible")
    with pytest.raises(Lost, match="names no procedure"):
        named_by({**page, "text": PAGE.rpartition("\n")[0]})
    with pytest.raises(Lost, match="names no operation"):
        named_by({**page, "text": "Procedure: docs/operations/not_visible.md"})
