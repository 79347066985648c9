"""The public doors of a cell: the client as fresh processes, the person on call, the five views.

Contract: nothing here reaches around the entry service, but for the page sink, which is the pager itself. Each view is
recorded as it was seen, with what was asserted about it.
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
from actonce.testing.sink import Paged
from actonce.testing.site import Invalid
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
    return {"ACTONCE_ENTRY_URL": entry_url(cell), "ACTONCE_ENTRY_TOKEN": cell.token}


def http(cell: Cell, timeout_s: float) -> httpx.AsyncClient:
    """The entry service, for callers that are no person."""
    shown = {"Authorization": f"Bearer {cell.token}"}
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
    """A fresh process is given the newest page about the operation, and the dashboard that its procedure names."""
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
    given = json.dumps({"title": page.title, "text": page.text})
    at, mono_ns = utc_now(), time.monotonic_ns()  # the task may go on before the person's process has ended
    said = await program(cell, "drills.operator", given, ACTONCE_OPERATOR_DASHBOARD=str(dashboard))
    done: dict[str, Any] = said.json or {"lost": said.err[-400:]}
    ok = said.code == 0
    record_view(
        cell,
        "operator",
        {"page": page.text, "did": done},
        ("from page and procedure alone a decision is recorded", ok, str(done.get("action") or done.get("lost"))),
    )
    if ok:
        cell.run.writer.append(
            "drill",
            "decision",
            cell.name,
            at=at,
            mono_ns=mono_ns,
            operation_id=done["operation_id"],
            action=done["action"],
            by=done["by"],
            command=" ".join(done["arguments"]),
        )
    return done


async def decide(cell: Cell, operation_id: str, action: str, why: str) -> bool:
    """A decision by somebody who looks at the operation as it is now. Records it; returns whether it was taken."""
    shown = (await client(cell, "show", operation_id, "--json")).json["records"][0]
    # The decision is as old as this: the task may go on before the client has ended.
    at, mono_ns = utc_now(), time.monotonic_ns()
    said = await resolve(cell, shown, action, "operator on call", why)
    record_view(
        cell,
        "operator",
        {"out": said.out[-400:], "err": said.err[-400:]},
        ("after the last bound the decision is taken", said.code == 0, said.err.strip()[-200:]),
    )
    if said.code == 0:
        line = {"operation_id": operation_id, "action": action, "by": "operator on call"}
        cell.run.writer.append("drill", "decision", cell.name, at=at, mono_ns=mono_ns, **line)
    return said.code == 0


async def resolve(cell: Cell, shown: dict[str, Any], action: str, name: str, why: str) -> Said:
    """`resolve` about an operation as it was shown."""
    return await client(
        cell,
        *("resolve", shown["operation_id"], "--action", action, "--name", name, "--reason", why),
        *("--expected-version", str(shown["version"]), "--expected-epoch", str(shown["epoch"]), "--json"),
    )


async def try_to_resume(cell: Cell, operation_id: str, why: str, *codes: str, action: str = "permit_one_retry") -> bool:
    """That decision now. Records whether it was refused; returns True when it was let through.

    Raises Invalid when it failed for another reason than one of `codes`: what could not be asked was not refused.
    """
    shown = (await client(cell, "show", operation_id, "--json")).json["records"][0]
    said = await resolve(cell, shown, action, "somebody in a hurry", why)
    answer = (said.out if said.code == 0 else said.err).strip()[-500:]
    if said.code != 0 and not refused_as(said, *codes):
        raise Invalid(f"{cell.name}: an early resume failed, and not as {' or '.join(codes)}: {answer}")
    kind = "early_resume_accepted" if said.code == 0 else "early_resume_refused"
    cell.run.writer.append("drill", kind, cell.name, operation_id=operation_id, answer=answer)
    return said.code == 0


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
