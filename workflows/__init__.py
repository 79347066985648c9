"""The agent tasks, one file each. Deterministic; every side effect goes through `actonce.effects.guard`."""

from workflows.batch import BatchTask
from workflows.refund import RefundTask, RefundTaskWithMemory
from workflows.single import SingleTask

ALL = [RefundTask, RefundTaskWithMemory, BatchTask, SingleTask]

__all__ = ["ALL", "BatchTask", "RefundTask", "RefundTaskWithMemory", "SingleTask"]
