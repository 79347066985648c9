"""What people read: why a task is where it is, and what to do, as commands they can paste."""

from __future__ import annotations

import shlex
from urllib.parse import quote

from actonce.contracts.commands import CLIENT
from actonce.ledger.approvals import Approval
from actonce.ledger.pages import may_commit_words
from actonce.ledger.records import Allowed, TaskRecord
from actonce.ledger.release import Control
from actonce.ledger.store import Operation, utc

FINAL_STATES = {"complete", "failed", "cancelled"}


def cli(*words: str) -> str:
    """A command line of the client."""
    return f"{CLIENT} {shlex.join(words)}"


def _brief(trouble: str | None) -> str:
    """An error of the Temporal client without its inner layers."""
    return (trouble or "it is being started").split(": tonic::")[0][:300]


def why_queued(recorded: bool, working: str, trouble: str | None, behind: Control | None, ahead: int) -> str:
    """Say whether Temporal has the task and whether anyone is there to take it."""
    if behind is not None and not trouble:
        rate = f"at most {behind.rate_per_s:g} a second" if behind.rate_per_s is not None else "as workers take them"
        return f"accepted and kept, {ahead} before it; {behind.why_not or f'nothing keeps it, tasks go {rate}'}"
    if not recorded:
        return f"accepted and kept; Temporal has not taken it yet ({_brief(trouble)})"
    return {
        "yes": "Temporal has it; workers were there at the last reading and take it next",
        "no": "Temporal has it, but nobody is working on its task queue",
        "unknown": "Temporal has it; whether anyone is working on its task queue is not known",
    }[working]


def lost_words(gone: str) -> str:
    """What people read of a task whose workflow is gone."""
    return (
        f"its workflow {gone}; operations it left open are reconciled by the ledger watcher. Starting the task again "
        "by the same key continues with the same operations"
    )


def task_words(
    record: TaskRecord, ended: str | None, working: str, trouble: str | None, behind: Control | None
) -> tuple[str, str, list[str]]:
    """Return (state, why, what to do) of a task: the ledger's word, corrected by what Temporal shows.

    `ended`: how its workflow ended without an outcome, where somebody asked Temporal and was told so.
    """
    task = record.task
    held = [o for o in record.operations if o.state == "held"]
    steps = [cli("show", o.operation_id) for o in held]
    steps += sorted({f"procedure: docs/operations/{o.reason}.md" for o in held})
    if task.state in FINAL_STATES:
        after = "".join(f"; afterwards {o.operation_id} was held: {o.reason}" for o in held)
        return task.state, (task.detail or task.state) + after, steps
    gone = ended if task.recorded and not task.cancel_requested else None
    if task.reason == "orphaned" or gone:
        steps += [f"{cli('start', task.task_type, '--key', task.task_key)} --payload <the same payload>"]
    waits = sorted({h["reason"] for h in record.holds if h["operation_id"] is None and h["reason"] != "orphaned"})
    if waits:
        steps += [cli("dependencies"), *(f"procedure: docs/operations/{reason}.md" for reason in waits)]
    if task.state == "held":
        return "held", task.detail or task.reason or "held", steps
    if gone:  # the ledger says so too as soon as the entry's round comes to it
        return "held", lost_words(gone), steps
    if task.cancel_requested:
        open_ = [o.operation_id for o in record.operations if not o.final]
        by = f" by {task.cancel_by}: {task.cancel_why}" if task.cancel_by else ""
        why = f"cancellation was asked for{by}; still open: {', '.join(open_) or 'nothing'}"
        return task.state, why, [cli("show", o) for o in open_]
    if task.state == "waiting_for_approval":
        asleep = "; and nobody is working on its task queue now" if working == "no" else ""
        steps = [step for approval in record.approvals for step in approval_next(approval)]
        return task.state, (task.detail or task.state) + asleep, steps
    if task.state == "queued":
        kept = behind.why_not if behind is not None else None
        fine = working == "yes" and (task.recorded or (behind is not None and kept is None))
        steps = ["nothing: it is kept and will start"] if fine else [cli("dependencies")]
        steps += [cli("release")] if kept else []
        return "queued", why_queued(task.recorded, working, trouble, behind, record.ahead), steps
    why = task.detail or "a worker has it"
    if working == "no":
        return task.state, f"{why}; but nobody is working on its task queue now", [cli("dependencies")]
    return task.state, why, []


def approval_next(approval: Approval) -> list[str]:
    """What a person does about an approval. Empty when there is nothing to do."""
    name = approval.approval_id
    if approval.state == "pending":
        who = ("--name", "YOU", "--note", "WHY", "--digest", approval.digest)
        return [cli("approvals", name), *(cli(verb, name, *who) for verb in ("approve", "reject"))]
    if approval.state in ("expired", "withdrawn", "changed"):
        return [
            f"{cli('renew', name, '--name', 'YOU', '--note', 'WHY')}   # once {cli('show', approval.operation_id)} "
            "says that it is held"
        ]
    return []


def operation_next(operation: Operation, allowed: list[Allowed]) -> list[str]:
    """What a person does about an operation. Empty when there is nothing to do."""
    if operation.state == "held":
        stamp = ("--expected-version", str(operation.version), "--expected-epoch", str(operation.epoch))
        who = ("--name", "YOU", "--reason", "WHY", "--evidence", "WHAT_YOU_SAW")
        steps = [f"read docs/operations/{operation.reason}.md"]
        for one in allowed:
            extra = ("--object-id", "OBJECT_ID") if one.action == "mark_committed" else ()
            line = cli("resolve", operation.operation_id, "--action", one.action, *stamp, *who, *extra)
            if one.allowed:
                steps.append(line + (f"   # residual risk: {one.residual_risk}" if one.residual_risk else ""))
            else:
                steps.append(f"{one.action} is refused now ({one.code}): {one.refused_because}")
        return steps
    if operation.state in ("dispatched", "unknown", "acknowledged"):
        when = f", and is read for absence from {utc(operation.reconcile_at)}" if operation.reconcile_at else ""
        return [f"nothing: it is being reconciled{when}; the effect {may_commit_words(operation)}"]
    return []


def ui_link(base: str | None, namespace: str, workflow_id: str, run_id: str | None) -> str | None:
    """Where the Temporal UI shows a workflow (its runs, while no run is known)."""
    if not base:
        return None
    link = f"{base.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{quote(workflow_id, safe='')}"
    return f"{link}/{run_id}/history" if run_id else link


def history_link(base: str | None, namespace: str, workflow_id: str) -> str | None:
    """The history of the newest run as JSON, by the HTTP API behind the Temporal UI."""
    if not base:
        return None
    where = f"namespaces/{quote(namespace, safe='')}/workflows/{quote(workflow_id, safe='')}/history"
    return f"{base.rstrip('/')}/api/v1/{where}"
