"""One operation as a picture: what was sent, answered, read, held and decided, and when. Inline SVG.

Contract: draws only what is on record; every mark says in words what it is and when. Times are in order and the axis
is compressed (hours beside milliseconds): widths are no durations. The tables of the page say the same without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import log1p

from markupsafe import Markup

from actonce.ledger.records import OperationRecord
from actonce.unseen import visible

LANES = ("permit", "answer", "readings", "hold", "person")
WIDTH, LEFT, RIGHT, LANE, TOP = 1000, 92, 24, 34, 4
GAP_S = 0.05  # a gap of this length takes one unit of width; longer ones grow by their logarithm
BRIEF_S = 60.0  # what took less is told in milliseconds
TICK_APART = 92  # room for one label of the axis
READINGS_MAX = 40  # marks of one lane; the newest


@dataclass(frozen=True)
class Mark:
    """A moment in a lane; with `until` a span."""

    lane: str
    at: datetime
    kind: str
    words: str
    until: datetime | None = None
    open: bool = False  # it has no end yet


def timeline(record: OperationRecord) -> Markup:
    """The picture. It begins with the intent; a hold that is open goes on to its edge."""
    marks = sorted(_marks(record), key=lambda mark: mark.at)
    axis = _Axis({t for m in marks for t in (m.at, m.until) if t is not None})
    height = TOP + LANE * len(LANES) + 24
    parts = [Markup(_SVG).format(width=WIDTH, height=height)]
    for n, lane in enumerate(LANES):
        parts.append(Markup(_LANE).format(y=TOP + LANE * n + 2, width=WIDTH, height=LANE - 4))
        parts.append(Markup('<text class="lane-name" x="10" y="{}">{}</text>').format(TOP + LANE * n + 21, lane))
    parts += list(_ticks(axis, height))
    parts += [_draw(mark, axis) for mark in marks]
    return Markup("").join([*parts, Markup("</svg>")])


_SVG = (
    '<svg class="timeline" viewBox="0 0 {width} {height}" role="img"'
    ' aria-label="Timeline of this operation; the tables below say the same">'
)
_LANE = '<rect class="lane" x="0" y="{y}" width="{width}" height="{height}" rx="4"/>'
_SPAN = (
    '<g class="{kind}">{title}<rect class="{look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="12" rx="4"/></g>'
)
_DOT = '<g class="{kind}">{title}<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="5.2"/></g>'
_BOX = '<g class="{kind}">{title}<rect class="dot" x="{x:.1f}" y="{y:.1f}" width="10" height="10" rx="2"/></g>'
_DIAMOND = '<g class="{kind}">{title}<path class="dot hollow" d="M{x:.1f} {y:.1f}l6.5 6.5-6.5 6.5-6.5-6.5z"/></g>'
_TICK = (
    '<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
    '<text class="tick-name" x="{label:.1f}" y="{y}">{words}</text>'
)


class _Axis:
    def __init__(self, times: set[datetime]) -> None:
        self.times = sorted(times)
        units = [0.0]
        for before, after in pairwise(self.times):
            units.append(units[-1] + log1p((after - before).total_seconds() / GAP_S) + 0.4)
        whole = units[-1] or 1.0
        room = WIDTH - LEFT - RIGHT
        self.x = {t: LEFT + room * unit / whole for t, unit in zip(self.times, units, strict=True)}


def _marks(record: OperationRecord) -> Iterator[Mark]:
    o = record.operation
    yield Mark("permit", o.created_at, "off", "intent recorded")
    for a in record.attempts:
        # What became of it is known with its outcome; until then it may send up to `not_after`.
        outcome = (a["outcome"] or "no outcome recorded").replace("_", " ")
        words = f"attempt {a['attempt']}, may send until {_t(a['not_after'])}: {outcome}"
        kind = {"acknowledged": "ok", "refused": "bad", "unknown": "wait", None: "wait"}.get(a["outcome"], "off")
        yield Mark("permit", a["issued_at"], kind, words, a["outcome_at"] or a["not_after"])
    for k in record.acknowledgements:
        odd = ", contradicting what was concluded" if k["contradicts"] else ""
        words = f"acknowledgement of attempt {k['attempt']}: {k['object_id']}{odd}"
        yield Mark("answer", k["at"], "bad" if odd else "ok", words)
    if o.committed_at is not None:
        yield Mark("answer", o.committed_at, "ok", f"effect committed: {o.object_id or 'no id'}, by {o.completion}")
    for v in record.verdicts[:READINGS_MAX]:
        kind = {"committed": "ok", "absent": "off"}.get(v["outcome"], "wait")
        reason = f", {v['reason']}" if v["reason"] else ""
        yield Mark("readings", v["at"], kind, f"{v['outcome']}{reason}: {v['words']}")
    for h in record.holds:
        yield Mark("hold", h["opened_at"], "held", f"held: {h['reason']}", h["closed_at"], h["closed_at"] is None)
    for d in record.decisions:
        yield Mark("person", d["created_at"], "run", f"{d['name']}: {d['decision']}", d["consumed_at"])


def _draw(mark: Mark, axis: _Axis) -> Markup:
    x, y = axis.x[mark.at], TOP + LANE * LANES.index(mark.lane) + LANE / 2
    title = Markup("<title>{}: {}</title>").format(_t(mark.at), visible(mark.words))
    end = WIDTH - RIGHT if mark.open else axis.x[mark.until] if mark.until is not None else x
    if end > x or mark.open:
        look = "span open" if mark.open else "span"
        return Markup(_SPAN).format(kind=mark.kind, title=title, look=look, x=x, y=y - 6, width=max(6.0, end - x))
    if mark.kind in ("bad", "held"):
        return Markup(_BOX).format(kind=mark.kind, title=title, x=x - 5, y=y - 5)
    if mark.kind == "wait":
        return Markup(_DIAMOND).format(kind=mark.kind, title=title, x=x, y=y - 6.5)
    look = "dot hollow" if mark.kind == "off" else "dot"
    return Markup(_DOT).format(kind=mark.kind, title=title, look=look, x=x, y=y)


def _ticks(axis: _Axis, height: int) -> Iterator[Markup]:
    """Labels where they do not touch; the date with the first of each day."""
    last_x, last_day = -1e9, None
    brief = (axis.times[-1] - axis.times[0]).total_seconds() < BRIEF_S
    for t in axis.times:
        x = axis.x[t]
        if x - last_x < TICK_APART:
            continue
        at = t.astimezone(UTC)
        words = f"{at:%H:%M:%S}" + (f".{at.microsecond // 1000:03d}" if brief else "")
        words = words if at.date() == last_day or brief else f"{at:%m-%d} {words}"
        last_x, last_day = x, at.date()
        label = min(x, WIDTH - 48.0)
        yield Markup(_TICK).format(x=x, top=TOP, bottom=height - 22, label=label, y=height - 6, words=words)


def _t(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
