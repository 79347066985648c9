"""The documents point at things that exist, and name commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from actonce.client import app
from actonce.contracts.commands import CLIENT
from drills import operator

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATHS = re.compile(r"`((?:actonce|activities|workflows|drills|tests|docs)/[\w./-]*\w)`")


def test_there_are_pages_to_check() -> None:
    assert len(PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = [
        t for t in LINK.findall(page.read_text(encoding="utf-8")) if not t.startswith(("http:", "https:", "mailto:"))
    ]
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_named_file_exists(page: Path) -> None:
    named = {name.rstrip("/.") for name in PATHS.findall(page.read_text(encoding="utf-8"))}
    missing = [
        n for n in named if not ((ROOT / n).exists() or (ROOT / f"{n}.py").exists() or (ROOT / "actonce" / n).exists())
    ]
    assert missing == []


def test_make_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        t
        for page in PAGES
        for t in re.findall(r"(?:`|^    |^)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named and named <= targets


def test_every_page_tells_the_client_by_the_command_that_exists_everywhere() -> None:
    """`client.py` is a file of a checkout: where the package is installed, nobody could type it."""
    assert CLIENT == operator.COMMAND == "python -m actonce.client"
    known = set(getattr(get_command(app), "commands", ()))
    assert known > {"show", "resolve", "dependencies"}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert "python client.py" not in text, page
        told = re.findall(rf"{re.escape(CLIENT)} ([a-z-]+)", text)
        assert set(told) <= known, page
    for file in (ROOT / "actonce").rglob("*.py"):
        assert "python client.py" not in file.read_text(encoding="utf-8"), file


def test_every_rule_and_section_that_code_cites_is_explained() -> None:
    explained = set(
        re.findall(r"^\| (R\d+|§[\d.]+) \|", (ROOT / "docs/concepts/rules.md").read_text("utf-8"), re.MULTILINE)
    )
    assert {"R1", "§2.4"} <= explained
    cited: set[str] = set()
    for folder in ("actonce", "activities", "drills", "workflows", "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            cited |= set(re.findall(r"\bR\d{1,2}\b|§\d(?:\.\d+)?", file.read_text("utf-8")))
    assert cited - explained == set(), "explain them in docs/concepts/rules.md"


def test_every_picture_of_the_console_is_shown_somewhere_and_can_be_taken_anew() -> None:
    there = {file.stem for file in (ROOT / "docs/images/console").glob("*.png")}
    shown = {name for page in PAGES for name in re.findall(r"images/console/([\w-]+)\.png", page.read_text("utf-8"))}
    taking = (ROOT / "tests/browser/pictures.py").read_text(encoding="utf-8")
    assert there == shown and [name for name in there if f'"{name}"' not in taking] == []
