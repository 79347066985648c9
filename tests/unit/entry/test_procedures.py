"""Every reason code has a procedure that a person at night can follow, with commands that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from actonce import client
from actonce.contracts.commands import CLIENT
from actonce.contracts.reasons import policy
from actonce.contracts.verdict import MORE_THAN_ASKED, Reason

SHOWN = sorted(Reason)
FOLDER = Path(__file__).parents[3] / "docs" / "operations"
HEADINGS = [
    "## Owner",
    "## What it means",
    "## What may have happened",
    "## What to do",
    "## What each decision does",
    "## When the task resumes",
]


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^(## .+)$", text, flags=re.M)
    return {head: body.strip() for head, body in zip(parts[1::2], parts[2::2], strict=True)}


def known_options() -> dict[str, set[str]]:
    group = typer.main.get_command(client.app)
    commands = group.commands  # type: ignore[attr-defined]
    return {name: {o for p in command.params for o in p.opts} for name, command in commands.items()}


@pytest.mark.parametrize("reason", SHOWN)
def test_reason_has_a_procedure_with_every_heading_filled(reason: Reason) -> None:
    text = (FOLDER / f"{reason.value}.md").read_text()
    found = sections(text)
    assert text.startswith(f"# `{reason.value}`\n")
    assert list(found) == HEADINGS
    assert all(len(body) > 20 for body in found.values())
    missing = [action for action in policy(reason).actions if f"`{action}`" not in found["## What each decision does"]]
    assert not missing, f"it does not say what {missing} does"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.md")), ids=lambda f: f.stem)
def test_every_command_in_it_exists_with_its_options(file: Path) -> None:
    options = known_options()
    lines = re.findall(rf"{CLIENT} ([^`\n]+)", file.read_text())
    assert lines, f"{file.name} names no command"
    for line in lines:
        command, *rest = shlex.split(line.rstrip("."))
        assert command in options, line
        assert {word for word in rest if word.startswith("--")} <= options[command], line


def test_no_procedure_is_left_of_a_reason_that_is_gone() -> None:
    assert {f.stem for f in FOLDER.glob("*.md")} - {"README"} == {r.value for r in SHOWN}


def test_index_names_every_reason() -> None:
    index = (FOLDER / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == {r.value for r in SHOWN}


@pytest.mark.parametrize("reason", sorted(MORE_THAN_ASKED))
def test_what_evidence_cannot_explain_says_that_only_a_decision_ends_it(reason: Reason) -> None:
    assert "Only when your decision" in sections((FOLDER / f"{reason.value}.md").read_text())[HEADINGS[-1]]
