"""The audit trail between the ledger and its sinks: sealing, shipping, verifying, and telling people.

Promises: see `actonce.ledger.audit_chain` (sealing), `actonce.audit` (shipping) and `verify`. Everything here runs
beside the work and never in an operation's path; while it does not run, events wait in the ledger.
"""

from actonce.trail.journal import LedgerJournal
from actonce.trail.keeper import AuditKeeper
from actonce.trail.verify import Report, Unreadable, verify

__all__ = ["AuditKeeper", "LedgerJournal", "Report", "Unreadable", "verify"]
