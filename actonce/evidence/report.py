"""The report of a drill: one HTML file that a person can judge at a glance and send around.

Contract: shows what the verdict and the record say and computes nothing new that could contradict them. Self-contained:
no script, no font, no picture from elsewhere. Everything recorded is escaped; links are made only of http(s) addresses.
A timeline that cannot be drawn says so in its place; the verdict does not depend on it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from actonce.evidence.case import Case, Story, is_own
from actonce.evidence.chart import chart
from actonce.evidence.checkers import CHECKERS
from actonce.evidence.compare import COMPARED
from actonce.evidence.judge import Judgement, counts
from actonce.evidence.lines import Picture
from actonce.evidence.strike import Strike
from actonce.evidence.swimlane import swimlane
from actonce.evidence.verdict import Check

# A timeline takes about 10 KB; more of them than this would make the page slow to open. The others stay in the record.
TIMELINES_MAX = 400
COLUMNS = COMPARED
# Pictures are in the page itself, so that it can be sent around; beyond this they are left to the folder.
PICTURES_BYTES_MAX = 6 << 20
PAGES = {"task": "the task", "operation": "the operation", "history": "its history in the Temporal UI"}
MOMENTS = {"hold": "At the hold: while nobody can tell yet", "after": "After it"}


@dataclass(frozen=True)
class Row:
    """One operation of one cell, as the tables show it."""

    story: Story
    strike: Strike | None
    findings: list[str]
    counted: bool
    svg: Markup
    link: str | None

    @property
    def params(self) -> list[str]:
        return [str(self.story.cell.params.get(name, "")) for name in COLUMNS]

    @property
    def title(self) -> str:
        named = self.story.cell.params.get("name")
        words = [word for word in self.params if word and word not in {"none", "healthy"}]
        return str(named) if named else ", ".join(words).replace("_", " ") or self.story.cell.cell

    @property
    def ended(self) -> str:
        """The operation's final form; in arms without a ledger, what its task told."""
        if is_own(self.story.cell):
            return self.story.outcome
        return f"task {self.story.task.state}" if self.story.task else "no word"


def render(judgement: Judgement) -> str:
    """The whole page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    verdict, case = judgement.verdict, judgement.case
    rows = _rows(judgement, case) if case is not None else []
    wrong = [str(f) for f in judgement.findings if case is not None and counts(f, case)]
    wrong += [f"{c.name}: {c.detail}" for c in verdict.checks if not c.ok and _not_by_findings(c)]
    return environment.get_template("report.html.j2").render(
        verdict=verdict,
        drill=case.evidence.drill if case is not None else None,
        rows=rows,
        columns=COLUMNS,
        stories=_chosen(rows),
        pairs=_beside(rows),
        grid=_grid(case),
        findings=wrong,
        headline=verdict.sentence.partition(f". {verdict.result.capitalize()}: ")[0],
        shown=_shown(case),
        chart=chart(verdict.comparison),
        folder=case.evidence.folder.name if case is not None else "DIR",
        css=Markup(Path(__file__).with_name("report.css").read_text(encoding="utf-8")),
    )


def _not_by_findings(check: Check) -> bool:
    """Is the check's detail said nowhere else: about the record, the faults, the controls, or a crash?"""
    return check.name not in CHECKERS or check.detail.startswith("the checker crashed")


def _rows(judgement: Judgement, case: Case) -> list[Row]:
    hits = {(hit.cell, hit.operation_id): hit for hit in judgement.strikes}
    base = _ui(case.evidence.drill.config)
    rows = []
    for number, (key, story) in enumerate(case.stories.items()):
        mine = [f for f in judgement.findings if f.cell == key[0] and f.operation_id in (None, key[1])]
        task = quote(story.plan.task_id, safe="")
        rows.append(
            Row(
                story=story,
                strike=hits.get(key),
                findings=[str(f) for f in mine],
                counted=any(counts(f, case) for f in mine),
                svg=_timeline(case, story) if number < TIMELINES_MAX else Markup(),
                link=f"{base}/workflows/{task}" if base else None,
            )
        )
    return rows


def _ui(config: dict[str, Any]) -> str | None:
    """Where the Temporal UI shows the run's namespace; only http(s) addresses become links."""
    base = str(config.get("temporal_ui", "")).rstrip("/")
    if not base.startswith(("http://", "https://")):
        return None
    if "/namespaces/" not in base:
        base += f"/namespaces/{quote(str(config.get('namespace', 'default')), safe='')}"
    return base


def _timeline(case: Case, story: Story) -> Markup:
    try:
        return swimlane(case, story)
    except Exception as error:  # the page must open for the very records that are broken
        return Markup("<p class=quiet>This timeline cannot be drawn: {}</p>").format(repr(error))


def _chosen(rows: list[Row]) -> list[Row]:
    """The timelines to show first: what went wrong, then a twin pair, a hold, a killed and a frozen worker."""
    guarded = [row for row in rows if row.story.cell.arm == "guarded" and row.strike is not None]
    chosen = [row for row in guarded if row.counted][:3]
    wanted: list[Callable[[Row], object]] = [
        lambda row: row.story.cell.twin_of and row.story.cell.params.get("twin") == "commit_then_drop",
        lambda row: row.story.cell.twin_of and row.story.cell.params.get("twin") == "drop_before_commit",
        lambda row: row.story.held,
        lambda row: "SIGKILL" in row.story.cell.fault.signals,
        lambda row: "SIGSTOP" in row.story.cell.fault.signals,
    ]
    for wish in wanted:
        fitting = (row for row in guarded if wish(row) and row not in chosen)
        if (row := next(fitting, None)) is not None:
            chosen.append(row)
    return chosen or guarded[:3]


def _beside(rows: list[Row]) -> list[tuple[Row | None, Row]]:
    """Each control beside a guarded operation under the same conditions: one pair per control."""
    guarded = {tuple(row.params): row for row in reversed(rows) if row.story.cell.arm == "guarded"}
    pairs: dict[str, tuple[Row | None, Row]] = {}
    for row in rows:
        name = row.story.cell.control
        if name and (name not in pairs or (pairs[name][0] is None and tuple(row.params) in guarded)):
            pairs[name] = (guarded.get(tuple(row.params)), row)
    return list(pairs.values())


def _shown(case: Case | None) -> list[dict[str, Any]]:
    """What people saw, by cell and moment: each picture as a part of this page, or why there is none."""
    if case is None:
        return []
    found: dict[tuple[str, str], dict[str, Any]] = {}
    size = 0
    for line in case.evidence.of(Picture):
        about = f"{line.of}: {PAGES.get(line.page, line.page.replace('-', ' '))}, {line.moment}"
        shot = {
            "alt": about,
            "page": PAGES.get(line.page, line.page),
            "file": line.file,
            "data": None,
            "why": line.missing,
        }
        if line.file is not None:
            data, shot["why"] = _read(case.evidence.folder, line.file)
            size += len(data)
            if data and size <= PICTURES_BYTES_MAX:
                shot["data"] = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        row = {"of": line.of, "moment": MOMENTS[line.moment], "shots": []}
        found.setdefault((line.of, line.moment), row)["shots"].append(shot)
    return list(found.values())


def _read(folder: Path, file: str) -> tuple[bytes, str | None]:
    path = (folder / file).resolve()
    try:
        return (path.read_bytes(), None) if path.is_relative_to(folder.resolve()) else (b"", "it is not in the folder")
    except OSError as error:
        return b"", f"it cannot be read: {type(error).__name__}"


def _grid(case: Case | None) -> list[dict[str, Any]]:
    """Final state against number of effects, guarded cells: every operation in exactly one field."""
    if case is None:
        return []
    # What may stand in the fields for 0, 1 and more effects.
    allowed = {"committed": (False, True), "held": (True, True), "refused": (True, False), "closed": (True, False)}
    fields: dict[str, list[int]] = {}
    for story in case.guarded():
        state = story.row.state if story.row else "not_issued"
        fields.setdefault(state, [0, 0, 0])[min(2, len(story.effects))] += 1
    order = ["committed", "held", "refused", "closed", "not_issued"]
    states = [s for s in order if s in fields] + sorted(s for s in fields if s not in order)
    grid = []
    for state in states:
        fine = (*allowed.get(state, (state == "not_issued", False)), False)
        grid.append({"state": state, "fields": list(zip(fields[state], fine, strict=True)), "sum": sum(fields[state])})
    return grid
