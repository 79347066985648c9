"""What the ledger says about the deployment, as Prometheus metrics: one table, one collector.

Every value is a fact of the ledger or a reading in its dependency table, so that no restart loses one and any watching
process tells the same. A reading that is too old to be believed never says `up`: it is left out. A series that is not
there is zero. Labels come from configuration and from fixed lists, never from a task or an operation.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import exposition
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from actonce.ledger import measures
from actonce.ledger.measures import Measures, Row
from actonce.ledger.store import Ledger

TOTALS_EVERY_S = 60.0  # they count whole tables


@dataclass(frozen=True)
class Spec:
    """One metric: `value` and `labels` are columns of the rows of `source`."""

    name: str
    help: str
    source: str
    value: str = "n"
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"


@dataclass(frozen=True)
class Sample:
    labels: Mapping[str, str]
    value: float


Snapshot = dict[str, list[Sample]]
"""Metric name → its samples."""

_TYPE, _DESTINATION, _DEPENDENCY = ("task_type",), ("destination",), ("kind", "dependency")
METRICS: tuple[Spec, ...] = (
    Spec("actonce_ledger_readable", "1 when the ledger answered this collection, else 0 and nothing else.", "ledger"),
    Spec("actonce_backlog_tasks", "Accepted tasks that are not yet released to Temporal.", "backlog", labels=_TYPE),
    Spec("actonce_backlog_oldest_age_seconds", "Age of the oldest of them.", "backlog", "oldest_s", _TYPE),
    Spec("actonce_released_tasks", "Released tasks that no worker has taken.", "released", labels=_TYPE),
    Spec("actonce_released_oldest_age_seconds", "Time since the oldest was released.", "released", "oldest_s", _TYPE),
    Spec("actonce_tasks_open", "Tasks without an outcome.", "tasks", labels=("task_type", "state")),
    Spec(
        "actonce_tasks_open_oldest_age_seconds",
        "Time that the oldest has been in its state.",
        "tasks",
        "oldest_s",
        ("task_type", "state"),
    ),
    Spec(
        "actonce_task_queue_polled",
        "1 somebody asks for work, 0 nobody does. Left out while nobody knows.",
        "queues",
        "up",
        ("task_queue",),
    ),
    Spec("actonce_holds", "Open holds.", "holds", labels=("reason",)),
    Spec("actonce_holds_oldest_age_seconds", "Age of the oldest open hold.", "holds", "oldest_s", ("reason",)),
    Spec("actonce_pages_open", "Open pages, without those about unanswered pages.", "pages", labels=("severity",)),
    Spec("actonce_pages_unsent", "Open pages that no channel has taken.", "pages", "unsent", ("severity",)),
    Spec("actonce_pages_unacknowledged", "Open pages nobody has seen.", "pages", "unacknowledged", ("severity",)),
    Spec(
        "actonce_pages_unacknowledged_oldest_age_seconds",
        "Age of the oldest open page that nobody has acknowledged.",
        "pages",
        "oldest_s",
        ("severity",),
    ),
    Spec(
        "actonce_operations_unresolved",
        "Operations without a final outcome.",
        "unresolved",
        labels=("destination", "state"),
    ),
    Spec(
        "actonce_operations_unresolved_oldest_age_seconds",
        "Time since the oldest got its first permit, or since its intent.",
        "unresolved",
        "oldest_s",
        ("destination", "state"),
    ),
    Spec(
        "actonce_operations_overdue",
        "Operations past the moment from which they should have been settled or held.",
        "overdue",
        labels=_DESTINATION,
    ),
    Spec(
        "actonce_operations_overdue_oldest_seconds",
        "How long ago the first moment was.",
        "overdue",
        "oldest_s",
        _DESTINATION,
    ),
    Spec(
        "actonce_dependency_up",
        "1 reached (also when degraded), 0 not reached. Left out while nobody knows.",
        "dependencies",
        "up",
        _DEPENDENCY,
    ),
    Spec("actonce_dependency_degraded", "1 reached, but not well.", "dependencies", "degraded", _DEPENDENCY),
    Spec("actonce_dependency_reading_age_seconds", "Age of the last reading.", "dependencies", "age_s", _DEPENDENCY),
    Spec("actonce_route_lag_seconds", "Age of what the route served, where it tells.", "routes", "lag_s", ("route",)),
    Spec("actonce_route_lag_excess_seconds", "Lag beyond the declared bound.", "routes", "lag_excess_s", ("route",)),
    Spec("actonce_route_complete", "1 rows and total agree, 0 they do not.", "routes", "complete", ("route",)),
    Spec("actonce_audit_unsealed_events", "Audit events that have no place in the chain yet.", "unsealed"),
    Spec("actonce_audit_unsealed_oldest_age_seconds", "Age of the oldest of them.", "unsealed", "oldest_s"),
    Spec("actonce_audit_unshipped_events", "Sealed events that the sink has not confirmed.", "sinks", labels=("sink",)),
    Spec("actonce_audit_lag_seconds", "Age of the oldest of them.", "sinks", "oldest_s", ("sink",)),
    Spec("actonce_audit_gaps_open", "Open pages about a gap in, or a change of, the audit trail.", "audit_gaps"),
    Spec(
        "actonce_credential_left_seconds",
        "How long the longest lease in force is still valid; 0: none is.",
        "leases",
        "left_s",
        ("credential",),
    ),
    Spec(
        "actonce_watch_turn_age_seconds", "Time since the loop's last turn that succeeded.", "turns", "age_s", ("loop",)
    ),
    Spec("actonce_watch_turn_overdue_seconds", "The same, beyond its pause.", "turns", "overdue_s", ("loop",)),
    Spec("actonce_alerts_firing", "Alerts that fire by the built-in evaluator.", "alerts", labels=("severity",)),
    Spec("actonce_tasks_ended", "Tasks by outcome.", "ended_tasks", labels=("task_type", "state")),
    Spec(
        "actonce_operations_ended",
        "Operations by final state; a late finding can take one out again.",
        "ended_operations",
        labels=("destination", "action", "state"),
    ),
    Spec("actonce_attempts", "Used permits by what became of them.", "attempts", labels=("destination", "outcome")),
    Spec("actonce_permits_total", "Permits used.", "permits", labels=_DESTINATION, kind="counter"),
    Spec(
        "actonce_acknowledgements_total",
        "Acknowledgements received.",
        "acknowledgements",
        labels=("destination", "contradicts"),
        kind="counter",
    ),
    Spec(
        "actonce_verdicts_total",
        "Verdicts that took effect.",
        "verdicts",
        labels=("destination", "outcome"),
        kind="counter",
    ),
    Spec("actonce_decisions_total", "Decisions recorded.", "decisions", labels=("decision",), kind="counter"),
    Spec("actonce_pages_opened_total", "Pages opened.", "pages_opened", kind="counter"),
)
BY_NAME = {spec.name: spec for spec in METRICS}


class Collector:
    """Reads everything. One for each watching process, shared by scrapes and the evaluator."""

    def __init__(self, ledger: Ledger, *, stale_after_s: float = 30.0, totals_every_s: float = TOTALS_EVERY_S) -> None:
        self.ledger = ledger
        self.stale_after_s = stale_after_s
        self.totals_every_s = totals_every_s
        self._totals: Measures = {}
        self._totals_at = float("-inf")

    async def collect(self) -> Snapshot:
        """All samples. Raises LedgerUnavailable: then nothing is known, which is not the same as zero."""
        now = await measures.read(self.ledger, "now")
        if time.monotonic() - self._totals_at >= self.totals_every_s:
            self._totals = await measures.read(self.ledger, "totals")
            self._totals_at = time.monotonic()
        rows = {**now, **self._totals, "ledger": [{"n": 1}], **_derived(now["dependencies"], self.stale_after_s)}
        return {spec.name: list(_samples(spec, rows[spec.source])) for spec in METRICS}


UNREADABLE: Snapshot = {"actonce_ledger_readable": [Sample({}, 0.0)]}


def _samples(spec: Spec, rows: Iterable[Row]) -> Iterable[Sample]:
    for row in rows:
        if row.get(spec.value) is not None:
            yield Sample({name: str(row[name]) for name in spec.labels}, float(row[spec.value]))


def _derived(readings: Sequence[Row], stale_after_s: float) -> Measures:
    """What the readings of dependencies say, as they may be believed."""
    believed = [_believe(row, stale_after_s) for row in readings]
    return {
        "dependencies": [row for row in believed if row["kind"] != "watch"],
        "queues": [_named(row, "task_queue") for row in believed if row["kind"] == "pollers"],
        "routes": [
            {**_named(row, "route"), **row["measures"]} for row in believed if row["kind"] == "route" and row["up"] == 1
        ],
        "turns": [_turn(row) for row in readings if row["kind"] == "watch"],
    }


def _believe(row: Row, stale_after_s: float) -> Row:
    state, stale = row["state"], row["age_s"] > stale_after_s
    up = {"up": 1, "degraded": 1, "down": 0}.get(state)
    if stale and up == 1:
        up = None  # it was reached once; a reading that was bad stays bad until a good one replaces it
    return {**row, "dependency": row["name"], "up": up, "degraded": None if up is None else int(state == "degraded")}


def _named(row: Row, label: str) -> Row:
    return {**row, label: row["name"].partition(":")[2]}


def _turn(row: Row) -> Row:
    """A loop of a watching process: `since` a failure, or since its last success was written."""
    age_s = row["age_s"] if row["state"] == "up" else row["since_s"]
    return {
        "loop": row["name"].partition(":")[2],
        "age_s": age_s,
        "overdue_s": max(0.0, age_s - row["measures"].get("every_s", 0.0)),
    }


def families(snapshot: Snapshot) -> Iterable[Metric]:
    """The samples as prometheus_client wants them, in the order of the table."""
    for spec in METRICS:
        if spec.name in snapshot:
            make = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
            family = make(spec.name, spec.help, labels=spec.labels)
            for sample in snapshot[spec.name]:
                family.add_metric([sample.labels[name] for name in spec.labels], sample.value)
            yield family


class _Families:
    """What `generate_latest` takes for a registry."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        return families(self._snapshot)


def text(snapshot: Snapshot) -> bytes:
    """The samples in Prometheus' text format."""
    return exposition.generate_latest(_Families(snapshot))
