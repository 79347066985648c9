"""The public doors of a cell: the console, the client as fresh processes, the person on call, the five views.

Contract: nothing here reaches around console and entry service, but for the page sink, which is the pager itself. Each
view is recorded as it was seen, with what was asserted about it. People act at the console (`console.place` has the one
rule for how they get there); callers, and what the console has no button for, use the client.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from actonce.evidence.writer import utc_now
from actonce.testing.parts import HURRIED, OPERATOR
from actonce.testing.sink import Paged
from actonce.testing.site import Invalid
from drills.console import acts
from drills.console.acts import Pressed
from drills.console.visitors import Visitor
from drills.rig import ROOT, Cell

CLIENT_S = 60.0  # a fresh Python process on a busy machine, and the entry's answer


@dataclass(frozen=True)
class Said:
    """What one client process ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of its output."""
        lines = self.out.splitlines()
        return json.loads(lines[-1]) if lines else None


def entry_url(cell: Cell) -> str:
    """Where this cell's entry service is."""
    return str(cell.others["entry"].ready["url"])


def shell_of(cell: Cell) -> dict[str, str]:
    """What a person's shell has set: where the entry service is, and the token to show there."""
    return {"ACTONCE_ENTRY_URL": entry_url(cell), "ACTONCE_ENTRY_TOKEN": cell.access.token}


def http(cell: Cell, timeout_s: float) -> httpx.AsyncClient:
    """The entry service, for callers that are no person."""
    shown = {"Authorization": f"Bearer {cell.access.token}"}
    return httpx.AsyncClient(base_url=entry_url(cell), timeout=timeout_s, trust_env=False, headers=shown)


async def _process(cell: Cell, module: str, arguments: Sequence[str], given: str = "", **env: str) -> Said:
    folder = Path(tempfile.mkdtemp(prefix="said-", dir=cell.folder))
    (folder / "given").write_text(given, encoding="utf-8")
    child = await cell.parts.zygote.spawn(
        f"-m {module}",
        arguments,
        env={**cell.run.env, **shell_of(cell), **env},
        cwd=ROOT,
        given=folder / "given",
        log=folder / "out",
        errors=folder / "err",
    )
    code = await child.wait(CLIENT_S)
    if code is None:
        child.send_signal(signal.SIGKILL)
        raise Invalid(f"{cell.name}: {module} {' '.join(arguments)} has not ended within {CLIENT_S:g} s")
    return Said(code, *((folder / name).read_text(encoding="utf-8", errors="replace") for name in ("out", "err")))


async def client(cell: Cell, *arguments: str) -> Said:
    """The client, in a process of its own."""
    return await _process(cell, "actonce.client", arguments)


async def program(cell: Cell, module: str, given: str, **env: str) -> Said:
    """`python -m module`, in a process of its own, with something on its standard input."""
    return await _process(cell, module, (), given, **env)


async def start(cell: Cell, task_type: str, key: str, tenant: str, payload: dict[str, Any]) -> str:
    """Start a task as anyone would. Returns its id."""
    said = await client(
        cell, "start", task_type, "--key", key, "--tenant", tenant, "--payload", json.dumps(payload), "--json"
    )
    if said.code != 0:
        raise Invalid(f"{cell.name}: the task could not be started: {said.err[-400:]}")
    return str(said.json["task_id"])


async def on_call(cell: Cell, operation_id: str) -> dict[str, Any]:
    """A fresh process is given the newest page about the operation, a sign-in at the console, and the dashboard that
    its procedure names."""
    page = next((p for p in reversed(cell.run.sink.of(cell.channel)) if operation_id in f"{p.title} {p.text}"), None)
    if page is None:
        raise Invalid(f"{cell.name}: no page about {operation_id} arrived, so nobody is called")
    dashboard = cell.folder / "dashboard.json"
    dashboard.write_text(
        json.dumps(
            {
                "url": f"{cell.run.world.listeners['payments.list']}/v1/{cell.account}/refunds",
                "headers": {"Authorization": f"Bearer tok-{cell.account}-list"},  # a person's own login
                "author": f"prn-{cell.account}",
                "object": "refund",
            }
        ),
        encoding="utf-8",
    )
    at, mono_ns = utc_now(), time.monotonic_ns()  # the task may go on before the person's process has ended
    done = await person(cell, "drills.operator", OPERATOR, page, ACTONCE_OPERATOR_DASHBOARD=str(dashboard))
    ok = "lost" not in done
    record_view(
        cell,
        "operator",
        {"page": page.text, "did": done},
        ("from page, procedure and console alone a decision is recorded", ok, str(done.get("answer") or done)[:300]),
    )
    if ok:
        record_decision(cell, done, at=at, mono_ns=mono_ns)
    return done


async def person(cell: Cell, module: str, name: str, page: Paged, **env: str) -> dict[str, Any]:
    """A program of `drills` that is given a page and a sign-in at the console. What it did; `lost` when it did not."""
    login = await cell.console.login_file(name)
    given = json.dumps({"title": page.title, "text": page.text})
    said = await program(cell, module, given, ACTONCE_CONSOLE_LOGIN=str(login), **env)
    done: dict[str, Any] = said.json or {"lost": said.err[-400:]}
    if said.code != 0:
        done.setdefault("lost", said.err[-400:])
    return done


def record_decision(cell: Cell, done: dict[str, Any], **when: Any) -> None:
    """A decision that was taken."""
    line = {name: done[name] for name in ("operation_id", "action", "by", "door")}
    cell.run.writer.append("drill", "decision", cell.name, **when, **line)


async def decide(cell: Cell, operation_id: str, action: str, why: str) -> bool:
    """A decision by somebody who looks at the operation as it is now. Records it; returns whether it was taken."""
    who = await cell.console.visitor(OPERATOR)
    # The decision is as old as this: the task may go on before the page has answered.
    at, mono_ns = utc_now(), time.monotonic_ns()
    pressed = await acts.decide(who, operation_id, action, why=why, saw="the page of the operation")
    record_act(cell, who, pressed, "after the last bound the decision is taken")
    if pressed.done:
        done = {"operation_id": operation_id, "action": action, "by": OPERATOR, "door": who.door}
        record_decision(cell, done, at=at, mono_ns=mono_ns)
    return pressed.done


def record_act(cell: Cell, who: Visitor, pressed: Pressed, claim: str, ok: bool | None = None) -> None:
    """What somebody pressed at the console, and what became of it, as the operator's view."""
    right = pressed.done if ok is None else ok
    body = {"door": who.door, "offered": pressed.offered, "answer": pressed.answer}
    record_view(cell, "operator", body, (claim, right, pressed.answer[-300:]))


async def try_to_resume(cell: Cell, operation_id: str, why: str, *codes: str, action: str = "permit_one_retry") -> bool:
    """That decision now, by somebody at the console. Records whether it was refused; returns True when it was let
    through. Where the page offers no button for it, it is sent all the same.

    Raises Invalid when it failed for another reason than one of `codes`: what could not be asked was not refused.
    """
    who = await cell.console.visitor(HURRIED)
    pressed = await acts.decide(who, operation_id, action, why=why, saw="nothing yet")
    if not pressed.done and not pressed.refused_as(*codes):
        raise Invalid(f"{cell.name}: an early resume failed, and not as {' or '.join(codes)}: {pressed.answer}")
    kind = "early_resume_accepted" if pressed.done else "early_resume_refused"
    line: dict[str, Any] = {"operation_id": operation_id, "answer": pressed.answer, "door": who.door}
    cell.run.writer.append("drill", kind, cell.name, **line)
    return pressed.done


def refused_as(said: Said, *codes: str) -> bool:
    """Did the entry refuse with one of these codes? (Any failure ends the client with a status other than 0.)"""
    return said.code != 0 and any(f"(code {code})" in said.err for code in codes)


def record_view(cell: Cell, name: str, body: Any, *assertions: tuple[str, bool, str]) -> None:
    """One of the five views."""
    cell.run.writer.append(
        "view",
        "view",
        cell.name,
        name=name,
        body=body,
        assertions=[{"name": what, "ok": ok, "detail": detail} for what, ok, detail in assertions],
    )


async def user_view(cell: Cell, task_id: str, *, state: set[str]) -> dict[str, Any]:
    """What the caller is told about the task."""
    said = await client(cell, "show", task_id, "--json")
    task: dict[str, Any] = said.json if said.code == 0 else {"state": f"the client ended {said.code}", "why": said.err}
    record_view(
        cell,
        "user",
        task,
        (
            "the state is told truthfully",
            task["state"] in state,
            f"{task['state']}, true is {' or '.join(sorted(state))}",
        ),
        ("it says why", bool(task.get("why")), str(task.get("why"))[:200]),
    )
    return task


def names_procedure(page: Paged) -> bool:
    """Does the page name a procedure that is there, and of the reason for which something is held, if that is it?"""
    named = re.search(r"Procedure: (docs/operations/([a-z_]+)\.md)", page.text)
    held_for = re.search(r"is held: ([a-z_]+)", page.title)
    if named is None or not (ROOT / named.group(1)).is_file():
        return False
    return held_for is None or held_for.group(1) == named.group(2)


async def alerts_view(cell: Cell, operation_id: str, *, paged: bool) -> None:
    """What whoever is on call finds open: the page about this operation, or none any more."""
    said = await client(cell, "pages", "--json")
    listed = said.json if said.code == 0 else []
    found = [page for page in listed if operation_id in f"{page['title']} {page['body']}"]
    record_view(
        cell,
        "alerts",
        {"open": found, "err": said.err[-400:]},
        (
            "its page is open" if paged else "its page is closed with it",
            said.code == 0 and bool(found) == paged,
            f"{len(found)} open pages about {operation_id}",
        ),
    )


async def dependencies_view(cell: Cell) -> None:
    """The dependency page: every part that matters is on it, with a reading."""
    said = await client(cell, "dependencies", "--json")
    found = said.json if said.code == 0 else {"dependencies": []}
    names = {str(one["name"]) for one in found["dependencies"]}
    text = " ".join(sorted(names))
    wanted = ("temporal", "ledger", "payments")
    record_view(
        cell,
        "dependencies",
        found,
        (
            "Temporal, the ledger and the destination are on it",
            all(any(word in name for name in names) for word in wanted),
            text or "nothing",
        ),
    )
