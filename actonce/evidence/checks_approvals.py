"""Checkers about approvals: kept through an outage as people were shown them, and no effect beyond them. Pure."""

from __future__ import annotations

from actonce.evidence.case import Case, Finding, moment
from actonce.evidence.lines import ApprovalShown, Decision
from actonce.evidence.lines_caller import CallerApproval
from actonce.evidence.lines_destination import Effect

LATE_S = 3.0  # from the end of a permit to the commit: the sandbox's transit and processing bounds, and clock skew
RENEW = "renew"  # a decision of a person that asks anew; nothing else may add an approval or move a deadline


def approvals_kept(case: Case) -> list[Finding]:
    """Every approval that people were shown is shown again, once, about the same thing, until the same moment."""
    findings = []
    for cell in case.evidence.arm("guarded", "control"):
        renewed = {d.operation_id for d in case.evidence.of(Decision, cell.cell) if d.action == RENEW}
        shown: dict[str, list[ApprovalShown]] = {}
        for line in case.evidence.of(ApprovalShown, cell.cell):
            shown.setdefault(line.operation_id, []).append(line)
        phases = {"before", "after", *(line.phase for lines in shown.values() for line in lines)}
        for operation, lines in shown.items():
            for missing in sorted(phases - {line.phase for line in lines}):
                detail = f"{lines[0].approval_id} is not shown {missing} the outage"
                findings.append(Finding("approval lost op", operation, detail, cell.cell))
            ids = sorted({line.approval_id for line in lines})
            if len(ids) > 1 and operation not in renewed:
                findings.append(Finding("approval doubled op", operation, f"shown as {ids}", cell.cell))
            for approval_id in ids:
                same = [line for line in lines if line.approval_id == approval_id]
                if len({moment(line.expires_at) for line in same}) > 1:
                    ends = ", ".join(f"{line.phase}: {line.expires_at}" for line in same)
                    findings.append(Finding("approval re-armed op", operation, ends, cell.cell))
                if len({line.digest for line in same}) > 1:
                    detail = f"{approval_id} is about another thing than before"
                    findings.append(Finding("approval changed op", operation, detail, cell.cell))
    return findings


def effects_approved(case: Case) -> list[Finding]:
    """No effect of an operation that people are, or had to be, asked about without an approval in its time."""
    findings = []
    for cell in case.evidence.arm("guarded", "control"):
        approvals: dict[str, list[CallerApproval]] = {o.operation_id: [] for o in cell.operations if o.approval}
        for line in case.evidence.of(CallerApproval, cell.cell):
            approvals.setdefault(line.operation_id, []).append(line)
        for effect in case.evidence.of(Effect, cell.cell):
            mine = approvals.get(effect.operation_id or "")
            if mine is None:
                continue
            at = moment(effect.at)
            given = [a for a in mine if a.consumed_at is not None and a.decided_at is not None]
            if not any(moment(a.decided_at or "") <= at <= moment(a.expires_at) + LATE_S for a in given):
                detail = f"committed at {effect.at}, and no approval of it was in force"
                findings.append(Finding("effect without approval op", effect.operation_id or "", detail, cell.cell))
    return findings
