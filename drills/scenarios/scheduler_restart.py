"""`scheduler-restart`: Temporal dies while tasks wait for approval, alone or with every worker and the entry.

asked and shown ─ Temporal killed ─ people look and decide, one deadline passes, a task is accepted
─ started again on the same file ─ shown the same ─ decided ones go on, the expired one is held and asked for anew
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import psutil
from temporalio.service import RPCError

from actonce.evidence import Expected, Fault
from actonce.stack import Stack
from actonce.stack.temporal import start_describe_poll
from actonce.testing.parts import APPROVER, ASKER, HURRIED, OPERATOR
from actonce.testing.site import Invalid
from actonce.testing.waiting import NeverHappened, eventually
from drills import doors
from drills.catalog import Options, Plan
from drills.console.seeing import DONE
from drills.console.seeing import Wanted as Shown
from drills.script import Planned, Script, ScriptCell, Wanted, plan_of

OVER_MINOR, SHORT_OVER_MINOR = 50_000, 100_000  # above the first an approval is needed, above the second a quick one
LONG_S, SHORT_S = 900.0, 30.0  # the short one passes in the outage, and is long enough to be renewed and executed in
ASKED = ("later", "approved", "rejected", "expires")
POINT_S = 90.0
NOT_ISSUED = Expected(outcomes=["not_issued"], effects=(0, 0), pages=False)
RENEWED = Expected(outcomes=["committed"], effects=(1, 1), pages=True)


class SchedulerRestart(Script):
    """See the module."""

    spec: ClassVar[dict[str, Any]] = {
        "own_temporal": True,
        "settings": {
            "contracts": {
                "payments": {
                    "approvals": [
                        {"action": "refund", "over_minor": OVER_MINOR, "valid_s": LONG_S},
                        {"action": "refund", "over_minor": SHORT_OVER_MINOR, "valid_s": SHORT_S},
                    ]
                }
            }
        },
        "env": {"ACTONCE_PROBE_EVERY_S": "1"},
    }

    @classmethod
    def plan(cls, cell: ScriptCell) -> Planned:
        tasks = [
            cell.refund("later", amount_minor=OVER_MINOR + 1),
            cell.refund("approved", amount_minor=OVER_MINOR + 2),
            cell.refund("rejected", ends=("failed",), amount_minor=OVER_MINOR + 3, expected=NOT_ISSUED),
            cell.refund("expires", amount_minor=SHORT_OVER_MINOR + 1, expected=RENEWED),
        ]
        if cell.control is None:
            tasks.append(cell.refund("meanwhile"))
        fault = Fault(
            spec={"fault": "Temporal killed while tasks wait for approval", **cell.params},
            targets=[task.operations[0].operation_id for task in tasks[: len(ASKED)]],
            proof=["observed"],
            observations=["scheduler_down_while_waiting", "same_file_again"],
        )
        return Planned(tuple(tasks), fault, Expected(outcomes=["committed"], effects=(1, 1), pages=False))

    async def play(self) -> None:
        if self.guarded:
            await self.cell.console.be_there(OPERATOR, HURRIED, APPROVER)
        await self.submit([self._task(name) for name in ASKED])
        before = await self._show("before", len(ASKED))
        await self._strike()
        if self.plan_.params["with"] == "workers and entry":  # people need the entry, whatever else is down
            self.cell.others["entry"] = await self.cell.start_program("entry-2", *self.plan_.program("entry"))
            await self.cell.others["entry"].until_ready()
        await self._look()
        if self.guarded:
            waiting = Shown(frozenset({"waiting for approval"}))
            await self.see("hold", self._task("later"), waiting, "/approvals", "/dependencies", operation=False)
            approver = await self.cell.console.visitor(APPROVER, acts=False)
            self._open_page = await approver.open(f"/approvals/{before['expires']['approval_id']}")
            await self.voted("approve", before["approved"])
            await self.voted("reject", before["rejected"])
            await self.submit([self._task("meanwhile")])
            await self._until_expired(before["expires"])
        await self._restart()
        after = await self._show("after", None)
        if not self.guarded:
            return
        await self.voted("approve", after["later"])
        await self._renew(after["expires"])
        await self.ended([self._task("later"), self._task("expires")])
        await self.see("after", self._task("later"), DONE, "/approvals")

    def _task(self, name: str) -> Wanted:
        return next(task for task in self.planned.tasks if task.key.endswith(f"-{name}"))

    def _operation(self, name: str) -> str:
        return self._task(name).operations[0].operation_id

    # What people are shown.

    async def _show(self, phase: str, asked: int | None) -> dict[str, dict[str, Any]]:
        """Every approval through the public door, on record; waits for `asked` of them. By the name of its task."""

        async def look() -> list[dict[str, Any]] | None:
            found = await self.ask("/v1/approvals")
            return found if asked is None or len(found) == asked else None

        found: list[dict[str, Any]] = (
            await eventually(look, within_s=POINT_S, what=f"{asked} approvals shown", every_s=0.2) or []
        )
        for one in found:
            named = {n: one[n] for n in ("approval_id", "operation_id", "digest", "state", "expires_at")}
            self.cell.run.writer.append("view", "approval_shown", self.cell.name, phase=phase, **named)
        return {one["task_id"].rpartition("-")[2]: one for one in found}

    # The fault.

    async def _strike(self) -> None:
        """Kill the server by signal, with the rest beside it if the cell says so; see for ourselves that it is gone."""
        rows = await self.cell.ledger.rows("approval")
        waiting = [row["operation_id"] for row in rows if row["state"] == "pending"]
        part = _own(self).part("temporal")
        number = signal.Signals[self.plan_.params["signal"]]
        self._pid, self._inode = part.pid, _file(self).stat().st_ino
        if self.plan_.params["with"] == "workers and entry":
            for process in (*self.cell.workers, self.cell.others["entry"]):
                process.signal(signal.SIGKILL)
        await part.kill(number)
        if self.plan_.params["with"] == "workers and entry":
            for process in (*self.cell.workers, self.cell.others["entry"]):
                await process.ended()
        self.observe(
            "scheduler_down_while_waiting",
            "temporal",
            {
                "pid": self._pid,
                "signal": number.name,
                "alive": psutil.pid_exists(self._pid),
                "refused": _refused(_own(self).temporal.ports["grpc"]),
                "waiting": waiting,
            },
        )

    async def _restart(self) -> None:
        """On the same file and address; whether it works is seen by doing it."""
        part = _own(self).part("temporal")
        await part.start()
        try:
            await start_describe_poll(self.cell.parts.temporal)
            took = True
        except RPCError as error:
            self.note(f"the restarted server took no workflow: {error}")
            took = False
        self.observe(
            "same_file_again",
            "temporal",
            {
                "pid_before": self._pid,
                "pid_after": part.pid,
                "inode_before": self._inode,
                "inode_after": _file(self).stat().st_ino,
                "took_a_workflow": took,
            },
        )
        if self.plan_.params["with"] == "workers and entry":
            await self.cell.add_workers()

    # During the outage.

    async def _look(self) -> None:
        """What the caller and the operator are told while it is down."""

        async def known() -> bool:
            return bool((await self._reading())["state"] == "down")

        try:
            await eventually(known, within_s=20.0, what="it is known that Temporal is down", every_s=0.3)
        except NeverHappened as error:
            self.note(str(error))
        reading = await self._reading()
        self.view(
            "dependencies",
            reading,
            (
                "it is told that Temporal is down",
                reading["state"] == "down",
                f"{reading['state']}: {reading['detail']}",
            ),
        )
        if not self.guarded:
            return
        await doors.dependencies_view(self.cell)
        await doors.user_view(self.cell, self._task("later").task_id, state={"waiting_for_approval"})
        found = await self.ask("/v1/approvals")
        states = [one["state"] for one in found]
        self.view(
            "state",
            found,
            ("each is there once", len(found) == len(ASKED), f"{len(found)} of {len(ASKED)}"),
            ("and undecided, or over by now", set(states) <= {"pending", "expired"}, ", ".join(states)),
        )

    async def _reading(self) -> dict[str, Any]:
        found = (await doors.client(self.cell, "dependencies", "--json")).json["dependencies"]
        return dict(next(one for one in found if one["name"] == "temporal"))

    async def _until_expired(self, approval: dict[str, Any]) -> None:
        """Its deadline passes while Temporal is down: told as expired, a person is called, a late click is a click."""
        shown = f"/v1/approvals/{approval['approval_id']}"

        async def over() -> bool:
            return bool((await self.ask(shown))["state"] == "expired")

        await eventually(over, within_s=SHORT_S + POINT_S, what="the short approval expired", every_s=0.5)
        late = await self.vote("approve", approval, on=self._open_page)  # the page was open since before
        after = await self.ask(shown)
        self.view(
            "state",
            after,
            ("a late click is refused", late.refused_as("expired"), late.answer[-200:]),
            ("and on record as a click", [c["effect"] for c in after["clicks"]] == ["expired"], str(after["clicks"])),
            ("it is told as expired", after["state"] == "expired", after["state"]),
        )
        await self._show("during", len(ASKED))
        task_id = self._task("expires").task_id

        async def paged() -> bool:
            return bool(self._pages_about("approval_expired", task_id))

        try:
            await eventually(paged, within_s=POINT_S, what="a page about the expired approval", every_s=0.3)
        except NeverHappened as error:
            self.note(str(error))
        pages = self._pages_about("approval_expired", task_id)
        procedure = "docs/operations/approval_expired.md"
        self.view(
            "alerts",
            pages,
            ("a person is called while Temporal is down, once", len(pages) == 1, f"{len(pages)} pages"),
            ("the page names its procedure", all(procedure in page for page in pages), procedure),
        )

    def _pages_about(self, *words: str) -> list[str]:
        pages = [f"{page.title} {page.text}" for page in self.cell.run.sink.of(self.cell.channel)]
        return [page for page in pages if all(word in page for word in words)]

    # Afterwards.

    async def _renew(self, approval: dict[str, Any]) -> None:
        """The operator's step, as the procedure says: not before a new approval, at the console."""
        operation_id = self._operation("expires")

        async def held() -> bool:
            row = await self.cell.ledger.operation(operation_id)
            return row is not None and row["state"] == "held"

        await eventually(held, within_s=POINT_S, what=f"{operation_id} is held", every_s=0.3)
        await doors.try_to_resume(
            self.cell, operation_id, "it was approved, nearly", "condition_not_met", action="resume"
        )
        renew = await self.vote("renew", approval, "its owner still wants it", ASKER)
        if not renew.done:
            raise Invalid(f"{self.cell.name}: it could not be asked for anew: {renew.answer}")
        done = {"operation_id": operation_id, "action": "renew", "by": ASKER}
        doors.record_decision(self.cell, {**done, "door": self.cell.console.door_of()})
        renewed = await self.ask(f"/v1/approvals/{renew.seen.path.rpartition('/')[2]}")
        later = datetime.fromisoformat(renewed["expires_at"]) > datetime.fromisoformat(approval["expires_at"])
        self.view(
            "operator",
            renewed,
            (
                "it is another approval with a time of its own",
                renewed["approval_id"] != approval["approval_id"] and later,
                renewed["approval_id"],
            ),
        )
        await self.voted("approve", renewed)
        await doors.decide(self.cell, operation_id, "resume", "approved anew")


def _own(script: SchedulerRestart) -> Stack:
    own = script.cell.parts.temporal_of_its_own
    assert own is not None, "the cell's spec asks for one"
    return own


def _file(script: SchedulerRestart) -> Path:
    return _own(script).folder / "temporal.db"


def _refused(port: int) -> str | None:
    """Why nobody takes a connection there; None when somebody does."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


CONTROLS = {
    "approvals_in_worker_memory": "approval lost op",
    "deadline_rearmed": "approval re-armed op",
    "ready_by_port": "view dependencies",
}


class SchedulerRestartDrill:
    """The drill."""

    name = "scheduler-restart"
    claim = (
        "When Temporal dies while tasks wait for approval, alone or with every worker and the entry, no approval is "
        "lost, asked for twice or given more time; decisions made meanwhile count, and what expired is held, not run."
    )

    def plan(self, options: Options) -> Plan:
        """Two signals, alone and with everything else; each control with the worst of them."""
        numbers = itertools.count(1)
        variants = [
            {"signal": name, "with": beside} for beside in ("nothing else", "workers and entry") for name in _SIGNALS
        ]
        cells = [ScriptCell(SchedulerRestart, _name(params), next(numbers), params=params) for params in variants]
        worst = {"signal": "SIGKILL", "with": "workers and entry"}
        cells += [
            ScriptCell(
                SchedulerRestart, _name(worst), next(numbers), params=worst, control=name, expected_finding=finding
            )
            for name, finding in CONTROLS.items()
        ]
        return plan_of(cells)


_SIGNALS = ("SIGKILL", "SIGINT")


def _name(params: dict[str, Any]) -> str:
    return f"{params['signal'].lower()}-with-{params['with'].replace(' ', '-')}"
