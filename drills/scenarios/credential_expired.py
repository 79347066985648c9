"""`credential-expired`: the tool's credential ends between proposal and execution, at each point where it can.

before-click          while people decide: they approve what cannot be sent any more
before-dispatch       after the click, while the worker stands before its permit
before-send           after the permit, while its owner stands before the fence
lost-response         the effect happened, the answer is lost, and every read route answers 401
narrower-scope        it comes back with less than the tool needs
policy-changed        it comes back, and what was allowed is not any more
concurrent-refreshes  many want it renewed at once, at a manager that takes that for misuse
"""

from __future__ import annotations

from typing import Any, ClassVar

from actonce.evidence import Expected, Fault
from actonce.evidence.record import Proof
from actonce.testing.site import Invalid
from actonce.testing.waiting import eventually
from drills import doors, leasing
from drills.catalog import Options, Plan
from drills.console.seeing import DONE
from drills.console.seeing import Wanted as Shown
from drills.plays import Special
from drills.rig import READS
from drills.script import Planned, Script, ScriptCell, Wanted, plan_of, tried_on

POINT_S = 60.0  # one step of a cell, with everything else running on two cores
CONTROL_S = 30.0  # a control may never settle; what it does wrong is done long before
AT_ONCE = 12
SIDE_BY_SIDE_MAX = 6  # up to six processes a cell, each with connections of its own: PostgreSQL takes a hundred
COMMITTED = Expected(outcomes=["committed"], effects=(1, 1), pages=True)
QUIETLY = Expected(outcomes=["committed"], effects=(1, 1), pages=False)
ENDED = Expected(outcomes=["closed"], effects=(0, 0), pages=True)
# Above the amount people are asked; a probe's is below.
APPROVALS = [{"action": "refund", "over_minor": leasing.APPROVAL_OVER_MINOR, "valid_s": 600}]


class _Expired(Script):
    """What the cells share: a task that works, then the credential's end, then whoever holds the key."""

    spec: ClassVar[dict[str, Any]] = {"attach": leasing.leased(), "workers": 1}
    proof: ClassVar[list[Proof]] = ["observed"]
    observed: ClassVar[str] = "no_lease_in_force"
    signals: ClassVar[list[str]] = []
    anchor: ClassVar[Any] = "in_flight"
    amount_minor: ClassVar[int] = 1_000
    end: ClassVar[Expected] = COMMITTED
    ends: ClassVar[tuple[str, ...]] = ("complete",)

    @classmethod
    def plan(cls, cell: ScriptCell) -> Planned:
        before = cell.refund("before", expected=QUIETLY)
        during = cell.refund("during", cls.ends, expected=cls.end, amount_minor=cls.amount_minor)
        fault = Fault(
            spec={"fault": cls.__name__},
            targets=[during.operations[0].operation_id],
            proof=cls.proof,
            observations=[cls.observed],
            signals=cls.signals,
            anchor=cls.anchor,
        )
        return Planned((before, during), fault, COMMITTED, {"leased": True})

    @property
    def during(self) -> Wanted:
        return self.planned.tasks[-1]

    @property
    def operation_id(self) -> str:
        return self.during.operations[0].operation_id

    # Steps.

    async def accepted(self, task: Wanted) -> None:
        if not await self.submit([task]):
            raise Invalid(f"{self.cell.name}: {task.task_id} was not accepted")

    async def worked_before(self) -> None:
        """The policy allows it, and the same tool has just done it."""
        await leasing.set_policy(self.cell, 1, allows=True)
        await self.accepted(self.planned.tasks[0])
        if not await self.ended(self.planned.tasks[:1], POINT_S):
            raise Invalid(f"{self.cell.name}: the tool did not work before its credential expired")

    async def expire(self) -> None:
        """The manager gives and prolongs no more: wait until the last lease has ended there, and say so."""
        await self.cell.run.world.lease(self.cell.account, deny=["issue", "renew"], only=["write"])

        def over() -> bool:
            facts = leasing.standing(self.cell)
            return bool(facts["had"] > 0 and facts["in_force"] == 0 and facts["denied"] > 0)

        await eventually(over, within_s=POINT_S, what=f"{self.cell.name}: no lease in force", every_s=0.1)
        self.observe(self.observed, f"{self.cell.account}/write", leasing.standing(self.cell))
        if self.guarded:  # a process that never had a lease cannot tell an end from an outage; the ledger can
            await eventually(self.known, within_s=POINT_S, what=f"{self.cell.name}: the ledger knows", every_s=0.2)

    async def known(self) -> bool:
        """Somebody who had a lease has recorded that the credential is expired."""
        found = await self.ask("/v1/credentials")
        return any(one["name"] == f"{self.cell.account}/write" and one["state"] == "expired" for one in found)

    async def heal(self, **modes: Any) -> None:
        """The lease manager gives again; who may lease it is another question."""
        await self.cell.run.world.lease(self.cell.account, **{"deny": [], "life_s": 60.0, "only": [], **modes})

    async def held(self, reason: str) -> dict[str, Any]:
        """Wait until the operation is held for this reason and a page about it has arrived."""

        async def look() -> dict[str, Any] | None:
            row = await self.cell.ledger.operation(self.operation_id)
            told = any(self.operation_id in f"{p.title} {p.text}" for p in self.cell.run.sink.of(self.cell.channel))
            return row if row is not None and row["state"] == "held" and row["reason"] == reason and told else None

        row: dict[str, Any] = await eventually(
            look, within_s=POINT_S, what=f"{self.cell.name}: held for {reason} and paged", every_s=0.2
        )
        return row

    async def resume_early(self, why: str, code: str = "condition_not_met") -> bool:
        let_through: bool = await doors.try_to_resume(self.cell, self.operation_id, why, code, action="resume")
        return let_through

    async def look(self, reason: str) -> None:
        """The five views, but for the operator's: nothing is sent, everybody is told, nothing looks healthy."""
        row = await self.held(reason)
        task = await doors.user_view(self.cell, self.during.task_id, state={"held"})
        self.view("user", task["why"], (f"the user is told of {reason}", reason in str(task), str(task["why"])[:200]))
        sent = len(self.cell.write.sent(self.operation_id))
        self.view(
            "state",
            {name: str(row[name]) for name in ("state", "reason", "words", "attempts", "issued_at")},
            (f"held for {reason}", True, str(row["words"])),
            ("nothing of it was seen on the wire", sent == 0, f"{sent} sends"),
        )
        pages = [p for p in self.cell.run.sink.of(self.cell.channel) if self.operation_id in f"{p.title} {p.text}"]
        named = [p for p in pages if f"{reason}.md" in p.text and "python -m actonce.client" in p.text]
        self.view(
            "alerts",
            [{"title": p.title, "text": p.text} for p in pages],
            ("a person is called, with procedure and next command", bool(named), f"{len(pages)} pages"),
        )
        await self.dependency()

    async def dependency(self) -> None:
        """The credential is told as what it is, and the parts around it as what they are."""
        name = f"credential:{self.cell.account}/write"

        async def shown() -> dict[str, Any] | None:
            rows = (await self.ask("/dependencies"))["dependencies"]
            found = [r for r in rows if r["name"] == name and r["state"] == "down"]
            return {"dependencies": rows} if found else None

        body = await eventually(shown, within_s=POINT_S, what=f"{self.cell.name}: {name} is down", every_s=0.5)
        self.view("dependencies", body, (f"{name} is down", True, name))
        await doors.dependencies_view(self.cell)

    async def sent(self) -> None:
        """For controls: wait until something is written, or long enough."""
        await self.drained_or(lambda: len(self.cell.write.sent(self.operation_id)) > 0)

    async def drained_or(self, done: Any) -> None:
        try:
            await eventually(done, within_s=CONTROL_S, what=f"{self.cell.name}: the control acts", every_s=0.2)
        except Exception as error:
            self.note(str(error))


class BeforeClick(_Expired):
    """See the module. Looked at by everyone."""

    spec: ClassVar[dict[str, Any]] = {
        **_Expired.spec,
        "settings": {"contracts": {"payments": {"approvals": APPROVALS}}},
    }
    amount_minor: ClassVar[int] = leasing.APPROVAL_OVER_MINOR + 1

    async def asked(self) -> dict[str, Any]:
        """Wait until people are asked about it."""

        async def pending() -> dict[str, Any] | None:
            found = await self.ask("/v1/approvals?state=pending")
            return found[0] if found else None

        found: dict[str, Any] = await eventually(pending, within_s=POINT_S, what="people are asked", every_s=0.2)
        return found

    async def play(self) -> None:
        await self.worked_before()
        await self.accepted(self.during)
        approval = await self.asked()
        await self.expire()
        await self.voted("approve", approval)
        if not self.guarded:
            await self.sent()
            return
        await self.look("credential_expired")
        await self.see("hold", self.during, Shown.held("credential_expired"), "/credentials", "/dependencies")
        await self.resume_early("it was approved")
        await self.heal()
        await leasing.key_holder(self.cell, self.operation_id)
        await self.ended([self.during])
        await self.see("after", self.during, DONE, "/credentials")


class _Standing(BeforeClick):
    """The worker stands still at its point when the lease ends; the other one takes over."""

    signals: ClassVar[list[str]] = ["SIGSTOP", "SIGCONT"]

    async def play(self) -> None:
        await leasing.set_policy(self.cell, 1, allows=True)
        await self.accepted(self.during)
        await self.voted("approve", await self.asked())
        steps = Special(self.cell)
        frozen = await steps.stood_still()
        await self.expire()
        await steps.go_on(frozen)
        await self.held("credential_expired")
        await self.resume_early("it was approved")
        await self.heal()
        await leasing.key_holder(self.cell, self.operation_id)

    @classmethod
    def plan(cls, cell: ScriptCell) -> Planned:
        planned = super().plan(cell)
        return Planned(planned.tasks[1:], planned.fault, planned.expected, planned.params)  # one passes the point


class BeforeDispatch(_Standing):
    """See the module. Whoever stands there has no permit yet, and never gets one."""

    proof: ClassVar[list[Proof]] = ["observed", "process_frozen"]
    spec: ClassVar[dict[str, Any]] = {
        **BeforeClick.spec,
        "workers": 2,
        "worker": ("-m drills.controls.stops", "run"),
        "stop": "before_permit",
        "stops": ("worker",),
    }


class BeforeSend(_Standing):
    """See the module. The permit dies with its lease: nobody sends under it, and another one is not given."""

    proof: ClassVar[list[Proof]] = ["observed", "signal_delivered", "process_frozen"]
    anchor: ClassVar[Any] = "before_send"
    spec: ClassVar[dict[str, Any]] = {**BeforeDispatch.spec, "stop": "before_fence"}


class LostResponse(_Expired):
    """See the module. A 401 is never "not there": it is held, its keys are rotated, and a reading settles it."""

    proof: ClassVar[list[Proof]] = ["request_arrived", "effect_committed", "answer_not_delivered", "observed"]
    observed: ClassVar[str] = "turned_away_everywhere"

    async def play(self) -> None:
        world, account = self.cell.run.world, self.cell.account
        await self.worked_before()
        await world.configure(account, answer={"kind": "close", "when": "after_commit", "times": 1})
        await world.configure(account, revoked={**dict.fromkeys(READS, "401"), "probe": "401"})
        await self.accepted(self.during)
        await eventually(
            lambda: all(leasing.turned_away(self.cell).values()),
            within_s=POINT_S,
            what=f"{self.cell.name}: every route answered 401",
            every_s=0.2,
        )
        self.observe(self.observed, account, {"routes": leasing.turned_away(self.cell)})
        if not self.guarded:
            await self.drained_or(lambda: len(self.cell.write.sent(self.operation_id)) > 1)
            return
        await self.held("route_unavailable")
        await self.resume_early("the credential was only late", "not_permitted")
        await self.cell.heal_routes()
        await leasing.key_holder(self.cell, self.operation_id)


class NarrowerScope(_Expired):
    """See the module. The new check refuses: it is ended and not resumed."""

    end: ClassVar[Expected] = ENDED
    ends: ClassVar[tuple[str, ...]] = ("failed",)

    async def play(self) -> None:
        await self.worked_before()
        await self.expire()
        await self.accepted(self.during)
        if not self.guarded:
            await self.sent()
            return
        await self.look("credential_expired")
        await self.resume_early("it was allowed before")
        await self.heal(scope={"write": ["payments:look"]})
        await leasing.key_holder(self.cell, self.operation_id)
        await self.ended([self.during])
        await self.heal(scope={})  # whoever grants scopes puts it right, for what comes after
        await leasing.rotate(self.cell)


class PolicyChanged(_Expired):
    """See the module. Rotated and still refused, until the policy's owner says otherwise."""

    async def play(self) -> None:
        await self.worked_before()
        await self.expire()
        await self.accepted(self.during)
        await self.held("credential_expired")
        await leasing.set_policy(self.cell, 2, allows=False)
        await self.heal()
        await leasing.rotate(self.cell)
        if not self.guarded:
            await self.resume_early("nothing is wrong with it")
            await self.sent()
            return
        await self.checked(allowed=False)
        await self.resume_early("it was rotated")
        await leasing.set_policy(self.cell, 3, allows=True)
        await leasing.key_holder(self.cell, self.operation_id)

    async def checked(self, *, allowed: bool) -> None:
        """Wait until the new lease's check is on record."""

        async def look() -> bool:
            leases = (await leasing.credential(self.cell))["leases"]
            last = [check for lease in leases for check in lease["checks"] or []][-1:]
            return any(check["allowed"] is allowed for check in last)

        await eventually(look, within_s=POINT_S, what=f"{self.cell.name}: a new check", every_s=0.3)


class ConcurrentRefreshes(_Expired):
    """See the module. Nothing is held, and no good lease dies."""

    spec: ClassVar[dict[str, Any]] = {
        "attach": leasing.leased(min_left_s=3.0, jealous=True),  # of 4 s: nearly every operation wants it renewed
        "workers": 2,
    }
    observed: ClassVar[str] = "renewed_in_use"

    @classmethod
    def plan(cls, cell: ScriptCell) -> Planned:
        tasks = tuple(cell.refund(f"n{number:02}", expected=QUIETLY) for number in range(AT_ONCE))
        fault = Fault(
            spec={"fault": cls.__name__},
            targets=[task.operations[0].operation_id for task in tasks],
            proof=cls.proof,
            observations=[cls.observed],
        )
        return Planned(tasks, fault, QUIETLY, {"leased": True})

    async def play(self) -> None:
        await leasing.set_policy(self.cell, 1, allows=True)
        before = len(leasing.events(self.cell, "write"))
        half = len(self.planned.tasks) // 2
        accepted = len(await self.submit(self.planned.tasks[:half]))
        await self._renewed(before, 1)
        accepted += len(await self.submit(self.planned.tasks[half:]))
        if self.guarded:
            await self.ended()
        else:
            await self.drained(CONTROL_S)
        await self._renewed(before, 2)
        facts = {"jealous": True, "renewed": self._count(before), "accepted": accepted}
        self.observe(self.observed, f"{self.cell.account}/write", facts)

    def _count(self, before: int) -> int:
        return sum(line["event"] in ("renewed", "ended") for line in leasing.events(self.cell, "write")[before:])

    async def _renewed(self, before: int, times: int) -> None:
        await eventually(
            lambda: self._count(before) >= times,
            within_s=POINT_S,
            what=f"{self.cell.name}: renewed {times} times",
            every_s=0.1,
        )


SCRIPTS: dict[str, type[_Expired]] = {
    "before-click": BeforeClick,
    "before-dispatch": BeforeDispatch,
    "before-send": BeforeSend,
    "lost-response": LostResponse,
    "narrower-scope": NarrowerScope,
    "policy-changed": PolicyChanged,
    "concurrent-refreshes": ConcurrentRefreshes,
}
# control -> the cell it is tried on, and the finding that must name it
CONTROLS = {
    "no_lease_check": ("narrower-scope", "sent under dead lease op"),
    "resume_without_authorisation": ("policy-changed", "unauthorised effect op"),
    "unauthorised_read_as_absent": ("lost-response", "false absent op"),
    "every_refresh_by_itself": ("concurrent-refreshes", "good lease killed"),
    "leaking_tool": ("concurrent-refreshes", "leaked secret"),
}


class CredentialExpired:
    """The drill."""

    name = "credential-expired"
    claim = (
        "A credential that ends between proposal and execution sends nothing: the operation is held and a person is "
        "called; it goes on only after a rotation and a new authorisation check, and a 401 on a route is never read as "
        "absence. No secret is found in anything that a run leaves."
    )

    def plan(self, options: Options) -> Plan:
        """Every cell, and each control on its own."""
        del options
        cells = tried_on(SCRIPTS, CONTROLS)
        return plan_of(cells, side_by_side_max=SIDE_BY_SIDE_MAX)
