"""The checkers: each looks at a case and lists what is wrong. Pure, small, and able to fail.

Contract: a checker returns findings for every arm; the judge decides whose findings count (guarded cells and the whole
run fail a drill, controls must be caught, comparison arms are only counted). Weight `invalid` means that the drill did
not show what it had to show; weight `failed`, that the system did something wrong. Names of findings are fixed in
docs/reference/evidence.md. A checker that raises makes the drill invalid, never passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from actonce.evidence.case import Case, Finding, Story, is_own, moment
from actonce.evidence.checks_approvals import approvals_kept, effects_approved
from actonce.evidence.checks_audit import audit_copy_is_whole, effects_are_audited
from actonce.evidence.checks_console import console_tells_the_truth, pictures
from actonce.evidence.checks_credentials import (
    killed_leases,
    leaked_secrets,
    sent_under_dead_lease,
    unauthorised_effects,
)
from actonce.evidence.checks_memory import false_empty, false_up
from actonce.evidence.checks_release import released_by_rate, released_in_order
from actonce.evidence.checks_tasks import held_tasks_are_paged, tasks_as_expected
from actonce.evidence.history import NOTHING_SENT, resends_without_reason
from actonce.evidence.lines import (
    CallerConnection,
    EarlyResumeAccepted,
    EarlyResumeRefused,
    Note,
    ProbeOperation,
    Quiet,
    View,
)
from actonce.evidence.lines_caller import CallerTask
from actonce.evidence.record import VIEW_NAMES

# Task states in which a task may be left when everything has settled: final, or stopped for a person who was told.
TASK_ENDS = frozenset({"complete", "failed", "cancelled", "held", "quarantined", "waiting_for_approval"})
# Two transactions that raced for one row may carry start times in the other order; their difference is below this.
RACE_S = 0.05
# The destination writes its journal line right after the commit: an acknowledgement can be stored this much earlier.
JOURNAL_S = 0.05
# What watches the wire stamps bytes when it gets to them: on a busy machine this much after they were written.
SEEN_S = 0.25
# How a note begins that says why a cell did not come to its end.
BROKE_OFF = "broke off"


def duplicates(case: Case) -> list[Finding]:
    """More than one effect of one operation, by the destination's journal. Reversed ones count."""
    return [
        story.finding("duplicate op", f"{len(story.effects)} effects: " + ", ".join(e.object_id for e in story.effects))
        for story in case.stories.values()
        if len(story.effects) > 1
    ]


def lost(case: Case) -> list[Finding]:
    """No effect, and the caller was not told: done according to its owner, or nobody has a word about it."""
    findings = []
    for story in case.stories.values():
        if story.effects:
            continue
        if not is_own(story.cell):
            findings.append(story.finding("lost op", "no effect at the destination when everything had settled"))
        elif story.row is not None and story.row.state not in {"refused", "closed", "held"}:
            findings.append(story.finding("lost op", f"the ledger says {story.outcome}, the destination has no effect"))
        elif story.row is None and story.task is not None and story.task.state == "complete":
            findings.append(story.finding("lost op", "its task is complete, and it was never even recorded"))
    return findings


def false_absent(case: Case) -> list[Finding]:
    """`absent`, or an end as not done, for an operation whose effect was or still could be committed."""
    findings = []
    for story in case.own():
        for verdict in story.verdicts:
            if verdict.verdict != "absent":
                continue
            said = moment(verdict.decided_at)
            before = [e for e in story.effects if moment(e.at) <= said]
            after = len(story.effects) - len(before)
            later_permits = [p for p in story.permits if p.issued_at and moment(p.issued_at) > said]
            if before:
                detail = f"absent at {verdict.decided_at}, but {before[0].object_id} was committed at {before[0].at}"
                findings.append(story.finding("false absent op", detail))
            elif after > len(later_permits):
                detail = f"absent at {verdict.decided_at}, then {after} effects from {len(later_permits)} later permits"
                findings.append(story.finding("false absent op", detail))
        if story.row is None:
            continue
        if story.effects and story.row.state in {"refused", "closed"}:
            detail = f"ended as {story.outcome}, and {story.effects[0].object_id} exists"
            findings.append(story.finding("false absent op", detail))
        if story.row.verdict in {"absent", "ambiguous"} and not story.verdicts:
            detail = f"the ledger row says {story.row.verdict}, and no verdict was exported"
            findings.append(story.finding("verdicts not exported op", detail, "invalid"))
    return findings


def absent_without_completeness(case: Case) -> list[Finding]:
    """`absent` needs a list whose declared total equals its rows. An atomic cancel-by-key needs no route at all, and
    where nothing was sent nothing needs to be looked for."""
    findings = []
    for story in case.own():
        if story.cell.params.get("late_arrival") == "cancel_by_key":
            continue
        for verdict in story.verdicts:
            if verdict.verdict != "absent" or _nothing_was_sent(story, verdict.decided_at):
                continue
            used = [r for r in story.readings if verdict.reading_set is None or r.reading_set == verdict.reading_set]
            if not any(r.rows is not None and r.rows == r.declared_total for r in used):
                detail = f"absent at {verdict.decided_at} from {len(used)} readings, no list among them was complete"
                findings.append(story.finding("absent without completeness op", detail))
    return findings


def _nothing_was_sent(story: Story, before: str) -> bool:
    """Did every permit taken before that time provably send nothing (or was none taken)? Then no list is needed."""
    taken = [p for p in story.permits if p.issued_at and moment(p.issued_at) <= moment(before)]
    return all(permit.outcome in NOTHING_SENT for permit in taken)


def complete_without_evidence(case: Case) -> list[Finding]:
    """Committed or complete, while the destination has no effect, or had none yet."""
    findings = []
    name = "complete without evidence op"
    for story in case.own():
        row, task = story.row, story.task
        if task is not None and task.state == "complete" and row is not None and not story.settled:
            findings.append(story.finding(name, f"its task is complete, the operation is {story.outcome}"))
        if row is None or row.state != "committed":
            continue
        if not story.effects:
            findings.append(story.finding(name, "committed in the ledger, no effect at the destination"))
        elif row.completed_at is None:
            findings.append(story.finding(name, "committed, and completed_at was not exported", "invalid"))
        elif moment(story.effects[0].at) > moment(row.completed_at) + JOURNAL_S:
            detail = f"committed in the ledger at {row.completed_at}, the effect came at {story.effects[0].at}"
            findings.append(story.finding(name, detail))
    return findings


def unaccounted(case: Case) -> list[Finding]:
    """Effects, sends, ledger rows, operations and tasks that nothing explains."""
    findings = [
        Finding("unaccounted effect", e.object_id, f"{e.destination} has it, no planned operation explains it", e.cell)
        for e in case.stray_effects
    ]
    findings += [
        Finding("unaccounted request", r.request_id, f"{r.method} {r.path} at {r.destination} is nobody's", r.cell)
        for r in case.stray_requests
    ]
    findings += [
        Finding("unaccounted op", r.operation_id, f"in the ledger as {r.state}, never planned", r.cell, r.operation_id)
        for r in case.stray_rows
    ]
    for story in case.own():
        if story.row is None and not story.rightly_never_issued:
            detail = f"planned, {len(story.requests)} sends, {len(story.effects)} effects, no row in the ledger"
            findings.append(story.finding("unaccounted op", detail))
        for effect in story.effects:
            if effect.operation_id not in (None, story.operation_id):
                detail = f"carries {effect.operation_id} instead of {story.operation_id}"
                findings.append(Finding("unaccounted effect", effect.object_id, detail, story.cell.cell))
    return findings + list(_tasks(case))


def _tasks(case: Case) -> Iterator[Finding]:
    for cell in case.evidence.arm("guarded", "control"):
        states = {task.task_id: task.state for task in case.evidence.of(CallerTask, cell.cell)}
        for task_id in cell.task_ids:
            if task_id not in states:
                yield Finding("unaccounted task", task_id, "started, and nobody knows its state", cell.cell)
            elif states[task_id] not in TASK_ENDS:
                yield Finding("stuck task", task_id, f"left {states[task_id]} when everything had settled", cell.cell)


def requests_without_permit(case: Case) -> list[Finding]:
    """Exactly one send per permit: more sends than permits means a retry below the guard, or a send without intent."""
    return [
        story.finding("request without permit op", f"{len(story.requests)} sends arrived, {len(story.permits)} permits")
        for story in case.own()
        if len(story.requests) > len(story.permits)
    ]


def sent_after_not_after(case: Case) -> list[Finding]:
    """A sender's bytes seen after its last permit had ended: the fence or the kernel timer did not hold."""
    findings = []
    for story in case.own():
        ends = [moment(p.not_after) for p in story.permits if p.not_after is not None]
        for line in case.evidence.of(CallerConnection, story.cell.cell):
            if (
                line.operation_id == story.operation_id
                and line.bytes_up
                and ends
                and moment(line.at) > max(ends) + SEEN_S
            ):
                findings.append(story.finding("sent after not_after op", f"bytes on {line.proxy} at {line.at}"))
    return findings


def permits_under_hold(case: Case) -> list[Finding]:
    """Once a hold is recorded no permit is taken and no fence passes until it is resolved (P8)."""
    findings = []
    for story in case.own():
        for hold in story.holds:
            opened = moment(hold.opened_at) + RACE_S
            resolved = moment(hold.resolved_at) - RACE_S if hold.resolved_at else float("inf")
            for permit in story.permits:
                for what, at in (("taken", permit.issued_at), ("fenced", permit.fenced_at)):
                    if at is not None and opened < moment(at) < resolved:
                        detail = f"attempt {permit.attempt} {what} at {at}, held ({hold.reason}) since {hold.opened_at}"
                        findings.append(story.finding("permit used under hold op", detail))
    return findings


def stuck(case: Case) -> list[Finding]:
    """Neither settled nor held; or held and nobody told, or told another reason than the one it is held for."""
    findings = []
    for story in case.own():
        if story.row is None or story.settled:
            continue
        if not story.held:
            findings.append(story.finding("stuck op", f"left {story.outcome} when everything had settled"))
        elif not any(page.reason == story.row.reason for page in story.pages):
            told = ", ".join(sorted({page.reason for page in story.pages})) or "nothing"
            findings.append(story.finding("held without page op", f"{story.outcome}, and the pages say {told}"))
        elif not any(hold.resolved_at is None for hold in story.holds):
            findings.append(story.finding("stuck op", f"{story.outcome}, and no open hold says who resolves it"))
    return findings


def unexpected(case: Case) -> list[Finding]:
    """Not what the reference function derived for the cell: final form, number of effects, amount, page."""
    findings = []
    for story in case.own():
        expected = story.expected
        if story.rightly_never_issued and "not_issued" not in expected.outcomes:
            continue  # what is expected of it begins when the step before it is settled
        least, most = expected.effects
        if story.outcome not in expected.outcomes and story.outcome.partition(":")[0] not in expected.outcomes:
            detail = f"{story.outcome}, expected {' or '.join(expected.outcomes)}"
            findings.append(story.finding("wrong outcome op", detail))
        if not least <= len(story.effects) <= most:
            detail = f"{len(story.effects)} effects, expected {least} to {most}"
            findings.append(story.finding("wrong effects op", detail))
        for effect in story.effects:
            if None not in (story.plan.amount_minor, effect.amount_minor) and (
                effect.amount_minor != story.plan.amount_minor
            ):
                detail = f"{effect.object_id} is over {effect.amount_minor}, planned {story.plan.amount_minor}"
                findings.append(story.finding("wrong amount op", detail))
        if expected.pages is not None and expected.pages != bool(story.pages):
            detail = f"{len(story.pages)} pages, expected {'at least one' if expected.pages else 'none'}"
            findings.append(story.finding("wrong page op", detail))
    return findings


def signature(story: Story) -> tuple[str | None, str | None] | None:
    """What the caller recorded of the struck attempt before any reconciliation: outcome and error class."""
    if not story.permits:
        return None
    first = story.permits[0]
    return first.outcome, first.error


def twin_pairs(case: Case) -> list[tuple[Story, Story]]:
    """The struck operations of commit-then-drop beside those of drop-before-commit, by step."""
    pairs: dict[frozenset[str], list[tuple[Story, Story]]] = {}
    for cell in case.evidence.cells.values():
        other = case.evidence.cells.get(cell.twin_of or "")
        if other is None:
            continue
        after, before = (cell, other) if cell.params.get("twin") == "commit_then_drop" else (other, cell)
        by_step = {s.plan.step: s for s in case.of_cell(before.cell) if s.operation_id in before.fault.targets}
        targets = [case.stories[after.cell, target] for target in after.fault.targets]
        matched = [(s, by_step[s.plan.step]) for s in targets if s.plan.step in by_step]
        pairs[frozenset((after.cell, before.cell))] = matched
    return [pair for matched in pairs.values() for pair in matched]


def twins(case: Case) -> list[Finding]:
    """Twins must leave the same records of the struck attempt on the caller's side, and must really be twins."""
    findings = []
    pairs = [(a, b) for a, b in twin_pairs(case) if a.cell.arm == b.cell.arm == "guarded"]
    for after, before in pairs:
        subject = f"{after.cell.cell}|{before.cell.cell}"
        kinds = {after.cell.params.get("twin"), before.cell.params.get("twin")}
        if kinds != {"commit_then_drop", "drop_before_commit"}:
            detail = f"not one of each: {sorted(map(str, kinds))}"
            findings.append(Finding("twins differ", subject, detail, before.cell.cell, weight="invalid"))
        elif signature(after) is None or signature(before) is None:
            detail = "an attempt is not on record, so nothing was compared"
            findings.append(Finding("twins differ", subject, detail, before.cell.cell, weight="invalid"))
        elif signature(after) != signature(before):
            detail = f"{signature(after)} after the commit, {signature(before)} before it"
            findings.append(Finding("twins differ", subject, detail, before.cell.cell, before.operation_id))
    has_twins = any(cell.params.get("twin") for cell in case.evidence.arm("guarded"))
    if has_twins and not pairs:
        findings.append(Finding("twins differ", "", "cells have twins, and no pair is on record", weight="invalid"))
    return findings


def early_resume(case: Case) -> list[Finding]:
    """A resume before its condition is refused; where something was held in a guarded cell, it must have been tried."""
    findings = [
        Finding("early resume accepted op", line.operation_id, line.answer, line.cell, line.operation_id)
        for line in case.evidence.of(EarlyResumeAccepted)
    ]
    held = [story for story in case.guarded() if story.holds]
    tried = {line.operation_id for line in case.evidence.of(EarlyResumeRefused)}
    if held and not findings and not tried & {story.operation_id for story in held}:
        detail = f"{len(held)} operations were held, and no early resume of any of them was tried"
        findings.append(Finding("early resume", "", detail, weight="invalid"))
    return findings


def views(case: Case) -> list[Finding]:
    """All five views captured, each with its assertions, and all of those true."""
    findings: list[Finding] = []
    guarded = {None, *(cell.cell for cell in case.evidence.arm("guarded"))}
    counted = [view for view in case.evidence.of(View) if view.cell in guarded]
    for missing in [name for name in VIEW_NAMES if name not in {view.name for view in counted}]:
        findings.append(Finding(f"view {missing}", "", "was not captured", weight="invalid"))
    for view in case.evidence.of(View):
        for assertion in view.assertions:
            if not assertion.ok:
                detail = f"{assertion.name}: {assertion.detail}"
                findings.append(Finding(f"view {view.name}", "", detail, view.cell))
    return findings


def _without(case: Case, name: str, what: str, lines: Sequence[ProbeOperation | Quiet]) -> list[Finding]:
    """Guarded cells that never came to their end: they may have broken off before their fault did its part, and what
    is on record of them may look right all the same. A line without a cell speaks for the whole run."""
    ended = {line.cell for line in lines}
    notes = {note.cell: note.text for note in case.evidence.of(Note) if note.text.startswith(BROKE_OFF)}
    return [
        Finding(name, cell.cell, notes.get(cell.cell, what), cell.cell, weight="invalid")
        for cell in case.evidence.arm("guarded")
        if not {cell.cell, None} & ended
    ]


def probe(case: Case) -> list[Finding]:
    """After healing, an operation of every cell succeeded: it says so, and the destination has exactly one effect."""
    lines = case.evidence.of(ProbeOperation)
    if not lines:
        return [Finding("probe", "", "no probe operation ran after healing", weight="invalid")]
    findings = _without(case, "probe", "no probe operation ran after healing", lines)
    for line in lines:
        effects = [e for e in case.probe_effects if e.operation_id == line.operation_id]
        if not line.ok or len(effects) != 1:
            detail = f"said {'ok' if line.ok else 'not ok'}, {len(effects)} effects at the destination"
            findings.append(Finding("probe", line.operation_id, detail, line.cell, line.operation_id))
    return findings


def quiet(case: Case) -> list[Finding]:
    """Every cell had its quiet period, after all faults were healed, and nothing was open at its end."""
    lines = case.evidence.of(Quiet)
    waiting = {story.operation_id for story in case.own() if story.rightly_never_issued}
    if not any(line.seconds > 0 for line in lines):
        return [Finding("still open", "", "no quiet period is on record", weight="invalid")]
    return _without(case, "still open", "no quiet period is on record", lines) + [
        Finding("still open", operation_id, "neither settled nor held and paged after the quiet period", line.cell)
        for line in lines
        for operation_id in line.still_open
        if operation_id not in waiting
    ]


def balance_closes(case: Case) -> list[Finding]:
    """Ledger against journal: as many effects as operations that say committed, and no planned operation without a
    row, unless it was rightly never issued."""
    findings = []
    own = [s for s in case.guarded() if s.row is not None]
    committed = [s for s in own if s.row is not None and s.row.state == "committed"]
    effects = sum(len(s.effects) for s in committed)
    if effects != len(committed):
        findings.append(Finding("balance", "", f"{len(committed)} operations committed, {effects} effects of theirs"))
    rows = len(own) + sum(story.rightly_never_issued for story in case.guarded())
    if rows != len(case.guarded()):
        findings.append(Finding("balance", "", f"{len(case.guarded())} operations planned, {rows} accounted for"))
    return findings


CHECKERS: dict[str, Callable[[Case], list[Finding]]] = {
    "no duplicate effect": duplicates,
    "no lost effect": lost,
    "no false absent": false_absent,
    "absent only from a complete list": absent_without_completeness,
    "no completion without evidence": complete_without_evidence,
    "everything accounted for": unaccounted,
    "one send per permit": requests_without_permit,
    "no send after not_after": sent_after_not_after,
    "no permit under a hold": permits_under_hold,
    "nothing stuck": stuck,
    "as the reference expects": unexpected,
    "history allows every resend": resends_without_reason,
    "twins look the same to the caller": twins,
    "early resume refused": early_resume,
    "five views": views,
    "console tells the truth": console_tells_the_truth,
    "pictures as taken": pictures,
    "probe after healing": probe,
    "quiet period closed": quiet,
    "balance closes": balance_closes,
    "released oldest first": released_in_order,
    "released at its rate": released_by_rate,
    "tasks end as expected": tasks_as_expected,
    "held tasks are paged": held_tasks_are_paged,
    "no approval lost, doubled or re-armed": approvals_kept,
    "no effect without approval in time": effects_approved,
    "no false empty": false_empty,
    "no false up": false_up,
    "no send under a lease that is over": sent_under_dead_lease,
    "no effect without authority": unauthorised_effects,
    "no good lease killed": killed_leases,
    "no secret left behind": leaked_secrets,
    "effects are audited before they happen": effects_are_audited,
    "no audit event is lost": audit_copy_is_whole,
}
