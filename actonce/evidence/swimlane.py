"""One operation as a swimlane: who knew what, when. Inline SVG, nothing loaded, readable in light and dark.

Contract: draws only what is on record, each mark with a tooltip that says where it comes from. The time axis is
compressed (a wait of seconds beside steps of milliseconds), in order and labelled with real times; widths are no
durations. Text that would overlap is left to the tooltip.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf, log1p

from markupsafe import Markup, escape

from actonce.evidence.case import Case, Story, moment
from actonce.evidence.history import Names, activities
from actonce.evidence.lines import CallerConnection, Decision, EarlyResumeAccepted, EarlyResumeRefused, Signalled
from actonce.evidence.strike import Scene, intervals, scene

LANES = ("caller", "Temporal", "wire", "destination", "routes", "person")
WIDTH, LEFT, RIGHT, LANE, TOP = 1080, 108, 24, 46, 30
GAP_S = 0.03  # a gap of this length takes one unit of width; longer ones grow by their logarithm
LETTER = 5.9  # average width of a letter of the label font, for keeping labels apart
SHORT = {"actonce.issue.v1": "issue", "actonce.reconcile.v1": "reconcile", "actonce.hold.v1": "hold"}


@dataclass(frozen=True)
class Mark:
    """A moment in a lane."""

    lane: str
    at_s: float
    label: str
    look: str
    tip: str


@dataclass(frozen=True)
class Bar:
    """A duration in a lane."""

    lane: str
    from_s: float
    to_s: float
    label: str
    look: str
    tip: str


@dataclass(frozen=True)
class Way:
    """A message from one lane to another; `lost` ones are dashed and end in a cross on the wire."""

    start: str
    end: str
    from_s: float
    to_s: float
    lost: bool
    tip: str


@dataclass
class Scenery:
    """Everything to draw for one operation."""

    marks: list[Mark] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)
    shades: list[tuple[float, float, str, str]] = field(default_factory=list)

    def times(self) -> list[float]:
        found = [mark.at_s for mark in self.marks]
        found += [at for bar in self.bars for at in (bar.from_s, bar.to_s)]
        found += [at for way in self.ways for at in (way.from_s, way.to_s)]
        found += [at for shade in self.shades for at in shade[:2]]
        return sorted({at for at in found if at != inf})


class Axis:
    """Maps seconds to x: order is kept, long gaps grow by their logarithm."""

    def __init__(self, times: list[float]) -> None:
        self.times = times
        weights = [log1p((b - a) / GAP_S) + 0.25 for a, b in itertools.pairwise(times)]
        scale = (WIDTH - LEFT - RIGHT - 12) / (sum(weights) or 1.0)
        self.xs = [LEFT + 12.0]
        for weight in weights:
            self.xs.append(self.xs[-1] + weight * scale)

    def x(self, at_s: float) -> float:
        if at_s >= self.times[-1]:
            return self.xs[-1]
        place = max(0, bisect_right(self.times, at_s) - 1)
        low, high = self.times[place], self.times[place + 1]
        share = (at_s - low) / (high - low) if high > low else 0.0
        return self.xs[place] + share * (self.xs[place + 1] - self.xs[place])


def swimlane(case: Case, story: Story) -> Markup:
    """The SVG of one operation, or a sentence when nothing of it is on record."""
    scenery = _collect(case, story)
    times = scenery.times()
    if not times:
        return Markup("<p class=quiet>Nothing of this operation is on record.</p>")
    axis = Axis(times)
    height = TOP + LANE * len(LANES) + 26
    title = f"Timeline of {story.operation_id} in cell {story.cell.cell}"
    parts = [
        Markup('<svg class="swim" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, title),
        *_lanes(),
        *_shades(scenery, axis),
        *_ticks(axis),
        *[_way(way, axis) for way in scenery.ways],
        *_bars(scenery.bars, axis),
        *_marks(scenery.marks, axis),
        Markup("</svg>"),
    ]
    return Markup("").join(parts)


# -- what happened -----------------------------------------------------------------------------------


def _collect(case: Case, story: Story) -> Scenery:
    scenery = Scenery()
    at = scene(case.evidence, story)
    _caller(scenery, story)
    _temporal(scenery, case, story)
    _wire(scenery, case, story, at)
    _destination(scenery, story, at, case)
    for verdict in story.verdicts:
        readings = [r for r in story.readings if r.reading_set in (None, verdict.reading_set)]
        seen = ", ".join(f"{r.route} {r.rows}/{r.declared_total} {r.status}" for r in readings)
        about = verdict.verdict + (f": {verdict.reason}" if verdict.reason else "")
        scenery.marks.append(Mark("routes", moment(verdict.decided_at), about, f"v-{verdict.verdict}", seen))
    _person(scenery, case, story)
    return scenery


def _caller(scenery: Scenery, story: Story) -> None:
    for permit in story.permits:
        start = moment(permit.issued_at or "")
        end = moment(permit.not_after) if permit.not_after else start
        tip = f"attempt {permit.attempt}, epoch {permit.epoch}: {permit.outcome} {permit.error or ''}"
        label = f"attempt {permit.attempt}: {permit.outcome or 'no word'}"
        scenery.bars.append(Bar("caller", start, max(start, end), label, "permit", f"{tip}, until {permit.not_after}"))


def _temporal(scenery: Scenery, case: Case, story: Story) -> None:
    for history in case.evidence.histories:
        if history.workflow_id != story.plan.task_id:
            continue
        found = activities(history)
        names = Names(case, found)
        for activity in found:
            if names.of(activity) != story.operation_id:
                continue
            start = moment(activity.scheduled_at)
            end = moment(activity.ended_at) if activity.ended_at else start
            label = SHORT.get(activity.name, activity.name.removeprefix("actonce.").partition(".")[0])
            tip = f"{activity.name}, event {activity.event_id}: {activity.outcome}"
            look = "activity" if activity.outcome == "completed" else "activity broken"
            scenery.bars.append(Bar("Temporal", start, end, label, look, tip))


def _wire(scenery: Scenery, case: Case, story: Story, at: Scene) -> None:
    fault = story.cell.fault
    lines = case.evidence.by_cell.get(story.cell.cell, [])
    live = next((line for line in lines if line.source in {"destination", "wire", "process"}), None)
    offset = moment(live.at) - live.mono_ns / 1e9 if live else 0.0
    for interval in intervals(case.evidence, story.cell.cell):
        if not (fault.proxies or fault.cut_proxies) or interval.proxy in {*fault.proxies, *fault.cut_proxies}:
            end = interval.end_ns / 1e9 + offset if interval.end_ns != inf else inf
            look = "cut" if interval.proxy in fault.cut_proxies else "fault"
            scenery.shades.append((interval.start_ns / 1e9 + offset, end, look, f"{interval.proxy} {interval.stream}"))
    for line in at.connections:
        tip = f"{line.bytes_up} bytes from the caller, {line.bytes_down} to it, on {line.proxy}"
        scenery.marks.append(Mark("wire", moment(line.at), f"{line.bytes_up} B sent", "byte", tip))
        if at.request is None or (line.mono_ns < at.request.mono_ns and not _arrived_for(line, at)):
            scenery.ways.append(
                Way("caller", "destination", moment(line.at), moment(line.at), True, "request lost or held")
            )
    signals = case.evidence.of(Signalled, story.cell.cell)
    for signal in signals:
        tip = f"{signal.signal} to {signal.role}, pid {signal.pid}"
        scenery.marks.append(Mark("caller", moment(signal.at), signal.signal, "signal", tip))


def _arrived_for(line: CallerConnection, at: Scene) -> bool:
    """Did these bytes arrive as a request soon enough to have been passed on at once?"""
    return at.request is not None and at.request.mono_ns - line.mono_ns < 0.25e9


def _destination(scenery: Scenery, story: Story, at: Scene, case: Case) -> None:
    effects = {effect.request_id: effect for effect in story.effects}
    for request in story.requests:
        arrived = moment(request.at)
        own = scene(case.evidence, Story(story.cell, story.plan, requests=[request], effects=story.effects))
        scenery.ways.append(Way("caller", "destination", arrived, arrived, False, f"{request.request_id} arrived"))
        effect = effects.get(request.request_id)
        if effect is None:
            scenery.marks.append(Mark("destination", arrived, "arrived", "request", request.request_id))
        else:
            tip = f"{effect.object_id}, key {effect.key}, operation {effect.operation_id}"
            scenery.marks.append(Mark("destination", moment(effect.at), f"effect {effect.object_id}", "effect", tip))
        if own.answer is not None:
            answered = moment(own.answer.at)
            covered = any(i.stream != "upstream" and i.covers(own.answer.mono_ns) for i in own.intervals)
            killed = any(
                s.signal == "SIGKILL" and request.mono_ns <= s.mono_ns <= own.answer.mono_ns for s in own.signals
            )
            lost = covered or killed or own.answer.kind != "answer_begun"
            tip = f"{own.answer.kind} {'and lost' if lost else 'and delivered'}"
            scenery.ways.append(Way("destination", "caller", answered, answered, lost, tip))


def _person(scenery: Scenery, case: Case, story: Story) -> None:
    cell, operation_id = story.cell.cell, story.operation_id
    for page in story.pages:
        scenery.marks.append(Mark("person", moment(page.at), f"paged: {page.reason}", "page", f"by {page.channel}"))
    for refused in case.evidence.of(EarlyResumeRefused, cell):
        if refused.operation_id == operation_id:
            scenery.marks.append(Mark("person", moment(refused.at), "early resume refused", "note", refused.answer))
    for accepted in case.evidence.of(EarlyResumeAccepted, cell):
        if accepted.operation_id == operation_id:
            scenery.marks.append(
                Mark("person", moment(accepted.at), "early resume let through", "bad", accepted.answer)
            )
    for decision in case.evidence.of(Decision, cell):
        if decision.operation_id == operation_id:
            tip = f"by {decision.by}"
            scenery.marks.append(Mark("person", moment(decision.at), decision.action, "note", tip))


# -- how it is drawn ---------------------------------------------------------------------------------


def _y(lane: str) -> float:
    return TOP + LANE * LANES.index(lane) + LANE / 2


def _lanes() -> Iterable[Markup]:
    for number, lane in enumerate(LANES):
        top = TOP + LANE * number
        look = "lane odd" if number % 2 else "lane"
        yield Markup('<rect class="{}" x="0" y="{}" width="{}" height="{}"/>').format(look, top, WIDTH, LANE)
        yield Markup('<text class="name" x="12" y="{}">{}</text>').format(top + LANE / 2 + 4, lane)


def _merged(shades: list[tuple[float, float, str, str]]) -> list[tuple[float, float, str, str]]:
    """One shade where several overlap: a part is cut at each of its proxies, and that is one cut to a reader."""
    merged: list[tuple[float, float, str, str]] = []
    for look in ("fault", "cut"):
        for start, end, _, tip in sorted(shade for shade in shades if shade[2] == look):
            if merged and merged[-1][2] == look and start <= merged[-1][1]:
                first, last, _, tips = merged.pop()
                merged.append((first, max(last, end), look, f"{tips}, {tip}"))
            else:
                merged.append((start, end, look, tip))
    return merged


def _shades(scenery: Scenery, axis: Axis) -> Iterable[Markup]:
    for start, end, look, tip in _merged(scenery.shades):
        left = axis.x(start)
        right = WIDTH - RIGHT + 12 if end == inf else axis.x(end)
        yield Markup(
            '<g><title>{}</title><rect class="shade {}" x="{:.1f}" y="{}" width="{:.1f}" height="{}" rx="3"/></g>'
        ).format(tip, look, left, TOP, max(3.0, right - left), LANE * len(LANES))
    for look, word in (("fault", "fault"), ("cut", "cut")):
        first = min((shade for shade in scenery.shades if shade[2] == look), default=None)
        if first is not None:
            y = TOP - 8 if look == "fault" else TOP - 19
            yield Markup('<text class="word {}" x="{:.1f}" y="{}">{}</text>').format(look, axis.x(first[0]), y, word)


def _ticks(axis: Axis) -> Iterable[Markup]:
    bottom, last = TOP + LANE * len(LANES), -inf
    for at_s, x in zip(axis.times, axis.xs, strict=True):
        text = f"+{at_s - axis.times[0]:.2f} s"
        if x - last < len(text) * LETTER + 10:
            continue
        last = x
        yield Markup('<line class="tick" x1="{0:.1f}" y1="{1}" x2="{0:.1f}" y2="{2}"/>').format(x, TOP, bottom + 4)
        anchor = "end" if x > WIDTH - 70 else "middle"
        yield Markup('<text class="time" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
            x, bottom + 18, anchor, text
        )


def _way(way: Way, axis: Axis) -> Markup:
    """An arrow; a lost one is dashed all the way and struck out where it was lost, on the wire."""
    x1, x2 = axis.x(way.from_s), axis.x(way.to_s)
    y1, y2 = _y(way.start), _y(way.end)
    down = 1 if y2 > y1 else -1
    y1, y2 = y1 + 9 * down, y2 - 9 * down
    line = Markup('<path class="way{}" d="M{:.1f},{:.1f} L{:.1f},{:.1f}"/>').format(
        " lost" if way.lost else "", x1, y1, x2, y2
    )
    if way.lost:
        end = Markup('<path class="way cross" d="M{:.1f},{:.1f} l10,10 m0,-10 l-10,10"/>').format(
            x1 - 5, _y("wire") - 5
        )
    else:
        tip = f"M{x2 - 4:.1f},{y2 - 6 * down:.1f} l4,{6 * down} l4,{-6 * down}"
        end = Markup('<path class="way" d="{}"/>').format(tip)
    return Markup("<g><title>{}</title>{}{}</g>").format(way.tip, line, end)


def _bars(bars: list[Bar], axis: Axis) -> Iterable[Markup]:
    free: dict[str, float] = {}
    for bar in sorted(bars, key=lambda bar: bar.from_s):
        left, y = axis.x(bar.from_s), _y(bar.lane)
        width = max(6.0, axis.x(bar.to_s) - left)
        yield Markup(
            '<g><title>{}</title><rect class="bar {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="12" rx="3"/></g>'
        ).format(bar.tip, bar.look, left, y - 2, width)
        yield from _label(bar.label, left, y - 8, free, bar.lane)


def _marks(marks: list[Mark], axis: Axis) -> Iterable[Markup]:
    free: dict[str, float] = {}
    for mark in sorted(marks, key=lambda mark: mark.at_s):
        x, y = axis.x(mark.at_s), _y(mark.lane)
        shape = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="5"/>').format(x, y)
        if mark.look in {"effect", "v-committed", "v-absent", "v-ambiguous"}:
            shape = Markup('<path d="M{:.1f},{:.1f} l7,7 l-7,7 l-7,-7 z"/>').format(x, y - 7)
        elif mark.look == "signal":
            shape = Markup('<path d="M{:.1f},{:.1f} l0,26"/>').format(x, y - 12)
        yield Markup('<g class="mark {}"><title>{}</title>{}</g>').format(mark.look, mark.tip, shape)
        low = y + 20 if mark.lane == "caller" else y - 11
        yield from _label(mark.label, x, low, free, f"{mark.lane}{low}")


def _label(text: str, x: float, y: float, free: dict[str, float], row: str) -> Iterable[Markup]:
    """The label where it does not run into the one before it; the tooltip has it anyway."""
    text = text if len(text) <= 34 else text[:33] + "…"
    width = len(text) * LETTER
    left = min(x - 6, WIDTH - 8 - width)
    if left < free.get(row, -inf):
        return
    free[row] = left + width + 8
    yield Markup('<text class="label" x="{:.1f}" y="{:.1f}">{}</text>').format(left, y, escape(text))
