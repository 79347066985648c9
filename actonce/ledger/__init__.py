"""The ledger in PostgreSQL: what was asked, permitted, answered, read and decided. Nothing is deleted."""

from actonce.ledger.store import Ledger, Operation, Stamp

__all__ = ["Ledger", "Operation", "Stamp"]
