"""Agent tasks on Temporal that act once, and can prove it. This is the whole public API.

Names are loaded on first use, so that importing a part (`actonce.evidence`) loads no other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from actonce.version import __version__

if TYPE_CHECKING:
    from actonce.contracts.contract import (
        Answers,
        Bounded,
        CancelByKey,
        Contract,
        DeadlineAtCommit,
        DeadlineOnArrival,
        KeyHonoured,
        Keys,
        Route,
        Timing,
        Unbounded,
        WritePath,
    )
    from actonce.contracts.identity import derive_operation_id
    from actonce.contracts.messages import OperationResult, TaskInput, TaskReport
    from actonce.contracts.payload import payload_digest
    from actonce.contracts.verdict import Page, Receipt, Row, Verdict
    from actonce.destinations.base import Call, Destination, Lookup, Registry, current_call, current_operation_id
    from actonce.effects.activities import OperationActivities
    from actonce.effects.guard import NotCommitted, Operations, run_task
    from actonce.effects.system import System, compose
    from actonce.ledger.store import Ledger

_HOME = {
    "actonce.contracts.contract": (
        "Answers Bounded CancelByKey Contract DeadlineAtCommit DeadlineOnArrival KeyHonoured Keys Route Timing "
        "Unbounded WritePath"
    ),
    "actonce.contracts.identity": "derive_operation_id",
    "actonce.contracts.messages": "OperationResult TaskInput TaskReport",
    "actonce.contracts.payload": "payload_digest",
    "actonce.contracts.verdict": "Page Receipt Row Verdict",
    "actonce.destinations.base": "Call Destination Lookup Registry current_call current_operation_id",
    "actonce.effects.activities": "OperationActivities",
    "actonce.effects.guard": "NotCommitted Operations run_task",
    "actonce.effects.system": "System compose",
    "actonce.ledger.store": "Ledger",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = [
    "Answers",
    "Bounded",
    "Call",
    "CancelByKey",
    "Contract",
    "DeadlineAtCommit",
    "DeadlineOnArrival",
    "Destination",
    "KeyHonoured",
    "Keys",
    "Ledger",
    "Lookup",
    "NotCommitted",
    "OperationActivities",
    "OperationResult",
    "Operations",
    "Page",
    "Receipt",
    "Registry",
    "Route",
    "Row",
    "System",
    "TaskInput",
    "TaskReport",
    "Timing",
    "Unbounded",
    "Verdict",
    "WritePath",
    "__version__",
    "compose",
    "current_call",
    "current_operation_id",
    "derive_operation_id",
    "payload_digest",
    "run_task",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'actonce' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
