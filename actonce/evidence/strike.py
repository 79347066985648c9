"""Did the fault strike? Decided from destination, wire and process lines only.

Contract: for every target of every cell, each proof that the cell names is proven, refuted or missing, with the line it
rests on. All proven is `struck`; one refuted is `installed but did not strike`; else `indeterminate`. What the system
under test says about itself is used in one place only, and only to refute: a signal that hit a process which does not
own the attempt. The rules are the table in docs/reference/evidence.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from actonce.evidence.case import Case, Story
from actonce.evidence.folder import Evidence
from actonce.evidence.lines import (
    CallerConnection,
    Exited,
    Observation,
    ProcessLine,
    ProcessState,
    ProxyDisabled,
    ProxyEnabled,
    SelfTest,
    Signalled,
    ToxicAdded,
    ToxicRemoved,
)
from actonce.evidence.lines_destination import (
    AnswerBegun,
    AnswerFailed,
    AnswerReplaced,
    Dropped,
    Effect,
    OfRequest,
    Refused,
    Request,
    RequestIncomplete,
)
from actonce.evidence.observations import carries

Status = Literal["struck", "installed but did not strike", "indeterminate"]
Stream = Literal["upstream", "downstream", "both"]


@dataclass(frozen=True)
class Proof:
    """One proof: proven (True), refuted (False) or missing (None), why, and the record line it rests on."""

    kind: str
    proven: bool | None
    why: str
    order: int | None = None


@dataclass(frozen=True)
class Interval:
    """A time during which a proxy was disturbed; `end_ns` is infinite while nothing took it away."""

    proxy: str
    stream: Stream
    start_ns: float
    end_ns: float
    order: int

    def covers(self, at_ns: float) -> bool:
        return self.start_ns <= at_ns < self.end_ns


@dataclass(frozen=True)
class Strike:
    """The verdict on one target: its proofs, and the process that was hit, if any."""

    cell: str
    operation_id: str
    status: Status
    proofs: list[Proof]
    pid: int | None = None
    signals: list[str] = field(default_factory=list)
    order: int | None = None

    @property
    def why(self) -> str:
        weak = [proof for proof in self.proofs if not proof.proven]
        return "; ".join(f"{proof.kind}: {proof.why}" for proof in weak or self.proofs)


@dataclass(frozen=True)
class Scene:
    """What one target's proofs look at."""

    evidence: Evidence
    story: Story
    request: Request | None  # R: the first send that arrived
    effect: Effect | None  # R's effect
    answer: OfRequest | None  # the end of R, as the destination saw it
    connections: list[CallerConnection]  # on the write's proxies, of this operation or of none
    intervals: list[Interval]  # on the write's proxies
    signals: list[Signalled]  # the cell's signals, as many as the fault names, in order

    @property
    def name(self) -> str:
        return self.story.cell.cell

    def seen_ns(self) -> float | None:
        """When the operation was first seen in flight, by anyone but the caller."""
        times = [float(line.mono_ns) for line in [self.request, *self.connections] if line is not None]
        return min(times, default=None)

    def strike_ns(self) -> float | None:
        """The strike moment: R's answer, else the first signal, else R's bytes. A request that was lost or held on
        its way is not R: R is then a later attempt, and its answer is no strike."""
        on_its_way = {"request_not_arrived", "request_held"} & set(self.story.cell.fault.proof)
        for line in (None if on_its_way else self.answer, *self.signals[:1]):
            if line is not None:
                return float(line.mono_ns)
        if on_its_way:
            return min((float(line.mono_ns) for line in self.connections), default=None)
        return max((float(line.mono_ns) for line in self.connections), default=None)

    def exit_of(self, process: ProcessLine) -> Exited | None:
        """How that very process (pid and start time) ended after the line."""
        for line in self.evidence.of(Exited):
            if (line.pid, line.start_time) == (process.pid, process.start_time):
                return line if line.mono_ns >= process.mono_ns else None
        return None


def strikes(case: Case) -> list[Strike]:
    """One verdict per target of every cell."""
    tests = {line.name: line.ok for line in case.evidence.of(SelfTest)}
    return [
        _strike(scene(case.evidence, case.stories[cell.cell, target]), tests)
        for cell in case.evidence.cells.values()
        for target in cell.fault.targets
    ]


def scene(evidence: Evidence, story: Story) -> Scene:
    """Collect what the proofs of one target look at."""
    cell, fault = story.cell.cell, story.cell.fault
    request = story.requests[0] if story.requests else None
    effect = next((e for e in story.effects if request and e.request_id == request.request_id), None)
    # A failed or replaced answer says more than a begun one.
    answers = evidence.of_request(request, AnswerFailed, AnswerReplaced, AnswerBegun) if request else []
    connections = [
        line
        for line in evidence.of(CallerConnection, cell)
        if line.operation_id in (None, story.operation_id) and (not fault.proxies or line.proxy in fault.proxies)
    ]
    return Scene(
        evidence=evidence,
        story=story,
        request=request,
        effect=effect,
        answer=answers[0] if answers else None,
        connections=[line for line in connections if line.bytes_up > 0],
        intervals=[i for i in intervals(evidence, cell) if not fault.proxies or i.proxy in fault.proxies],
        signals=_matching_signals(evidence.of(Signalled, cell), fault.signals),
    )


def intervals(evidence: Evidence, cell: str) -> list[Interval]:
    """Every disturbance of a cell's proxies, with its end."""
    found = []
    removed, enabled = evidence.of(ToxicRemoved, cell), evidence.of(ProxyEnabled, cell)
    for added in evidence.of(ToxicAdded, cell):
        ends = [r.mono_ns for r in removed if (r.proxy, r.toxic) == (added.proxy, added.toxic)]
        end = min((ns for ns in ends if ns >= added.mono_ns), default=inf)
        found.append(Interval(added.proxy, added.stream, added.mono_ns, end, added.order))
    for cut in evidence.of(ProxyDisabled, cell):
        ends = [line.mono_ns for line in enabled if line.proxy == cut.proxy and line.mono_ns >= cut.mono_ns]
        found.append(Interval(cut.proxy, "both", cut.mono_ns, min(ends, default=inf), cut.order))
    return found


def _matching_signals(sent: list[Signalled], wanted: list[str]) -> list[Signalled]:
    """The first signals that follow `wanted` in order; all to the process that got the first one."""
    matched: list[Signalled] = []
    for line in sent:
        due = wanted[len(matched)] if len(matched) < len(wanted) else None
        same = not matched or (line.pid, line.start_time) == (matched[0].pid, matched[0].start_time)
        if line.signal == due and same:
            matched.append(line)
    return matched


def _strike(at: Scene, self_tests: dict[str, bool]) -> Strike:
    fault = at.story.cell.fault
    proofs = [PROOFS[kind](at) for kind in fault.proof]
    if fault.self_test is not None:
        ok = self_tests.get(fault.self_test)
        why = f"self-test {fault.self_test} " + {True: "passed", False: "failed", None: "is not on record"}[ok]
        proofs.append(Proof("self_test", ok or None, why))
    status: Status = "struck"
    if any(proof.proven is False for proof in proofs):
        status = "installed but did not strike"
    elif any(proof.proven is None for proof in proofs):
        status = "indeterminate"
    first = at.signals[0] if at.signals else None
    orders = [proof.order for proof in proofs if proof.order is not None]
    return Strike(
        cell=at.name,
        operation_id=at.story.operation_id,
        status=status,
        proofs=proofs,
        pid=first.pid if first else None,
        signals=[line.signal for line in at.signals],
        order=max(orders, default=None),
    )


# -- the proofs, one function each -------------------------------------------------------------------


def _request_arrived(at: Scene) -> Proof:
    if at.request is None:
        return Proof("request_arrived", None, "no request of this operation is on record")
    return Proof("request_arrived", True, f"{at.request.request_id} arrived", at.request.order)


def _request_sent(at: Scene) -> Proof:
    kind = "request_sent"
    if at.connections:
        line = at.connections[0]
        return Proof(kind, True, f"{line.bytes_up} bytes seen on {line.proxy}", line.order)
    if at.evidence.of(CallerConnection, at.name):
        return Proof(kind, False, "connections were seen, none of this operation with a byte from the caller")
    return Proof(kind, None, "nothing on the wire shows that the caller sent anything")


def _upstream(at: Scene) -> Interval | None:
    return next((i for i in sorted(at.intervals, key=lambda i: i.start_ns) if i.stream != "downstream"), None)


def _request_not_arrived(at: Scene) -> Proof:
    kind, interval = "request_not_arrived", _upstream(at)
    if interval is None:
        return Proof(kind, None, "no upstream toxic or cut on the write's proxies is on record")
    if at.request is None or at.request.mono_ns >= interval.end_ns:
        return Proof(kind, True, f"nothing arrived while {interval.proxy} was disturbed", interval.order)
    when = "before the fault was installed" if at.request.mono_ns < interval.start_ns else "in spite of the fault"
    return Proof(kind, False, f"{at.request.request_id} arrived {when}", at.request.order)


def _request_held(at: Scene) -> Proof:
    """The struck request was on its way, arrived only after the release, and nothing else can be taken for it."""
    kind, interval = "request_held", _upstream(at)
    if interval is None:
        return Proof(kind, None, "no upstream toxic or cut on the write's proxies is on record")
    held = min((line.mono_ns for line in at.connections), default=None)
    if held is None or held >= interval.end_ns:
        return Proof(kind, None, "no byte of the caller was seen before the release")
    late = [line for line in at.story.requests if line.mono_ns >= interval.end_ns]
    # Without any arrival the account is known only where the drill gave the operation an account of its own.
    account = at.request.account if at.request is not None else at.story.plan.subject
    dropped = [  # complete too late for what bounds it: the destination's ingress closed its connection
        line
        for line in at.evidence.of(RequestIncomplete)
        if (line.destination, line.account) == (at.story.plan.destination, account) and line.mono_ns >= interval.end_ns
    ]
    early = [line for line in at.story.requests if line.mono_ns < interval.end_ns]
    other_ways = [  # a later attempt may take another way while the first is still held
        line
        for line in at.evidence.of(CallerConnection, at.name)
        if line.operation_id == at.story.operation_id
        and line.proxy not in at.story.cell.fault.proxies
        and line.bytes_up > 0
        and line.mono_ns > held
    ]
    for number, line in enumerate(sorted(early, key=lambda request: request.mono_ns), 1):
        if len([way for way in other_ways if way.mono_ns <= line.mono_ns]) < number:
            return Proof(kind, False, f"{line.request_id} arrived before the release", line.order)
    arrived = [*late, *dropped]
    if not arrived:
        return Proof(kind, None, "the held request never arrived")
    how = "arrived" if late else "was dropped by the destination's ingress"
    return Proof(kind, True, f"the held request {how} after the release", arrived[0].order)


def _effect_committed(at: Scene) -> Proof:
    if at.request is None:
        return Proof("effect_committed", None, "no request of this operation is on record")
    if at.effect is None:
        return Proof("effect_committed", False, f"{at.request.request_id} arrived and committed nothing")
    return Proof("effect_committed", True, f"{at.effect.object_id} was committed", at.effect.order)


def _effect_not_committed(at: Scene) -> Proof:
    kind = "effect_not_committed"
    if at.request is None:
        return Proof(kind, None, "no request of this operation is on record")
    if at.effect is not None:
        return Proof(kind, False, f"{at.request.request_id} committed {at.effect.object_id}", at.effect.order)
    for line in at.evidence.of_request(at.request, Dropped, Refused, AnswerReplaced):
        return Proof(kind, True, f"{at.request.request_id} arrived and was {line.kind}", line.order)
    return Proof(kind, None, f"{at.request.request_id} has no effect, and nothing says what became of it")


def _effect_late(at: Scene) -> Proof:
    kind = "effect_late"
    if at.effect is None:
        return Proof(kind, None, "no effect of the first request is on record")
    ends = [i.end_ns for i in at.intervals if i.end_ns != inf]
    since = float(at.answer.mono_ns) if at.answer else min(ends, default=None)
    if since is None:
        return Proof(kind, None, "no answer and no release that the effect could be later than")
    late = at.effect.mono_ns > since or any(at.effect.mono_ns > end for end in ends)
    return Proof(kind, late, f"committed {'after' if late else 'before'} the caller was given up", at.effect.order)


def _answer_not_delivered(at: Scene) -> Proof:
    kind = "answer_not_delivered"
    if at.request is None:
        return Proof(kind, None, "no request of this operation is on record, so no answer either")
    if isinstance(at.answer, AnswerFailed | AnswerReplaced):
        return Proof(kind, True, f"{at.answer.kind}", at.answer.order)
    gone = _gone(at)
    if at.answer is None:
        if gone is not None:
            return Proof(kind, True, f"no answer began, and pid {gone.pid} was gone", gone.order)
        return Proof(kind, None, "the journal does not say what became of the answer")
    begun = float(at.answer.mono_ns)
    for interval in at.intervals:
        if interval.stream != "upstream" and interval.covers(begun):
            return Proof(kind, True, f"it began while {interval.proxy} was disturbed", interval.order)
    if gone is not None and gone.mono_ns <= begun:
        return Proof(kind, True, f"it began after pid {gone.pid} was gone", gone.order)
    return Proof(kind, False, "the answer left before anything stood in its way", at.answer.order)


def _gone(at: Scene) -> Signalled | Exited | None:
    """The line after which the signalled process certainly receives nothing: SIGKILL, or its recorded exit."""
    if not at.signals:
        return None
    killed = next((line for line in at.signals if line.signal == "SIGKILL"), None)
    return killed or at.exit_of(at.signals[0])


def _answer_replaced(at: Scene) -> Proof:
    kind = "answer_replaced"
    for line in at.evidence.of_request(at.request, AnswerReplaced) if at.request else []:
        if isinstance(line, AnswerReplaced):
            return Proof(kind, True, f"answered {line.status} in its place", line.order)
    if at.answer is None:
        return Proof(kind, None, "no answer to the first request is on record")
    return Proof(kind, False, "nothing answered in the destination's place", at.answer.order)


def _signal_delivered(at: Scene) -> Proof:
    kind, wanted = "signal_delivered", at.story.cell.fault.signals
    if len(at.signals) < len(wanted):
        have = [line.signal for line in at.signals]
        return Proof(kind, None, f"signals {wanted} were due to one process, {have} are on record")
    first = at.signals[0]
    owner = next((attempt.owner_pid for attempt in at.story.permits), None)
    if owner is not None and owner != first.pid:
        return Proof(kind, False, f"pid {first.pid} was hit, the first attempt belongs to pid {owner}", first.order)
    if at.story.cell.fault.anchor == "before_send":
        early = at.request is None or first.mono_ns <= at.request.mono_ns
        return Proof(kind, early, f"{first.signal} {'before' if early else 'after'} the send", first.order)
    seen = at.seen_ns()
    if seen is None:
        return Proof(kind, None, "the operation was never seen in flight")
    if first.mono_ns < seen:
        return Proof(kind, False, f"{first.signal} came before the operation was in flight", first.order)
    delivered = isinstance(at.answer, AnswerBegun) and at.answer.mono_ns < first.mono_ns
    if delivered and _answer_not_delivered(at).proven is not True:
        return Proof(kind, False, f"{first.signal} came after the answer had left", first.order)
    return Proof(kind, True, f"{', '.join(wanted)} to pid {first.pid} with the operation in flight", first.order)


def _process_exited(at: Scene) -> Proof:
    kind = "process_exited"
    if not at.signals:
        return Proof(kind, None, "no signal of the fault is on record")
    exited = at.exit_of(at.signals[0])
    if exited is None:
        return Proof(kind, None, f"pid {at.signals[0].pid} has no exit on record after its signal")
    if at.signals[-1].signal == "SIGKILL" and exited.returncode != -9:
        return Proof(kind, False, f"pid {exited.pid} ended with {exited.returncode}, not by SIGKILL", exited.order)
    return Proof(kind, True, f"pid {exited.pid} ended with {exited.returncode}", exited.order)


def _process_frozen(at: Scene) -> Proof:
    kind = "process_frozen"
    stop = next((line for line in at.signals if line.signal == "SIGSTOP"), None)
    thaw = next((line for line in at.signals if line.signal == "SIGCONT"), None)
    if stop is None or thaw is None:
        return Proof(kind, None, "SIGSTOP and SIGCONT to one process are not both on record")
    seen = [
        line
        for line in at.evidence.of(ProcessState)
        if line.state == "T" and line.pid == stop.pid and stop.mono_ns <= line.mono_ns <= thaw.mono_ns
    ]
    if not seen:
        return Proof(kind, None, f"pid {stop.pid} was not seen in state T between SIGSTOP and SIGCONT")
    frozen_s = (thaw.mono_ns - stop.mono_ns) / 1e9
    enough = frozen_s >= at.story.cell.fault.frozen_min_s
    return Proof(kind, enough, f"pid {stop.pid} stood still for {frozen_s:.2f} s", seen[0].order)


def _cut_active(at: Scene) -> Proof:
    kind, moment_ns = "cut_active", at.strike_ns()
    until_ns, interval = moment_ns, _upstream(at)
    if interval is not None and not at.signals:
        # A request that is lost or held has no one moment: it is so all that time, or until another is out.
        if _request_not_arrived(at).proven:
            until_ns = interval.end_ns
        elif _request_held(at).proven and at.request is not None:
            until_ns = min(interval.end_ns, at.request.mono_ns)
    if moment_ns is None or until_ns is None:
        return Proof(kind, None, "no strike moment: no answer, no signal and no byte of the caller on record")
    found = intervals(at.evidence, at.name)
    order = 0
    for proxy in at.story.cell.fault.cut_proxies:
        own = [interval for interval in found if interval.proxy == proxy]
        hit = next((i for i in own if i.covers(moment_ns) or moment_ns <= i.start_ns < until_ns), None)
        if hit is None:
            return Proof(kind, False if own else None, f"{proxy} was not cut at the strike moment")
        order = max(order, hit.order)
    return Proof(kind, True, f"{', '.join(at.story.cell.fault.cut_proxies)} cut at the strike moment", order)


def _observed(at: Scene) -> Proof:
    """Every observation that the fault names was made by a witness, and its facts carry what it claims."""
    order = 0
    for name in at.story.cell.fault.observations:
        lines = [line for line in at.evidence.of(Observation, at.name) if line.name == name]
        if not lines:
            return Proof("observed", None, f"no witness observed `{name}`")
        judged = [carries(line) for line in lines]
        if not all(ok for ok, _ in judged):
            why = next(why for ok, why in judged if not ok)
            return Proof("observed", False, f"`{name}` is not what the witness saw: {why}", lines[0].order)
        order = max(order, lines[0].order)
    return Proof("observed", True, ", ".join(at.story.cell.fault.observations), order)


PROOFS: dict[str, Callable[[Scene], Proof]] = {
    "request_arrived": _request_arrived,
    "request_sent": _request_sent,
    "request_not_arrived": _request_not_arrived,
    "request_held": _request_held,
    "effect_committed": _effect_committed,
    "effect_not_committed": _effect_not_committed,
    "effect_late": _effect_late,
    "answer_not_delivered": _answer_not_delivered,
    "answer_replaced": _answer_replaced,
    "signal_delivered": _signal_delivered,
    "process_exited": _process_exited,
    "process_frozen": _process_frozen,
    "cut_active": _cut_active,
    "observed": _observed,
}
