"""Failure rates as a picture: per arm a dot with its 95 % interval, one panel per kind of failure. Inline SVG.

Contract: draws the numbers of the verdict's comparison and nothing else; all panels share one scale, 0 to 100 %.
"""

from __future__ import annotations

from markupsafe import Markup

from actonce.evidence.verdict import ArmRates, Rate

PANELS = (("duplicate", "duplicated"), ("lost", "lost"), ("stuck", "stuck"))
WIDTH, NAMES, PANEL, GAP, ROW, TOP = 1080, 210, 230, 60, 30, 40


def chart(rows: list[ArmRates]) -> Markup:
    """The SVG, or nothing when there is nothing to compare."""
    if not rows:
        return Markup("")
    height = TOP + ROW * len(rows) + 30
    parts = [
        Markup('<svg class="rates" viewBox="0 0 {} {}" role="img" aria-label="Failure rates">').format(WIDTH, height)
    ]
    for number, row in enumerate(rows):
        y = TOP + ROW * number
        look = "guarded" if row.arm == "guarded" else "arm"
        if row.arm == "guarded":
            parts.append(Markup('<rect class="row" x="0" y="{}" width="{}" height="{}" rx="4"/>').format(y, WIDTH, ROW))
        parts.append(Markup('<text class="{}" x="10" y="{}">{}</text>').format(look, y + 20, row.arm))
    for place, (kind, word) in enumerate(PANELS):
        left = NAMES + place * (PANEL + GAP)
        parts.append(Markup('<text class="panel" x="{}" y="18">{}</text>').format(left, word))
        parts += _scale(left, len(rows))
        for number, row in enumerate(rows):
            parts.append(
                _dot(getattr(row, kind), left, TOP + ROW * number + 15, row.arm == "guarded", f"{row.arm} {word}")
            )
    return Markup("").join([*parts, Markup("</svg>")])


def _scale(left: int, rows: int) -> list[Markup]:
    parts = []
    for percent in (0, 50, 100):
        x = left + PANEL * percent / 100
        parts.append(
            Markup('<line class="tick" x1="{0}" y1="{1}" x2="{0}" y2="{2}"/>').format(x, TOP - 6, TOP + ROW * rows + 4)
        )
        parts.append(
            Markup('<text class="time" x="{}" y="{}" text-anchor="middle">{} %</text>').format(
                x, TOP + ROW * rows + 20, percent
            )
        )
    return parts


def _dot(rate: Rate, left: int, y: float, guarded: bool, name: str) -> Markup:
    look = "guarded" if guarded else ("bad" if rate.k else "none")
    tip = f"{name}: {rate.k} of {rate.n}, 95 % interval {rate.low:.0%} to {rate.high:.0%}"
    low, high, middle = (left + PANEL * value for value in (rate.low, rate.high, rate.rate))
    return Markup(
        '<g class="dot {}"><title>{}</title><line x1="{:.1f}" y1="{}" x2="{:.1f}" y2="{}"/>'
        '<circle cx="{:.1f}" cy="{}" r="5.5"/></g>'
    ).format(look, tip, low, y, high, y, middle, y)
