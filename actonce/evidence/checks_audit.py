"""Checkers about the audit trail: what the destination shows must have been announced, and no copy may lack an event.

Pure, as all checkers. They look at cells whose `params.audit` names what is checked: "events" (the ledger's events
against the destination's journal) or "copy" (the same, and every line that a witness read at the log destination). The
chain is computed again here, by this module's own reading of its rule: SHA-256 over the RFC 8785 form of a line without
its `hash`; each line names the hash before it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rfc8785

from actonce.evidence.case import Case, Finding, Story, is_own, moment
from actonce.evidence.lines import AuditCopy, CallerAudit
from actonce.evidence.record import SETTLED_STATES, Cell

# The destination stamps an effect by the same host's clock; a commit and its event may be told this much apart.
SAME_S = 0.05


def effects_are_audited(case: Case) -> list[Finding]:
    """Every effect was announced by a permit event before it; every ended operation's last event says how it ended."""
    findings = []
    for cell in _cells(case, "events", "copy"):
        events = case.evidence.of(CallerAudit, cell.cell)
        if not events:
            findings.append(Finding("audit", "", "no audit event is on record", cell.cell, weight="invalid"))
            continue
        for story in case.of_cell(cell.cell):
            findings += _story(story, [event for event in events if event.operation_id == story.operation_id])
    return findings


def _story(story: Story, events: list[CallerAudit]) -> list[Finding]:
    permits = sorted(moment(event.written_at) for event in events if event.event == "operation.permit")
    findings = []
    for number, effect in enumerate(sorted(story.effects, key=lambda e: moment(e.at))):
        if len([at for at in permits if at <= moment(effect.at) + SAME_S]) <= number:
            detail = f"{effect.object_id} at {effect.at}, permit events before it: {len(permits)}"
            findings.append(story.finding("unaudited effect op", detail))
    states = [event.state for event in events if event.state is not None]
    if story.row is not None and story.row.state in SETTLED_STATES and states[-1:] != [story.row.state]:
        detail = f"the ledger says {story.row.state}, its last event {states[-1] if states else 'is missing'}"
        findings.append(story.finding("unaudited outcome op", detail))
    return findings


def audit_copy_is_whole(case: Case) -> list[Finding]:
    """What the witness read at a log destination is every sealed event of the ledger, unchanged and in its place."""
    findings = []
    for cell in _cells(case, "copy"):
        lines = case.evidence.of(AuditCopy, cell.cell)
        sealed = {e.event_seq: e.hash for e in case.evidence.of(CallerAudit, cell.cell) if e.event_seq is not None}
        if not lines or not sealed:
            detail = f"{len(lines)} lines of the copy, {len(sealed)} sealed events"
            findings.append(Finding("audit", "", detail, cell.cell, weight="invalid"))
            continue
        findings += _copy(cell, lines, sealed)
    return findings


def _copy(cell: Cell, lines: list[AuditCopy], sealed: dict[int, str | None]) -> list[Finding]:
    findings = []
    first: dict[int, dict[str, Any]] = {}
    for line in lines:
        event = _read(line.text)
        if event is None:
            findings.append(Finding("audit chain broken", line.text[:40], "no canonical event", cell.cell))
        elif first.setdefault(event["seq"], event) != event:
            findings.append(Finding("audit chain broken", str(event["seq"]), "two copies differ", cell.cell))
    for seq, event in sorted(first.items()):
        if seq not in sealed:
            findings.append(Finding("foreign audit event", str(seq), "the ledger has no such event", cell.cell))
        elif event["hash"] != sealed[seq]:
            findings.append(Finding("audit chain broken", str(seq), "the ledger has another hash", cell.cell))
        elif seq - 1 in first and event["previous_hash"] != first[seq - 1]["hash"]:
            findings.append(Finding("audit chain broken", str(seq), "it names another predecessor", cell.cell))
    lost = [seq for seq in range(1, max(sealed) + 1) if seq not in first]
    if lost:
        detail = f"{len(lost)} of {max(sealed)} events never reached {lines[0].destination}"
        findings.append(Finding("lost audit event", str(lost[0]), detail, cell.cell))
    return findings


def _read(text: str) -> dict[str, Any] | None:
    """The event of a line, None unless its hash is that of its content and its form the canonical one."""
    try:
        event = json.loads(text)
        content = {name: value for name, value in event.items() if name != "hash"}
        whole = hashlib.sha256(rfc8785.dumps(content)).hexdigest() == event["hash"]
        return event if whole and rfc8785.dumps(event).decode() == text and isinstance(event["seq"], int) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _cells(case: Case, *what: str) -> list[Cell]:
    return [c for c in case.evidence.cells.values() if is_own(c) and c.params.get("audit") in what]
