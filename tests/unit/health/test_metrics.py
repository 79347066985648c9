"""The metric table, the text format, and what old readings are allowed to say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actonce.health.metrics import METRICS, UNREADABLE, Sample, Snapshot, _derived, text
from actonce.ledger import measures

ROOT = Path(__file__).parents[3]
UNBOUNDED = {"operation_id", "task_id", "task_key", "tenant", "name", "payload", "incident", "run_id", "nonce"}


def test_names_follow_the_conventions_and_no_label_is_unbounded() -> None:
    assert len({spec.name for spec in METRICS}) == len(METRICS)
    for spec in METRICS:
        assert re.fullmatch(r"actonce(_[a-z]+)+", spec.name)
        assert spec.name.endswith("_total") == (spec.kind == "counter")
        assert spec.name.endswith("_seconds") == spec.value.endswith("_s"), "seconds are in the name"
        assert not set(spec.labels) & UNBOUNDED


def test_no_measure_groups_by_what_is_unbounded() -> None:
    for query in (*measures._NOW.values(), *measures._TOTALS.values()):
        grouped = query.partition("GROUP BY ")[2]
        assert not set(re.findall(r"\w+", grouped)) & (UNBOUNDED - {"name"}), query


def test_text_is_what_prometheus_reads() -> None:
    snapshot: Snapshot = {
        spec.name: [Sample(dict.fromkeys(spec.labels, 'a "quoted"\n\\ one'), 1.5)] for spec in METRICS
    }
    read = {
        sample.name: sample
        for family in text_string_to_metric_families(text(snapshot).decode())
        for sample in family.samples
    }
    assert set(read) == {spec.name for spec in METRICS}
    assert read["actonce_holds"].labels == {"reason": 'a "quoted"\n\\ one'}
    assert read["actonce_permits_total"].value == 1.5


def test_ledger_that_does_not_answer_leaves_one_line() -> None:
    lines = [line for line in text(UNREADABLE).decode().splitlines() if not line.startswith("#")]
    assert lines == ["actonce_ledger_readable 0.0"]


def reading(name: str, state: str, age_s: float = 1.0, **more: Any) -> dict[str, Any]:
    kind = {"page": "paging"}.get(name.partition(":")[0], name.partition(":")[0])
    return {"name": name, "kind": kind, "state": state, "age_s": age_s, "since_s": 500.0, "measures": {}, **more}


@pytest.mark.parametrize(
    ("state", "age_s", "up"),
    [
        ("up", 1, 1),
        ("degraded", 1, 1),
        ("down", 1, 0),
        ("unknown", 1, None),
        ("up", 31, None),
        ("degraded", 31, None),
        ("down", 31, 0),
    ],
)
def test_old_reading_is_never_up_and_what_was_bad_stays_bad(state: str, age_s: float, up: int | None) -> None:
    [row] = _derived([reading("pollers:q", state, age_s)], 30.0)["queues"]
    assert (row["up"], row["task_queue"]) == (up, "q")


def test_measures_of_a_route_are_told_only_while_it_is_fresh() -> None:
    told = {"lag_s": 2.0, "lag_excess_s": 1.0, "complete": 0.0}
    rows = [
        reading("route:pay.list", "degraded", measures=told),
        reading("route:pay.log", "up", 31, measures=told),
        reading("route:pay.search", "down", measures=told),
    ]
    assert [row["route"] for row in _derived(rows, 30.0)["routes"]] == ["pay.list"]


def test_turn_that_fails_counts_from_its_failure_and_one_that_hangs_from_its_last_success() -> None:
    rows = [
        reading("watch:watcher", "down", 1.0, measures={"every_s": 1.0}),
        reading("watch:pager", "up", 90.0, measures={"every_s": 1.0}),
        reading("watch:prober", "up", 90.0, measures={"every_s": 600.0}),
    ]
    turns = {row["loop"]: (row["age_s"], row["overdue_s"]) for row in _derived(rows, 30.0)["turns"]}
    assert turns == {"watcher": (500.0, 499.0), "pager": (90.0, 89.0), "prober": (90.0, 0.0)}


def test_every_metric_is_in_the_reference_with_its_labels() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(actonce_\w+)` \| (.*?) \|", page, flags=re.M))
    assert set(rows) == {spec.name for spec in METRICS}
    for spec in METRICS:
        assert re.findall(r"`(\w+)`", rows[spec.name]) == list(spec.labels), spec.name
