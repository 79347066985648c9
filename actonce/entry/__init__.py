"""The entry service: the door through which callers start tasks and operators decide.

Promises: a task is in the ledger before anybody is told that it was accepted, and it is accepted while Temporal and
all workers are down; one task per (tenant, task type, task key), whoever starts it and however often; what it tells of
a task comes from the ledger, so it outlives Temporal's retention. Does not promise when a task starts, performs no
effect of its own, and authenticates nobody: it listens on the loopback interface unless told otherwise.
"""
