"""Late acknowledgements against each state of an operation (PROTOCOL cell 8, rules R6 and R7).

The owner of attempt 1 has its answer and stands before it says so; the operation goes to the state that the cell
names; then the owner says it. Contract: as in `plays`; what the answer met and what it led to are read from the ledger
while everybody who could change it stands still, and are asserted on record: a cell in which the answer came to
another state than its name says does not pass.
"""

from __future__ import annotations

from actonce.testing.export import FINAL, Row
from actonce.testing.processes import Process
from actonce.testing.site import Invalid
from actonce.testing.waiting import eventually
from drills import doors
from drills.plays import OUTCOME_S, POINT_S, Special

NOTHING_SEEN = "every route is down and the destination's own desk says that it has nothing"


class LateAnswer(Special):
    """What these cells share."""

    proof = ("request_arrived", "effect_committed", "process_frozen")
    signals = ("SIGSTOP", "SIGCONT")
    frozen_min_s = 0.0  # how late it is is told by what it meets
    met: tuple[str, int] = ("committed", 1)  # the state and the current attempt when the answer comes
    becomes = "committed"
    contradicts = False

    async def owner_stood_still(self, operation_id: str) -> Process:
        """The owner of attempt 1, with its answer. Raises Invalid when another process stands there."""
        owner = await self.stood_still(1, "before_acknowledgement")
        attempts = [a for a in await self.cell.ledger.rows("attempt") if a["operation_id"] == operation_id]
        if not attempts or int(attempts[0]["owner"]["pid"]) != owner.pid:
            raise Invalid(f"{self.cell.name}: pid {owner.pid} stands there and does not own attempt 1")
        return owner

    async def says_it(self, operation_id: str, owner: Process) -> None:
        """The owner goes on; its answer is recorded, and beside it what it met and what it led to."""
        before = await self._now(operation_id)
        await self.go_on(owner)

        async def recorded() -> Row | None:
            rows = await self.cell.ledger.rows("acknowledgement")
            return next((row for row in rows if row["operation_id"] == operation_id and row["attempt"] == 1), None)

        answer = await eventually(recorded, within_s=POINT_S, what=f"{self.cell.name}: late answer kept", every_s=0.1)
        after = await self._now(operation_id)
        met = (str(before["state"]), int(before["attempt"]))
        doors.record_view(
            self.cell,
            "state",
            {name: str(after[name]) for name in ("state", "reason", "attempt", "version", "acknowledged_at")},
            (f"the late answer met {self.met[0]} at attempt {self.met[1]}", met == self.met, f"it met {met}"),
            ("nothing happened in between", answer["state_before"] == met[0], str(answer["state_before"])),
            (f"it led to {self.becomes}", after["state"] == self.becomes, str(after["state"])),
            (
                "it is recorded, with what it contradicts" if self.contradicts else "it contradicts nothing",
                answer["contradicts"] is self.contradicts and after["acknowledged_at"] is not None,
                f"contradicts: {answer['contradicts']}, acknowledged at {after['acknowledged_at']}",
            ),
        )

    async def _now(self, operation_id: str) -> Row:
        return await self.row(operation_id, lambda row: True, "on record", POINT_S)


class AfterTheVerdict(LateAnswer):
    """The others have read it back and are done."""

    async def strike(self, operation_id: str) -> None:
        owner = await self.owner_stood_still(operation_id)
        await self.final(operation_id)
        await self.says_it(operation_id, owner)


class UnderAHold(LateAnswer):
    """Nobody can read it, so it is held; the answer ends the hold, and it still has to be read back."""

    met = ("held", 1)
    becomes = "acknowledged"

    async def strike(self, operation_id: str) -> None:
        owner = await self.owner_stood_still(operation_id)
        await self.row(operation_id, lambda row: row["state"] == "held", "held")
        await self.says_it(operation_id, owner)


class SameKeySentAgain(LateAnswer):
    """Attempt 2 goes under the same key, which was registered on arrival: its owner has the permit and stands before
    its fence when the answer to attempt 1 comes. Nothing is contradicted, and the second send is not needed."""

    met = ("dispatched", 2)
    becomes = "acknowledged"

    async def strike(self, operation_id: str) -> None:
        owner = await self.owner_stood_still(operation_id)
        second = await self.stood_still(2, "before_next_fence")
        await self.says_it(operation_id, owner)
        await self.cell.heal_routes()
        await self.go_on_alive(second)
        await self.final(operation_id)


class AfterMarkAbsent(LateAnswer):
    """A person who sees nothing ends the operation. The person was wrong, honestly, and the late answer must not be
    lost: it is an incident."""

    met = ("closed", 1)
    becomes = "held"
    contradicts = True

    async def strike(self, operation_id: str) -> None:
        owner = await self.owner_stood_still(operation_id)
        row = await self.row(operation_id, lambda row: row["state"] == "held", "held")
        await doors.user_view(self.cell, row["task_id"], state={"held"})
        await doors.decide(self.cell, operation_id, "mark_absent", NOTHING_SEEN)
        await self.row(operation_id, lambda row: row["state"] == "closed", "closed by the decision")
        await self.says_it(operation_id, owner)
        await self.paged(operation_id, "possible_duplicate")


class WithAPermitReady(LateAnswer):
    """A person who sees nothing permits one retry; whoever is to send stands before its permit when the answer to
    attempt 1 comes: the unused permit is dead, or it would be a second effect."""

    decides = True
    met = ("ready", 1)
    becomes = "acknowledged"
    point = "before_next_permit"

    async def strike(self, operation_id: str) -> None:
        self.owner = await self.owner_stood_still(operation_id)

    async def operate(self, operation_id: str) -> None:
        await self.row(operation_id, lambda row: row["state"] == "held", "held")
        await doors.decide(self.cell, operation_id, "permit_one_retry", NOTHING_SEEN)
        second = await self.stood_still(2, self.point)
        await self.says_it(operation_id, self.owner)
        await self.cell.heal_routes()
        await self.goes_on(operation_id, second)

    async def goes_on(self, operation_id: str, second: Process) -> None:
        """The other one finds that it has no permit."""
        await self.go_on_alive(second)
        await self.settled_or_sent_again(operation_id)


class WithAttemptTwoDispatched(WithAPermitReady):
    """The same, but the permit of attempt 2 is taken and its owner stands before its fence. What it would send may be a
    second effect, so the answer is an incident; once that is held, the fence stops attempt 2."""

    met = ("dispatched", 2)
    becomes = "held"
    contradicts = True
    point = "before_next_fence"

    async def goes_on(self, operation_id: str, second: Process) -> None:
        self.still_allowed(await self._now(operation_id))
        await self.go_on_alive(second)
        ended = await self.row(operation_id, lambda row: row["state"] in {*FINAL, "held"}, "settled or held", OUTCOME_S)
        if ended["state"] == "held":
            await self.paged(operation_id, "possible_duplicate")
