"""An import-linter contract that reads like the table it enforces: one row for each package, with what it may import.

    rows = ["actonce.ledger: actonce.contracts", …]

Promises: every import between packages of ours is allowed by a row, and every package of ours has a row. A package
may always import itself; a row covers the modules below it, and the longest matching row counts. Only direct imports
are looked at: with a row for everyone, an indirect one is a chain of direct ones. Rows of packages that do not exist
yet are kept for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class ImportTable(Contract):  # type: ignore[misc]
    """`type = "table"` in pyproject.toml."""

    type_name = "table"

    rows = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        del verbose
        problems = violations(graph, parse_rows(list(self.rows)))
        return ContractCheck(kept=not problems, metadata={"problems": problems})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for problem in check.metadata["problems"]:
            output.print_error(problem)


def parse_rows(rows: list[str]) -> dict[str, list[str]]:
    """Package → packages that it may import."""
    table = {}
    for row in rows:
        package, _, allowed = row.partition(":")
        table[package.strip()] = [word.strip() for word in allowed.split(",") if word.strip()]
    return table


def covering(module: str, packages: Iterable[str]) -> str | None:
    """The longest of `packages` that is the module or contains it. "=name" stands for that one module alone."""
    found = [p for p in packages if module == p.removeprefix("=") or module.startswith(p + ".")]
    return max(found, key=len) if found else None


def violations(graph: ImportGraph, table: dict[str, list[str]]) -> list[str]:
    """One sentence for each forbidden import and for each module without a row."""
    problems = []
    for importer in sorted(graph.modules):
        row = covering(importer, table)
        if row is None:
            problems.append(f"{importer} has no row in the import table: decide what it may import")
            continue
        allowed = table[row]
        single_modules = [name for name in allowed if name not in table]
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            target = covering(imported, table)
            if target == row or target in allowed or covering(imported, single_modules) is not None:
                continue
            for detail in graph.get_import_details(importer=importer, imported=imported):
                where = f"{importer}:{detail['line_number']}"
                problems.append(
                    f"{where} imports {imported}; {row} may import {', '.join(allowed) or 'nothing of ours'}"
                )
    return problems
