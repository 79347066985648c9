"""The guard's memory: recall before deciding, remember what was done. Workflow code: deterministic.

    earlier = await ops.recall("earlier_refunds", query="refund of …", filter={"customer": "ada"})
    await ops.remember("remember_refund", key=…, text=…, facts={…})

Promises: a workflow that recalls gets `Found` or a proven `Empty`; while the memory is unavailable the task is held, a
person is paged, and it goes on by itself once the memory has proven itself. A task that may do without says
`if_unavailable="go_on"`, is told `Unavailable`, and its report tells that it was degraded.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Literal, TypeVar, overload

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from actonce.contracts.memory import (
        Empty,
        Found,
        RecallRequest,
        RecallResult,
        Remembered,
        RememberRequest,
        RememberResult,
        Unavailable,
    )
    from actonce.contracts.messages import TaskInput

_TIMEOUT = timedelta(seconds=30)  # one look takes at most the memory's deadline (3 s) and one ledger transaction
_HEARTBEAT_TIMEOUT = timedelta(seconds=3)
_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2,
    maximum_interval=timedelta(seconds=5),
    non_retryable_error_types=["MemoryRefused", "PayloadError"],
)
_LOOK_FIRST_S = 1.0
_LOOK_MAX_S = 600.0  # a long outage has a short history; the prober's first good reading nudges at once
Result = TypeVar("Result", RecallResult, RememberResult)


class MemorySteps:
    """What `Operations` can do with the memory."""

    task: TaskInput
    degraded: list[str]  # what the task went on without, in words
    _nudges: int
    _waits_for_memory: dict[str, str]  # step → why
    _settling: list[asyncio.Future[Any]]

    def show(self) -> None:
        raise NotImplementedError

    @overload
    async def recall(
        self,
        step: str,
        *,
        query: str,
        k: int = ...,
        filter: dict[str, Any] | None = ...,
        if_unavailable: Literal["hold"] = ...,
    ) -> Found | Empty: ...
    @overload
    async def recall(
        self,
        step: str,
        *,
        query: str,
        k: int = ...,
        filter: dict[str, Any] | None = ...,
        if_unavailable: Literal["go_on"],
    ) -> Found | Empty | Unavailable: ...
    async def recall(
        self,
        step: str,
        *,
        query: str,
        k: int = 10,
        filter: dict[str, Any] | None = None,
        if_unavailable: Literal["hold", "go_on"] = "hold",
    ) -> Found | Empty | Unavailable:
        """The `k` remembered items nearest to `query` whose facts contain `filter`; the answer is in the history.

        Raises ApplicationError (MemoryRefused) for a question that cannot be asked.
        """
        request = RecallRequest(
            tenant=self.task.tenant,
            task_id=self.task.task_id,
            step=step,
            query=query,
            k=k,
            filter=filter or {},
            hold=if_unavailable == "hold",
        )
        said = (await self._until_available("actonce.recall.v1", request, RecallResult)).said
        if isinstance(said, Unavailable):
            self.degraded.append(f"{step} was unavailable ({said.trouble})")
        return said

    async def remember(self, step: str, *, key: str, text: str, facts: dict[str, Any]) -> Remembered:
        """Keep something by its key. Waits for the memory, also when the task is cancelled: what was done is known.

        Raises ApplicationError (MemoryRefused) when the key says something else already.
        """
        request = RememberRequest(
            tenant=self.task.tenant, task_id=self.task.task_id, step=step, key=key, text=text, facts=facts
        )
        settle = asyncio.ensure_future(self._until_available("actonce.remember.v1", request, RememberResult))
        self._settling.append(settle)
        try:
            result = await asyncio.shield(settle)
        except asyncio.CancelledError:
            await settle
            raise
        assert isinstance(result.said, Remembered)
        return result.said

    async def _until_available(
        self, name: str, request: RecallRequest | RememberRequest, result_type: type[Result]
    ) -> Result:
        pause_s = _LOOK_FIRST_S
        try:
            while True:
                nudges = self._nudges  # before the look, so that a nudge during it is not lost
                result = await self._look(name, request, result_type)
                if not isinstance(result.said, Unavailable) or not getattr(request, "hold", True):
                    return result
                self._waits_for_memory[request.step] = result.said.why
                self.show()
                if not await self._nudged_within(nudges, pause_s):
                    pause_s = min(_LOOK_MAX_S, 2 * pause_s)
        finally:
            self._waits_for_memory.pop(request.step, None)
            self.show()

    async def _nudged_within(self, nudges: int, pause_s: float) -> bool:
        """Wait for a nudge beyond the first `nudges`; False when none came in time."""
        try:
            await workflow.wait_condition(lambda: self._nudges > nudges, timeout=timedelta(seconds=pause_s))
        except TimeoutError:
            return False
        return True

    async def _look(self, name: str, request: BaseModel, result_type: type[Result]) -> Result:
        result: Result = await workflow.execute_activity(
            name,
            request,
            result_type=result_type,
            start_to_close_timeout=_TIMEOUT,
            heartbeat_timeout=_HEARTBEAT_TIMEOUT,
            retry_policy=_RETRY,
            summary=f"{name.split('.')[1]}: {getattr(request, 'step', '')}",
        )
        return result
