"""The planner: what an agent proposes to do. It never names an operation_id or a key.

`ScriptedPlanner` is the offline default and is deterministic. A planner that asks a model implements the same
interface; whatever it proposes is checked, made durable once, and renamed by nobody afterwards.
"""

from __future__ import annotations

from typing import Any

from actonce.contracts.errors import PayloadError
from actonce.contracts.messages import TaskInput


class ScriptedPlanner:
    """Plans the shipped task types from their payload alone."""

    async def propose(self, task: TaskInput) -> dict[str, Any]:
        if task.task_type == "refund":
            return {"steps": _refund_steps(task.payload)}
        if task.task_type == "batch":
            return {"steps": list(task.payload.get("steps", []))}
        if task.task_type == "single":
            return {"steps": [{"step": "only", **task.payload}]}
        raise PayloadError(f"task {task.task_id}: no script for task type {task.task_type!r}")


def _refund_steps(payload: dict[str, Any]) -> list[dict[str, Any]]:
    missing = [k for k in ("payment_id", "amount_minor", "currency", "customer", "reason") if k not in payload]
    if missing:
        raise PayloadError(f"a refund request needs {missing}; add them and start a new task")
    money = {k: payload[k] for k in ("payment_id", "amount_minor", "currency", "reason")}
    return [
        {"step": "refund", "destination": "payments", "action": "refund", "payload": money},
        {
            "step": "ticket",
            "destination": "tickets",
            "action": "open",
            "payload": {
                "subject": f"Refund of payment {payload['payment_id']}",
                "body": f"{payload['reason']} (customer {payload['customer']})",
                "reference": payload["payment_id"],
            },
        },
        {
            "step": "notice",
            "destination": "mail",
            "action": "send",
            "payload": {
                "to": payload["customer"],
                "subject": "Your refund",
                "text": f"We refunded payment {payload['payment_id']}.",
            },
        },
    ]
