"""The project's worker with a `single.v1` that somebody changed without a new version. Run like worker.py."""

from __future__ import annotations

import sys

import worker
import workflows
from tests.workflows.changed import WaitsFirst

if __name__ == "__main__":
    workflows.ALL = [*(w for w in workflows.ALL if w.__name__ != "SingleTask"), WaitsFirst]
    worker.main(sys.argv[1:])
