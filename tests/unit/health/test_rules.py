"""Alert rules: each fires on what it is for and on nothing beside it; what our evaluator cannot read is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from actonce.contracts.reasons import policy
from actonce.contracts.verdict import Reason
from actonce.health.evaluator import seen
from actonce.health.metrics import METRICS, Sample, Snapshot
from actonce.health.rules import Rule, RuleError, load_rules, parse_duration, parse_expression

RULES = {rule.name: rule for rule in load_rules()}
NOTHING: Snapshot = {spec.name: [] for spec in METRICS}
ROOT = Path(__file__).parents[3]

# alert → metric, labels, a value at which it fires, a value at which it must not
LIMITS: dict[str, tuple[str, dict[str, str], float, float]] = {
    "LedgerUnreadable": ("actonce_ledger_readable", {}, 0, 1),
    "NobodyWorks": ("actonce_task_queue_polled", {"task_queue": "q"}, 0, 1),
    "BacklogOld": ("actonce_backlog_oldest_age_seconds", {"task_type": "refund"}, 901, 900),
    "BacklogLarge": ("actonce_backlog_tasks", {"task_type": "refund"}, 1001, 1000),
    "ReleasedTasksWait": ("actonce_released_oldest_age_seconds", {"task_type": "refund"}, 301, 300),
    "HoldOld": ("actonce_holds_oldest_age_seconds", {"reason": "not_visible"}, 14401, 14400),
    "NobodyAnswers": ("actonce_pages_unacknowledged_oldest_age_seconds", {"severity": "page"}, 1801, 1800),
    "PagingDown": ("actonce_dependency_up", {"kind": "paging", "dependency": "paging"}, 0, 1),
    "TemporalDown": ("actonce_dependency_up", {"kind": "temporal", "dependency": "temporal"}, 0, 1),
    "MemoryUnavailable": ("actonce_dependency_up", {"kind": "memory", "dependency": "memory"}, 0, 1),
    "CredentialExpiring": ("actonce_dependency_degraded", {"kind": "credential", "dependency": "credential:c"}, 1, 0),
    "CredentialDown": ("actonce_dependency_up", {"kind": "credential", "dependency": "credential:c"}, 0, 1),
    "DestinationDown": ("actonce_dependency_up", {"kind": "destination", "dependency": "destination:pay"}, 0, 1),
    "RouteDown": ("actonce_dependency_up", {"kind": "route", "dependency": "route:pay.list"}, 0, 1),
    "RouteLags": ("actonce_route_lag_excess_seconds", {"route": "pay.list"}, 0.1, 0),
    "RouteIncomplete": ("actonce_route_complete", {"route": "pay.list"}, 0, 1),
    "OperationsOverdue": ("actonce_operations_overdue_oldest_seconds", {"destination": "pay"}, 181, 180),
    "WatchStalled": ("actonce_watch_turn_overdue_seconds", {"loop": "watcher"}, 61, 60),
}
# What a rule with matchers must leave alone.
OTHERS = {
    "NobodyAnswers": {"severity": "warning"},
    "PagingDown": {"kind": "paging", "dependency": "page:json://host/"},
    "TemporalDown": {"kind": "ledger", "dependency": "ledger"},
    "MemoryUnavailable": {"kind": "temporal", "dependency": "temporal"},
    "CredentialExpiring": {"kind": "route", "dependency": "route:pay.list"},
    "CredentialDown": {"kind": "route", "dependency": "route:pay.list"},
    "DestinationDown": {"kind": "route", "dependency": "route:pay.list"},
    "RouteDown": {"kind": "destination", "dependency": "destination:pay"},
    "WatchStalled": {"loop": "nudger"},
}


def at(metric: str, labels: dict[str, str], value: float) -> Snapshot:
    return {**NOTHING, metric: [Sample(labels, value)]}


def names(snapshot: Snapshot) -> set[str]:
    return {one.name for one in seen(list(RULES.values()), snapshot)}


def test_every_rule_has_its_limits_here() -> None:
    assert set(LIMITS) == set(RULES)
    assert set(OTHERS) == {name for name, rule in RULES.items() if rule.expression.first.matchers}


@pytest.mark.parametrize("name", LIMITS)
def test_rule_fires_beyond_its_limit_and_not_at_it(name: str) -> None:
    metric, labels, bad, good = LIMITS[name]
    assert name in names(at(metric, labels, bad))
    assert name not in names(at(metric, labels, good))
    assert name not in names(NOTHING)


@pytest.mark.parametrize("name", OTHERS)
def test_rule_leaves_alone_what_it_is_not_about(name: str) -> None:
    metric, _, bad, _ = LIMITS[name]
    assert name not in names(at(metric, OTHERS[name], bad))


@pytest.mark.parametrize("name", LIMITS)
def test_what_it_says_is_whole(name: str) -> None:
    metric, labels, bad, _ = LIMITS[name]
    [one] = seen([RULES[name]], at(metric, labels, bad))
    assert "{{" not in one.summary + one.description
    assert policy(one.reason).severity in ("page", "warning")
    assert all(value in one.incident for value in labels.values())


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_runbook_is_the_procedure_of_its_reason(rule: Rule) -> None:
    if rule.reason is not None:
        assert rule.runbook == policy(rule.reason).procedure
    assert (ROOT / rule.runbook).is_file()


def test_hold_takes_the_reason_of_its_series() -> None:
    [one] = seen([RULES["HoldOld"]], at("actonce_holds_oldest_age_seconds", {"reason": "look_alike"}, 1e6))
    assert one.reason is Reason.LOOK_ALIKE and "1e+06 s: look_alike" in one.summary


def test_and_wants_a_partner_with_the_same_labels_or_the_named_ones() -> None:
    same = parse_expression('actonce_backlog_tasks > 1 and actonce_backlog_oldest_age_seconds{task_type!="b"} > 5')
    snapshot = {
        **NOTHING,
        "actonce_backlog_tasks": [Sample({"task_type": name}, 2) for name in "abc"],
        "actonce_backlog_oldest_age_seconds": [Sample({"task_type": name}, 6) for name in "ab"],
        "actonce_tasks_open": [Sample({"task_type": "c", "state": "held"}, 1)],
        "actonce_ledger_readable": [Sample({}, 1)],
    }
    assert [s.labels["task_type"] for s in same.matches(snapshot)] == ["a"]
    on = parse_expression("actonce_backlog_tasks > 1 and on (task_type) actonce_tasks_open >= 1")
    assert [s.labels["task_type"] for s in on.matches(snapshot)] == ["c"]
    any_ = parse_expression("actonce_backlog_tasks > 1 and on () actonce_ledger_readable == 1")
    assert len(any_.matches(snapshot)) == 3
    assert not parse_expression("actonce_backlog_tasks > 1 and actonce_ledger_readable == 1").matches(snapshot)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "actonce_backlog_tasks",
        "actonce_backlog_tasks >",
        "actonce_backlog_tasks > 5m",
        "actonce_backlog_tasks > 1 or actonce_holds > 1",
        "actonce_backlog_tasks > 1 actonce_holds > 1",
        "rate(actonce_permits_total[5m]) > 1",
        "actonce_backlog_tasks * 2 > 1",
        "1 < actonce_backlog_tasks",
        'actonce_backlog_tasks{task_type=~"a.*"} > 1',
        'actonce_backlog_tasks{queue="a"} > 1',
        "actonce_backlog_tasks{task_type} > 1",
        "actonce_backlog_taks > 1",
        "actonce_backlog_tasks > 1 and",
        "actonce_backlog_tasks > 1 and on actonce_holds > 1",
    ],
)
def test_expression_outside_our_part_of_the_language_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|there is no metric|has no label|compared by"):
        parse_expression(text)


def test_durations() -> None:
    assert [parse_duration(text) for text in ("0s", "30s", "5m", "1h30m")] == [0, 30, 300, 5400]
    for wrong in ("", "5", "1d", "-5s", "1.5h", "5m1h"):
        with pytest.raises(ValueError):
            parse_duration(wrong)


SHIPPED = (ROOT / "actonce/health/rules.yaml").read_text()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("severity: page, reason: nobody_works", "severity: warning, reason: nobody_works", "is page"),
        ("reason: nobody_works", "reason: nobody_cares", "nobody_cares"),
        ("{severity: page, reason: nobody_works}", "{severity: page}", "names no reason"),
        ("for: 1m", "for: 1d", "no duration"),
        ("for: 1m", "keep_firing_for: 1m", "keep_firing_for"),
        ("{{ $labels.task_queue }}", "{{ $labels.tenant }}", r"more than \$value"),
        ("{{ $labels.task_queue }}", "{{ humanize $value }}", r"more than \$value"),
        ("alert: NobodyWorks", "alert: TemporalDown", "there twice"),
        ("groups:", "group:", "groups"),
    ],
)
def test_file_with_a_rule_that_could_not_work_is_refused(tmp_path: Path, before: str, after: str, says: str) -> None:
    assert before in SHIPPED
    file = tmp_path / "rules.yaml"
    file.write_text(SHIPPED.replace(before, after, 1) if before.startswith("alert") else SHIPPED.replace(before, after))
    with pytest.raises(RuleError, match=says):
        load_rules(file)


def test_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"none\.yaml"):
        load_rules(tmp_path / "none.yaml")
