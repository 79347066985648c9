"""The import table, and the two programs that it cannot see because they are no packages."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import grimp
import pytest

from tests.import_table import parse_rows, violations

ROOTS = ("actonce", "activities", "drills", "workflows")


def graph(*imports: tuple[str, str]) -> grimp.ImportGraph:
    made = grimp.ImportGraph()
    for importer, imported in imports:
        for module in (importer, imported):
            if module not in made.modules:
                made.add_module(module)
        made.add_import(importer=importer, imported=imported, line_number=7, line_contents="import it")
    return made


TABLE = parse_rows(["a.low:", "a.high: a.low", "a.user: a.high.door", "=a: a.high", "b: a.high", "b.secret: a.low"])


@pytest.mark.parametrize(
    "allowed",
    [
        ("a.low.x", "a.low.y"),
        ("a.high.x", "a.low.y"),
        ("a.user", "a.high.door"),
        ("a", "a.high"),
        ("b.secret.x", "a.low"),
    ],
)
def test_import_that_a_row_allows_is_no_violation(allowed: tuple[str, str]) -> None:
    assert violations(graph(allowed), TABLE) == []


@pytest.mark.parametrize(
    "forbidden",
    [
        ("a.low", "a.high"),
        ("a.low", "a"),
        ("a.user", "a.high.window"),
        ("a.user", "a.low"),
        ("b", "b.secret"),
        ("b.secret", "b"),
        ("a.lower", "a.low"),
    ],
)
def test_any_other_import_is_a_violation(forbidden: tuple[str, str]) -> None:
    assert len(violations(graph(forbidden), TABLE)) == 1


def test_every_package_that_exists_is_covered_by_the_project_table() -> None:
    settings = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]
    assert tuple(settings["root_packages"]) == ROOTS
    (contract,) = settings["contracts"]
    rows = parse_rows(contract["rows"])
    assert rows["actonce.evidence"] == rows["actonce.contracts"] == []
    assert not any("drills" in name for allowed in rows.values() for name in allowed)


@pytest.mark.parametrize("program", ["worker.py", "client.py"])
def test_program_imports_no_drill(program: str) -> None:
    names = set()
    for node in ast.walk(ast.parse(Path(program).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    assert names and not any(name == "drills" or name.startswith("drills.") for name in names)
