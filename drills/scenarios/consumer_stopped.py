"""`consumer-stopped`: every worker is killed while the entry service goes on accepting; then they come back.

some ask for approval ─ workers killed ─ tasks accepted ─ approvals and deadlines pass ─ looked at by everyone
─ paused, workers again, nothing moves ─ let go at a rate ─ all done, what expired is held and not run
"""

from __future__ import annotations

import itertools
import signal
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from actonce.evidence import Expected, Fault
from actonce.testing.parts import APPROVER, HURRIED, OPERATOR
from actonce.testing.site import Invalid
from actonce.testing.waiting import eventually
from drills import doors
from drills.catalog import Options, Plan
from drills.console import acts
from drills.console.seeing import DONE
from drills.console.seeing import Wanted as Shown
from drills.script import Planned, Script, ScriptCell, Wanted, plan_of

TASKS, CONTROL_TASKS = 200, 20
WITH_APPROVAL, WITH_DEADLINE = 3, 6
OVER_MINOR = 50_000  # refunds above need an approval
APPROVAL_S, DEADLINE_S = (
    40.0,
    25.0,
)  # long enough to be asked for and clicked, and to be accepted with, on a busy machine
RATE_PER_S, WINDOW = 5.0, 5  # the standing policy
RATE_AFTER_PER_S = 25.0  # what the operator lets go at after the repair
POINT_S = 90.0
CONTROL_S = 60.0
PAGED_S = 180.0  # the rule wants a minute of it before somebody is called
HELD = Expected(outcomes=["held"], effects=(0, 0), pages=True)


class ConsumerStopped(Script):
    """See the module."""

    spec: ClassVar[dict[str, Any]] = {
        "settings": {
            "contracts": {
                "payments": {
                    "approvals": [{"action": "refund", "over_minor": OVER_MINOR, "valid_s": APPROVAL_S}],
                }
            }
        },
        "env": {"ACTONCE_PROBE_EVERY_S": "1"},
    }
    settle_s: ClassVar[float] = 150.0  # 200 tasks at the chosen rate take 8 s, on two cores that others use

    @classmethod
    def plan(cls, cell: ScriptCell) -> Planned:
        guarded = cell.control is None
        plain = (TASKS - WITH_APPROVAL - WITH_DEADLINE) if guarded else CONTROL_TASKS
        tasks = [cell.refund(f"p{number:03}") for number in range(plain)]
        if guarded:
            tasks += [
                cls._held(cell, f"a{n}", "approval_expired", amount_minor=OVER_MINOR + 1) for n in range(WITH_APPROVAL)
            ]
            tasks += [cls._held(cell, f"d{n}", "deadline_passed") for n in range(1, WITH_DEADLINE)]
            resumed = Expected(outcomes=["committed"], effects=(1, 1), pages=True)
            tasks.append(cell.refund("d0", expected=resumed))
        fault = Fault(
            spec={"fault": "every worker killed, the entry goes on accepting"},
            targets=[task.operations[0].operation_id for task in tasks if "-p" in task.key],
            proof=["observed"],
            observations=["accepted_while_nobody_worked"],
        )
        expected = Expected(outcomes=["committed"], effects=(1, 1), pages=False)
        return Planned(tuple(tasks), fault, expected, renamed=cell.control == "entry_without_idempotency")

    @staticmethod
    def _held(cell: ScriptCell, name: str, reason: str, **more: Any) -> Wanted:
        expected = HELD.model_copy(update={"outcomes": [f"held:{reason}"]})
        return cell.refund(name, ends=(f"held:{reason}",), expected=expected, **more)

    def _named(self, letter: str) -> list[Wanted]:
        return [task for task in self.planned.tasks if f"-{letter}" in task.key]

    async def play(self) -> None:
        if self.guarded:
            await self.cell.console.be_there(OPERATOR, HURRIED, APPROVER)
        await self._set_release("Set", why="standing policy", rate=f"{RATE_PER_S:g}", window=str(WINDOW))
        approvals = await self._asked() if self.guarded else []
        await self._stop_every_worker()
        accepted = await self._accept()
        alive = [worker.pid for worker in self.cell.workers if worker.alive]
        self.observe("accepted_while_nobody_worked", "the task queue", {"alive": alive, "accepted": len(accepted)})
        if self.guarded:
            await self._approve_and_let_expire(approvals)
        await self._look(accepted)
        if not self.guarded:
            await self.cell.add_workers()
            await self.drained(within_s=CONTROL_S)
            return
        await self._repair()
        await self.ended([task for task in self.planned.tasks if "-d0" not in task.key], within_s=self.settle_s)
        await self._resume_one()

    # Before.

    async def _set_release(self, button: str, *, why: str, **values: str) -> None:
        """Somebody changes the release at the console, by one of its buttons."""
        who = await self.cell.console.visitor(OPERATOR)
        pressed = await acts.release(who, "single", button, why=why, **values)
        if not pressed.done:
            raise Invalid(f"{self.cell.name}: the release could not be changed: {pressed.answer}")
        doors.record_act(self.cell, who, pressed, f"the release is changed: {button}, {why}")

    async def _asked(self) -> list[dict[str, Any]]:
        """Tasks whose refund needs an approval; wait until people are asked."""
        await self.submit(self._named("a"))

        async def pending() -> list[dict[str, Any]] | None:
            found = await self.ask("/v1/approvals?state=pending")
            return found if len(found) == WITH_APPROVAL else None

        found: list[dict[str, Any]] = await eventually(
            pending, within_s=POINT_S, what="approvals asked for", every_s=0.3
        )
        return found

    async def _stop_every_worker(self) -> None:
        for worker in self.cell.workers:
            worker.signal(signal.SIGKILL)
            await worker.ended()

    async def _accept(self) -> list[str]:
        """Every other task, a tenth of them twice: a caller that got no answer asks again."""
        deadline = (datetime.now(UTC) + timedelta(seconds=DEADLINE_S)).isoformat()
        for task in self._named("d"):
            task.headers["Actonce-Deadline"] = deadline
        waiting = [*self._named("d"), *self._named("p")]
        accepted = await self.submit(waiting)
        again = await self.submit(waiting[::10])
        if len(accepted) != len(waiting) or (self.guarded and not set(again) <= set(accepted)):
            self.note(f"{len(accepted)} of {len(waiting)} accepted; again: {len(again)}")
        return accepted

    async def _approve_and_let_expire(self, approvals: list[dict[str, Any]]) -> None:
        """A person clicks in time; nobody executes it in time."""
        for one in approvals:
            await self.voted("approve", one)

        async def over() -> bool:
            found = await self.ask("/v1/approvals")
            return len(found) == WITH_APPROVAL and all(one["state"] == "expired" for one in found)

        await eventually(over, within_s=APPROVAL_S + POINT_S, what="the approvals have expired", every_s=0.5)

    # While nobody works.

    async def _look(self, accepted: list[str]) -> None:
        async def known() -> bool:
            return bool((await self._release())["nobody_works"])

        if self.plan_.control != "uncontrolled_release":
            await eventually(known, within_s=POINT_S, what="it is known that nobody works", every_s=0.3)
        task = await doors.user_view(self.cell, accepted[-1], state={"queued"})
        self.view(
            "user",
            task["why"],
            ("it says that nobody works", "nobody" in task["why"], task["why"][:200]),
            ("and what to do", bool(task["what_to_do"]), str(task["what_to_do"])[:200]),
        )
        await doors.dependencies_view(self.cell)
        if not self.guarded:
            return
        release = await self._release()
        self.view(
            "state",
            release,
            ("they wait in the ledger", release["backlog"] >= len(accepted) - WINDOW, f"{release['backlog']} wait"),
            ("no more than a window is out", release["outstanding"] <= WINDOW, f"{release['outstanding']} are out"),
        )
        dependencies = (await doors.client(self.cell, "dependencies", "--json")).json["dependencies"]
        pollers = next(one for one in dependencies if one["name"].startswith("pollers:"))
        self.view("dependencies", pollers, ("the task queue is down", pollers["state"] == "down", pollers["detail"]))
        await self._called()

    async def _called(self) -> None:
        """A person is called because nobody works, once."""

        async def paged() -> bool:
            return any(
                "nobody_works" in f"{page.title} {page.text}" for page in self.cell.run.sink.of(self.cell.channel)
            )

        await eventually(paged, within_s=PAGED_S, what="a page that nobody works", every_s=0.3)
        pages = [p for p in self.cell.run.sink.of(self.cell.channel) if "nobody_works" in f"{p.title} {p.text}"]
        procedure = "docs/operations/nobody_works.md"
        self.view(
            "alerts",
            [{"title": page.title, "text": page.text} for page in pages],
            ("a person is called, once for the incident", len(pages) == 1, f"{len(pages)} pages"),
            ("the page names its procedure", all(procedure in page.text for page in pages), procedure),
        )

    async def _release(self) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in await self.ask("/v1/release") if one["task_type"] == "single")
        return found

    # Repair.

    async def _repair(self) -> None:
        """Paused first, then workers, then let go at a chosen rate: as the procedure says."""
        await self.acknowledged("nobody_works")
        await self._set_release("Pause", why="until the workers are up")
        before = await self._release()
        await self.cell.add_workers()

        async def works() -> bool:
            return not (await self._release())["nobody_works"]

        await eventually(works, within_s=POINT_S, what="it is known that somebody works again", every_s=0.3)
        paused = await self._release()
        await self._set_release("Set", why="the workers are up", rate=f"{RATE_AFTER_PER_S:g}")
        await self._set_release("Let tasks go again", why="the workers are up")
        self.view(
            "operator",
            {"before": before, "paused": paused},
            (
                "nothing is let go while it is paused, also with workers up",
                paused["backlog"] == before["backlog"] > 0,
                f"{before['backlog']} before, {paused['backlog']} while paused",
            ),
        )

    async def _resume_one(self) -> None:
        """One of those whose deadline passed: resumed too early, then after its owner gave it a new deadline."""
        task = next(task for task in self.planned.tasks if "-d0" in task.key)
        operation_id = task.operations[0].operation_id

        async def held() -> bool:
            row = await self.cell.ledger.operation(operation_id)
            told = any(operation_id in f"{p.title} {p.text}" for p in self.cell.run.sink.of(self.cell.channel))
            return row is not None and row["state"] == "held" and told

        await eventually(held, within_s=POINT_S, what=f"{operation_id} held and paged", every_s=0.3)
        await doors.try_to_resume(
            self.cell, operation_id, "the deadline does not matter", "condition_not_met", action="resume"
        )
        await self.see("hold", task, Shown.held("deadline_passed"), "/release", "/alerts")
        later = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M}"
        who = await self.cell.console.visitor(OPERATOR)
        pressed = await acts.deadline(who, task.task_id, later, "its owner agreed")
        if not pressed.done:
            raise Invalid(f"{self.cell.name}: the deadline could not be changed: {pressed.answer}")
        await doors.decide(self.cell, operation_id, "resume", "its owner gave it a new deadline")
        await self.ended([task])
        await self.see("after", task, DONE)


CONTROLS = {
    "entry_without_idempotency": "duplicate op",
    "uncontrolled_release": "released too fast",
    "status_says_running": "view user",
}


class ConsumerStoppedDrill:
    """The drill."""

    name = "consumer-stopped"
    claim = (
        "While every worker is down the entry service goes on accepting and says that nobody works; after the repair "
        "what waited is let go oldest first at a chosen rate, each effect happens once, and what expired meanwhile is "
        "held and not run."
    )

    def plan(self, options: Options) -> Plan:
        """The guarded cell, and one for each control."""
        numbers = itertools.count(1)
        cells = [ScriptCell(ConsumerStopped, "all-workers-killed", next(numbers))]
        cells += [
            ScriptCell(ConsumerStopped, "all-workers-killed", next(numbers), control=name, expected_finding=finding)
            for name, finding in CONTROLS.items()
        ]
        return plan_of(cells)
