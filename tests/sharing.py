"""How processes divide the tests of one run (`make test WORKERS=2`): by file, and all cases to one of them.

The cases run side by side in the process that has them (`tests.integration.cases.kit`), and wait most of the time: in
two processes they would only make each other late.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

CASES = "tests/integration/cases"


class _ByFile(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return CASES if nodeid.startswith(f"{CASES}/") else super()._split_scope(nodeid)


class Sharing:
    """The hook, registered by the conftest."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> LoadFileScheduling:
        return _ByFile(config, log)
