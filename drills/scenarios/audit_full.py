"""`audit-full`: what audit events are written to has no room, or gives no answer: the log destination, then the ledger.

log-full           the folder that events are shipped to lies on a file system that is filled: work goes on, events wait
collector-hangs    the log collector accepts connections and says nothing: the same
ledger-full        the ledger's own tables have no room: nothing is sent, a person is called past the ledger
outcome-full       they fill up between the call and its outcome: the outcome is kept and written later
outcome-full-kill  the same, and the worker that keeps it is killed: the destination is asked
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, ClassVar

from actonce.evidence import Expected, Fault
from actonce.testing import witness
from actonce.testing.faults import WireFault
from actonce.testing.site import Invalid
from actonce.testing.waiting import eventually
from drills import auditing, doors
from drills.catalog import Options, Plan
from drills.console.seeing import DONE as SHOWN_DONE
from drills.script import Planned, Script, ScriptCell, Wanted, plan_of, tried_on

STEP_S = 60.0  # one step of a cell, with everything else running on two cores
SILENT_S = 1.5
DONE = Expected(outcomes=["committed"], effects=(1, 1))


class _Audited(Script):
    """What the cells share: a task before, one that the fault strikes, and looking at it from outside."""

    observed: ClassVar[str] = "write_failed"
    checked: ClassVar[str] = "copy"  # see actonce.evidence.checks_audit
    self_test: ClassVar[str | None] = None

    @classmethod
    def plan(cls, cell: ScriptCell) -> Planned:
        tasks = (cell.refund("before"), cell.refund("during"))
        fault = Fault(
            spec={"fault": cls.__name__},
            targets=[tasks[1].operations[0].operation_id],
            proof=["observed"],
            observations=[cls.observed],
            self_test=cls.self_test,
        )
        return Planned(tasks, fault, DONE, {"audit": cls.checked})

    @property
    def before(self) -> Wanted:
        return self.planned.tasks[0]

    @property
    def during(self) -> Wanted:
        return self.planned.tasks[1]

    async def accepted(self, task: Wanted) -> None:
        if not await self.submit([task]):
            raise Invalid(f"{self.cell.name}: {task.task_id} was not accepted")

    async def paged(self, reason: str, words: str = "") -> None:
        """Wait until a page whose procedure is the reason's reached its channel."""

        def arrived() -> bool:
            pages = self.cell.run.sink.of(self.cell.channel)
            return any(f"{reason}.md" in page.text and words in page.text for page in pages)

        await eventually(arrived, within_s=STEP_S, what=f"{self.cell.name}: a page about {reason}")

    def alerts(self, reason: str) -> None:
        """The view of the alerts: exactly what is wrong, with the next command."""
        pages = self.cell.run.sink.of(self.cell.channel)
        about = [page for page in pages if f"{reason}.md" in page.text]
        self.view(
            "alerts",
            [{"title": page.title, "text": page.text} for page in pages],
            (f"a person is called about {reason}", bool(about), f"{len(pages)} pages"),
            ("the page names the next command", all("python -m actonce.client" in page.text for page in about), ""),
        )

    async def dependency(self, name: str, states: set[str], words: str = "") -> None:
        """The view of the dependencies: this one is told as it is."""

        async def shown() -> dict[str, Any] | None:
            said = await doors.client(self.cell, "dependencies", "--json")
            rows = said.json["dependencies"] if said.code == 0 else []
            found = [r for r in rows if r["name"].startswith(name) and r["state"] in states and words in str(r)]
            return {"dependencies": rows} if found else None

        body = await eventually(shown, within_s=STEP_S, what=f"{self.cell.name}: {name} is {states}", every_s=1.0)
        self.view("dependencies", body, (f"{name} is {' or '.join(sorted(states))}", True, words))

    def state(self, name: str, ok: bool, detail: str) -> None:
        """The view of the durable state."""
        self.view("state", {"detail": detail}, (name, ok, detail))


class _LogDestination(_Audited):
    """The copy is delayed; nothing else is."""

    async def play(self) -> None:
        await self.accepted(self.before)
        await self.ended([self.before])
        await self.strike()
        await self.accepted(self.during)
        done = await self.ended([self.during], STEP_S)
        if self.guarded:
            await self.look(done)
        else:
            await auditing.caught_up(self.cell, STEP_S)  # the control believes so while nothing is taken
        await self.heal()
        await auditing.caught_up(self.cell, STEP_S)
        await auditing.export(self.cell, self.destination, self.copy, STEP_S)

    async def look(self, done: bool) -> None:
        """The five views while the destination takes nothing."""
        await self.paged("audit_lag")
        self.alerts("audit_lag")
        await doors.user_view(self.cell, self.during.task_id, state={"complete"})
        rows = await auditing.events(self.cell)
        cursors = await self.cell.ledger.rows("audit_cursor")
        waiting = len(rows) - max(cursor["seq"] for cursor in cursors)
        self.state("work goes on and its events wait in the ledger", done and waiting > 0, f"{waiting} events wait")
        await self.dependency("audit:", {"down"})
        await self.see("hold", self.during, SHOWN_DONE, "/audit", "/alerts", "/dependencies")
        await self.acknowledged("audit_lag")

    async def strike(self) -> None:
        raise NotImplementedError

    async def heal(self) -> None:
        raise NotImplementedError

    @property
    def destination(self) -> str:
        """What it is, for the record."""
        raise NotImplementedError

    def copy(self) -> list[str]:
        """What the witness reads there."""
        raise NotImplementedError


class LogFull(_LogDestination):
    """See the module."""

    spec: ClassVar[dict[str, Any]] = {"workers": 1, "attach": auditing.log_folder}

    @property
    def log(self) -> auditing.LogFolder:
        log: auditing.LogFolder = self.cell.extras["log"]
        return log

    async def strike(self) -> None:
        if self.log.disk is not None:
            await auditing.caught_up(self.cell, STEP_S)
        self.observe("write_failed", str(self.log.folder), self.log.fill())

    async def heal(self) -> None:
        volume = self.log.folder.parent
        if not self.guarded:
            self.log.free()
            return
        done = await auditing.repair(self.cell, "audit_lag", volume)
        await auditing.caught_up(self.cell, STEP_S)
        status, said = await auditing.verify(self.cell, self.log.folder)
        self.view(
            "operator",
            {"did": done, "verify": said},
            ("from page and procedure alone there is room again", bool(done.get("removed")), str(done)[:200]),
            ("`actonce audit verify` says that the trail is whole", status == 0, said[-300:]),
        )
        await self.see("after", self.during, SHOWN_DONE, "/audit")

    @property
    def destination(self) -> str:
        return f"folder on {self.log.used}"

    def copy(self) -> list[str]:
        return self.log.lines()


class CollectorHangs(_LogDestination):
    """See the module."""

    observed: ClassVar[str] = "silent"
    self_test: ClassVar[str | None] = "silent_upstream"
    spec: ClassVar[dict[str, Any]] = {"workers": 1, "attach": auditing.collector}

    async def strike(self) -> None:
        proxy = self.cell.proxies["collector"]
        self.silent = await proxy.install(WireFault.SILENT, "upstream")
        facts = await witness.speak(proxy.host, proxy.port, auditing.COLLECTOR_ASKED, wait_s=SILENT_S)
        self.observe("silent", "collector", facts)

    async def heal(self) -> None:
        await self.cell.proxies["collector"].remove(self.silent)
        if not self.guarded:
            return
        await auditing.caught_up(self.cell, STEP_S)
        status, said = await auditing.verify(self.cell, None)
        words = ("`actonce audit verify` says that the trail is whole", status == 0, said[-300:])
        self.view("operator", {"verify": said}, words)

    @property
    def destination(self) -> str:
        return "collector"

    def copy(self) -> list[str]:
        return list(self.cell.extras["collector"].lines)


class _Ledger(_Audited):
    """The ledger itself takes nothing."""

    checked: ClassVar[str] = "events"
    spec: ClassVar[dict[str, Any]] = {"workers": 1, "attach": auditing.ledger_disk}

    async def fill(self) -> None:
        """Leave the ledger no room."""
        facts = await auditing.fill_ledger(self.cell)
        self.observe("write_failed", facts["path"], facts)

    async def heal(self) -> None:
        if not self.guarded:
            self.cell.extras["disk"].free()
            return
        done = await auditing.repair(self.cell, "ledger_unavailable", self.cell.extras["disk"].path)
        self.view(
            "operator",
            done,
            ("from page and procedure alone there is room again", bool(done.get("removed")), str(done)[:200]),
        )

    async def look(self) -> None:
        """Somebody is called, though no page can be a row."""
        await self.paged("ledger_unavailable", "No space left on device")
        self.alerts("ledger_unavailable")
        await self.dependency("ledger", {"down", "unknown"})

    async def finish(self) -> None:
        await self.ended()
        if self.guarded:
            await self.recorded()
            status, said = await auditing.verify(self.cell, None)
            self.view("state", {"verify": said}, ("afterwards the trail is whole", status == 0, said[-300:]))
        auditing.record_events(self.cell, await auditing.events(self.cell))

    async def recorded(self) -> None:
        """The outage is on record once there is room for it, as a page that is closed."""

        async def check() -> bool:
            pages = await self.cell.ledger.rows("page")
            return any(p["reason"] == "ledger_unavailable" and p["closed_at"] is not None for p in pages)

        await eventually(check, within_s=STEP_S, what=f"{self.cell.name}: the outage is on record", every_s=0.5)

    def requests(self, task: Wanted) -> int:
        """Sends of the task's operation that reached the destination."""
        wanted = task.operations[0].operation_id
        return sum(1 for line in self.cell.run.world.journal() if line.get("operation_id") == wanted)


class LedgerFull(_Ledger):
    """The worker stands before its permit when it fills up, and goes on when there is no room for its intent."""

    spec: ClassVar[dict[str, Any]] = {**_Ledger.spec, "stop": "before_permit", "stops": ("worker",)}

    @classmethod
    def plan(cls, cell: ScriptCell) -> Planned:
        planned = super().plan(cell)
        # The tables of operations must be empty, or a row would fit on a page that is there.
        return Planned(planned.tasks[1:], planned.fault, planned.expected, planned.params)

    @property
    def during(self) -> Wanted:
        return self.planned.tasks[0]

    async def play(self) -> None:
        (worker,) = self.cell.workers
        await self.accepted(self.during)
        marker = Path(self.cell.env["ACTONCE_DRILL_STOP_FILE"])
        await eventually(marker.exists, within_s=STEP_S, what=f"{self.cell.name}: the worker stands before its permit")
        await self.fill()
        worker.signal(signal.SIGCONT)
        await self.refused_for_a_while()
        await self.heal()
        await self.finish()

    async def refused_for_a_while(self) -> None:
        if not self.guarded:
            await eventually(lambda: self.requests(self.during) > 0, within_s=STEP_S, what="the control sends")
            return
        await self.look()
        await self.whole_at_the_door()
        row = await self.cell.ledger.operation(self.during.operations[0].operation_id)
        sent = self.requests(self.during)
        ok = row is None and sent == 0
        self.state("nothing is on record and nothing was sent", ok, f"{sent} requests, row {row is not None}")

    async def whole_at_the_door(self) -> None:
        """A small row may still fit on a page that is there: then its event fits too, or neither is on record."""
        task_id = f"default/single/{self.plan_.key}-refused"
        said = await doors.client(
            self.cell,
            *("start", "single", "--key", f"{self.plan_.key}-refused", "--tenant", "default", "--json"),
            *("--payload", '{"destination": "payments", "action": "refund", "payload": {}}'),
        )
        told = (said.out + said.err).strip()[-300:]
        rows = [row for row in await self.cell.ledger.rows("task") if row["task_id"] == task_id]
        accepted = [
            e for e in await auditing.events(self.cell) if (e["kind"], e["task_id"]) == ("task.accepted", task_id)
        ]
        whole = len(rows) == len(accepted) == (1 if said.code == 0 else 0)
        detail = f"status {said.code}, {len(rows)} rows, {len(accepted)} events"
        claim = ("a new task is accepted with its event on record, or refused without either", whole, detail)
        self.view("user", {"code": said.code, "told": told}, claim)


class OutcomeFull(_Ledger):
    """The call is out when the ledger fills up."""

    kills: ClassVar[bool] = False

    @classmethod
    def plan(cls, cell: ScriptCell) -> Planned:
        planned = super().plan(cell)
        return Planned(planned.tasks[1:], planned.fault, planned.expected, planned.params)

    @property
    def during(self) -> Wanted:
        return self.planned.tasks[0]

    async def play(self) -> None:
        (worker,) = self.cell.workers
        run, account = self.cell.run, self.cell.account
        latch = await run.world.latch(account, "committed")
        await self.accepted(self.during)
        await run.world.wait_latch(account, latch, wait_s=STEP_S)
        await self.fill()
        if self.kills:
            await worker.kill()
        await run.world.release(account, latch)
        if not self.kills:
            await eventually(lambda: self.kept(worker.log), within_s=STEP_S, what="the outcome finds no room")
        if self.guarded:
            await self.look()
            row = await self.cell.ledger.operation(self.during.operations[0].operation_id)
            told = row["state"] if row is not None else "nothing"
            open_ = told in ("dispatched", "unknown")
            self.state("it is not called done, failed or not sent", open_, f"the ledger says {told}")
            await doors.user_view(self.cell, self.during.task_id, state={"running", "queued"})
        await self.heal()
        if self.kills:
            await self.cell.add_workers()
        await self.finish()

    @staticmethod
    def kept(log: Path) -> bool:
        """The worker says that it keeps the acknowledgement."""
        return "acknowledgement not recorded yet" in log.read_text(errors="replace")


class OutcomeFullKill(OutcomeFull):
    """See the module."""

    kills: ClassVar[bool] = True


SCRIPTS: dict[str, type[_Audited]] = {
    "log-full": LogFull,
    "collector-hangs": CollectorHangs,
    "ledger-full": LedgerFull,
    "outcome-full": OutcomeFull,
    "outcome-full-kill": OutcomeFullKill,
}
# control -> the cell it is tried on, and the finding that must name it
CONTROLS = {
    "audit_log_and_continue": ("ledger-full", "unaudited effect op"),
    "audit_fire_and_forget": ("log-full", "lost audit event"),
    "audit_outcome_only": ("outcome-full-kill", "unaudited effect op"),
}


class AuditFull:
    """The drill."""

    name = "audit-full"
    claim = (
        "A log destination that is full or hangs delays audit events and loses none, in order and unchanged; while the "
        "ledger itself takes no writes nothing is sent and a person is called; no effect is without an earlier event."
    )

    def plan(self, options: Options) -> Plan:
        """Every cell, and each control on its own."""
        del options
        cells = tried_on(SCRIPTS, CONTROLS)
        return plan_of(cells)
