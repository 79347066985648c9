"""Alert rules: Prometheus' rule format, and of its language the part that the built-in evaluator understands.

    groups: [{name, rules: [{alert, expr, for, labels, annotations}]}]
    labels = severity, reason and others; annotations = summary, description, runbook_url

    expr       = comparison, or several joined by `and` or `and on (label, …)`
    comparison = metric, `{label="value", label!="value"}` if wanted, one of == != > >= < <=, a number
    for        = 0s, 30s, 5m, 1h, 1h30m
    templates  = {{ $labels.name }} and {{ $value }}, in annotations

Within this part the meaning is Prometheus' own. Everything else is refused when the file is loaded, and so is a metric
or a label that does not exist: such a rule would never fire. A rule names its reason, from the table of reason codes,
whose severity it has to repeat; without a `reason` label it takes that of the series.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from actonce.contracts.errors import ActonceError
from actonce.contracts.reasons import policy
from actonce.contracts.verdict import Reason
from actonce.health.metrics import BY_NAME, Sample, Snapshot


class RuleError(ActonceError):
    """A rule file that cannot be evaluated. Names the rule and what is wrong with it."""


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's where it is compiled in: twenty times as quick
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])|(?P<word>[A-Za-z_]\w*)"
    r'|(?P<text>"[^"\\]*")|(?P<sign>==|!=|>=|<=|[><={}(),]))'
)
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_TEMPLATE = re.compile(r"\{\{\s*(?:\$labels\.(\w+)|(\$value))\s*\}\}")


@dataclass(frozen=True)
class Comparison:
    """One metric, filtered and compared with a number."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]  # (label, = or !=, value)
    sign: str
    number: float

    def matches(self, snapshot: Snapshot) -> list[Sample]:
        holds = _OPERATORS[self.sign]
        return [
            sample
            for sample in snapshot[self.metric]
            if all((sample.labels[name] == value) == (how == "=") for name, how, value in self.matchers)
            and holds(sample.value, self.number)
        ]


@dataclass(frozen=True)
class Expression:
    """Comparisons joined by `and`: samples of the first for which every other one has a partner."""

    first: Comparison
    others: tuple[tuple[tuple[str, ...] | None, Comparison], ...] = ()  # (`on` labels; None: all of them, comparison)

    def matches(self, snapshot: Snapshot) -> list[Sample]:
        found = self.first.matches(snapshot)
        for on, other in self.others:
            partners = {_key(sample, on) for sample in other.matches(snapshot)}
            found = [sample for sample in found if _key(sample, on) in partners]
        return found

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return (self.first, *(comparison for _, comparison in self.others))


def _key(sample: Sample, on: tuple[str, ...] | None) -> frozenset[tuple[str, str]]:
    names = sample.labels if on is None else on
    return frozenset((name, sample.labels.get(name, "")) for name in names)


class _Reader:
    """Reads one expression from left to right. Raises ValueError with what it expected."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def expression(self) -> Expression:
        first, others = self._comparison(), []
        while self._peek():
            self._take("word", "and")
            on = self._on() if self._peek() == "on" else None
            others.append((on, self._comparison()))
        return Expression(first, tuple(others))

    def _comparison(self) -> Comparison:
        metric = self._take("word")
        matchers = self._list("{", "}", self._matcher) if self._peek() == "{" else []
        sign = self._take("sign")
        if sign not in _OPERATORS:
            raise ValueError(f"expected a comparison, found {sign!r}")
        return Comparison(metric, tuple(matchers), sign, float(self._take("number")))

    def _matcher(self) -> tuple[str, str, str]:
        name, how = self._take("word"), self._take("sign")
        if how not in ("=", "!="):
            raise ValueError(f"labels are compared by = or !=, found {how!r}")
        return name, how, self._take("text")[1:-1]

    def _on(self) -> tuple[str, ...]:
        self._take("word", "on")
        return tuple(self._list("(", ")", lambda: self._take("word")))

    def _list(self, begin: str, end: str, one: Callable[[], Any]) -> list[Any]:
        self._take("sign", begin)
        found = []
        while self._peek() != end:
            found.append(one())
            if self._peek() != end:
                self._take("sign", ",")
        self._take("sign", end)
        return found

    def _peek(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        return token.group().strip() if token else self._text[self._at :].strip()

    def _take(self, kind: str, word: str | None = None) -> str:
        token = _TOKEN.match(self._text, self._at)
        if token is None or token.lastgroup != kind or (word is not None and token[kind] != word):
            raise ValueError(f"expected {word or f'a {kind}'}, found {self._text[self._at :].strip() or 'the end'!r}")
        self._at = token.end()
        return token[kind]


def parse_expression(text: str) -> Expression:
    """Read an expression. Raises ValueError for what is no Prometheus expression or not in our part of it."""
    expression = _Reader(text).expression()
    for comparison in expression.comparisons:
        spec = BY_NAME.get(comparison.metric)
        if spec is None:
            raise ValueError(f"there is no metric {comparison.metric}; docs/reference/metrics.md lists them")
        unknown = sorted({name for name, _, _ in comparison.matchers} - set(spec.labels))
        if unknown:
            raise ValueError(f"{comparison.metric} has no label {unknown}, only {list(spec.labels)}")
    return expression


def parse_duration(text: str) -> float:
    """Seconds of `1h30m`, `5m`, `30s`. Raises ValueError."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        raise ValueError(f"{text!r} is no duration like 30s, 5m or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(hours * 3600 + minutes * 60 + seconds)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Labels(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    severity: str
    reason: str | None = None


class _Annotations(_Strict):
    summary: str
    description: str
    runbook_url: str


class _RuleBody(_Strict):
    alert: str = Field(pattern=r"^[A-Za-z]\w*$")
    expr: str
    for_: str = Field(default="0s", alias="for")
    labels: _Labels
    annotations: _Annotations


class _Group(_Strict):
    name: str
    rules: list[_RuleBody]


class _File(_Strict):
    groups: list[_Group]


@dataclass(frozen=True)
class Rule:
    """One alert rule."""

    name: str
    expression: Expression
    for_s: float
    reason: Reason | None  # None: the series' own
    labels: Mapping[str, str]  # beside severity and reason
    summary: str
    description: str
    runbook: str

    def reason_for(self, sample: Sample) -> Reason:
        return self.reason or Reason(sample.labels["reason"])

    def fill(self, template: str, sample: Sample) -> str:
        """The template with the sample's labels and value."""
        return _TEMPLATE.sub(
            lambda found: f"{sample.value:.6g}" if found[2] else sample.labels.get(found[1], ""), template
        )


def load_rules(path: Path | None = None) -> list[Rule]:
    """The rules of a file; by default the shipped ones. Raises RuleError."""
    name = str(path) if path else "the shipped rules"
    try:
        text = path.read_text() if path else resources.files("actonce.health").joinpath("rules.yaml").read_text()
        file = _File.model_validate(yaml.load(text, _LOADER))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise RuleError(f"{name} cannot be used as alert rules: {error}") from error
    rules = [_rule(body, name) for group in file.groups for body in group.rules]
    twice = sorted({r.name for r in rules if [other.name for other in rules].count(r.name) > 1})
    if twice:
        raise RuleError(f"{name}: {twice} are there twice; the name of an alert is part of its identity")
    return rules


def _rule(body: _RuleBody, where: str) -> Rule:
    try:
        expression = parse_expression(body.expr)
        reason = None if body.labels.reason is None else Reason(body.labels.reason)
        labels = BY_NAME[expression.first.metric].labels
        if reason is None and "reason" not in labels:
            raise ValueError(f"it names no reason, and {expression.first.metric} has none")
        if reason is not None and policy(reason).severity != body.labels.severity:
            raise ValueError(f"its severity is {body.labels.severity}; that of {reason} is {policy(reason).severity}")
        _check_templates([body.annotations.summary, body.annotations.description], labels)
        return Rule(
            name=body.alert,
            expression=expression,
            for_s=parse_duration(body.for_),
            reason=reason,
            labels=dict(body.labels.model_extra or {}),
            summary=body.annotations.summary,
            description=body.annotations.description,
            runbook=body.annotations.runbook_url,
        )
    except ValueError as error:
        raise RuleError(f"{where}: rule {body.alert} ({body.expr}): {error}") from error


def _check_templates(templates: Sequence[str], labels: Sequence[str]) -> None:
    for template in templates:
        used = {found[1] for found in _TEMPLATE.finditer(template) if found[1]}
        if "{{" in _TEMPLATE.sub("", template) or used - set(labels):
            raise ValueError(f"{template!r} uses more than $value and $labels of {list(labels)}")
