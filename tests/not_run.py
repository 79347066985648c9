"""What did not run, told at the end of a run: also by the processes that share the tests of one run (pytest-xdist)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

_TOLD = "not_run"
_LINES = pytest.StashKey[dict[str, None]]()


def tell_not_run(config: pytest.Config, line: str) -> None:
    """End the summary with `line`, once."""
    config.stash.setdefault(_LINES, {})[line] = None
    if hasattr(config, "workeroutput"):  # of the process that has the summary we only know through this
        config.workeroutput[_TOLD] = list(config.stash[_LINES])


class NotRun:
    """The hooks, registered by the conftest that every process loads."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for line in getattr(node, "workeroutput", {}).get(_TOLD, ()):
            tell_not_run(node.config, line)

    @pytest.hookimpl(wrapper=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> Generator[None]:
        yield
        for line in config.stash.get(_LINES, {}):
            terminalreporter.write_line(line, yellow=True, bold=True)
