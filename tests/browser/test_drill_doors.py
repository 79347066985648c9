"""The two doors by which people of the drills come to the console do the same: in a browser, and by its forms."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from actonce.contracts.people import Role
from drills import operator
from drills.console import acts
from drills.console.visitors import Login, Visitor, by_browser, by_forms
from tests.browser.staged import Staged
from tests.browser.visiting import PASSWORD

if TYPE_CHECKING:
    from playwright.async_api import Browser

DOORS = ("browser", "console")
pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def name(console: Staged) -> str:
    """Somebody who may do everything here."""
    await console.person("drill person", Role.ADMIN)
    return "drill person"


@contextlib.asynccontextmanager
async def through(door: str, console: Staged, browser: Browser, name: str) -> AsyncIterator[Visitor]:
    login = Login(console.url, name, PASSWORD)
    coming = by_browser(login, browser) if door == "browser" else by_forms(login)
    async with coming as visitor:
        assert visitor.door == door
        yield visitor


@pytest.mark.parametrize("door", DOORS)
async def test_a_decision_is_taken_once_and_an_older_page_is_refused(
    door: str, console: Staged, chromium: Browser, name: str
) -> None:
    operation_id = await console.one_held()
    async with through(door, console, chromium, name) as who, through("console", console, chromium, name) as other:
        page = await other.open(acts.operation_path(operation_id))
        saw = {"why": "the bank shows it", "saw": "line 4", "object_id": "re_1"}
        pressed = await acts.decide(who, operation_id, "mark_committed", **saw)
        assert pressed.done and pressed.offered, pressed.answer
        again = await acts.decide(other, operation_id, "mark_committed", **saw, on=page)
        assert again.refused_as("decided", "stale"), again.answer
    decisions = (await console.operation(operation_id))["decisions"]
    assert [(d["decision"], d["name"]) for d in decisions] == [("mark_committed", name)]


@pytest.mark.parametrize("door", DOORS)
async def test_what_the_page_has_no_button_for_is_sent_all_the_same_and_refused(
    door: str, console: Staged, chromium: Browser, name: str
) -> None:
    operation_id = next(key.operation_id for key in console.stage.operations.values() if key)
    done = next(o for o in console.stage.operations.values() if o.state.value == "committed")
    async with through(door, console, chromium, name) as who:
        pressed = await acts.decide(who, done.operation_id, "permit_one_retry", why="in a hurry", saw="nothing")
        assert not pressed.offered and pressed.refused_as("not_held"), pressed.answer
        unknown = await acts.decide(who, operation_id[:-4] + "zzzz", "resume", why="in a hurry", saw="nothing")
        assert not unknown.offered and unknown.refused_as("404"), unknown.answer


@pytest.mark.parametrize("door", DOORS)
async def test_an_approval_is_voted_about_and_a_page_is_acknowledged(
    door: str, console: Staged, chromium: Browser, name: str
) -> None:
    approval_id, operation_id = await console.one_asked(), await console.one_held()
    async with through(door, console, chromium, name) as who:
        vote = await acts.vote(who, approval_id, "approve", "checked")
        assert vote.done and vote.offered, vote.answer
        _, seen = await acts.acknowledge(who, operation_id)
        assert seen is not None and seen.done, seen
        _, again = await acts.acknowledge(who, operation_id)
        assert again is None  # its button is gone
    assert (await console.approval(approval_id))["state"] == "approved"


@pytest.mark.parametrize("door", DOORS)
async def test_release_deadline_and_credentials_are_changed_by_their_forms(
    door: str, console: Staged, chromium: Browser, name: str
) -> None:
    task = console.name("late")
    await console.stage.task(task)
    async with through(door, console, chromium, name) as who:
        for button, values in (
            ("Set", {"rate": "5", "window": "7"}),
            ("Pause", {}),
            ("Let tasks go again", {}),
        ):
            pressed = await acts.release(who, "single", button, why="the test", **values)
            assert pressed.done, pressed.answer
        pressed = await acts.deadline(who, console.stage.tasks[task], "2031-01-31T12:00", "its owner agreed")
        assert pressed.done, pressed.answer
        listed = acts.credentials(await who.open("/credentials"))
        assert listed
        pressed = await acts.rotate(who, listed[0][0], "it expired")
        assert pressed.done, pressed.answer
    released = (await console.entry.get("/v1/release")).json()
    (single,) = [one for one in released if one["task_type"] == "single"]
    assert (single["rate_per_s"], single["window_max"], single["paused"]) == (5.0, 7, False)


@pytest.mark.parametrize(("door", "row"), [("browser", {"id": "re_7"}), ("console", None)])
async def test_who_is_called_comes_from_the_page_to_a_decision(
    door: str,
    row: dict[str, str] | None,
    console: Staged,
    chromium: Browser,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operation_id = await console.one_held()
    pages = (await console.entry.get("/v1/pages")).json()
    page = next(p for p in pages if p["operation_id"] == operation_id)
    login = {"url": console.url, "name": name, "password": PASSWORD, "browser": door == "browser"}
    (tmp_path / "login.json").write_text(json.dumps(login))
    monkeypatch.setenv("ACTONCE_CONSOLE_LOGIN", str(tmp_path / "login.json"))
    monkeypatch.setattr(operator, "seen_at_destination", lambda operation_id: [row] if row else [])
    done = await operator.decide({"title": page["title"], "text": page["body"]})
    assert (done["operation_id"], done["door"]) == (operation_id, door)
    (decision,) = (await console.operation(operation_id))["decisions"]
    assert decision["decision"] == done["action"] == ("mark_committed" if row else "permit_one_retry")
