"""Evidence: what destination, wire and processes showed, and what follows from it.

The judge shares no code with the accused: nothing here imports the system under test, and everything it says is
worked out from a recorded folder alone. Record with `EvidenceWriter`, then `write_verdict(folder)`; later
`verify(folder)`.
"""

from actonce.evidence.journal import journal_events
from actonce.evidence.judge import judge
from actonce.evidence.line import Line
from actonce.evidence.record import (
    Cell,
    Drill,
    EvidenceError,
    Expected,
    Fault,
    LeftOut,
    PlannedOperation,
    PlannedTask,
)
from actonce.evidence.result import verify, write_verdict
from actonce.evidence.single import Judged, judge_single
from actonce.evidence.verdict import Verdict
from actonce.evidence.writer import EvidenceWriter

__all__ = [
    "Cell",
    "Drill",
    "EvidenceError",
    "EvidenceWriter",
    "Expected",
    "Fault",
    "Judged",
    "LeftOut",
    "Line",
    "PlannedOperation",
    "PlannedTask",
    "Verdict",
    "journal_events",
    "judge",
    "judge_single",
    "verify",
    "write_verdict",
]
