"""Negative controls and instrumented workers: programs that the drills start beside the real one.

Nothing imports these but the drills' own processes. `broken` takes one protection out of the system, `stops` adds a
point at which a process stops itself, `plain` does the same work without the guard at all.
"""
