"""Checkers about the audit trail: what the destination shows must have been announced, and no copy may lack an event.

Pure, as all checkers. They look at cells whose `params.audit` names what is checked: "events" (the ledger's events
against the destination's journal), "copy" (the same, and every line that a witness read at the log destination) or
"counted" (the same, where the lines of a long run are too many to keep: the witness read and counted them with
`CopyCount`, and put that on record for the whole run). The chain is computed again here, by this module's own reading
of its rule: SHA-256 over the RFC 8785 form of a line without its `hash`; each line names the hash before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import rfc8785

from actonce.evidence.case import Case, Finding, Story, is_own, moment
from actonce.evidence.lines import AuditCopy, Observation
from actonce.evidence.lines_caller import CallerAudit
from actonce.evidence.record import SETTLED_STATES, Cell

# The destination stamps an effect by the same host's clock; a commit and its event may be told this much apart.
SAME_S = 0.05
COUNTED = "audit_copy_counted"  # the observation of a copy whose lines are not kept
PROBLEMS_MAX = 20  # of one copy that are named; all are counted
Problem = tuple[str, str, str]  # finding, subject, detail


def effects_are_audited(case: Case) -> list[Finding]:
    """Every effect was announced by a permit event before it; every ended operation's last event says how it ended."""
    findings = []
    for cell in _cells(case, "events", "copy", "counted"):
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
    findings = _counted(case)
    for cell in _cells(case, "copy"):
        lines = case.evidence.of(AuditCopy, cell.cell)
        sealed = {e.event_seq: e.hash for e in case.evidence.of(CallerAudit, cell.cell) if e.event_seq is not None}
        if not lines or not sealed:
            detail = f"{len(lines)} lines of the copy, {len(sealed)} sealed events"
            findings.append(Finding("audit", "", detail, cell.cell, weight="invalid"))
            continue
        count = CopyCount(lines[0].destination)
        count.read(line.text for line in lines)
        findings += [Finding(*problem, cell.cell) for problem in count.problems(sealed)]
    return findings


def _counted(case: Case) -> list[Finding]:
    """What the witness counted of copies whose lines are not on record, for the whole run."""
    if not _cells(case, "counted"):
        return []
    counts = [line for line in case.evidence.of(Observation, None) if line.name == COUNTED]
    findings = [] if counts else [Finding("audit", "", "nobody counted a copy of the events", weight="invalid")]
    for line in counts:
        if not line.facts.get("lines") or not line.facts.get("sealed"):
            detail = f"{line.target}: {line.facts.get('lines')} lines, {line.facts.get('sealed')} sealed events"
            findings.append(Finding("audit", "", detail, weight="invalid"))
        findings += [Finding(str(name), str(seq), str(what)) for name, seq, what in line.facts.get("problems", [])]
        if line.facts.get("problem_count") and not line.facts.get("problems"):
            detail = f"{line.target}: {line.facts['problem_count']} problems, none of them named"
            findings.append(Finding("audit chain broken", "", detail))
    return findings


class CopyCount:
    """Reads the lines of one copy, in any number of pieces; keeps two hashes of each event and no line."""

    def __init__(self, destination: str) -> None:
        self.destination = destination
        self.lines = 0
        self._first: dict[int, tuple[str, str]] = {}  # seq → its hash, the hash that it names before it
        self._broken: list[Problem] = []

    def read(self, texts: Iterable[str]) -> None:
        """Lines in the order of the copy; of equal `seq` the first counts, as for any reader."""
        for text in texts:
            self.lines += 1
            event = _read(text)
            if event is None:
                self._broken.append(("audit chain broken", text[:40], "no canonical event"))
                continue
            mine = (str(event["hash"]), str(event.get("previous_hash")))
            if self._first.setdefault(event["seq"], mine) != mine:
                self._broken.append(("audit chain broken", str(event["seq"]), "two copies differ"))

    def problems(self, sealed: dict[int, str | None]) -> list[Problem]:
        """Everything that is wrong with the copy, against the ledger's sealed events."""
        found = list(self._broken)
        for seq, (own, before) in sorted(self._first.items()):
            if seq not in sealed:
                found.append(("foreign audit event", str(seq), "the ledger has no such event"))
            elif own != sealed[seq]:
                found.append(("audit chain broken", str(seq), "the ledger has another hash"))
            elif seq - 1 in self._first and before != self._first[seq - 1][0]:
                found.append(("audit chain broken", str(seq), "it names another predecessor"))
        lost = [seq for seq in range(1, max(sealed) + 1) if seq not in self._first]
        if lost:
            detail = f"{len(lost)} of {max(sealed)} events never reached {self.destination}"
            found.append(("lost audit event", str(lost[0]), detail))
        return found

    def facts(self, sealed: dict[int, str | None]) -> dict[str, Any]:
        """For the record: counts, and the first problems by name."""
        found = self.problems(sealed) if sealed else []
        return {
            "lines": self.lines,
            "events": len(self._first),
            "sealed": len(sealed),
            "problem_count": len(found),
            "problems": found[:PROBLEMS_MAX],
        }


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
