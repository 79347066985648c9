"""The code in docs/guides/approvals.md runs."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = (Path(__file__).parents[3] / "docs/guides/approvals.md").read_text(encoding="utf-8")


def test_the_guides_code_runs_and_its_rules_are_what_they_say() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.S)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/guides/approvals.md", "exec"), names)
    assert len(blocks) == 2 and {"rules", "steps"} <= set(names)
