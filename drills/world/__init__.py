"""The world: controlled destinations as one process of their own (`python -m drills.world --folder F`).

Everything here is reversible or stubbed, answers the run's challenge, and writes an append-only journal that only
the witness reads. The system under test meets it over sockets and knows nothing else of it.
"""
