"""One cell of the table from start to finish: one operation, one strike, what becomes of it.

    start ─ struck ─ settled or held ─ released and healed ─ probe ─ quiet ─ exported

Contract: whatever goes wrong, what was seen is exported and the cell's line is written; whether the fault struck and
the outcome was right is for the judge. The task is started like anyone's; the ledger is only read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from temporalio.client import WorkflowFailureError
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from actonce.contracts.identity import derive_operation_id
from actonce.contracts.messages import TaskInput
from actonce.evidence import Cell as CellLine
from actonce.evidence import Expected, Fault, PlannedOperation
from actonce.testing.export import FINAL, Row, export_ledger, export_task
from actonce.testing.settling import QUIET_S, RECOUNT_S, quiet
from actonce.testing.waiting import NeverHappened, eventually
from drills import doors
from drills.cells import Axes
from drills.reference import Expected as Endings
from drills.reference import expected as reference
from drills.rig import Cell, CellSpec, Run
from drills.strike import Strike, modes_of

TENANT = "drill"
STEP = "only"  # of task type `single`
SETTLE_S = 90.0  # reconcile-after 6 s + page grace 8 s + recovery 11 s at worst, times 3 for a busy machine
CONTROL_SETTLE_S = 30.0  # a control may never settle; its effects are there long before
START_S = 15.0
PROBE_S = 90.0  # a second on a quiet machine
TASK_S = 45.0  # a workflow looks again after at most 30 s


class Striking(Protocol):
    """Applies one cell's fault."""

    decides: bool  # does `operate` belong to the fault, so that a control needs it too?

    async def prepare(self) -> None:
        """Install what must be there before the task starts."""

    async def strike(self, operation_id: str) -> None:
        """Strike the operation in flight and heal what belongs to the strike."""

    async def operate(self, operation_id: str) -> None:
        """What a person does once it is held."""

    async def release(self) -> None:
        """Release what is held past the verdict."""

    def fault(self, operation_id: str) -> Fault:
        """The proofs that must be on record."""


@dataclass(frozen=True)
class Play:
    """What happens in a cell, whichever arm runs it."""

    name: str
    params: dict[str, Any]
    expected: Endings
    striking: Callable[[Cell], Striking]
    planned_fault: Callable[[str], Fault]
    late_arrival: str = "bounded"
    modes: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    stop: str | None = None  # the points (comma separated) at which a process stops itself
    stops: tuple[str, ...] = ()  # which processes may: "worker", "watch"
    watch_past_proxies: bool = False  # the watcher reads the destination directly
    entry: bool = False
    workers: int = 2  # where one is killed or stands still, another must be there
    twin: str | None = None  # the play on the other side of the commit


def table_play(axes: Axes) -> Play:
    """A cell of the table."""
    return Play(
        name=axes.name,
        params={name: getattr(axes, name) for name in axes.__dataclass_fields__},
        expected=reference(axes),
        striking=lambda cell: Strike(cell, axes),
        planned_fault=lambda operation_id: Strike.planned_fault(axes, operation_id),
        late_arrival=axes.late_arrival,
        modes=modes_of(axes),
        workers=1 if axes.process == "none" else 2,
        twin=axes.other_twin.name,
    )


@dataclass(frozen=True)
class PlannedCell:
    """One cell of one arm."""

    play: Play
    number: int
    arm: str = "guarded"
    control: str | None = None
    expected_finding: str | None = None
    broken: tuple[str, ...] = ("worker", "watch", "entry")  # the programs of a control that run without the protection
    has_twin: bool = False
    run_id: str = "planned"  # in every task id: two runs on one Temporal must never meet

    @property
    def name(self) -> str:
        return self.play.name if self.arm == "guarded" else f"{self.arm}.{self.play.name}"

    @property
    def plain(self) -> bool:
        """Does this arm run without actonce?"""
        return self.arm != "guarded" and self.control is None

    def program(self, role: str) -> tuple[str, ...]:
        """What runs as "worker", "watch", "entry" or "console"."""
        if self.plain:
            return ("-m drills.controls.plain", self.arm)
        verb = {"worker": "run"}.get(role, role)
        if self.control is not None and role in self.broken:
            return ("-m drills.controls.broken", self.control, verb)
        if role in ("entry", "console"):
            return (f"-m actonce.{role}",)
        if role in self.play.stops:
            return ("-m drills.controls.stops", verb)
        return ("worker.py", verb)

    @property
    def task_key(self) -> str:
        return f"{self.run_id}-{self.number}"

    @property
    def probe_key(self) -> str:
        return f"{self.task_key}-probe"

    @property
    def task_type(self) -> str:
        return "plain" if self.plain else "single"

    @property
    def task_id(self) -> str:
        return f"{TENANT}/{self.task_type}/{self.task_key}"

    @property
    def operation_id(self) -> str:
        return derive_operation_id(TENANT, self.task_id, STEP, 0)

    @property
    def payment_id(self) -> str:
        return f"pay-{self.number}"

    @property
    def amount_minor(self) -> int:
        return 1000 + self.number

    def payload(self) -> dict[str, Any]:
        """Of the one operation."""
        return refund_payload(self.payment_id, self.amount_minor)

    def task_payload(self) -> dict[str, Any]:
        """Of the task."""
        return {"destination": "payments", "action": "refund", "payload": self.payload()}

    def operations(self) -> list[PlannedOperation]:
        """As the record knows them."""
        only = PlannedOperation(
            operation_id=self.operation_id,
            tenant=TENANT,
            destination="payments",
            action="refund",
            task_id=self.task_id,
            step=STEP,
            subject=f"acct-{self.number}",
            amount_minor=self.amount_minor,
        )
        return [only]


def refund_payload(payment_id: str, amount_minor: int) -> dict[str, Any]:
    """A refund at the sandbox."""
    return {"payment_id": payment_id, "amount_minor": amount_minor, "currency": "EUR", "reason": "damaged"}


async def run_cell(run: Run, plan: PlannedCell) -> None:
    """Drive one cell. Raises nothing that belongs to the cell alone: it goes to the record."""
    plan, fault = replace(plan, run_id=run.run_id), None
    try:
        async with Cell(run, _spec(plan)) as cell:
            striking = plan.play.striking(cell)
            try:
                await striking.prepare()
                await start_single(cell, plan)
                await striking.strike(plan.operation_id)
                await _afterwards(cell, plan, striking)
            finally:
                fault = striking.fault(plan.operation_id)
                await _export(cell, plan)
    except Exception as error:  # one cell's trouble is that cell's; the judge sees that it is not proven
        run.writer.append("drill", "note", plan.name, text=f"broke off: {type(error).__name__}: {error}")
    run.writer.cell(_line(plan, fault or plan.play.planned_fault(plan.operation_id)))


def _spec(plan: PlannedCell) -> CellSpec:
    play = plan.play
    return CellSpec(
        name=plan.name,
        number=plan.number,
        arm=plan.arm,
        late_arrival=play.late_arrival,
        worker=plan.program("worker"),
        watch=None if plan.plain else plan.program("watch"),
        entry=plan.program("entry") if play.entry else None,
        console=plan.program("console"),
        workers=play.workers,
        modes=play.modes,
        settings=play.settings,
        env=play.env,
        stop=play.stop,
        stops=play.stops,
        watch_past_proxies=play.watch_past_proxies,
    )


async def start_single(cell: Cell, plan: PlannedCell) -> None:
    """Start the cell's task."""
    if plan.plain:
        task = {"arm": plan.arm, "payment": plan.payload()}
        await start_workflow(cell, "plain.v1", task, plan.task_id)
    elif plan.play.entry:
        await doors.start(cell, plan.task_type, plan.task_key, TENANT, plan.task_payload())
    else:
        await start_task(cell, plan.task_key, plan.payload())


async def start_task(cell: Cell, task_key: str, payload: dict[str, Any]) -> str:
    """A task of one refund; returns its id."""
    task_id = f"{TENANT}/single/{task_key}"
    task = TaskInput(
        tenant=TENANT,
        task_id=task_id,
        task_type="single",
        task_key=task_key,
        payload={"destination": "payments", "action": "refund", "payload": payload},
    )
    await start_workflow(cell, "single.v1", task, task_id)
    return task_id


async def start_workflow(cell: Cell, workflow: str, argument: Any, task_id: str) -> None:
    """Start it by its id; asked again while a busy dev server says nonsense, which cannot start it twice."""

    async def started() -> bool:
        try:
            await cell.parts.temporal.start_workflow(workflow, argument, id=task_id, task_queue=cell.task_queue)
        except WorkflowAlreadyStartedError:
            return True
        except RPCError as error:
            cell.run.writer.append("drill", "note", cell.name, text=f"start of {task_id}: {error}; asking again")
            return False
        return True

    await eventually(started, within_s=START_S, what=f"{task_id} started", every_s=0.5)


async def _afterwards(cell: Cell, plan: PlannedCell, striking: Striking) -> None:
    if plan.plain:
        await _plain_afterwards(cell, plan, striking)
        return
    guarded, row = plan.arm == "guarded", None
    planned = plan.operations() if guarded else plan.operations()[:1]  # what a control does later is of no interest
    for operation in reversed(planned):  # the first one's row is what is looked at
        row = await settled(cell, operation.operation_id, guarded=guarded)
    record_state(cell, plan, row)
    if guarded or striking.decides:
        await striking.operate(plan.operation_id)
    await striking.release()
    await cell.heal_routes()
    if plan.arm != "guarded":
        return
    await probe(cell, plan.probe_key)
    await _task_ended(cell, plan)
    await quiet(cell, {operation.operation_id for operation in plan.operations()})


async def _plain_afterwards(cell: Cell, plan: PlannedCell, striking: Striking) -> None:
    """Without a ledger: the task ends, or it does not; what is held is released; then nothing moves any more."""
    handle = cell.run.temporal.get_workflow_handle(plan.task_id)
    try:
        await asyncio.wait_for(handle.result(), CONTROL_SETTLE_S)
    except (TimeoutError, WorkflowFailureError) as error:
        cell.run.writer.append("drill", "note", cell.name, text=f"{plan.task_id}: {type(error).__name__} {error}")
    await striking.release()
    seen: dict[str, Any] = {"lines": -1, "since": time.monotonic()}

    def still() -> bool:
        lines = len(cell.run.tail.of(cell.account))
        if lines != seen["lines"]:
            seen.update(lines=lines, since=time.monotonic())
        return time.monotonic() - float(seen["since"]) >= QUIET_S

    await eventually(still, within_s=RECOUNT_S, what=f"{cell.name} quiet", every_s=0.2)


async def settled(cell: Cell, operation_id: str, *, guarded: bool = True) -> Row | None:
    """Wait until the operation is final, or held and a page about it arrived."""

    async def look() -> Row | None:
        row = await cell.ledger.operation(operation_id)
        if row is None or row["state"] in FINAL:
            return row
        if row["state"] != "held":
            return None
        told = any(operation_id in f"{page.title} {page.text}" for page in cell.run.sink.of(cell.channel))
        return row if told or not guarded else None

    try:
        return await eventually(
            look,
            within_s=SETTLE_S if guarded else CONTROL_SETTLE_S,
            what=f"{operation_id} settled, or held and paged",
            every_s=0.2,
        )
    except NeverHappened as error:
        cell.run.writer.append("drill", "note", cell.name, text=str(error))  # the judge says what that means
        return await cell.ledger.operation(operation_id)


def record_state(cell: Cell, plan: PlannedCell, row: Row | None) -> None:
    """The durable state as it stood before anything was healed, against the reference."""
    if plan.arm != "guarded":
        return
    wanted = plan.play.expected
    form = form_of(row)
    pages = cell.run.sink.of(cell.channel)
    cell.run.writer.append(
        "view",
        "view",
        cell.name,
        name="state",
        body={"form": form, "words": row["words"] if row else None, "why": list(wanted.why)},
        assertions=[
            {
                "name": "as the reference permits, before the routes are healed",
                "ok": form in wanted.settled,
                "detail": f"{form}, permitted {', '.join(sorted(wanted.settled))}",
            }
        ],
    )
    cell.run.writer.append(
        "view",
        "view",
        cell.name,
        name="alerts",
        body=[{"title": page.title, "text": page.text} for page in pages],
        assertions=[
            {
                "name": "a person is paged exactly when the operation is held",
                "ok": bool(pages) == form.startswith("held:"),
                "detail": f"{len(pages)} pages, form {form}",
            },
            {
                "name": "the page names the operation and the next command",
                "ok": all(plan.operation_id in page.text and "python -m actonce.client" in page.text for page in pages),
                "detail": "; ".join(page.title for page in pages) or "no page",
            },
            {
                "name": "the page names the procedure of its reason, and that can be read",
                "ok": all(doors.names_procedure(page) for page in pages),
                "detail": "; ".join(page.text.splitlines()[-1] for page in pages) or "no page",
            },
        ],
    )


def form_of(row: Row | None) -> str:
    """`state` or `state:reason`."""
    if row is None:
        return "not_issued"
    return f"held:{row['reason']}" if row["state"] == "held" else str(row["state"])


async def probe(cell: Cell, task_key: str, *, for_run: bool = False) -> None:
    """After healing, a new operation by the same processes succeeds. `for_run`: the line speaks for the whole run."""
    task_id = f"{TENANT}/single/{task_key}"
    operation_id = derive_operation_id(TENANT, task_id, STEP, 0)
    await start_task(cell, task_key, refund_payload(f"pay-{task_key}", 1))
    ok = False
    try:
        result = await asyncio.wait_for(cell.parts.temporal.get_workflow_handle(task_id).result(), PROBE_S)
        ok = isinstance(result, dict) and result.get("state") == "complete"
    except (TimeoutError, WorkflowFailureError) as error:
        cell.run.writer.append("drill", "note", cell.name, text=f"probe {operation_id}: {type(error).__name__} {error}")
    place = None if for_run else cell.name
    cell.run.writer.append("drill", "probe", place, operation_id=operation_id, ok=ok)


async def _task_ended(cell: Cell, plan: PlannedCell) -> None:
    """Once its operations are final the task ends by itself; whether it did is for the judge."""
    rows = [row for row in await cell.ledger.rows("operation") if row["task_id"] == plan.task_id]
    if not rows or any(row["state"] not in FINAL for row in rows):
        return
    try:
        await asyncio.wait_for(cell.run.temporal.get_workflow_handle(plan.task_id).result(), TASK_S)
    except (TimeoutError, WorkflowFailureError, RPCError) as error:
        cell.run.writer.append("drill", "note", cell.name, text=f"{plan.task_id}: {type(error).__name__} {error}")


async def _export(cell: Cell, plan: PlannedCell) -> None:
    if plan.plain:
        await export_task(cell.run.temporal, cell.ledger, cell.run.writer, plan.name, plan.task_id)
        return
    probes = {derive_operation_id(TENANT, f"{TENANT}/single/{plan.probe_key}", STEP, 0)}
    await export_ledger(cell.ledger, cell.run.writer, plan.name, probes)
    await export_task(cell.run.temporal, cell.ledger, cell.run.writer, plan.name, plan.task_id)


def _line(plan: PlannedCell, fault: Any) -> CellLine:
    wanted = plan.play.expected
    return CellLine(
        cell=plan.name,
        params=plan.play.params,
        arm=plan.arm,
        control=plan.control,
        expected_finding=plan.expected_finding,
        expected=Expected(outcomes=sorted(wanted.final), effects=wanted.effects, pages=wanted.pages),
        operations=plan.operations(),
        task_ids=[plan.task_id],
        twin_of=plan.play.twin if plan.has_twin and plan.arm == "guarded" else None,
        fault=fault,
    )
