"""The guarantee, in reading order: perform, fence, routes, combine, reconcile, decide, watcher, guard.

Beside them: `approve` (what people are asked, before `perform`), `activities` (each step by a versioned name for
Temporal) and `system` (what the effects of one process share).
"""
