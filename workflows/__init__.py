"""The agent tasks, one file each. Deterministic; every side effect goes through `actonce.effects.guard`."""

from workflows.batch import BatchTask
from workflows.refund import RefundTask
from workflows.single import SingleTask

ALL = [RefundTask, BatchTask, SingleTask]

__all__ = ["ALL", "BatchTask", "RefundTask", "SingleTask"]
