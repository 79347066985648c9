"""A pytest plugin: drill your own workflow (docs/guides/drill-your-own.md).

    # conftest.py
    pytest_plugins = ["actonce.testing.plugin"]

It is asked for by name and is no `pytest11` entry point: whoever only installs the library must not have its servers'
packages imported into every test run, and the fixtures below start real processes.

A project overrides the fixture `drill_plan` and writes tests with `drilled`. Fixtures: `drill_stack` (PostgreSQL,
Temporal and Toxiproxy for the session: share them, stop none of them), `drill_parts` (with a zygote and a migrated
ledger), `drill` (one test's own corner). All live on the session's event loop.
"""

from __future__ import annotations

import functools
import itertools
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from actonce.stack import Stack
from actonce.testing.drilling import Arm, Drill, DrillPlan, Invalid, Judged
from actonce.testing.faults import Faults
from actonce.testing.parts import Parts, open_parts
from actonce.testing.selftest import SelfTest, self_tests

Test = TypeVar("Test", bound=Callable[..., Awaitable[None]])
_numbers = itertools.count(1)
_run_id = f"d{secrets.token_hex(4)}"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def drill_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """PostgreSQL, Temporal and Toxiproxy for the whole session."""
    folder = tmp_path_factory.mktemp("stack")
    async with Stack.open(folder, {"postgres", "temporal", "toxiproxy"}, end_at_once=True) as stack:
        yield stack


@pytest.fixture(scope="session")
def drill_plan() -> DrillPlan:
    """Override it: a DrillPlan that says what is drilled."""
    raise pytest.UsageError("define a session fixture `drill_plan` that returns an actonce.testing.drilling.DrillPlan")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def drill_parts(
    drill_stack: Stack, drill_plan: DrillPlan, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Parts]:
    """What all drills share: on the stack, for the plan's project."""
    async with open_parts(drill_stack, drill_plan.project, tmp_path_factory.mktemp("parts")) as parts:
        yield parts


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def drill_self_tests(drill_stack: Stack) -> list[SelfTest]:
    """Every fault shows on the wire what it does, before anything is judged with it (case i1)."""
    faults = Faults(drill_stack.toxiproxy_url, f"{_run_id}.self")
    try:
        return await self_tests(faults)
    finally:
        await faults.close()


@pytest_asyncio.fixture(loop_scope="session")
async def drill(
    request: pytest.FixtureRequest,
    drill_parts: Parts,
    drill_plan: DrillPlan,
    drill_self_tests: list[SelfTest],
    tmp_path: Path,
) -> AsyncIterator[Drill]:
    """One test's own ledger, destinations, proxies and processes, whole or with one protection taken out."""
    arm = getattr(request, "param", None) or Arm()
    name, number = request.node.name, next(_numbers)
    one = Drill(drill_parts, drill_plan, arm, _run_id, number, name=name, folder=tmp_path, proven=drill_self_tests)
    try:
        await one.open()
        yield one
    finally:
        await one.close()
        one.writer.abandon()


def drilled(controls: Mapping[str, str] | None = None) -> Callable[[Test], Any]:
    """Make `async def test_x(drill)` a drill: the test, and the same once more for each control.

    `controls`: protection to take out (`actonce.testing.controls`, or `module:function` of the project) → the finding
    that must name what follows, for example {"resend_without_lookup": "duplicate op"}. After the body everything
    settles and the record is judged. The guarded test passes when the fault struck and nothing was found; a control
    passes when the fault struck and its finding was found: a drill that cannot fail shows nothing.
    """
    arms = [Arm(), *(Arm(control, finding) for control, finding in (controls or {}).items())]

    def decorate(body: Test) -> Any:
        @functools.wraps(body)
        async def test(*args: Any, drill: Drill, **others: Any) -> None:
            judged = await _run(functools.partial(body, *args, drill=drill, **others), drill)
            if drill.plan.keep is not None:  # refused where there is evidence already: that of two runs never mixes
                shutil.copytree(drill.evidence, drill.plan.keep / re.sub(r"[^\w.-]+", "_", drill.test).strip("_"))
            _conclude(judged, drill)

        marked = pytest.mark.asyncio(loop_scope="session")(test)
        return pytest.mark.parametrize("drill", arms, indirect=True, ids=str)(marked)

    return decorate


async def _run(body: Callable[[], Awaitable[None]], drill: Drill) -> Judged:
    try:
        await body()
    except AssertionError as error:
        if drill.arm.control is None:
            raise
        drill.writer.append(
            "drill", "note", drill.name, text=f"an assertion of the test: {error}"
        )  # what a control is for
    await drill.settle()
    return await drill.finish()


def _conclude(judged: Judged, drill: Drill) -> None:
    where = f"{judged}\n(evidence: {drill.evidence})"
    if not judged.valid:
        pytest.fail(f"invalid, nothing is shown: {where}", pytrace=False)
    if drill.arm.control is None and not judged.passed:
        pytest.fail(where, pytrace=False)
    if drill.arm.finding is not None and not judged.caught(drill.arm.finding):
        what = f"without {drill.arm.control} nobody noticed: {drill.arm.finding!r} was to be found"
        pytest.fail(f"{what}; {where}", pytrace=False)


__all__ = [
    "Arm",
    "Drill",
    "DrillPlan",
    "Invalid",
    "drill",
    "drill_parts",
    "drill_plan",
    "drill_self_tests",
    "drill_stack",
    "drilled",
]
