"""Checkers about leases, authority and secrets. Pure, as all checkers; for cells whose params say `leased`.

They rest on the lease manager's journal, the destination's, what the drill itself put in force, and a search by the
witness; nothing that the system says about itself is believed. A line without a cell speaks for the whole run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from actonce.evidence.case import Case, Finding, Story
from actonce.evidence.line import Line
from actonce.evidence.lines import Authority, Observation
from actonce.evidence.lines_destination import LeaseEvent, Refused
from actonce.evidence.record import Cell

SEARCHED = "secrets_searched"
TWICE = "used twice at once"
L = TypeVar("L", bound=Line)


def _leased(case: Case) -> Iterator[Cell]:
    return (cell for cell in case.evidence.arm("guarded", "control") if cell.params.get("leased"))


def _stories(case: Case) -> Iterator[Story]:
    names = {cell.cell for cell in _leased(case)}
    return (story for story in case.own() if story.cell.cell in names)


def _about(case: Case, kind: type[L], cell: Cell) -> list[L]:
    """The lines of a cell, and those of the whole run."""
    lines = [*case.evidence.of(kind, cell.cell), *case.evidence.of(kind, None)]
    return sorted(lines, key=lambda line: line.mono_ns)


def sent_under_dead_lease(case: Case) -> list[Finding]:
    """No write reaches the destination under a lease that has run out: a permit never outlives its lease."""
    refused = {(line.journal, line.request_id): line.why for line in case.evidence.of(Refused)}
    return [
        story.finding("sent under dead lease op", f"{request.request_id} was refused: {why}")
        for story in _stories(case)
        for request in story.requests
        if (why := refused.get((request.journal, request.request_id), "")).startswith("credential write")
        and why.endswith("expired")
    ]


def unauthorised_effects(case: Case) -> list[Finding]:
    """No effect while the access policy that the drill had put in force did not allow it (or there was none)."""
    findings = []
    for story in _stories(case):
        said = _about(case, Authority, story.cell)
        for effect in story.effects:
            before = [line for line in said if line.mono_ns <= effect.mono_ns]
            if not before or not before[-1].allowed:
                policy = f"policy {before[-1].policy_version} does not allow it" if before else "there was no policy"
                findings.append(story.finding("unauthorised effect op", f"{effect.object_id} at {effect.at}, {policy}"))
    return findings


def killed_leases(case: Case) -> list[Finding]:
    """Nobody of ours kills a good lease by using it twice at once."""
    names = {cell.cell for cell in _leased(case)}
    return [
        Finding("good lease killed", line.lease_id or "", f"{line.why} at {line.at}", line.cell)
        for line in case.evidence.of(LeaseEvent)
        if names and line.cell in {*names, None} and line.event == "ended" and line.why == TWICE
    ]


def leaked_secrets(case: Case) -> list[Finding]:
    """A marked secret is found nowhere in what a cell leaves; and it was looked for where it could be (case c12)."""
    findings = []
    names = {cell.cell for cell in _leased(case)}
    for cell in _leased(case):
        searches = [line for line in _about(case, Observation, cell) if line.name == SEARCHED]
        given = any(line.event == "issued" for line in _about(case, LeaseEvent, cell))
        read = [line for line in searches if line.facts.get("bytes")]
        if not read or not given:
            what = "no marked secret was ever given out" if read else "nobody searched what it leaves"
            findings.append(Finding("leaked secret", cell.cell, what, cell.cell, weight="invalid"))
    for line in case.evidence.of(Observation):
        if line.name == SEARCHED and names and line.cell in {*names, None}:
            findings += [
                Finding("leaked secret", line.cell or "", f"a marked secret is in {place}", line.cell)
                for place in line.facts.get("hits", [])
            ]
    return findings
