"""What the console shows at a moment of a drill: read and asserted from its HTML, and pictured where people have a
browser.

Contract: `see` reads the pages as somebody who has no browser, so that what is asserted is the same with and without
one; then, in the cell that the drill pictures, it takes their pictures and that of the history in the Temporal UI, or
puts on record why there are none. What a page said is on record in its own words: whether that was true is for the
judge, who knows what the destination had by then.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from actonce.testing.parts import OPERATOR
from drills.console.acts import operation_path, task_path
from drills.console.pages import Seen
from drills.console.visitors import HEIGHT, WIDTH, ByBrowser
from drills.doors import record_view

if TYPE_CHECKING:
    from drills.rig import Cell

Moment = Literal["hold", "after"]
UI_HEIGHT = 1500  # its heads take half of a usual window
UI_READY_S = 20.0  # a second or two on a quiet machine; a picture that takes longer is missing, and says so


@dataclass(frozen=True)
class Wanted:
    """What the pages have to say."""

    task: frozenset[str]  # the task's states that are true
    operation: frozenset[str] = frozenset()  # the operation's
    reason: str | None = None  # of its hold

    @classmethod
    def held(cls, reason: str) -> Wanted:
        """Task and operation are held for a reason."""
        return cls(frozenset({"held"}), frozenset({"held"}), reason)


DONE = Wanted(frozenset({"complete"}), frozenset({"committed"}))


async def see(
    cell: Cell, moment: Moment, task_id: str, operation_id: str | None, wanted: Wanted, *, also: tuple[str, ...] = ()
) -> None:
    """Look at the task and the operation. `also`: other pages that are pictured beside them."""
    reader = await cell.console.visitor(OPERATOR, acts=False)
    task = await reader.open(task_path(task_id))
    _say(cell, moment, "task", task, task_id=task_id)
    _view(cell, "user", task, *_of_task(task, wanted))
    if operation_id is not None:
        operation = await reader.open(operation_path(operation_id))
        _say(cell, moment, "operation", operation, task_id=task_id, operation_id=operation_id)
        _view(cell, "operator", operation, *_of_operation(operation, wanted))
    if not cell.pictured:
        return
    paths = {"task": task_path(task_id)}
    if operation_id is not None:
        paths["operation"] = operation_path(operation_id)
    paths |= {path.strip("/"): path for path in also}
    history = next((address for address, title in task.links.items() if title == "Temporal UI"), None)
    await _picture(cell, moment, paths, history, task_id, operation_id)


def _say(cell: Cell, moment: Moment, page: str, seen: Seen, **about: Any) -> None:
    cell.run.writer.append(
        "view",
        "console_said",
        cell.name,
        moment=moment,
        page=page,
        path=seen.path,
        status=seen.status,
        said=seen.state,
        reason=seen.held_for,
        offered=seen.offered,
        **about,
    )


Claim = tuple[str, bool, str]


def _of_task(seen: Seen, wanted: Wanted) -> list[Claim]:
    why = re.match(r"Why (.+)", seen.now)
    claims = [
        (
            "the console tells the task's state truthfully",
            seen.state in wanted.task,
            f"{seen.state!r}, true is {_or(wanted.task)}",
        ),
        ("and why", why is not None and len(why.group(1)) > 8, seen.now[:200]),
    ]
    if wanted.reason is not None:
        claims.append(("with its reason", wanted.reason in seen.now, seen.now[:300]))
        link = f"/procedures/{wanted.reason}"
        claims.append(("and a link to its procedure", link in seen.links, link))
    return claims


def _of_operation(seen: Seen, wanted: Wanted) -> list[Claim]:
    committed = seen.state == "committed"
    lamp = re.search(r"Side effect committed (yes|not established)", seen.words)
    lit = lamp is not None and lamp.group(1) == "yes"
    claims = [
        (
            "the console tells the operation's state truthfully",
            seen.state in wanted.operation,
            f"{seen.state!r}, true is {_or(wanted.operation)}",
        ),
        (
            "its light `committed` is lit only with evidence",
            lamp is not None and lit == committed,
            f"{seen.state}, lit: {lit}",
        ),
    ]
    if seen.state == "held":
        claims += [
            (
                "it says for which reason it is held",
                seen.held_for is not None and wanted.reason in (None, seen.held_for),
                str(seen.held_for),
            ),
            ("until when it may still happen", "In the world" in seen.now, seen.now[:300]),
            ("and leads to the procedure", f"/procedures/{seen.held_for}" in seen.links, ""),
        ]
    else:
        claims.append(("it offers no decision", not seen.offered, ", ".join(seen.offered)))
    return claims


def _or(states: frozenset[str]) -> str:
    return " or ".join(sorted(states))


def _view(cell: Cell, name: str, seen: Seen, *claims: Claim) -> None:
    body = {"console": seen.path, "state": seen.state, "now": seen.now[:1000], "offered": seen.offered}
    record_view(cell, name, body, *claims)


# pictures ---------------------------------------------------------------------------------------------------------


async def _picture(
    cell: Cell, moment: Moment, paths: dict[str, str], history: str | None, task_id: str, operation_id: str | None
) -> None:
    about = {"task_id": task_id, "operation_id": operation_id}
    lacking = cell.run.screens.why_not
    visitor = await cell.console.visitor(OPERATOR) if lacking is None else None
    for page, path in paths.items():
        if isinstance(visitor, ByBrowser):
            await _take(cell, moment, page, path, visitor, about, visitor.open(path))
        else:
            _missing(cell, moment, page, path, lacking or "no browser", about)
    path = "/" + (history or "").partition("://")[2].partition("/")[2]
    if isinstance(visitor, ByBrowser) and history is not None:
        await _take(cell, moment, "history", path, visitor, about, _open_history(visitor, history))
    else:
        _missing(cell, moment, "history", path, lacking or "the console knows no Temporal UI", about)


async def _open_history(visitor: ByBrowser, address: str) -> None:
    """Load it in the Temporal UI, in a window that is high enough for its events."""
    await visitor.page.set_viewport_size({"width": WIDTH, "height": UI_HEIGHT})
    await visitor.page.goto(address)
    await visitor.page.get_by_test_id("history-tab").click(timeout=UI_READY_S * 1000)
    await visitor.page.get_by_test_id("event-summary-row").first.wait_for(timeout=UI_READY_S * 1000)


async def _take(
    cell: Cell,
    moment: Moment,
    page: str,
    path: str,
    visitor: ByBrowser,
    about: dict[str, Any],
    loading: Coroutine[Any, Any, Any],
) -> None:
    """Load it and take its picture. What cannot be loaded may be what this drill has taken away: that is on record."""
    from playwright.async_api import Error

    try:
        await loading
        file, digest = await cell.run.screens.take(visitor.page, f"{moment}-{page.replace('/', '-')}")
    except Error as error:
        _missing(cell, moment, page, path, f"the browser could not show it: {str(error).splitlines()[0]}", about)
    else:
        _record(cell, moment, page, path, {**about, "file": file, "sha256": digest})
    finally:
        await visitor.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})


def missed(cell: Cell, moment: Moment, why: str) -> None:
    """There is nothing to be seen at that moment, and why."""
    for page in ("task", "history"):
        _missing(cell, moment, page, "", why, {})


def _missing(cell: Cell, moment: Moment, page: str, path: str, why: str, about: dict[str, Any]) -> None:
    _record(cell, moment, page, path, {**about, "missing": why})


def _record(cell: Cell, moment: Moment, page: str, path: str, more: dict[str, Any]) -> None:
    of = cell.run.pictured
    cell.run.writer.append("view", "picture", cell.name, of=of, moment=moment, page=page, path=path, **more)
