"""`memory-unreachable`: what is remembered cannot be asked, while the port stays open and everything else works.

    earlier refund ─ fault ─ same payment asked again: held ─ looked at ─ operator ─ healed ─ refused by policy ─ later

Contract: what is remembered is put there by a task of the system itself; the task that is struck would be refused by
it, so a silent "nothing" makes a refund that must not be made, and the destination shows it. Another task, which asks
its memory nothing, completes while the fault is there. Everything is started and looked at through the public doors.
"""

from __future__ import annotations

import itertools
import json
from functools import partial
from typing import Any, ClassVar

from actonce.contracts.identity import derive_operation_id
from actonce.evidence import Expected, Fault, PlannedOperation
from actonce.testing.site import Invalid
from actonce.testing.waiting import NeverHappened, eventually
from drills import doors
from drills.catalog import Options, Plan
from drills.console.seeing import Wanted as Shown
from drills.memory_faults import FAULTS
from drills.script import Planned, Script, ScriptCell, Wanted, plan_of
from drills.table import TENANT, refund_payload

STEPS = (("refund", "payments", "refund"), ("ticket", "tickets", "open"), ("notice", "mail", "send"))
HELD_S = 60.0  # a look takes at most 3 s; the rest is a busy machine
SEEN_S = 30.0  # the prober looks every 3 s, its look takes at most 4 s
CONTROL_S = 45.0
NOT_DONE = Expected(outcomes=["not_issued"], effects=(0, 0), pages=False)
DONE = Expected(outcomes=["committed"], effects=(1, 1), pages=False)


def _refund(cell: ScriptCell, name: str, payment: str, customer: str, end: str) -> Wanted:
    """A `refund` task. One that ends `failed` must do nothing anywhere."""
    key = f"{cell.key}-{name}"
    task_id = f"{TENANT}/refund/{key}"
    done = end == "complete"
    operations = [
        PlannedOperation(
            operation_id=derive_operation_id(TENANT, task_id, step, 0),
            tenant=TENANT,
            destination=destination,
            action=action,
            task_id=task_id,
            step=step,
            amount_minor=1000 + cell.number if step == "refund" else None,
            expected=DONE if done else NOT_DONE,
        )
        for step, destination, action in STEPS
    ]
    payload = {**refund_payload(payment, 1000 + cell.number), "customer": customer}
    return Wanted("refund", key, payload, tuple(operations), (end,))


class MemoryScript(Script):
    """See the module."""

    spec: ClassVar[dict[str, Any]] = {
        "workers": 1,
        "own_memory": True,
        "settings": {"destinations": ["payments", "tickets", "mail"]},
    }

    @classmethod
    def plan(cls, cell: ScriptCell) -> Planned:
        fault = FAULTS[cell.params["fault"]]
        payment, customer = f"pay-{cell.number}", f"customer-{cell.number}@example.org"
        tasks = (
            _refund(cell, "earlier", payment, customer, "complete"),
            _refund(cell, "again", payment, customer, "failed"),
            cell.refund("other", expected=DONE),
            _refund(cell, "later", f"{payment}-later", f"other-{customer}", "complete"),
        )
        strangers = [tasks[3].task_id]  # its customer was never refunded: `empty` is the truth for it
        return Planned(
            tasks=tasks if cell.control is None else tasks[:2],
            fault=Fault(
                spec={"fault": cell.params["fault"]},
                targets=[tasks[1].operations[0].operation_id],
                proof=["observed"],
                observations=list(fault.observations),
                self_test=fault.self_test,
            ),
            expected=DONE,
            params={"strangers": strangers},
        )

    @property
    def again(self) -> Wanted:
        return self.planned.tasks[1]

    async def play(self) -> None:
        earlier = self.planned.tasks[0]
        await self.submit([earlier])
        if not await self.ended([earlier]):
            raise Invalid(f"{self.cell.name}: nothing was remembered, so there is nothing to forget")
        fault = FAULTS[self.plan_.params["fault"]](self)
        asked = self.planned.tasks[1:3]
        await fault.strike(partial(self._submit_in_turn, asked))
        if not self.guarded:
            await self._as_a_control_does()
            await fault.observe()
            return
        await self._held()
        await self.ended([self.planned.tasks[2]])
        seen = await self._until_seen()
        await self._five_views(fault.troubles, seen)
        shown = Shown(frozenset({"held"}), reason="memory_unavailable")
        await self.see("hold", self.again, shown, "/dependencies", "/alerts", operation=False)
        await self._resume_early()
        await fault.observe()
        await self._operate(fault.troubles, mends=fault.mends_itself)
        await fault.heal()
        await self.ended([self.again])
        await self.see("after", self.again, Shown(frozenset({"failed"})), "/dependencies", operation=False)
        task = await doors.user_view(self.cell, self.again.task_id, state={"failed"})
        why = str((task.get("outcome") or {}).get("summary"))
        self.view("user", {"summary": why}, ("it ends by what was remembered", "refused by policy" in why, why))
        await self.submit([self.planned.tasks[3]])

    async def _submit_in_turn(self, tasks: tuple[Wanted, ...]) -> None:
        for task in tasks:
            await self.submit([task])

    async def _as_a_control_does(self) -> None:
        """Its task ends, or its prober has looked: whichever the missing protection is about."""
        try:
            if self.plan_.control == "memory_health_by_port":
                await self._held()
                await self._until_seen(state="up")
            else:
                await eventually(self._is_over, within_s=CONTROL_S, what=f"{self.again.task_id} over", every_s=0.3)
        except NeverHappened as error:
            self.note(str(error))
        await self._dependencies_view("up" if self.plan_.control == "memory_health_by_port" else "down")

    async def _is_over(self) -> bool:
        rows = await self.cell.ledger.rows("task")
        return any(row["task_id"] == self.again.task_id and row["outcome"] for row in rows)

    async def _held(self) -> None:
        """The task waits, and a person was told."""

        async def look() -> bool:
            holds = [h for h in await self.cell.ledger.rows("hold") if h["task_id"] == self.again.task_id]
            told = any(self.again.task_id in page.text for page in self.cell.run.sink.of(self.cell.channel))
            return bool(holds) and holds[-1]["closed_at"] is None and told

        await eventually(look, within_s=HELD_S, what=f"{self.again.task_id} held and paged", every_s=0.2)

    async def _until_seen(self, state: str = "down") -> dict[str, Any]:
        """Wait until the dependency page says so of the memory."""

        async def look() -> dict[str, Any] | None:
            found = (await self.ask("/dependencies"))["dependencies"]
            return next((one for one in found if one["name"] == "memory" and one["state"] == state), None)

        return await eventually(look, within_s=SEEN_S, what=f"{self.cell.name}: memory is {state}", every_s=0.3)

    async def _dependencies_view(self, wanted: str) -> None:
        said = await doors.client(self.cell, "dependencies", "--json")
        found = said.json if said.code == 0 else {"dependencies": []}
        states = {one["name"]: one["state"] for one in found["dependencies"]}
        others = {name: state for name, state in states.items() if name in ("temporal", "ledger")}
        self.view(
            "dependencies",
            found,
            (f"the memory is {wanted}", states.get("memory") == wanted, str(states.get("memory"))),
            ("and nothing else is", set(others.values()) == {"up"}, json.dumps(states)),
        )

    async def _five_views(self, troubles: frozenset[str], seen: dict[str, Any]) -> None:
        task = await doors.user_view(self.cell, self.again.task_id, state={"held"})
        told = [(one["status"], one["trouble"]) for one in task.get("memory", [])]
        right = bool(told) and told[0][0] == "unavailable" and told[0][1] in troubles
        self.view(
            "user",
            {"memory": task.get("memory"), "do": task.get("what_to_do")},
            ("the user is told that the memory is unavailable, and why", right, str(told)),
            ("and which procedure it is", "memory_unavailable.md" in str(task.get("what_to_do")), ""),
        )
        holds = [h for h in await self.cell.ledger.rows("hold") if h["task_id"] == self.again.task_id]
        rows = [o for o in await self.cell.ledger.rows("operation") if o["task_id"] == self.again.task_id]
        self.view(
            "state",
            [{name: str(hold[name]) for name in ("step", "reason", "words", "closed_at")} for hold in holds],
            ("one hold, for the memory", [h["reason"] for h in holds] == ["memory_unavailable"], str(len(holds))),
            ("no operation was even recorded", not rows, f"{len(rows)} operations"),
        )
        pages = [p for p in self.cell.run.sink.of(self.cell.channel) if self.again.task_id in p.text]
        self.view(
            "alerts",
            [{"title": page.title, "text": page.text} for page in pages],
            ("a person was paged", bool(pages), f"{len(pages)} pages"),
            ("with the next command and the procedure", all("docs/operations/" in p.text for p in pages), ""),
        )
        self.view(
            "dependencies",
            {"dependencies": [seen]},
            ("it says what waits for it", "held" in str(seen["blocks"]), str(seen["blocks"])),
        )
        await self._dependencies_view("down")

    async def _resume_early(self) -> None:
        """Somebody in a hurry decides about the operation, and nudges the workflow: neither makes it go on."""
        operation_id = self.again.operations[0].operation_id
        await doors.try_to_resume(self.cell, operation_id, "the customer waits", "404", action="resume")
        before = await self._looks()
        await self.cell.run.temporal.get_workflow_handle(self.again.task_id).signal("actonce.nudge")

        async def looked_again() -> bool:
            return await self._looks() > before

        await eventually(looked_again, within_s=HELD_S, what=f"{self.again.task_id} looks again", every_s=0.2)
        task = await doors.user_view(self.cell, self.again.task_id, state={"held"})
        self.view("user", {"state": task["state"]}, ("a nudge makes nothing go on", task["state"] == "held", ""))

    async def _looks(self) -> int:
        rows = await self.cell.ledger.rows("memory_use")
        return max((int(row["looks"]) for row in rows if row["task_id"] == self.again.task_id), default=0)

    async def _operate(self, troubles: frozenset[str], *, mends: bool) -> None:
        """Whoever is called says so at the console. The repair is made on a host: a fresh process is given the page
        and a shell of the deployment."""
        await self.acknowledged(self.again.task_id)
        page = next(p for p in reversed(self.cell.run.sink.of(self.cell.channel)) if self.again.task_id in p.text)
        given = json.dumps({"title": page.title, "text": page.text})
        said = await doors.program(self.cell, "drills.memory_operator", given, **self.cell.env)
        done: dict[str, Any] = said.json or {"lost": said.err[-400:]}
        ended = done.get("healthy") is True if mends else bool(done.get("to_repair"))
        self.view(
            "operator",
            {"page": page.text, "did": done},
            ("page and procedure lead to what is wrong", done.get("trouble") in troubles, str(done)[:300]),
            ("and to its repair, or to who must make it", said.code == 0 and ended, str(done.get("to_repair"))[:300]),
        )


CONTROLS = (
    ("memory_failure_as_empty", "silent-on-open", "false empty task"),
    ("memory_without_canary", "made-anew", "false empty task"),
    ("memory_health_by_port", "silent-on-open", "false up memory"),
)


class MemoryUnreachable:
    """See the module."""

    name = "memory-unreachable"
    claim = (
        "While what is remembered cannot be asked, although its port is open, a task that needs it is held and paged, "
        "never told `nothing`; tasks that do not need it go on; it resumes by itself once the memory has proven itself."
    )

    def plan(self, options: Options) -> Plan:
        """Every fault, and a control for each protection."""
        numbers = itertools.count(1)
        faults = ["silent-on-open", "index-dropped"] if options.scope == "cut" else list(FAULTS)
        cells = [ScriptCell(MemoryScript, name, next(numbers), {"fault": name}) for name in faults]
        controls = CONTROLS[:1] if options.scope == "cut" else CONTROLS
        cells += [
            ScriptCell(MemoryScript, fault, next(numbers), {"fault": fault}, control, finding)
            for control, fault, finding in controls
        ]
        return plan_of(cells)
