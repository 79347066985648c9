"""Controls of the audit trail: what `audit-full` must catch. Started through `drills.controls.broken`."""

from __future__ import annotations

import contextlib
from typing import Any

from actonce.testing.swapping import swap
from drills.controls.registry import control


@control
def audit_log_and_continue() -> None:
    """A ledger that cannot take the intent and its event is logged, and the request is sent all the same."""
    from actonce.contracts.errors import LedgerUnavailable
    from actonce.contracts.messages import IssueResult
    from actonce.effects import perform as module
    from drills.controls.broken import unguarded_call

    def make_plan(real: Any) -> Any:
        async def save_plan(ledger: Any, task_id: str, body: Any) -> Any:
            try:
                return await real(ledger, task_id, body)
            except LedgerUnavailable:
                return body

        return save_plan

    def make_perform(real: Any) -> Any:
        async def perform(system: Any, request: Any) -> Any:
            try:
                return await real(system, request)
            except LedgerUnavailable:
                destination = system.destination(request.destination, request.action)
                intent = module.intent_of(request, destination.contract)
                receipt = await destination.send(unguarded_call(system, destination.contract, intent))
                return IssueResult(
                    operation_id=intent.key.operation_id,
                    status="committed",
                    how="acknowledged",
                    object_id=receipt.object_id,
                )

        return perform

    swap("actonce.ledger.tasks", "save_plan", make_plan)
    swap("actonce.effects.activities", "perform", make_perform)


@control
def audit_fire_and_forget() -> None:
    """Events are handed to the log destination, and whether it took them is nobody's business."""
    from actonce.audit.sink import SinkError
    from actonce.contracts.audit import End

    def make_thread(real: Any) -> Any:
        async def in_thread(self: Any, act: Any) -> Any:
            with contextlib.suppress(SinkError):
                return await real(self, act)

        return in_thread

    def make_agree(real: Any) -> Any:
        async def agree(self: Any, cursor: int) -> End:
            return End(cursor, str(await self.journal.hash_at(cursor)))

        return agree

    swap("actonce.audit.shipper:Shipper", "_in_thread", make_thread)
    swap("actonce.audit.shipper:Shipper", "_agree", make_agree)


@control
def audit_outcome_only() -> None:
    """Events are written when an operation has ended; what was to happen is nowhere."""

    def make(real: Any) -> Any:
        async def move(connection: Any, operation: Any, event: Any, *beside: Any, **columns: Any) -> Any:
            moved = await real(connection, operation, event, *beside, **columns)
            if moved.final:
                body = {"state": moved.state, "version": moved.version}
                await store.audit(connection, f"operation.{event}", moved, body)
            return moved

        return move

    from actonce.ledger import store

    def make_open(real: Any) -> Any:
        async def opened(self: Any) -> Any:
            ledger = await real(self)
            async with ledger.transaction() as connection:
                for trigger in ("audit_intent", "audit_change"):
                    await connection.execute(f"ALTER TABLE actonce.operation DISABLE TRIGGER {trigger}")
            return ledger

        return opened

    swap("actonce.ledger.store:Ledger", "__aenter__", make_open)
    for module in ("permits", "outcomes", "verdicts", "decisions", "pages"):
        swap(f"actonce.ledger.{module}", "move", make)
