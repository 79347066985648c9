"""Negative controls for anyone's drills: one protection taken out of a program, by name.

    python -m actonce.testing.controls CONTROL PROGRAM [ARGUMENT…]

PROGRAM is a file (`worker.py`) or `-m MODULE`, run as it would be by itself. CONTROL is a name from here, or
`module:function` of the project: a function without arguments that changes the process before the program starts
(`actonce.testing.swapping.swap` replaces one attribute). A control that changes nothing must not start; one that nobody
notices means that the drill cannot fail.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actonce.testing.swapping import swap


def resend_without_lookup() -> None:
    """What is unknown is sent again: nobody looks at the destination."""
    from actonce.contracts.verdict import Outcome, Verdict

    def make(real: Any) -> Any:
        def combine(contract: Any, facts: Any, *rest: Any) -> Any:
            if facts.acknowledged_object_id is not None:
                return real(contract, facts, *rest)
            return Verdict(outcome=Outcome.ABSENT, words="nobody looked")

        return combine

    swap("actonce.effects.combine", "combine", make)


def settle_rule_off() -> None:
    """`absent` is read at once, while the request may still be under way."""

    def first_issue(contract: Any, attempts: Any) -> Any:
        return max((a.issued_at for a in attempts if not a.provably_not_sent), default=None)

    swap("actonce.contracts.bounds", "may_commit_until", lambda real: lambda c, a: (first_issue(c, a), False))
    swap("actonce.contracts.bounds", "reconcile_at", lambda real: first_issue)


def done_without_evidence() -> None:
    """What is unknown counts as done, with no evidence from the destination."""
    from actonce.contracts.verdict import Outcome, Receipt, Verdict

    def make(real: Any) -> Any:
        def combine(contract: Any, facts: Any, *rest: Any) -> Any:
            if facts.acknowledged_object_id is not None:
                return real(contract, facts, *rest)
            receipt = Receipt(object_id="assumed", digest=facts.digest)
            return Verdict(outcome=Outcome.COMMITTED, receipt=receipt, words="nobody looked")

        return combine

    swap("actonce.effects.combine", "combine", make)


def control_named(name: str) -> Callable[[], None]:
    """The control of that name. Raises LookupError when there is none."""
    module, _, function = name.rpartition(":")
    try:
        found = getattr(importlib.import_module(module or __name__), function)
    except (ImportError, AttributeError) as error:
        raise LookupError(f"no control is called {name!r}: {error}") from error
    if not callable(found):
        raise LookupError(f"{name!r} is no function")
    return found  # type: ignore[no-any-return]


def main(arguments: list[str]) -> None:
    """Take the protection out, then be the program."""
    if len(arguments) < 2:
        raise SystemExit(f"usage: {__name__} CONTROL PROGRAM [ARGUMENT…]")
    name, program, *rest = arguments
    control_named(name)()
    if program.startswith("-m "):
        module = program.removeprefix("-m ").strip()
        sys.argv = [module, *rest]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = str(Path(program).resolve().parent)
    sys.argv = [program, *rest]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
