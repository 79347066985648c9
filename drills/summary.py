"""A judged run in a page of Markdown, from its verdict alone: `python -m drills summary DIR`.

Contract: every number is one of verdict.json; nothing is judged or counted again, but for sums over its rows. What did
not pass says so in the first line.
"""

from __future__ import annotations

from actonce.evidence import Verdict
from actonce.evidence.verdict import ArmRates, Recovery

HEAD = "| fault | struck, of | duplicated | lost | held at the end | median s | 95 % within s | longest s |"
RULE = "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"


def summary(verdict: Verdict) -> str:
    """The page."""
    balance = verdict.balance
    parts = [
        f"**{verdict.result}**: {verdict.sentence}",
        f"Seed {verdict.seed}; {_versions(verdict)}. {balance.tasks} tasks, {balance.operations} operations, "
        f"{balance.effects} effects, {balance.duplicates} duplicate, {balance.lost} lost, "
        f"{balance.ambiguous} held at the end, {balance.unaccounted} unaccounted.",
    ]
    if verdict.recovery:
        rows = [_row(row) for row in sorted(verdict.recovery, key=lambda row: row.kind)]
        parts.append("\n".join([HEAD, RULE, *rows, _total(verdict.recovery)]))
    parts += [
        f"Of the operations that a fault struck: {_rates(arm)}." for arm in verdict.comparison if arm.arm == "guarded"
    ]
    parts.append(f"Negative controls: {_controls(verdict)}.")
    if verdict.left_out:
        parts.append("Left out: " + "; ".join(f"{one.cell} ({one.reason})" for one in verdict.left_out) + ".")
    return "\n\n".join(parts) + "\n"


def _versions(verdict: Verdict) -> str:
    names = ("cpus", "platform", "python")
    return ", ".join(f"{name} {verdict.versions[name]}" for name in names if name in verdict.versions)


def _row(row: Recovery) -> str:
    times = [f"{value:.1f}" if value is not None else "" for value in (row.median_s, row.p95_s, row.longest_s)]
    counts = [f"{row.struck} of {row.planned}", str(row.duplicates), str(row.lost), str(row.held)]
    return f"| `{row.kind}` | {' | '.join([*counts, *times])} |"


def _total(rows: list[Recovery]) -> str:
    struck = f"{sum(row.struck for row in rows)} of {sum(row.planned for row in rows)}"
    counts = [str(sum(getattr(row, name) for row in rows)) for name in ("duplicates", "lost", "held")]
    longest = max((row.longest_s for row in rows if row.longest_s is not None), default=None)
    return f"| all | {' | '.join([struck, *counts])} | | | {f'{longest:.1f}' if longest is not None else ''} |"


def _rates(arm: ArmRates) -> str:
    named = (("duplicated", arm.duplicate), ("lost", arm.lost), ("stuck", arm.stuck), ("held", arm.held))
    return ", ".join(f"{name} {r.k} of {r.n} (95 %: {r.low:.2%} to {r.high:.2%})" for name, r in named)


def _controls(verdict: Verdict) -> str:
    caught: dict[str, list[bool]] = {}
    for control in verdict.controls:
        caught.setdefault(control.name, []).append(control.caught)
    return "; ".join(f"`{name}` caught {sum(each)} of {len(each)}" for name, each in caught.items()) or "none ran"
