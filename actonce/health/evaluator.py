"""Evaluates the alert rules against the collector and records what it saw: alerts without a Prometheus.

Promises: an alert that has been seen for its `for` opens a page, one that is no longer seen closes it, each once, also
over restarts and with several evaluators that have the same rules. A collection that fails resolves nothing. Does not
promise to notice that it stands still itself: its reading on the dependency page grows old, and a Prometheus outside
sees that (docs/guides/monitoring.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from actonce.health.metrics import Collector, Snapshot
from actonce.health.rules import Rule
from actonce.ledger import alerts
from actonce.ledger.alerts import Seen

log = structlog.get_logger("actonce.health")


class Evaluator:
    """One for each watching process. `evaluate_once` is one turn."""

    def __init__(self, collector: Collector, rules: Sequence[Rule]) -> None:
        self._collector = collector
        self._rules = rules

    async def evaluate_once(self) -> None:
        """Raises LedgerUnavailable: then nothing has changed."""
        snapshot = await self._collector.collect()
        fired, resolved = await alerts.record(self._collector.ledger, seen(self._rules, snapshot))
        for incident in fired:
            log.warning("alert_firing", incident=incident)
        for incident in resolved:
            log.info("alert_resolved", incident=incident)


def seen(rules: Sequence[Rule], snapshot: Snapshot) -> list[Seen]:
    """What the rules find in a snapshot."""
    return [
        Seen(
            name=rule.name,
            labels={**sample.labels, **rule.labels},
            reason=rule.reason_for(sample),
            value=sample.value,
            for_s=rule.for_s,
            summary=rule.fill(rule.summary, sample),
            description=rule.fill(rule.description, sample),
        )
        for rule in rules
        for sample in rule.expression.matches(snapshot)
    ]
