"""Evidence: what destination, wire and processes showed, and what follows from it.

The judge shares no code with the accused: nothing here imports the system under test, and everything it
says is worked out from a recorded folder alone.
"""

from actonce.evidence.journal import journal_events
from actonce.evidence.lines import Line
from actonce.evidence.record import Cell, Drill, EvidenceError, Expected, Fault, PlannedOperation
from actonce.evidence.writer import EvidenceWriter

__all__ = [
    "Cell",
    "Drill",
    "EvidenceError",
    "EvidenceWriter",
    "Expected",
    "Fault",
    "Line",
    "PlannedOperation",
    "journal_events",
]
