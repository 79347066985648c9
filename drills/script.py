"""One cell as a script: several tasks, any fault, everything through the public doors.

    class MyScript(Script):
        def plan(cls, planned) -> Planned: ...          # tasks, operations, the fault and its proofs
        async def play(self) -> None: ...               # submit, strike, look, repair, operate

Contract: as in `table.run_cell`: whatever goes wrong, what was seen is exported and the cell's line is written; whether
the fault struck and the end was right is for the judge. After `play` a guarded cell must settle: every planned task
reaches one of its expected ends, a probe succeeds, a quiet period follows. Triggers are events; a script never sleeps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import httpx

from actonce.contracts.identity import derive_operation_id
from actonce.evidence import Cell as CellLine
from actonce.evidence import Expected, Fault, PlannedOperation, PlannedTask
from actonce.testing.export import export_ledger, export_release, export_task
from actonce.testing.parts import APPROVER, OPERATOR
from actonce.testing.settling import quiet, tasks_ended
from actonce.testing.site import Invalid
from actonce.testing.waiting import NeverHappened, eventually
from drills import doors
from drills.catalog import Job, Plan
from drills.console import acts
from drills.console.acts import Pressed
from drills.console.seeing import Moment, see
from drills.console.seeing import Wanted as Shown
from drills.rig import Cell, CellSpec, Run
from drills.table import SETTLE_S, STEP, TENANT, probe, refund_payload

SUBMIT_S = 15.0  # the entry's own deadline is 4 s
SUBMITS_AT_ONCE = 8
ENDS = ("complete", "failed", "cancelled")


@dataclass(frozen=True)
class Wanted:
    """One task to submit, its operations, and how it may end (`state` or `state:reason`)."""

    task_type: str
    key: str
    payload: dict[str, Any]
    operations: tuple[PlannedOperation, ...] = ()
    ends: tuple[str, ...] = ("complete",)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def task_id(self) -> str:
        return f"{TENANT}/{self.task_type}/{self.key}"


@dataclass(frozen=True)
class Planned:
    """What a script is going to do, before it does it."""

    tasks: tuple[Wanted, ...]
    fault: Fault
    expected: Expected  # of operations that carry none of their own
    params: dict[str, Any] = field(default_factory=dict)
    renamed: bool = False  # a control gives its tasks other ids, so that none of these has a history


@dataclass(frozen=True)
class ScriptCell:
    """One cell of one arm. `script` is the class; `params` choose its variant."""

    script: type[Script]
    name: str
    number: int
    params: dict[str, Any] = field(default_factory=dict)
    control: str | None = None
    expected_finding: str | None = None
    run_id: str = "planned"  # in every task id: two runs on one Temporal must never meet

    @property
    def arm(self) -> str:
        return "guarded" if self.control is None else f"control:{self.control}"

    @property
    def full_name(self) -> str:
        return self.name if self.control is None else f"{self.arm}.{self.name}"

    @property
    def key(self) -> str:
        """Start of every task key of this cell."""
        return f"{self.run_id}-{self.number}"

    @property
    def account(self) -> str:
        return f"acct-{self.number}"

    def program(self, verb: str) -> tuple[str, ...]:
        """What runs as "run", "watch" or "entry"."""
        if self.control is not None:
            return ("-m drills.controls.broken", self.control, verb)
        return ("-m actonce.entry",) if verb == "entry" else ("worker.py", verb)

    def _asks(self, amount_minor: int) -> bool:
        """Whether people must approve a refund of this amount here."""
        settings = self.script.spec.get("settings", {}).get("contracts", {}).get("payments", {})
        return any(amount_minor > rule["over_minor"] for rule in settings.get("approvals", ()))

    def refund(self, name: str, ends: tuple[str, ...] = ("complete",), **more: Any) -> Wanted:
        """A task of one refund, named within the cell."""
        key = f"{self.key}-{name}"
        task_id = f"{TENANT}/single/{key}"
        payload = refund_payload(f"pay-{self.number}-{name}", more.pop("amount_minor", 1000 + self.number))
        operation = PlannedOperation(
            operation_id=derive_operation_id(TENANT, task_id, STEP, 0),
            tenant=TENANT,
            destination="payments",
            action="refund",
            task_id=task_id,
            step=STEP,
            subject=payload["payment_id"],
            amount_minor=payload["amount_minor"],
            approval=self._asks(payload["amount_minor"]),
            expected=more.pop("expected", None),
        )
        body = {"destination": "payments", "action": "refund", "payload": payload}
        return Wanted("single", key, body, (operation,), ends, **more)


class Script:
    """Subclass it; see the module. `self.planned` is what `plan` returned, `self.cell` the running cell."""

    spec: ClassVar[dict[str, Any]] = {}  # more of CellSpec
    settle_s: ClassVar[float] = SETTLE_S

    def __init__(self, cell: Cell, plan: ScriptCell, planned: Planned) -> None:
        self.cell = cell
        self.plan_ = plan
        self.planned = planned

    @classmethod
    def plan(cls, cell: ScriptCell) -> Planned:
        raise NotImplementedError

    async def play(self) -> None:
        raise NotImplementedError

    # Steps.

    @property
    def guarded(self) -> bool:
        return self.plan_.control is None

    async def submit(self, tasks: Iterable[Wanted]) -> list[str]:
        """Start tasks through the entry service, in order of their list. Returns the ids of those it accepted.

        Every answer that is no acceptance is a note in the record.
        """
        turn = asyncio.Semaphore(SUBMITS_AT_ONCE)

        async def one(http: httpx.AsyncClient, task: Wanted) -> str | None:
            async with turn:
                headers = {"Idempotency-Key": task.key, "Actonce-Tenant": TENANT, **task.headers}
                answer = await http.post(f"/v1/tasks/{task.task_type}", json=task.payload, headers=headers)
            if answer.status_code in (200, 202):
                return str(answer.json()["task_id"])
            self.note(f"{task.task_id} was not accepted: {answer.status_code} {answer.text[:300]}")
            return None

        async with doors.http(self.cell, SUBMIT_S) as http:
            found = await asyncio.gather(*(one(http, task) for task in tasks))
        return [task_id for task_id in found if task_id is not None]

    async def ask(self, path: str) -> Any:
        """GET something from the entry service, as anyone may."""
        async with doors.http(self.cell, SUBMIT_S) as http:
            answer = await http.get(path)
        if answer.status_code != 200:
            raise Invalid(f"{self.cell.name}: GET {path} answered {answer.status_code}: {answer.text[:300]}")
        return answer.json()

    async def see(self, moment: Moment, task: Wanted, shown: Shown, *also: str, operation: bool = True) -> None:
        """What the console shows of a task and its first operation (`operation` False: it has none), and `also`."""
        operation_id = task.operations[0].operation_id if operation else None
        await see(self.cell, moment, task.task_id, operation_id, shown, also=also)

    async def vote(
        self, verb: str, approval: Mapping[str, Any], note: str = "checked", name: str = APPROVER, **on: Any
    ) -> Pressed:
        """An approver at the console, about exactly what its page shows."""
        who = await self.cell.console.visitor(name, acts="on" not in on)
        return await acts.vote(who, approval["approval_id"], verb, note, **on)

    async def voted(self, verb: str, approval: Mapping[str, Any]) -> None:
        """The same, which must be taken. Raises Invalid."""
        pressed = await self.vote(verb, approval)
        if not pressed.done:
            raise Invalid(f"{self.cell.name}: {verb} was not taken: {pressed.answer}")

    async def acknowledged(self, about: str) -> None:
        """Whoever is called says at the console that the page about this was seen: the operator's view."""
        who = await self.cell.console.visitor(OPERATOR)
        listed, pressed = await acts.acknowledge(who, about)
        if pressed is None:
            claim = ("the console lists the page, to be acknowledged", False, listed.words[-300:])
            self.view("operator", {"door": who.door, "alerts": listed.words[-1000:]}, claim)
        else:
            doors.record_act(self.cell, who, pressed, "the page is acknowledged at the console")

    def observe(self, name: str, target: str, facts: dict[str, Any]) -> None:
        """Put what a witness measured on record."""
        self.cell.run.writer.append("witness", "observation", self.cell.name, name=name, target=target, facts=facts)

    def note(self, text: str) -> None:
        """Put a remark on record; it is never judged."""
        self.cell.run.writer.append("drill", "note", self.cell.name, text=text)

    def view(self, name: str, body: Any, *assertions: tuple[str, bool, str]) -> None:
        """Put one of the five views on record, with what was asserted about it."""
        doors.record_view(self.cell, name, body, *assertions)

    async def ended(self, tasks: Iterable[Wanted] | None = None, within_s: float | None = None) -> bool:
        """Wait until the ledger has each task in one of its expected ends. False (and a note) when some are not."""
        wanted = {task.task_id: task.ends for task in (self.planned.tasks if tasks is None else tasks)}
        return await tasks_ended(self.cell, wanted, within_s=self.settle_s if within_s is None else within_s)

    async def drained(self, within_s: float) -> None:
        """Wait until nothing of this cell moves any more, whatever its tasks are called: for controls."""

        async def look() -> bool:
            rows = await self.cell.ledger.rows("task")
            return bool(rows) and all(row["state"] in (*ENDS, "held") for row in rows)

        try:
            await eventually(look, within_s=within_s, what=f"{self.cell.name}: its tasks at an end", every_s=0.3)
        except NeverHappened as error:
            self.note(str(error))


async def run_script(run: Run, plan: ScriptCell) -> None:
    """Drive one cell. Raises nothing that belongs to the cell alone: it goes to the record."""
    plan = replace(plan, run_id=run.run_id)
    planned = plan.script.plan(plan)
    try:
        async with Cell(run, _spec(plan)) as cell:
            script = plan.script(cell, plan, planned)
            try:
                await script.play()
                if script.guarded:
                    await _afterwards(cell, plan, script)
            finally:
                await _export(cell, plan, planned)
    except Exception as error:  # one cell's trouble is that cell's; the judge sees that it is not proven
        run.writer.append("drill", "note", plan.full_name, text=f"broke off: {_told(error)}")
    run.writer.cell(_line(plan, planned))


def _told(error: BaseException) -> str:
    """With what it came from: what goes wrong after a first trouble must not hide that."""
    before = error.__cause__ or error.__context__
    told = f"{type(error).__name__}: {error}"
    return f"{told} (after {_told(before)})" if before is not None else told


def _spec(plan: ScriptCell) -> CellSpec:
    programs = {"worker": plan.program("run"), "watch": plan.program("watch"), "entry": plan.program("entry")}
    if plan.control is None and "worker" in plan.script.spec.get("stops", ()):
        programs["worker"] = ("-m drills.controls.stops", "run")  # a control's program takes the stop by itself
    chosen: dict[str, Any] = {**programs, **plan.script.spec}
    return CellSpec(name=plan.full_name, number=plan.number, arm=plan.arm, **chosen)


async def _afterwards(cell: Cell, plan: ScriptCell, script: Script) -> None:
    await script.ended()
    await probe(cell, f"{plan.key}-probe")
    await quiet(cell, {o.operation_id for task in script.planned.tasks for o in task.operations if _may_exist(o)})


def _may_exist(operation: PlannedOperation) -> bool:
    return operation.expected is None or operation.expected.outcomes != ["not_issued"]


async def _export(cell: Cell, plan: ScriptCell, planned: Planned) -> None:
    probes = {derive_operation_id(TENANT, f"{TENANT}/single/{plan.key}-probe", STEP, 0)}
    await export_ledger(cell.ledger, cell.run.writer, plan.full_name, probes)
    tasks = {task.task_id for task in planned.tasks}
    found = await export_release(cell.ledger, cell.run.writer, plan.full_name, tasks)
    if found < len(tasks) and not planned.renamed:  # order and rate would be judged on what happens to be there
        raise Invalid(f"{plan.full_name}: the ledger has {found} of the {len(tasks)} tasks that were submitted")
    for task in planned.tasks:
        await export_task(cell.parts.temporal, cell.ledger, cell.run.writer, plan.full_name, task.task_id)


def _line(plan: ScriptCell, planned: Planned) -> CellLine:
    return CellLine(
        cell=plan.full_name,
        params=json.loads(json.dumps({**plan.params, **planned.params})),
        arm=plan.arm,
        control=plan.control,
        expected_finding=plan.expected_finding,
        expected=planned.expected,
        operations=[operation for task in planned.tasks for operation in task.operations],
        tasks=[PlannedTask(task_id=task.task_id, states=list(task.ends)) for task in planned.tasks],
        task_ids=[task.task_id for task in planned.tasks],
        purged=[task.task_id for task in planned.tasks] if planned.renamed else [],
        fault=planned.fault,
    )


def tried_on(scripts: Mapping[str, type[Script]], controls: Mapping[str, tuple[str, str]]) -> list[ScriptCell]:
    """A cell for each script, then one for each control: name -> (the script it is tried on, the finding it gives)."""
    cells = [ScriptCell(script, name, number) for number, (name, script) in enumerate(scripts.items(), 1)]
    for number, (control, (name, finding)) in enumerate(controls.items(), len(cells) + 1):
        cells.append(ScriptCell(scripts[name], name, number, control=control, expected_finding=finding))
    return cells


def plan_of(cells: Sequence[ScriptCell], **more: Any) -> Plan:
    """A job for each cell; the controls among them are what the drill promises to run."""
    jobs = [Job(cell.full_name, partial(run_script, plan=cell)) for cell in cells]
    more.setdefault("pictured", cells[0].full_name)  # the first is the one that stands for all
    return Plan(jobs=jobs, protections=[cell.control for cell in cells if cell.control is not None], **more)
