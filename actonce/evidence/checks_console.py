"""What people were shown at the console, and the pictures of it, against everything else on record.

Contract: as in `checkers`. A page that calls done what the destination does not have is a finding, whatever else is
right. A picture that is promised and not there, or is not what was taken, makes the drill invalid: then nobody can see
what people saw. That there was no browser is no finding, when the record says so for each picture.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

from actonce.evidence.case import Case, Finding, Story, moment
from actonce.evidence.lines import ConsoleSaid, Picture

PAGES = frozenset({"task", "history"})  # of these there must be a picture, or a reason, at each moment
MOMENTS = ("hold", "after")
PNG = b"\x89PNG\r\n\x1a\n"
# The destination writes its journal line right after the commit: a page can show the effect this much earlier.
JOURNAL_S = 0.05


def console_tells_the_truth(case: Case) -> list[Finding]:
    """No page calls a task complete, or an operation committed, before the destination has the effect, and none offers
    to decide what is not held."""
    findings = []
    for line in case.evidence.of(ConsoleSaid):
        stories = [s for s in case.of_cell(line.cell or "") if s.plan.task_id == line.task_id]
        if line.page == "operation":
            stories = [s for s in stories if s.operation_id == line.operation_id]
        done = "complete" if line.page == "task" else "committed"
        lacking = [s for s in stories if not _effect_by(s, moment(line.at)) and _had_to_happen(s)]
        subject = line.operation_id if line.page == "operation" and line.operation_id else line.task_id
        if line.said == done and lacking:
            detail = f"its page says {line.said} at {line.at}, without an effect of {lacking[0].operation_id}"
            findings.append(Finding(f"console false {line.page}", subject, detail, line.cell, line.operation_id))
        if line.offered and line.said != "held":
            detail = f"its page says {line.said} and offers {', '.join(line.offered)}"
            findings.append(Finding(f"console false {line.page}", subject, detail, line.cell, line.operation_id))
    return findings


def _effect_by(story: Story, at_s: float) -> bool:
    return any(moment(effect.at) <= at_s + JOURNAL_S for effect in story.effects)


def _had_to_happen(story: Story) -> bool:
    return "not_issued" not in story.expected.outcomes


def pictures(case: Case) -> list[Finding]:
    """What was promised to be pictured is, at each moment, or the reason is on record; each file is what was taken."""
    lines = case.evidence.of(Picture)
    findings = [
        Finding("picture", name, f"neither taken nor missed: the {page} page, {when}", weight="invalid")
        for name in case.evidence.drill.pictured
        for when in MOMENTS
        for page in sorted(PAGES - {line.page for line in lines if line.of == name and line.moment == when})
    ]
    for line in lines:
        wrong = _wrong(case, line)
        if wrong is not None:
            findings.append(Finding("picture", str(line.file), wrong, line.cell, weight="invalid"))
    return findings


def _wrong(case: Case, line: Picture) -> str | None:
    """What is wrong with a picture's file, if anything."""
    if line.file is None:
        return None
    where = PurePosixPath(line.file)
    if where.is_absolute() or ".." in where.parts:
        return "it is not in the folder"
    try:
        data = (case.evidence.folder / where).read_bytes()
    except OSError as error:
        return f"it is on record and cannot be read: {type(error).__name__}"
    if not data.startswith(PNG):
        return "it is no picture"
    if hashlib.sha256(data).hexdigest() != line.sha256:
        return "it is not the picture that was taken"
    return None
