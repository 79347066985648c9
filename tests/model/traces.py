"""Write what breaks without each assumption to traces.md: `python -m tests.model.traces` from the repository root."""

from __future__ import annotations

from pathlib import Path

from tests.model.explore import explore
from tests.model.scenarios import DROPPED, SCENARIOS

PATH = Path(__file__).with_name("traces.md")

PROMISE_WORDS = {
    "P1": "no second effect without a wrong operator decision",
    "P2": "never `absent` while the effect is or can still be committed",
    "P3": "never complete without an effect",
    "P4": "nothing stuck without hold and page",
    "P5": "a hold is left only by evidence or a recorded decision",
    "P6": "a late acknowledgement is recorded",
    "P7": "a duplicate that happens all the same is noticed",
    "P8": "once a hold is recorded no fence passes",
}

_HEAD = """# What breaks without each assumption

Written by `python -m tests.model.traces`; a test fails when this file is not current. Each trace is a shortest one that
the explicit-state model found. Time is in ticks: a permit lives one tick, a request may spend one on the way, the
destination one on its work, a route lags one, unless the scenario says otherwise. What happens at one tick happens in
the order shown. With the assumption kept, the same scenario was explored to its end and every checked promise held.
The transitions are those of `actonce.contracts.lifecycle`, the bounds those of `actonce.contracts.bounds`; that the
ledger's SQL and the workflows do what the model's actors do is not shown here but by the integration tests and drills.
"""


def render() -> str:
    lines = [_HEAD, "## Promises", ""]
    lines += [f"- **{name}** {words}" for name, words in PROMISE_WORDS.items()]
    lines += ["", "## With every assumption kept", "", "| scenario | states | promises |", "| --- | --- | --- |"]
    for name, rules in SCENARIOS.items():
        lines.append(f"| {name} | {explore(rules).states:,} | {_checked(rules.watch)} |")
    total = sum(explore(rules).states for rules in SCENARIOS.values())
    lines += [
        "",
        f"{total:,} states in all. P7 is left out where nothing bounds a late arrival: an effect may then come after",
        "the last reading.",
        "",
        "## With one assumption dropped",
    ]
    for dropped in DROPPED:
        found = explore(dropped.rules)
        lines += ["", f"### {dropped.breaks} breaks: {dropped.words}", "", f"Scenario: {dropped.scenario}.", ""]
        lines += [f"{number}. {step}" for number, step in enumerate(found.trace, 1)]
    return "\n".join(lines) + "\n"


def _checked(watch: frozenset[str]) -> str:
    missing = sorted(set(PROMISE_WORDS) - watch)
    return "P1-P8" if not missing else "all but " + ", ".join(missing)


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
    print(f"wrote {PATH.name}: {len(DROPPED)} assumptions")
